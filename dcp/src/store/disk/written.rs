//! [`Written`]: a file that this process makes. A large one goes around the page cache.
//!
//! Invariants: reading, asking for the length and making durable see everything that was written before, by whatever way; a failure of a
//! write that was taken already is told by the next call, and by [`FsFile::fsync`] at the latest and every time.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::fs as sys;
#[cfg(target_os = "linux")]
use rustix::io::Errno;

use super::super::fs::{FileStat, FsFile};
use super::gathered::Gathered;
use super::pool::Pool;
use super::stat::file_stat;
use super::target::Target;
use super::tree::Tree;

/// Files of fewer bytes go through the page cache: a second descriptor and a thread are not worth it.
pub(super) const LARGE: u64 = 8 << 20;

/// A file that is written.
#[derive(Debug)]
pub(super) struct Written {
    file: Arc<File>,
    tree: Arc<Tree>,
    path: String,
    /// Bytes that were asked for ahead.
    reserved: AtomicU64,
    /// The way around the cache, once it was looked for.
    around: OnceLock<Option<Gathered<Target>>>,
}

impl Written {
    /// A file that was made at this name.
    pub(super) fn new(file: File, tree: &Arc<Tree>, path: &str) -> Self {
        let (file, tree, path) = (Arc::new(file), Arc::clone(tree), path.to_owned());
        Self { file, tree, path, reserved: AtomicU64::new(0), around: OnceLock::new() }
    }

    /// The way around the cache, if the file turns out to be large and its file system has one.
    fn around(&self, end: u64) -> Option<&Gathered<Target>> {
        if end.max(self.reserved.load(Ordering::Relaxed)) < LARGE {
            return self.begun();
        }
        let open = || Some(Gathered::new(Target::open(&self.tree, &self.path, &self.file)?, Pool::shared()));
        self.around.get_or_init(open).as_ref()
    }

    fn begun(&self) -> Option<&Gathered<Target>> {
        self.around.get().and_then(Option::as_ref)
    }

    fn settle(&self) -> io::Result<()> {
        self.begun().map_or(Ok(()), Gathered::settle)
    }
}

impl FsFile for Written {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.settle()?;
        self.file.read_at(buf, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<usize> {
        match self.around(offset.saturating_add(data.len() as u64)) {
            Some(around) => around.write(data, offset).map(|()| data.len()),
            None => self.file.write_at(data, offset),
        }
    }

    fn reserve(&self, size: u64) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        if size > 0
            && let Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) =
                sys::fallocate(&*self.file, sys::FallocateFlags::empty(), 0, size)
        {
            return Err(error.into());
        }
        self.reserved.fetch_max(size, Ordering::Relaxed);
        Ok(())
    }

    fn fsync(&self) -> io::Result<()> {
        self.settle()?;
        self.file.sync_all()
    }

    fn stat(&self) -> io::Result<FileStat> {
        self.settle()?;
        Ok(file_stat(&sys::fstat(&*self.file)?))
    }
}

#[cfg(test)]
mod tests;
