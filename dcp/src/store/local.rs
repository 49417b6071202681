//! A folder as an object store: durable, create-only where asked, and never outside of its root.
//!
//! Guarantees, and what they rest on:
//! * What was put survives a crash of the machine once the call has returned: the file is synced before it gets its name, and
//!   the directory after, as is every directory above it that is new. A failure of that last sync is
//!   [`StoreError::NotDurable`], never a success.
//! * A reader sees an object whole or not at all. `PutMode::Create` gives the staged file its name by a hard link, which fails when
//!   the name is taken; a file system without hard links is refused, because anything weaker would let a half-written record be seen.
//!   `Overwrite` renames. `Update` is not implemented.
//! * No name leads out of the root or over a symbolic link (see [`Links`]).
//! * Unfinished files are called `.staging-<nonce>`, never listed, and removed by [`LocalStore::sweep`] when they are old by the file
//!   system's own clock.
//! * Large files go around the page cache where the file system takes that (see `disk`): nothing of the above depends on it.
//! * Listings are sorted by name. Names that are not UTF-8 or hold control characters cannot be objects, and are left out.
//!
//! The `async` functions of [`ObjectStore`](object_store::ObjectStore) do blocking I/O on the calling thread: this crate has no runtime of
//! its own. [`Root`](super::Root) calls the synchronous ones.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;

use super::blob::{BlobWriter, unfinished};
use super::coverage::Coverage;
use super::disk::{DiskFs, Links};
use super::error::{Result, StoreError};
use super::fs::{FileKind, FileStat, Fs, FsFile, read_full};
use super::name::{ObjectPath, check_path};
use super::nonce::{Nonces, OsNonces};
use super::open_files::OpenFiles;
use super::staging::{Staging, dir_of};

mod list;
mod object_store_impl;
mod tree;

pub use list::Listed;
pub(super) use object_store_impl::etag;
pub use tree::Node;

/// A folder as an object store. See the module for what it guarantees. Clones share it.
#[derive(Debug, Clone)]
pub struct LocalStore {
    pub(super) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) fs: Arc<dyn Fs>,
    pub(crate) nonces: Arc<dyn Nonces>,
    /// The folder, as it was named to us.
    name: String,
    /// Directories that exist and whose names are durable, all the way up.
    durable: Mutex<HashSet<String>>,
    open: OpenFiles,
    read_only: bool,
}

impl LocalStore {
    /// Opens an existing folder.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when it is not there, and what the system says.
    pub fn open(folder: &Path) -> Result<Self> {
        Self::open_with(folder, Links::Refuse)
    }

    /// Opens an existing folder that others wrote, to read it; links are followed, also out of it.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when it is not there, and what the system says.
    pub fn open_foreign(folder: &Path) -> Result<Self> {
        Self::open_with(folder, Links::Follow)
    }

    /// Opens a folder, and makes it and those above it, durably, where they are missing.
    ///
    /// # Errors
    /// What the system says.
    pub fn create(folder: &Path) -> Result<Self> {
        let name = folder.display().to_string();
        DiskFs::create_root(folder).map_err(|error| StoreError::from_io("create", &name, error))?;
        Self::open(folder)
    }

    /// A store over any file system; `name` is the folder's, for messages.
    pub fn over(fs: impl Fs, name: impl Into<String>, nonces: Arc<dyn Nonces>) -> Self {
        Self::new(Arc::new(fs), name.into(), nonces, false)
    }

    fn open_with(folder: &Path, links: Links) -> Result<Self> {
        let name = folder.display().to_string();
        let fs = DiskFs::open(folder, links).map_err(|error| StoreError::from_io("open", &name, error))?;
        Ok(Self::new(Arc::new(fs), name, Arc::new(OsNonces), links == Links::Follow))
    }

    fn new(fs: Arc<dyn Fs>, name: String, nonces: Arc<dyn Nonces>, read_only: bool) -> Self {
        let (durable, open) = (Mutex::default(), OpenFiles::default());
        Self { inner: Arc::new(Inner { fs, nonces, name, durable, open, read_only }) }
    }

