//! A folder of text files, read as one run of bytes.
//!
//! Invariants: files are in order of their relative paths (compared byte by byte), so the run is the same on every
//! machine; files are read where and when they are needed, so a folder may be larger than memory; a file that changed
//! while the run goes on is an error, not other data.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use crate::{Error, ErrorKind};

/// What can be wrong with training data.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A folder or file that can't be read.
    #[error("cannot read {path}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A path that is no folder.
    #[error("data.folder {0} is not a folder")]
    NoFolder(PathBuf),
    /// Names that can't be written down.
    #[error("{0} has a name that is not UTF-8")]
    Name(PathBuf),
    /// Too few bytes.
    #[error(
        "{folder} holds {bytes} bytes in {files} files, but training.seq_len={seq_len} needs at least {} for one sample",
        seq_len.saturating_add(1)
    )]
    TooShort {
        /// The folder.
        folder: PathBuf,
        /// All bytes.
        bytes: u64,
        /// How many files.
        files: usize,
        /// Tokens of a sample.
        seq_len: u64,
    },
    /// A file that has shrunk since the folder was listed.
    #[error("{path} ends before byte {at}: it changed while the run was reading it")]
    Changed {
        /// Which.
        path: PathBuf,
        /// The byte that is missing.
        at: u64,
    },
    /// A place outside the data.
    #[error("bytes {start}..{end} are outside the data, which has {bytes}")]
    Outside {
        /// First byte.
        start: u64,
        /// After the last.
        end: u64,
        /// All bytes.
        bytes: u64,
    },
    /// Other data than a checkpoint was trained on.
    #[error("the data is not what this run was trained on: {0}")]
    Differs(String),
}

impl From<DataError> for Error {
    fn from(error: DataError) -> Self {
        let hint = match &error {
            DataError::Read { .. } | DataError::NoFolder(_) => "give a folder of text files as data.folder",
            DataError::Name(_) => "rename the file",
            DataError::TooShort { .. } => "add text, or choose a smaller training.seq_len",
            DataError::Changed { .. } => {
                "leave the files alone while a run reads them; resume when they are whole again"
            }
            DataError::Outside { .. } => "this is a defect of the trainer; please report it",
            DataError::Differs(_) => {
                "put the data back as it was, or begin a new run with another checkpoint.run"
            }
        };
        let message = match &error {
            DataError::Read { source, .. } => format!("{error}: {source}"),
            _ => error.to_string(),
        };
        let kind = match &error {
            DataError::Read { source, .. } if source.kind() != io::ErrorKind::NotFound => ErrorKind::Io,
            DataError::Outside { .. } => ErrorKind::Internal,
            _ => ErrorKind::Data,
        };
        Self::new(kind, message).hint(hint).caused_by(error)
    }
}

/// A file and where its bytes stand in the run of all bytes.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) start: u64,
    pub(super) bytes: u64,
}

/// A folder of text files, read as one run of bytes.
#[derive(Debug)]
pub struct Corpus {
    folder: PathBuf,
    parts: Vec<Part>,
    bytes: u64,
    /// The file that was read last, since samples that are near each other come from one file.
    open: Mutex<Option<(usize, Arc<File>)>>,
}

impl Corpus {
    /// Lists the files of `folder` and its folders. Names that begin with a dot are left out; links to folders are not
    /// followed, links to files are.
    ///
    /// # Errors
    /// `Data` or `Io` for what can't be listed.
    pub fn open(folder: &Path) -> Result<Self, DataError> {
        let kind =
            fs::metadata(folder).map_err(|source| DataError::Read { path: folder.to_owned(), source })?;
        if !kind.is_dir() {
            return Err(DataError::NoFolder(folder.to_owned()));
        }
        let mut found = Vec::new();
        list(folder, "", &mut found)?;
        found.sort_by(|(a, ..), (b, ..)| a.as_bytes().cmp(b.as_bytes()));
        let mut bytes = 0_u64;
        let parts = found.into_iter().map(|(name, path, length)| {
            let part = Part { name, path, start: bytes, bytes: length };
            bytes = bytes.saturating_add(length);
            part
        });
        let parts = parts.filter(|part| part.bytes > 0).collect();
        Ok(Self { folder: folder.to_owned(), parts, bytes, open: Mutex::new(None) })
    }

    /// All bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The folder, as given.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Number of samples of `seq_len` tokens: each takes one byte more, which is the next one's first.
    ///
    /// # Errors
    /// `Data` when there is not even one.
    pub fn samples(&self, seq_len: u64) -> Result<u64, DataError> {
        let count = self.bytes.saturating_sub(1).checked_div(seq_len).unwrap_or(0);
        if count == 0 {
            return Err(DataError::TooShort {
                folder: self.folder.clone(),
                bytes: self.bytes,
                files: self.parts.len(),
                seq_len,
            });
        }
        Ok(count)
    }

    /// Fills `into` with the bytes from `start` on.
    ///
    /// # Errors
    /// `Io` for what can't be read, `Data` for a file that has shrunk.
    pub fn read(&self, start: u64, into: &mut [u8]) -> Result<(), DataError> {
        let end = start.saturating_add(into.len() as u64);
        if end > self.bytes {
            return Err(DataError::Outside { start, end, bytes: self.bytes });
        }
        let mut index = self.parts.partition_point(|part| part.start + part.bytes <= start);
        let (mut at, mut rest) = (start, into);
        while !rest.is_empty() {
            let part = self.parts.get(index).ok_or(DataError::Outside { start, end, bytes: self.bytes })?;
            let within = part.start + part.bytes - at;
            let length = usize::try_from(within).unwrap_or(usize::MAX).min(rest.len());
            let (now, later) = rest.split_at_mut(length);
            self.read_part(index, part, at - part.start, now)?;
            (at, rest, index) = (at + length as u64, later, index + 1);
        }
        Ok(())
    }

    fn read_part(&self, index: usize, part: &Part, at: u64, into: &mut [u8]) -> Result<(), DataError> {
        let failed = |source| DataError::Read { path: part.path.clone(), source };
        self.file(index, part).and_then(|file| file.read_exact_at(into, at)).map_err(|error| {
            match error.kind() {
                io::ErrorKind::UnexpectedEof => {
                    DataError::Changed { path: part.path.clone(), at: at + into.len() as u64 }
                }
                _ => failed(error),
            }
        })
    }

    fn file(&self, index: usize, part: &Part) -> io::Result<Arc<File>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        match &*open {
            Some((last, file)) if *last == index => Ok(Arc::clone(file)),
            _ => {
                let file = Arc::new(File::open(&part.path)?);
                *open = Some((index, Arc::clone(&file)));
                Ok(file)
            }
        }
    }
}

fn list(folder: &Path, prefix: &str, found: &mut Vec<(String, PathBuf, u64)>) -> Result<(), DataError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| DataError::Read { path, source }
    };
    for entry in fs::read_dir(folder).map_err(failed(folder))? {
        let entry = entry.map_err(failed(folder))?;
        let path = entry.path();
        let name = entry.file_name().into_string().map_err(|_| DataError::Name(path.clone()))?;
        if name.starts_with('.') {
            continue;
        }
        let name = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
        if entry.file_type().map_err(failed(&path))?.is_dir() {
            list(&path, &name, found)?;
            continue;
        }
        let meta = fs::metadata(&path).map_err(failed(&path))?;
        if meta.is_file() {
            found.push((name, path, meta.len()));
        }
    }
    Ok(())
}
