//! The real file system, opened beneath one directory.
//!
//! No name leads out of the root: on Linux the kernel resolves beneath it and without links (`openat2`); where it cannot,
//! the segments are opened one after the other, each without following links. Foreign folders that are only read may ask
//! for links to be followed ([`Links::Follow`]), because caches of model hubs consist of links.
//!
//! This is the only module of the crate that touches the file system.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use rustix::fs::{self as sys, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::fs::{DirEntry, FileKind, FileStat, Fs, FsFile};

/// Whether names may lead over symbolic links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Links {
    /// A link anywhere in a name is refused. What the native store asks for.
    Refuse,
    /// Links are followed, also out of the root. Only for reading folders that others wrote.
    Follow,
}

/// The real file system beneath one directory.
#[derive(Debug)]
pub struct DiskFs {
    root: OwnedFd,
    links: Links,
    /// Whether the kernel has turned out not to know `openat2`.
    walk: AtomicBool,
}

impl DiskFs {
    /// The tree below an existing directory.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(root: &Path, links: Links) -> io::Result<Self> {
        let root = sys::open(root, DIR, Mode::empty())?;
        Ok(Self { root, links, walk: AtomicBool::new(false) })
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

    /// Opens any name beneath the root.
    fn at(&self, path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC;
        let path = if path.is_empty() { "." } else { path };
        if self.links == Links::Follow {
            return sys::openat(&self.root, path, flags, FILE_MODE);
        }
        #[cfg(target_os = "linux")]
        if !self.walk.load(Ordering::Relaxed) {
            match beneath(&self.root, path, flags) {
                Err(Errno::NOSYS) => self.walk.store(true, Ordering::Relaxed),
                // Old sandboxes answer so to calls that they do not know; the walk finds out whether it is meant.
                Err(Errno::PERM) => {}
                other => return other,
            }
        }
        walk(&self.root, path, flags)
    }

    /// The directory that holds a name, and its last segment.
    fn parent<'p>(&self, path: &'p str) -> rustix::io::Result<(OwnedFd, &'p str)> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.at(dir, DIR)?, name))
    }

    fn stat_flags(&self) -> AtFlags {
        if self.links == Links::Follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW }
    }

    fn kind_of(&self, dir: &OwnedFd, name: &std::ffi::CStr, kind: sys::FileType) -> FileKind {
        let unclear =
            kind == sys::FileType::Unknown || (kind == sys::FileType::Symlink && self.links == Links::Follow);
        let kind = if unclear {
            sys::statat(dir, name, self.stat_flags())
                .map_or(kind, |stat| sys::FileType::from_raw_mode(stat.st_mode))
        } else {
            kind
        };
        file_kind(kind)
    }
}

const DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const FILE_MODE: Mode = Mode::from_raw_mode(0o666);
/// A pipe must not block its reader, and a terminal must not become ours.
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
const CREATE: OFlags = OFlags::RDWR.union(OFlags::CREATE).union(OFlags::EXCL);

#[cfg(target_os = "linux")]
fn beneath(root: &OwnedFd, path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    use sys::ResolveFlags as R;
    let resolve = R::BENEATH | R::NO_SYMLINKS | R::NO_MAGICLINKS;
    let mode = if flags.contains(OFlags::CREATE) { FILE_MODE } else { Mode::empty() };
    // The kernel asks for another try when a rename elsewhere raced with the resolution.
    let tries = (0..64).map(|_| sys::openat2(root, path, flags, mode, resolve));
    let mut tries = tries.skip_while(|result| matches!(result, Err(Errno::AGAIN | Errno::INTR)));
    tries.next().unwrap_or(Err(Errno::AGAIN))
}

/// Opens segment by segment, never following a link.
fn walk(root: &OwnedFd, path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let mut dir: Option<OwnedFd> = None;
    let mut segments = path.split('/').peekable();
    while let Some(segment) = segments.next() {
        if segment == ".." {
            return Err(Errno::XDEV);
        }
        let last = segments.peek().is_none();
        let how = if last { flags } else { DIR };
        let at = dir.as_ref().unwrap_or(root);
        let next = sys::openat(at, segment, how | OFlags::NOFOLLOW, FILE_MODE)
            .map_err(|error| name_link(at, segment, error))?;
        if last {
            return Ok(next);
        }
        dir = Some(next);
    }
    Err(Errno::NOENT)
}

/// A link where a directory is wanted is reported as "not a directory"; say what it is.
fn name_link(dir: &OwnedFd, segment: &str, error: Errno) -> Errno {
    let link = || {
        sys::statat(dir, segment, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|s| sys::FileType::from_raw_mode(s.st_mode).is_symlink())
    };
    if error == Errno::NOTDIR && link() { Errno::LOOP } else { error }
}