    /// The folder, as it was named.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// What is known about an object.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::Refused`] for a link, and what the system says.
    pub fn stat(&self, path: &ObjectPath) -> Result<FileStat> {
        let path = check_path(path)?;
        let stat = self.inner.fs.stat(path).map_err(|error| self.inner.error("look up", path, error))?;
        match stat.kind {
            FileKind::File => Ok(stat),
            FileKind::Dir => Err(StoreError::NotFound { path: self.inner.full(path) }),
            FileKind::Symlink => Err(self.inner.error("look up", path, Errno::LOOP.into())),
            FileKind::Other => Err(self.inner.refused(path, "it is a device, a pipe or a socket")),
        }
    }

    /// Opens an object, afresh.
    pub(super) fn open_file(&self, path: &ObjectPath) -> Result<Arc<dyn FsFile>> {
        let path = check_path(path)?;
        self.inner.fs.open(path).map_err(|error| self.inner.error("open", path, error))
    }

    /// Reads exactly `buf.len()` bytes at an offset, straight into `buf`, through a cache of open files.
    ///
    /// # Errors
    /// [`StoreError::OutOfRange`] when the object ends before, and what the system says.
    pub fn read_exact_at(&self, path: &ObjectPath, offset: u64, buf: &mut [u8]) -> Result<()> {
        let name = check_path(path)?;
        let file = self.inner.open.get(name, || self.open_file(path))?;
        let read = match read_full(file.as_ref(), buf, offset) {
            // An NFS server may forget a file that is open; its name may still be good.
            Err(error) if error.raw_os_error() == Some(Errno::STALE.raw_os_error()) => {
                self.inner.open.forget(name);
                read_full(self.open_file(path)?.as_ref(), buf, offset)
            }
            other => other,
        };
        match read.map_err(|error| self.inner.error("read", name, error))? {
            n if n == buf.len() => Ok(()),
            _ => Err(self.inner.out_of_range(name, offset, buf.len(), file.as_ref())),
        }
    }

    /// The length of an object, through the cache of open files.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], and what the system says.
    pub fn size(&self, path: &ObjectPath) -> Result<u64> {
        let name = check_path(path)?;
        let file = self.inner.open.get(name, || self.open_file(path))?;
        file.stat().map(|stat| stat.size).map_err(|error| self.inner.error("look up", name, error))
    }

