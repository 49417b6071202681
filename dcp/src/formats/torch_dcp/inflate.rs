//! Entries that torch stored as one zstd stream, read as virtual files of their inflated bytes.
//!
//! Invariants: memory is one decoder (window at most 64 MiB) and its buffers, whatever the entry's size; a read that
//! continues where the last one ended costs only its own bytes; one that goes back starts the stream again.

use std::{
    io::{self, BufReader, Read},
    sync::{Arc, Mutex, PoisonError},
};

use crate::read_at::{ReadAt, Section};

/// Largest window that a stream may ask for: 2^26 bytes.
const WINDOW_LOG: u32 = 26;

/// Bytes kept of the beginning and of the end of a stream while its length is found.
const KEPT: usize = 64 << 10;

/// An inflated entry.
pub(super) struct Inflated {
    stored: Section,
    len: u64,
    /// Both ends, for the archive's directory: offset and bytes.
    ends: [(u64, Vec<u8>); 2],
    cursor: Mutex<Option<Cursor>>,
}

impl std::fmt::Debug for Inflated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inflated")
            .field("stored", &self.stored)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

struct Cursor {
    at: u64,
    stream: Stream,
}

type Stream = zstd::stream::read::Decoder<'static, BufReader<Sequential>>;

impl Inflated {
    /// Inflates `stored` once, to learn its length.
    ///
    /// # Errors
    /// `InvalidData`: no zstd stream, or one of more than `most` bytes.
    pub(super) fn new(stored: Section, most: u64) -> io::Result<Self> {
        let mut stream = open(&stored)?;
        let (mut head, mut tail, mut len) = (Vec::new(), Vec::new(), 0_u64);
        let mut buffer = vec![0; KEPT];
        loop {
            let read = stream.read(&mut buffer).map_err(invalid)?;
            let Some(fresh) = buffer.get(..read).filter(|fresh| !fresh.is_empty()) else { break };
            len = len.saturating_add(read as u64);
            if len > most {
                let text = format!(
                    "the compressed entry inflates beyond the {most} bytes that its contents may take"
                );
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            head.extend(fresh.iter().take(KEPT.saturating_sub(head.len())));
            tail.extend_from_slice(fresh);
            tail.drain(..tail.len().saturating_sub(KEPT));
        }
        let tail_at = len.saturating_sub(tail.len() as u64);
        Ok(Self { stored, len, ends: [(0, head), (tail_at, tail)], cursor: Mutex::new(None) })
    }

    fn kept(&self, offset: u64, len: usize) -> Option<&[u8]> {
        self.ends.iter().find_map(|(start, bytes)| {
            let from = usize::try_from(offset.checked_sub(*start)?).ok()?;
            bytes.get(from..from.checked_add(len)?)
        })
    }

    fn stream_to(&self, cursor: &mut Option<Cursor>, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut at_place = match cursor.take() {
            Some(cursor) if cursor.at <= offset => cursor,
            _ => Cursor { at: 0, stream: open(&self.stored)? },
        };
        let skip = offset.saturating_sub(at_place.at);
        let skipped = io::copy(&mut at_place.stream.by_ref().take(skip), &mut io::sink()).map_err(invalid)?;
        if skipped < skip {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        at_place.stream.read_exact(buf).map_err(invalid)?;
        at_place.at = offset.saturating_add(buf.len() as u64);
        // A stream at its end serves nobody, and its window is large.
        if at_place.at < self.len {
            *cursor = Some(at_place);
        }
        Ok(())
    }
}

impl ReadAt for Inflated {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.len) {
            let text =
                format!("{} bytes at offset {offset} pass the end of {} inflated bytes", buf.len(), self.len);
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
        }
        if let Some(bytes) = self.kept(offset, buf.len()) {
            buf.copy_from_slice(bytes);
            return Ok(());
        }
        let mut cursor = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        self.stream_to(&mut cursor, offset, buf)
    }
}

fn open(stored: &Section) -> io::Result<Stream> {
    let sequential = Sequential { from: Arc::new(stored.clone()), at: 0 };
    let mut stream = Stream::with_buffer(BufReader::new(sequential))?;
    stream.window_log_max(WINDOW_LOG)?;
    Ok(stream)
}

fn invalid(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::Other => {
            io::Error::new(io::ErrorKind::InvalidData, format!("not a whole zstd stream: {error}"))
        }
        _ => error,
    }
}

/// Reads a positioned source from front to back.
struct Sequential {
    from: Arc<dyn ReadAt>,
    at: u64,
}

impl Read for Sequential {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.from.len().saturating_sub(self.at)).unwrap_or(usize::MAX);
        let now = left.min(buf.len());
        let Some(part) = buf.get_mut(..now) else { return Ok(0) };
        self.from.read_exact_at(self.at, part)?;
        self.at = self.at.saturating_add(now as u64);
        Ok(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inflated(data: &[u8], most: u64) -> io::Result<Inflated> {
        let stored = zstd::encode_all(data, 3).unwrap();
        let len = stored.len() as u64;
        let all: Arc<dyn ReadAt> = Arc::new([vec![1; 5], stored, vec![2; 5]].concat());
        Inflated::new(Section::new(all, 5, len).unwrap(), most)
    }

    #[test]
    fn any_range_of_a_compressed_entry_reads_as_its_inflated_bytes() {
        let data: Vec<u8> =
            (0..1_000_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24).to_le_bytes()[0]).collect();
        let file = inflated(&data, 1_000_000).unwrap();
        assert_eq!(file.len(), 1_000_000);
        for (offset, len) in
            [(0, 10), (999_990, 10), (500_000, 70_000), (570_000, 10), (100_000, 1), (100_001, 500_000)]
        {
            let mut buf = vec![0; len];
            file.read_exact_at(offset as u64, &mut buf).unwrap();
            assert!(buf == data[offset..offset + len], "{offset}+{len}");
        }
        assert_eq!(
            file.read_exact_at(999_999, &mut [0; 2]).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
    }

    #[test]
    fn a_bomb_stops_at_the_bound_and_garbage_is_named() {
        let error = inflated(&vec![0; 5_000_000], 1_000_000).unwrap_err();
        assert!(error.to_string().contains("beyond the 1000000 bytes"), "{error}");
        let all: Arc<dyn ReadAt> = Arc::new(vec![7; 100]);
        assert_eq!(
            Inflated::new(Section::new(all, 0, 100).unwrap(), 100).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
    }
}
