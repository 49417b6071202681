//! The files of a foreign checkpoint, opened when they are first read.
//!
//! Invariants: a file is a regular file (a pipe would block, a device would lie) and is never written; a handle
//! stays open once it was used, up to a bound, so that checkpoints of many thousands of files can be read by a
//! process that may open a thousand.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use crate::{
    Error, FileEntry, FileId, Location, Place, Result,
    digest::Sha256Hasher,
    formats::native::nanoseconds,
    read_at::{FileAt, ReadAt},
};

/// Handles kept open at once, of the 1,024 that a process usually may have.
const KEPT_OPEN: usize = 512;

/// Files of one checkpoint, by their position in its catalog.
#[derive(Debug, Default)]
pub(crate) struct Blobs {
    files: Vec<Blob>,
    open: AtomicUsize,
}

#[derive(Debug)]
struct Blob {
    path: PathBuf,
    shown: String,
    handle: OnceLock<Arc<FileAt>>,
}

impl Blobs {
    /// Adds the file at `path`, shown as `shown`; its position is the [`FileId`].
    ///
    /// # Errors
    /// More than 2^32 files.
    pub(crate) fn add(&mut self, path: PathBuf, shown: String) -> Result<FileId> {
        let id = u32::try_from(self.files.len()).map_err(|_| Error::unsupported("more than 2^32 files"))?;
        self.files.push(Blob { path, shown, handle: OnceLock::new() });
        Ok(FileId(id))
    }

    fn blob(&self, file: FileId) -> Result<&Blob> {
        let found = usize::try_from(file.0).ok().and_then(|at| self.files.get(at));
        found.ok_or_else(|| Error::internal(format!("file {} of {}", file.0, self.files.len())))
    }

    /// Opens a file, or takes the handle that is open.
    ///
    /// # Errors
    /// The file's name, and what the system says.
    pub(crate) fn open(&self, file: FileId) -> Result<Arc<FileAt>> {
        let blob = self.blob(file)?;
        if let Some(open) = blob.handle.get() {
            return Ok(Arc::clone(open));
        }
        let fresh = Arc::new(open_regular(&blob.path).place(&blob.shown)?);
        if self.open.fetch_add(1, Ordering::Relaxed) < KEPT_OPEN {
            return Ok(Arc::clone(blob.handle.get_or_init(|| fresh)));
        }
        self.open.fetch_sub(1, Ordering::Relaxed);
        Ok(fresh)
    }

    /// A digest of names, sizes and times of modification of all files.
    ///
    /// # Errors
    /// The file's name, and what the system says.
    pub(crate) fn stamp(&self) -> Result<String> {
        let mut hasher = Sha256Hasher::new();
        for blob in &self.files {
            let seen = fs::metadata(&blob.path).place(&blob.shown)?;
            let modified = seen.modified().ok().and_then(nanoseconds);
            hasher.update(format!("{:?} {} {modified:?}\n", blob.shown, seen.len()).as_bytes());
        }
        Ok(hasher.finish().to_string())
    }

    /// Reads by position.
    ///
    /// # Errors
    /// The file's name, and what the system says.
    pub(crate) fn read_exact_at(&self, file: FileId, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.open(file)?.read_exact_at(offset, buf).map_err(Error::from)
    }
}

/// Opens a regular file without ever waiting for one that is none.
pub(crate) fn open_regular(path: &Path) -> io::Result<FileAt> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a regular file"));
    }
    FileAt::open(path)
}

/// Reads a small file whole.
///
/// # Errors
/// `Corrupt` when it is larger than `most` bytes; what the system says.
pub(crate) fn read_small(path: &Path, shown: &str, most: u64) -> Result<Vec<u8>> {
    let file = open_regular(path).place(shown)?;
    if file.len() > most {
        return Err(Error::corrupt(format!(
            "{shown}: {} bytes, more than the {most} that such a file may have",
            file.len()
        )));
    }
    let mut bytes =
        vec![0; usize::try_from(file.len()).map_err(|_| Error::unsupported("file larger than memory"))?];
    file.read_exact_at(0, &mut bytes)?;
    Ok(bytes)
}

/// The catalog's entry of a file of `size` bytes in the checkpoint's own folder.
pub(crate) fn entry(path: String, size: u64) -> FileEntry {
    FileEntry { path, location: Location::InStep, size, logical: None, blocks: None }
}
