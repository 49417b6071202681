//! Reads the small parts of many entries of one file in few system calls.
//!
//! What must be known of an entry (a zip archive) is at its two ends, and entries follow each other without a gap, so
//! the tail of one and the head of the next are one read. Everything else falls through to the file.

use std::{io, sync::Arc};

use crate::read_at::{FileAt, ReadAt};

/// Bytes read at either end of an entry. A head holds the pickle and four small records (about 700 bytes), a tail
/// two small records and the directory (about 1,000).
const END: u64 = 1536;

/// Ranges closer than this are read as one: a longer read costs less than another.
const CLOSE: u64 = 4096;

/// Longest read.
const LONGEST: u64 = 4 << 20;

/// A file with some of its bytes at hand.
pub(super) struct Windows {
    file: Arc<FileAt>,
    /// First byte and bytes, sorted, apart.
    held: Vec<(u64, Vec<u8>)>,
}

impl Windows {
    /// Reads both ends of each `(offset, length)` that lies in the file.
    pub(super) fn of_entries(
        file: Arc<FileAt>,
        entries: impl IntoIterator<Item = (u64, u64)>,
    ) -> io::Result<Self> {
        let mut ranges = Vec::new();
        for (offset, length) in entries {
            let Some(end) = offset.checked_add(length).filter(|end| *end <= file.len()) else { continue };
            ranges.push((offset, end.min(offset.saturating_add(END))));
            ranges.push((offset.max(end.saturating_sub(END)), end));
        }
        ranges.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (start, end) in ranges {
            match merged.last_mut() {
                Some(last)
                    if start <= last.1.saturating_add(CLOSE) && end.saturating_sub(last.0) <= LONGEST =>
                {
                    last.1 = last.1.max(end);
                }
                _ => merged.push((start, end)),
            }
        }
        let read = |(start, end): (u64, u64)| {
            let mut bytes = vec![0; usize::try_from(end.saturating_sub(start)).unwrap_or(0)];
            file.read_exact_at(start, &mut bytes).map(|()| (start, bytes))
        };
        let held = merged.into_iter().map(read).collect::<io::Result<_>>()?;
        Ok(Self { file, held })
    }

    fn held(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let after = self.held.partition_point(|(start, _)| *start <= offset);
        let (start, bytes) = self.held.get(after.checked_sub(1)?)?;
        let from = usize::try_from(offset.checked_sub(*start)?).ok()?;
        bytes.get(from..from.checked_add(len)?)
    }
}

impl ReadAt for Windows {
    fn len(&self) -> u64 {
        self.file.len()
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        match self.held(offset, buf.len()) {
            Some(bytes) => {
                buf.copy_from_slice(bytes);
                Ok(())
            }
            None => self.file.read_exact_at(offset, buf),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_the_files_whether_held_or_not() {
        let data: Vec<u8> = (0..40_000_u32).map(|i| u8::try_from(i % 251).unwrap()).collect();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f"), &data).unwrap();
        let file = Arc::new(FileAt::open(dir.path().join("f")).unwrap());
        let entries = [(0, 10), (10, 20_000), (20_010, 19_990), (39_000, 9_999), (u64::MAX, 2)];
        let windows = Windows::of_entries(file, entries).unwrap();
        assert!(windows.held.len() >= 2 && windows.held.len() <= 3);
        for (offset, len) in [(0, 10), (5, 1000), (15_000, 100), (18_500, 3000), (39_990, 10), (1000, 30_000)]
        {
            let mut buf = vec![0; len];
            windows.read_exact_at(offset as u64, &mut buf).unwrap();
            assert_eq!(buf, data[offset..offset + len]);
        }
        assert!(windows.read_exact_at(39_999, &mut [0; 2]).is_err());
    }
}
