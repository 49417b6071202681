//! The real file system, opened beneath one directory.
//!
//! No name leads out of the root (see [`tree`]). Foreign folders that are only read may ask for links to be followed
//! ([`Links::Follow`]), because caches of model hubs consist of links.
//!
//! Large files are written around the page cache where the file system allows it: whoever saves a checkpoint does not read it again, and
//! copying it into the cache costs as much processor time as hashing it. What that means for whoever looks on: nothing. What it rests on:
//!
//! ```text
//!  write_at ─► Written ─► Gathered: 1 MiB blocks, of a Pool ─► Flusher: a thread while there are some ─► Target: O_DIRECT, or the cache
//!               small files                                                                              ▲ ragged ends, refusals
//!                   └────────────────────────────────── the cache ───────────────────────────────────────┘
//! ```
//!
//! This is the only module of the crate that touches the file system.

mod block;
mod flusher;
mod gathered;
mod pool;
mod stat;
mod target;
mod tree;
mod written;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{self as sys, AtFlags, Mode, OFlags};
use rustix::io::Errno;

pub use self::pool::{GATHERED, gather_at_most};
use self::stat::file_stat;
pub use self::tree::Links;
use self::tree::{DIR, Tree};
use self::written::Written;
use super::fs::{DirEntry, FileKind, FileStat, Fs, FsFile};

/// The real file system beneath one directory.
#[derive(Debug)]
pub struct DiskFs(Arc<Tree>);

impl DiskFs {
    /// The tree below an existing directory.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(root: &Path, links: Links) -> io::Result<Self> {
        Ok(Self(Arc::new(Tree::open(root, links)?)))
    }

    /// Makes the directory with those above it, durably, where they are missing.
    ///
    /// # Errors
    /// What the system says.
    pub fn create_root(root: &Path) -> io::Result<()> {
        let made = match sys::mkdir(root, Mode::from_raw_mode(0o777)) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(Errno::NOENT) => {
                let above = root.parent().filter(|above| !above.as_os_str().is_empty());
                Self::create_root(above.ok_or(io::ErrorKind::NotFound)?)?;
                sys::mkdir(root, Mode::from_raw_mode(0o777))
                    .or_else(|e| if e == Errno::EXIST { Ok(()) } else { Err(e) })?;
                true
            }
            Err(error) => return Err(error.into()),
        };
        let synced = sync_parent(root);
        // Someone else's directory may forbid being opened; then its owner answers for the name of the root in it.
        if made { synced } else { Ok(()) }
    }
}

/// A pipe must not block its reader, and a terminal must not become ours.
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
const CREATE: OFlags = OFlags::RDWR.union(OFlags::CREATE).union(OFlags::EXCL);

fn sync_parent(path: &Path) -> io::Result<()> {
    let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::from(sys::open(above, DIR, Mode::empty())?).sync_all()
}

impl Fs for DiskFs {
    fn open(&self, path: &str) -> io::Result<Arc<dyn FsFile>> {
        let file = Opened(File::from(self.0.at(path, READ)?));
        match file.stat()?.kind {
            FileKind::File => Ok(Arc::new(file)),
            // A directory is not an object, just as a prefix is none in a bucket.
            FileKind::Dir => Err(io::ErrorKind::NotFound.into()),
            _ => Err(io::Error::other("it is a device, a pipe or a socket, not a file")),
        }
    }

    fn create_new(&self, path: &str) -> io::Result<Arc<dyn FsFile>> {
        let file = File::from(self.0.at(path, CREATE)?);
        Ok(Arc::new(Written::new(file, &self.0, path)))
    }

    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        let ((from_dir, from), (to_dir, to)) = (self.0.parent(from)?, self.0.parent(to)?);
        Ok(sys::linkat(&from_dir, from, &to_dir, to, AtFlags::empty())?)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let ((from_dir, from), (to_dir, to)) = (self.0.parent(from)?, self.0.parent(to)?);
        Ok(sys::renameat(&from_dir, from, &to_dir, to)?)
    }

    fn unlink(&self, path: &str) -> io::Result<()> {
        let (dir, name) = self.0.parent(path)?;
        Ok(sys::unlinkat(&dir, name, AtFlags::empty())?)
    }

    fn mkdir(&self, path: &str) -> io::Result<()> {
        let (dir, name) = self.0.parent(path)?;
        Ok(sys::mkdirat(&dir, name, Mode::from_raw_mode(0o777))?)
    }

    fn rmdir(&self, path: &str) -> io::Result<()> {
        let (dir, name) = self.0.parent(path)?;
        Ok(sys::unlinkat(&dir, name, AtFlags::REMOVEDIR)?)
    }

    fn fsync_dir(&self, path: &str) -> io::Result<()> {
        File::from(self.0.at(path, DIR)?).sync_all()
    }

    fn read_dir(&self, path: &str) -> io::Result<Vec<DirEntry>> {
        let dir = self.0.at(path, DIR)?;
        let mut entries = Vec::new();
        for entry in sys::Dir::read_from(&dir)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if name != "." && name != ".." {
                let kind = self.0.kind_of(&dir, entry.file_name(), entry.file_type());
                entries.push(DirEntry { name: name.to_owned(), kind });
            }
        }
        Ok(entries)
    }

    fn stat(&self, path: &str) -> io::Result<FileStat> {
        let (dir, name) = self.0.parent(path)?;
        let name = if name.is_empty() { "." } else { name };
        Ok(file_stat(&sys::statat(&dir, name, self.0.stat_flags())?))
    }
}

/// A file that was there.
#[derive(Debug)]
struct Opened(File);

impl FsFile for Opened {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buf, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<usize> {
        self.0.write_at(data, offset)
    }

    /// It was opened for reading: nobody asks for more space in it.
    fn reserve(&self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn fsync(&self) -> io::Result<()> {
        self.0.sync_all()
    }

    fn stat(&self) -> io::Result<FileStat> {
        Ok(file_stat(&sys::fstat(&self.0)?))
    }
}

#[cfg(test)]
mod tests;
