//! The file system as the store sees it: a dozen operations, all by names relative to one root.
//!
//! [`LocalStore`](super::LocalStore) reaches the disk through this trait only, so that a simulator can record every
//! operation and replay a crash between any two of them, and a test can make the disk full. [`DiskFs`](super::DiskFs) is
//! the real one. Names are checked by the store before they come here; `""` is the root itself.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

/// What a name in a directory stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link, where links are not followed.
    Symlink,
    /// A device, a pipe or a socket: never opened.
    Other,
}

/// What the file system knows about a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileStat {
    /// What it is.
    pub kind: FileKind,
    /// Its length in bytes.
    pub size: u64,
    /// When it was last written, by the clock of the file system.
    pub modified: SystemTime,
    /// Which file it is, among those of one file system.
    pub inode: u64,
    /// How many names it has.
    pub links: u64,
}

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The last segment of the name.
    pub name: String,
    /// What it stands for.
    pub kind: FileKind,
}

/// A tree of files below one root. See the module for what the names mean.
///
/// The errors are those of the system, unclassified.
pub trait Fs: fmt::Debug + Send + Sync + 'static {
    /// Opens a regular file to read it. Anything else is an error.
    ///
    /// # Errors
    /// What the system says.
    fn open(&self, path: &str) -> io::Result<Arc<dyn FsFile>>;

    /// Creates a file that must not exist, to write it.
    ///
    /// # Errors
    /// What the system says; `AlreadyExists` when the name is taken.
    fn create_new(&self, path: &str) -> io::Result<Arc<dyn FsFile>>;

    /// Gives the file `from` the additional name `to`, which must not exist.
    ///
    /// # Errors
    /// What the system says; `AlreadyExists` when the name is taken.
    fn link(&self, from: &str, to: &str) -> io::Result<()>;

    /// Renames `from` to `to`, replacing what is there.
    ///
    /// # Errors
    /// What the system says.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes the name of a file.
    ///
    /// # Errors
    /// What the system says.
    fn unlink(&self, path: &str) -> io::Result<()>;

    /// Makes one directory, whose parent must exist.
    ///
    /// # Errors
    /// What the system says; `AlreadyExists` when the name is taken.
    fn mkdir(&self, path: &str) -> io::Result<()>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// What the system says.
    fn rmdir(&self, path: &str) -> io::Result<()>;

    /// Makes the names in a directory durable.
    ///
    /// # Errors
    /// What the system says.
    fn fsync_dir(&self, path: &str) -> io::Result<()>;

    /// The names in a directory, in no order, without `.` and `..`, and without those that are not UTF-8.
    ///
    /// # Errors
    /// What the system says.
    fn read_dir(&self, path: &str) -> io::Result<Vec<DirEntry>>;

    /// What the system knows about a name.
    ///
    /// # Errors
    /// What the system says.
    fn stat(&self, path: &str) -> io::Result<FileStat>;
}

/// An open file. All of it can be called from several threads at once.
pub trait FsFile: fmt::Debug + Send + Sync + 'static {
    /// Reads some bytes at an offset; 0 means the end.
    ///
    /// # Errors
    /// What the system says.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes some bytes at an offset. They may still be on their way when this returns, and are seen by whoever reads this open file all the
    /// same.
    ///
    /// # Errors
    /// What the system says, of these bytes or of earlier ones: what becomes of them is told by a later call, [`Self::fsync`] at the latest.
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<usize>;

    /// Asks for the space of `size` bytes ahead of writing them. A file system that cannot do it says nothing.
    ///
    /// # Errors
    /// When the space is not there.
    fn reserve(&self, size: u64) -> io::Result<()>;

    /// Makes content and length durable, of everything that was written before.
    ///
    /// # Errors
    /// What the system says, of writes too that were on their way. After an error the content is unknown for good: a second call may succeed without cause.
    fn fsync(&self) -> io::Result<()>;

    /// What the system knows about the file.
    ///
    /// # Errors
    /// What the system says.
    fn stat(&self) -> io::Result<FileStat>;
}

/// Reads exactly `buf.len()` bytes, or as many as there are; returns how many.
pub(crate) fn read_full(file: &dyn FsFile, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset.saturating_add(done as u64)) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Writes all of `data`.
pub(crate) fn write_full(file: &dyn FsFile, data: &[u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while let Some(rest) = data.get(done..).filter(|rest| !rest.is_empty()) {
        match file.write_at(rest, offset.saturating_add(done as u64)) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => done += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
