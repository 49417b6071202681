//! What a crash may leave of one file's bytes.

use super::live::{lengthen, overwrite};
use super::tree::Content;
use super::turns::mixed;

/// What is written back at once.
const PAGE: usize = 4096;
/// What is written whole or not at all.
const SECTOR: usize = 512;
/// Stands for what blocks held before they belonged to the file.
const STALE: u8 = 0xa5;

/// The variants that are tried where all combinations are: the telling ones, and one that is drawn.
pub(super) const VARIANTS: u64 = 10;
/// What is durable, and nothing else.
pub(super) const DURABLE: u64 = 0;
/// Everything that was written.
pub(super) const LATEST: u64 = 1;
/// The new length, with zeros.
pub(super) const ZEROS: u64 = 2;
/// The new length, with what the blocks held before.
pub(super) const GARBAGE: u64 = 3;
/// Only the first sector of each page.
pub(super) const TORN: u64 = 7;

/// A change that is not durable.
#[derive(Debug, Clone)]
pub(super) enum Change {
    Write { offset: u64, data: std::sync::Arc<[u8]> },
    Reserve(u64),
}

/// One file: what is durable, and what was written since.
#[derive(Debug, Clone, Default)]
pub(super) struct FileSlot {
    pub(super) durable: Content,
    pub(super) pending: Vec<Change>,
    pub(super) modified: u64,
}

impl FileSlot {
    /// The content after the first so many of the changes.
    fn after(&self, changes: usize) -> Vec<u8> {
        let mut data = self.durable.bytes().to_vec();
        for change in self.pending.iter().take(changes) {
            // The same calls worked when they were made.
            drop(match change {
                Change::Write { offset, data: written } => overwrite(&mut data, *offset, written),
                Change::Reserve(size) => lengthen(&mut data, *size),
            });
        }
        data
    }

    fn latest(&self) -> Vec<u8> {
        self.after(self.pending.len())
    }

    pub(super) fn sync(&mut self) {
        if !self.pending.is_empty() {
            self.durable = Content::new(self.latest());
            self.pending.clear();
        }
    }

    /// One of the contents that a crash may leave: see the constants; from [`VARIANTS`]` - 1` on they are drawn.
    pub(super) fn content(&self, variant: u64) -> Content {
        if self.pending.is_empty() || variant == DURABLE {
            return self.durable.clone();
        }
        let (old, new) = (self.durable.bytes(), self.latest());
        let with_length = |fill: u8| {
            let mut bytes = old.to_vec();
            bytes.resize(new.len(), fill);
            bytes
        };
        Content::new(match variant {
            LATEST => new,
            ZEROS => with_length(0),
            GARBAGE => with_length(STALE),
            4 => new.into_iter().take(old.len()).collect(),
            5 => {
                let half = (new.len() / 2).next_multiple_of(PAGE);
                mixture(&with_length(0), &new, |at| at < half)
            }
            6 => mixture(&with_length(STALE), &new, |at| at >= PAGE),
            TORN => mixture(&with_length(0), &new, |at| at % PAGE < SECTOR),
            8 => self.after(self.pending.len() / 2),
            seed => self.drawn(seed),
        })
    }

    /// Each page after some of the changes, torn or never written back, and any of the lengths.
    fn drawn(&self, seed: u64) -> Vec<u8> {
        let versions: Vec<Vec<u8>> = (0..=self.pending.len()).map(|changes| self.after(changes)).collect();
        let mut random = seed;
        let mut draw = |below: usize| {
            random = mixed(random);
            usize::try_from(random >> 16).unwrap_or(0).checked_rem(below).unwrap_or(0)
        };
        let len = versions.get(draw(versions.len())).map_or(0, Vec::len);
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let (page, older, newer) = (bytes.len(), draw(versions.len()), draw(versions.len()));
            let (cut, fill) = (draw(PAGE / SECTOR + 1) * SECTOR, if draw(2) == 0 { 0 } else { STALE });
            for at in page..len.min(page + PAGE) {
                let version = if at - page < cut { newer } else { older };
                bytes.push(versions.get(version).and_then(|it| it.get(at)).copied().unwrap_or(fill));
            }
        }
        bytes
    }
}

fn mixture(old: &[u8], new: &[u8], is_new: impl Fn(usize) -> bool) -> Vec<u8> {
    let each = old.iter().zip(new).enumerate();
    each.map(|(at, (old, new))| if is_new(at) { *new } else { *old }).collect()
}