    /// Creates an object, durably, whose name must be free.
    ///
    /// # Errors
    /// [`StoreError::AlreadyExists`] when it is not; [`StoreError::NotDurable`] when the system would not confirm; and what it says.
    pub fn put_new<'d>(&self, path: &ObjectPath, data: impl IntoIterator<Item = &'d [u8]>) -> Result<()> {
        let name = check_path(path)?;
        // Only a shortcut: who is first is decided by the link.
        if self.inner.fs.stat(name).is_ok() {
            return Err(StoreError::AlreadyExists { path: self.inner.full(name) });
        }
        self.staged(name, data)?.publish_new()
    }

    /// Writes an object, durably, in place of what is there.
    ///
    /// # Errors
    /// [`StoreError::NotDurable`] when the system would not confirm; and what it says.
    pub fn put_over<'d>(&self, path: &ObjectPath, data: impl IntoIterator<Item = &'d [u8]>) -> Result<()> {
        let name = check_path(path)?;
        let published = self.staged(name, data)?.publish_over();
        // Not before: a reader that opened it in between would have the old one kept open.
        self.inner.open.forget(name);
        published
    }

    fn staged<'d>(&self, name: &str, data: impl IntoIterator<Item = &'d [u8]>) -> Result<Staging> {
        self.inner.writable(name)?;
        let staging = Staging::begin(&self.inner, name)?;
        let mut offset = 0_u64;
        for piece in data {
            staging.write_at(piece, offset)?;
            offset += piece.len() as u64;
        }
        Ok(staging)
    }

    /// Begins a blob.
    ///
    /// # Errors
    /// [`StoreError::AlreadyExists`] when the name is taken, [`StoreError::NoSpace`] when the space is not there; and what the system says.
    pub fn blob(&self, path: &ObjectPath, size: u64) -> Result<Box<dyn BlobWriter>> {
        self.begin_blob(path, size, true)
    }

    /// Begins a blob of at most `most` bytes, to be finished by [`BlobWriter::finish_at`]. No space is asked for ahead.
    ///
    /// # Errors
    /// As [`Self::blob`].
    pub fn blob_up_to(&self, path: &ObjectPath, most: u64) -> Result<Box<dyn BlobWriter>> {
        self.begin_blob(path, most, false)
    }

    fn begin_blob(&self, path: &ObjectPath, size: u64, reserve: bool) -> Result<Box<dyn BlobWriter>> {
        let name = check_path(path)?;
        self.inner.writable(name)?;
        if self.inner.fs.stat(name).is_ok() {
            return Err(StoreError::AlreadyExists { path: self.inner.full(name) });
        }
        let staging = Staging::begin(&self.inner, name)?;
        if reserve {
            staging.reserve(size)?;
        }
        Ok(Box::new(LocalBlob {
            store: Arc::clone(&self.inner),
            staging,
            coverage: Mutex::new(Coverage::new(size)),
            failed: AtomicBool::new(false),
        }))
    }

    /// Makes an object durable that is visible already: after a lost answer, nobody knows whether it is.
    ///
    /// # Errors
    /// [`StoreError::NotDurable`] when the system would not confirm, and what it says.
    pub fn settle(&self, path: &ObjectPath) -> Result<()> {
        let name = check_path(path)?;
        let file = self.open_file(path)?;
        let not_durable =
            |error: io::Error| StoreError::NotDurable { path: self.inner.full(name), source: error.into() };
        file.fsync().map_err(not_durable)?;
        let mut dir = name;
        while !dir.is_empty() {
            dir = dir_of(dir);
            self.inner.fs.fsync_dir(dir).map_err(not_durable)?;
        }
        Ok(())
    }

    /// Removes an object. Its return after a crash would harm nobody, so this is not made durable.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], and what the system says.
    pub fn remove(&self, path: &ObjectPath) -> Result<()> {
        let name = check_path(path)?;
        self.inner.writable(name)?;
        self.stat(path)?;
        self.unlink(name).map_err(|error| self.inner.error("delete", name, error))
    }

    fn unlink(&self, name: &str) -> io::Result<()> {
        // Before, because NFS keeps a file under another name while it is open here; and after, because of readers in between.
        self.inner.open.forget(name);
        let removed = self.inner.fs.unlink(name);
        self.inner.open.forget(name);
        removed
    }

    /// Removes everything below a directory, unfinished files included, and the directory; returns the bytes that its files had. What is
    /// gone already is no error, so that this can be stopped and done again.
    ///
    /// # Errors
    /// What the system says.
    pub fn remove_all(&self, dir: &ObjectPath) -> Result<u64> {
        let name = check_path(dir)?;
        self.inner.writable(name)?;
        let (mut files, mut dirs) = (Vec::new(), vec![name.to_owned()]);
        self.walk(name, &mut |path, _, kind| {
            if kind == FileKind::Dir { &mut dirs } else { &mut files }.push(path.to_owned());
        })?;
        let gone = |path: &str, removed: io::Result<()>| match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(self.inner.error("delete", path, error))
            }
            _ => Ok(()),
        };
        let mut bytes = 0_u64;
        for path in &files {
            bytes += self.inner.fs.stat(path).map_or(0, |stat| stat.size);
            gone(path, self.unlink(path))?;
        }
        // A directory comes before those in it.
        for path in dirs.iter().rev() {
            self.inner.forget_dir(path);
            gone(path, self.inner.fs.rmdir(path))?;
        }
        Ok(bytes)
    }

    /// Removes unfinished files, and probes that were stopped, that nobody has written to for `older_than`, by the clock of the file
    /// system; returns how many.
    ///
    /// A file of a live writer that is removed all the same costs that writer its blob (an error), never anyone a wrong one.
    ///
    /// # Errors
    /// What the system says.
    pub fn sweep(&self, older_than: Duration) -> Result<u64> {
        self.inner.writable("")?;
        let probe = Staging::begin(&self.inner, "sweep")?;
        let now = self
            .inner
            .fs
            .stat(probe.path())
            .map_err(|error| self.inner.error("look up", probe.path(), error))?;
        let mut removed = 0;
        for path in self.unfinished()? {
            let Ok(stat) = self.inner.fs.stat(&path) else { continue };
            let age = now.modified.duration_since(stat.modified).unwrap_or_default();
            if path != probe.path() && stat.kind == FileKind::File && age >= older_than {
                removed += u64::from(self.inner.fs.unlink(&path).is_ok());
            }
        }
        Ok(removed)
    }
}

impl fmt::Display for LocalStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LocalStore({})", self.inner.name)
    }
}

