//! Whether files have the bytes that their catalog says, before anything is made of that size.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::Reader;
use crate::{FileId, Format, Result, crew};

/// Sizes up to this are taken from a manifest as they are: what is kept of each MiB is some hundred bytes at most.
const BELIEVED: u64 = 1 << 30;

impl Reader<'_> {
    /// Looks at large files whose size nothing but a manifest tells (adapters of other formats have seen their files): at the block
    /// table, which is in the store and as long as the file has blocks, or else at the last byte.
    ///
    /// # Errors
    /// `Corrupt` for a file that is smaller; what the source says.
    pub(crate) fn believe_sizes(&self, threads: usize) -> Result<()> {
        let catalog = self.source.catalog();
        if catalog.format != Format::Native {
            return Ok(());
        }
        let large = (0..).zip(&catalog.files).filter(|(_, entry)| entry.logical_size() > BELIEVED);
        let large: Vec<(FileId, u64)> = large.map(|(at, entry)| (FileId(at), entry.size)).collect();
        let next = AtomicUsize::new(0);
        crew::work(threads.min(large.len()), || {
            while let Some((file, size)) = large.get(next.fetch_add(1, Ordering::Relaxed)) {
                if !self.checks(*file)?.has_blocks() {
                    self.source.read_exact_at(*file, size.saturating_sub(1), &mut [0])?;
                }
            }
            Ok(())
        })
    }
}
