//! Random-access bytes: what every reader of a foreign file stands on.
//!
//! A [`ReadAt`] is an immutable run of bytes of known length that any number of threads may read at any
//! offset. There is no cursor and no mapping: a file that shrinks under a reader gives an I/O error, not a
//! signal, and two readers never disturb each other.
//!
//! Invariants: [`ReadAt::len`] never changes over the life of a value; a read that lies within it either fills
//! the whole buffer or fails; a read that passes the end fails with [`io::ErrorKind::UnexpectedEof`] before
//! anything is read.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

/// Immutable bytes that can be read at any offset, from any thread.
#[expect(clippy::len_without_is_empty, reason = "an empty source is a value like any other to every caller")]
pub trait ReadAt: Send + Sync {
    /// Length in bytes.
    fn len(&self) -> u64;

    /// Fills `buf` with the bytes `offset .. offset + buf.len()`.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] where that range passes the end, and whatever the medium reports.
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;
}

impl fmt::Debug for dyn ReadAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadAt({} bytes)", self.len())
    }
}

impl<T: ReadAt + ?Sized> ReadAt for Arc<T> {
    fn len(&self) -> u64 {
        (**self).len()
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        (**self).read_exact_at(offset, buf)
    }
}

/// Checks that `offset .. offset + wanted` lies within `len` bytes, and returns its end.
fn check_range(len: u64, offset: u64, wanted: usize) -> io::Result<u64> {
    let end = u64::try_from(wanted).ok().and_then(|w| offset.checked_add(w));
    end.filter(|end| *end <= len).ok_or_else(|| {
        let text = format!("{wanted} bytes at offset {offset} pass the end of {len} bytes");
        io::Error::new(io::ErrorKind::UnexpectedEof, text)
    })
}

/// Copies `buf.len()` bytes at `offset` out of `all`.
fn copy_range(all: &[u8], offset: u64, buf: &mut [u8]) -> io::Result<()> {
    check_range(ReadAt::len(&all), offset, buf.len())?;
    let range = usize::try_from(offset).ok().and_then(|start| all.get(start..)?.get(..buf.len()));
    buf.copy_from_slice(range.ok_or(io::ErrorKind::UnexpectedEof)?);
    Ok(())
}

impl ReadAt for &[u8] {
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        copy_range(self, offset, buf)
    }
}

impl ReadAt for Bytes {
    fn len(&self) -> u64 {
        self.as_ref().len() as u64
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        copy_range(self, offset, buf)
    }
}

impl ReadAt for Vec<u8> {
    fn len(&self) -> u64 {
        self.as_slice().len() as u64
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        copy_range(self, offset, buf)
    }
}

/// An open file, read by position. Its length is that of the moment when it was opened.
#[derive(Debug)]
pub struct FileAt {
    file: File,
    path: PathBuf,
    len: u64,
}

impl FileAt {
    /// Opens the regular file at `path` for reading.
    ///
    /// # Errors
    /// What the operating system reports, and [`io::ErrorKind::InvalidInput`] for anything but a regular file
    /// (a pipe or a folder has no positions to read at); each names `path`.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let file = File::open(path).map_err(|e| named(path, &e))?;
        let meta = file.metadata().map_err(|e| named(path, &e))?;
        if !meta.is_file() {
            return Err(named(path, &io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
        }
        Ok(Self { file, path: path.to_path_buf(), len: meta.len() })
    }

    /// The path it was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl ReadAt for FileAt {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        check_range(self.len, offset, buf.len())
            .and_then(|_| self.file.read_exact_at(buf, offset))
            .map_err(|e| named(&self.path, &e))
    }
}

/// Puts the path before an I/O error that lacks one.
fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// A window on another source: one archive within a blob, one record within an archive.
#[derive(Clone, Debug)]
pub struct Section {
    inner: Arc<dyn ReadAt>,
    start: u64,
    len: u64,
}

impl Section {
    /// The bytes `start .. start + len` of `inner`.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] where they are not all there.
    pub fn new(inner: Arc<dyn ReadAt>, start: u64, len: u64) -> io::Result<Self> {
        if start.checked_add(len).is_none_or(|end| end > inner.len()) {
            let text =
                format!("a section of {len} bytes at offset {start} passes the end of {} bytes", inner.len());
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
        }
        Ok(Self { inner, start, len })
    }

    /// Where it begins within what it was cut from, in bytes.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.start
    }
}

impl ReadAt for Section {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        check_range(self.len, offset, buf.len())?;
        // In range by construction: `start + len` does not overflow and `offset <= len`.
        self.inner.read_exact_at(self.start.saturating_add(offset), buf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(source: &dyn ReadAt, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut buf = vec![0; len];
        source.read_exact_at(offset, &mut buf).map(|()| buf)
    }

    #[test]
    fn every_source_reads_the_same_bytes_and_refuses_to_pass_its_end() {
        let data: Vec<u8> = (0..100).collect();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("blob");
        std::fs::write(&path, &data).unwrap();
        let whole: Arc<dyn ReadAt> = Arc::new(Bytes::from([vec![9; 7], data.clone(), vec![9; 7]].concat()));
        let sources: Vec<Box<dyn ReadAt>> = vec![
            Box::new(data.clone()),
            Box::new(Bytes::from(data.clone())),
            Box::new(FileAt::open(&path).unwrap()),
            Box::new(Section::new(whole, 7, 100).unwrap()),
        ];
        for source in sources.iter().map(AsRef::as_ref) {
            assert_eq!(source.len(), 100);
            assert_eq!(read(source, 0, 100).unwrap(), data);
            assert_eq!(read(source, 37, 5).unwrap(), [37, 38, 39, 40, 41]);
            assert_eq!(read(source, 100, 0).unwrap(), Vec::<u8>::new());
            for (offset, len) in [(99, 2), (100, 1), (101, 0), (u64::MAX, 1), (u64::MAX, 0)] {
                let kind = read(source, offset, len).unwrap_err().kind();
                assert_eq!(kind, io::ErrorKind::UnexpectedEof, "{offset}+{len}");
            }
        }
    }

    #[test]
    fn a_section_that_passes_the_end_is_refused() {
        let inner: Arc<dyn ReadAt> = Arc::new(vec![0; 10]);
        for (start, len) in [(0, 11), (10, 1), (11, 0), (u64::MAX, 2)] {
            assert!(Section::new(Arc::clone(&inner), start, len).is_err(), "{start}+{len}");
        }
        assert_eq!(Section::new(inner, 10, 0).unwrap().len(), 0);
    }

    #[test]
    fn errors_of_a_file_name_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("absent.pt");
        assert!(FileAt::open(&missing).unwrap_err().to_string().contains("absent.pt"));
        assert!(FileAt::open(dir.path()).unwrap_err().to_string().contains("not a regular file"));
        let path = dir.path().join("short.pt");
        std::fs::write(&path, b"abc").unwrap();
        let error = read(&FileAt::open(&path).unwrap(), 2, 2).unwrap_err();
        assert!(error.to_string().contains("short.pt"), "{error}");
    }
}