impl Inner {
    fn durable(&self) -> MutexGuard<'_, HashSet<String>> {
        self.durable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a directory, those above it included, and their names durable. What is there may be someone else's and new, so its name
    /// is synced too, once.
    pub(crate) fn ensure_dir(&self, dir: &str) -> Result<()> {
        if dir.is_empty() || self.durable().contains(dir) {
            return Ok(());
        }
        let above = dir_of(dir);
        self.ensure_dir(above)?;
        match self.fs.mkdir(dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                self.forget_dir(above);
                return Err(self.error("make the directory of", dir, error));
            }
            _ => {}
        }
        self.fs.fsync_dir(above).map_err(|error| self.error("make durable", dir, error))?;
        self.durable().insert(dir.to_owned());
        Ok(())
    }

    /// Forgets what is known about a directory and those above it.
    pub(crate) fn forget_dir(&self, dir: &str) {
        let mut durable = self.durable();
        let mut dir = dir;
        while !dir.is_empty() {
            durable.remove(dir);
            dir = dir_of(dir);
        }
    }

    /// The name of an object with that of the root, for messages.
    pub(crate) fn full(&self, path: &str) -> String {
        format!("{}/{path}", self.name.trim_end_matches('/'))
    }

    pub(crate) fn error(&self, op: &'static str, path: &str, error: io::Error) -> StoreError {
        StoreError::from_io(op, &self.full(path), error)
    }

    fn refused(&self, path: &str, reason: &str) -> StoreError {
        StoreError::Refused { path: self.full(path), reason: reason.to_owned() }
    }

    fn writable(&self, path: &str) -> Result<()> {
        let read_only =
            || self.refused(path, "this folder is open for reading only, because links are followed in it");
        if self.read_only { Err(read_only()) } else { Ok(()) }
    }

    /// A link that failed: either the name is taken, or the file system has no links, which must not be papered over.
    pub(crate) fn link_error(&self, target: &str, error: io::Error) -> StoreError {
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::XDEV | Errno::MLINK) => {
                StoreError::Unsupported {
                    what: format!("{}: creating it only if it is not there", self.full(target)),
                    reason: format!(
                        "the file system has no hard links here ({error}); use a folder on one that has"
                    ),
                }
            }
            _ => self.error("create", target, error),
        }
    }

    fn out_of_range(&self, path: &str, offset: u64, len: usize, file: &dyn FsFile) -> StoreError {
        let range = offset..offset.saturating_add(len as u64);
        match file.stat() {
            Ok(stat) => StoreError::OutOfRange { path: self.full(path), range, size: stat.size },
            Err(error) => self.error("look up", path, error),
        }
    }
}

/// A blob of a folder.
#[derive(Debug)]
struct LocalBlob {
    store: Arc<Inner>,
    staging: Staging,
    coverage: Mutex<Coverage>,
    /// Whether a write failed, so that bytes which were claimed are not there.
    failed: AtomicBool,
}

impl BlobWriter for LocalBlob {
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let range = offset..offset.saturating_add(data.len() as u64);
        let claimed = self.coverage.lock().unwrap_or_else(PoisonError::into_inner).claim(&range);
        claimed.map_err(|why| StoreError::BadWrite {
            path: self.store.full(self.staging.target()),
            range,
            why,
        })?;
        let written = self.staging.write_at(data, offset);
        self.failed.fetch_or(written.is_err(), Ordering::Relaxed);
        written
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let size = self.coverage.lock().unwrap_or_else(PoisonError::into_inner).size();
        self.finish_at(size)
    }

    fn finish_at(self: Box<Self>, size: u64) -> Result<()> {
        let coverage = self.coverage.lock().unwrap_or_else(PoisonError::into_inner);
        if !coverage.is_exactly(size) {
            let range = coverage.gap().unwrap_or(size..size);
            return Err(StoreError::Gap { path: self.store.full(self.staging.target()), range });
        }
        drop(coverage);
        if self.failed.into_inner() {
            return Err(unfinished(&self.store.full(self.staging.target())));
        }
        // Space that was asked for ahead is there, and would be read as zeros.
        let there = self.staging.len()?;
        if there != size {
            let path = self.store.full(self.staging.target());
            return Err(StoreError::Gap { path, range: size.min(there)..size.max(there) });
        }
        self.staging.publish_new()
    }

    fn abort(self: Box<Self>) {}
}

#[cfg(test)]
mod tests;