fn sync_parent(path: &Path) -> io::Result<()> {
    let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::from(sys::open(above, DIR, Mode::empty())?).sync_all()
}

impl Fs for DiskFs {
    fn open(&self, path: &str) -> io::Result<Arc<dyn FsFile>> {
        let file = DiskFile(File::from(self.at(path, READ)?));
        match file.stat()?.kind {
            FileKind::File => Ok(Arc::new(file)),
            // A directory is not an object, just as a prefix is none in a bucket.
            FileKind::Dir => Err(io::ErrorKind::NotFound.into()),
            _ => Err(io::Error::other("it is a device, a pipe or a socket, not a file")),
        }
    }

    fn create_new(&self, path: &str) -> io::Result<Arc<dyn FsFile>> {
        Ok(Arc::new(DiskFile(File::from(self.at(path, CREATE)?))))
    }

    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        let ((from_dir, from), (to_dir, to)) = (self.parent(from)?, self.parent(to)?);
        Ok(sys::linkat(&from_dir, from, &to_dir, to, AtFlags::empty())?)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let ((from_dir, from), (to_dir, to)) = (self.parent(from)?, self.parent(to)?);
        Ok(sys::renameat(&from_dir, from, &to_dir, to)?)
    }

    fn unlink(&self, path: &str) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        Ok(sys::unlinkat(&dir, name, AtFlags::empty())?)
    }

    fn mkdir(&self, path: &str) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        Ok(sys::mkdirat(&dir, name, Mode::from_raw_mode(0o777))?)
    }

    fn rmdir(&self, path: &str) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        Ok(sys::unlinkat(&dir, name, AtFlags::REMOVEDIR)?)
    }

    fn fsync_dir(&self, path: &str) -> io::Result<()> {
        File::from(self.at(path, DIR)?).sync_all()
    }

    fn read_dir(&self, path: &str) -> io::Result<Vec<DirEntry>> {
        let dir = self.at(path, DIR)?;
        let mut entries = Vec::new();
        for entry in sys::Dir::read_from(&dir)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if name != "." && name != ".." {
                let kind = self.kind_of(&dir, entry.file_name(), entry.file_type());
                entries.push(DirEntry { name: name.to_owned(), kind });
            }
        }
        Ok(entries)
    }

    fn stat(&self, path: &str) -> io::Result<FileStat> {
        let (dir, name) = self.parent(path)?;
        let name = if name.is_empty() { "." } else { name };
        Ok(file_stat(&sys::statat(&dir, name, self.stat_flags())?))
    }
}

/// An open file of the real file system.
#[derive(Debug)]
struct DiskFile(File);

impl FsFile for DiskFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buf, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<usize> {
        self.0.write_at(data, offset)
    }

    fn reserve(&self, size: u64) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        if size > 0
            && let Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) =
                sys::fallocate(&self.0, sys::FallocateFlags::empty(), 0, size)
        {
            return Err(error.into());
        }
        Ok(())
    }

    fn fsync(&self) -> io::Result<()> {
        self.0.sync_all()
    }

    fn stat(&self) -> io::Result<FileStat> {
        Ok(file_stat(&sys::fstat(&self.0)?))
    }
}

fn file_kind(kind: sys::FileType) -> FileKind {
    match kind {
        sys::FileType::RegularFile => FileKind::File,
        sys::FileType::Directory => FileKind::Dir,
        sys::FileType::Symlink => FileKind::Symlink,
        _ => FileKind::Other,
    }
}

/// The types of these fields differ from system to system, hence the conversions.
fn file_stat(stat: &sys::Stat) -> FileStat {
    FileStat {
        kind: file_kind(sys::FileType::from_raw_mode(stat.st_mode)),
        size: u64::try_from(stat.st_size).unwrap_or(0),
        modified: time(stat.st_mtime, stat.st_mtime_nsec),
        inode: wide(stat.st_ino),
        links: wide(stat.st_nlink),
    }
}

fn wide(value: impl Into<u64>) -> u64 {
    value.into()
}

fn time(seconds: impl Into<i64>, nanos: impl TryInto<u32>) -> SystemTime {
    let (seconds, nanos) = (seconds.into(), Duration::from_nanos(u64::from(nanos.try_into().unwrap_or(0))));
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let time = if seconds < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(whole)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(whole)
    };
    time.and_then(|time| time.checked_add(nanos)).unwrap_or(SystemTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests;
