//! [`Target`]: a file that is open twice, through the page cache and around it.
//!
//! Two descriptors of one file agree on Linux: what goes around the cache first writes back, then drops what the cache has of its range.
//! What they may not do is touch one page at the same time, and they do not (see [`block`](super::block)); nor does a file have two
//! writers here. Where the system refuses a write that goes around the cache, it goes through it, and so do all later ones.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{self as sys, OFlags};
use rustix::io::Errno;

use super::block::{Block, GRAIN, Piece};
use super::flusher::Out;
use super::pool::ALIGNMENT;
use super::tree::Tree;

/// A file to write.
#[derive(Debug)]
pub(super) struct Target {
    through: Arc<File>,
    around: File,
    /// Whether the system turned out not to take writes that go around the cache.
    is_refused: AtomicBool,
}

impl Target {
    /// Opens a file a second time. None where its file system does not say that it can be written so, or where the name is another file's.
    #[cfg(target_os = "linux")]
    pub(super) fn open(tree: &Tree, path: &str, through: &Arc<File>) -> Option<Self> {
        if !takes_blocks(alignment(through), sys::fstatfs(through).ok().map(|it| magic(&it))) {
            return None;
        }
        let around = tree.at(path, OFlags::WRONLY | OFlags::DIRECT).ok()?;
        let (one, other) = (sys::fstat(through).ok()?, sys::fstat(&around).ok()?);
        let is_same = (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino);
        is_same.then(|| Self::new(through, File::from(around)))
    }

    /// There is no such thing elsewhere.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn open(_: &Tree, _: &str, _: &Arc<File>) -> Option<Self> {
        None
    }

    fn new(through: &Arc<File>, around: File) -> Self {
        Self { through: Arc::clone(through), around, is_refused: AtomicBool::new(false) }
    }

    /// Writes as much as the system takes around the cache; returns how much that is.
    fn around(&self, piece: &Piece<'_>) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = piece.bytes.get(done..).filter(|rest| !rest.is_empty()) {
            match self.around.write_at(rest, piece.offset.saturating_add(done as u64)) {
                Ok(written) => {
                    done += written;
                    // A disk that is full, or a limit: the other way finds out what is wrong.
                    if written == 0 || !written.is_multiple_of(GRAIN) {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_refusal(&error) => {
                    self.is_refused.store(true, Ordering::Relaxed);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }
}

impl Out for Target {
    fn write(&self, block: &Block) -> io::Result<()> {
        for piece in block.pieces() {
            let is_direct = piece.is_aligned && !self.is_refused.load(Ordering::Relaxed);
            let done = if is_direct { self.around(&piece)? } else { 0 };
            let rest = piece.bytes.get(done..).unwrap_or_default();
            self.write_through(rest, piece.offset.saturating_add(done as u64))?;
        }
        Ok(())
    }

    fn write_through(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.through.write_all_at(bytes, offset)
    }
}

/// Whether the system means "not so", rather than "not at all".
fn is_refusal(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(code, Some(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS))
}

/// What the system says that memory and offsets must be multiples of, 0 for "not at all". None where it does not say (before Linux 6.1).
#[cfg(target_os = "linux")]
fn alignment(file: &File) -> Option<(u32, u32)> {
    let wanted = sys::StatxFlags::DIOALIGN;
    let told = sys::statx(file, "", sys::AtFlags::EMPTY_PATH, wanted).ok()?;
    (told.stx_mask & wanted.bits() != 0).then_some((told.stx_dio_mem_align, told.stx_dio_offset_align))
}

/// The number by which a kind of file system is known; its width and sign differ from machine to machine.
#[cfg(target_os = "linux")]
fn magic(told: &sys::StatFs) -> u64 {
    u64::try_from(i128::from(told.f_type) & 0xffff_ffff).unwrap_or(0)
}

/// Those that always could, on every kernel: ext4 and XFS.
const ALWAYS: [u64; 2] = [0xef53, 0x5846_5342];

/// Whether blocks as they are here can be written around the cache. A file system in memory takes such writes too, and copies all the same:
/// it does not say what it wants them aligned to.
fn takes_blocks(told: Option<(u32, u32)>, magic: Option<u64>) -> bool {
    let divides = |part: u32, whole: usize| part > 0 && whole.is_multiple_of(part as usize);
    match told {
        Some((memory, offset)) => divides(memory, ALIGNMENT) && divides(offset, GRAIN),
        None => magic.is_some_and(|magic| ALWAYS.contains(&magic)),
    }
}

#[cfg(test)]
mod tests;
