//! [`Reader`]: bytes of source files, proven where something proves them, counted, and each read once where the cache
//! can help it.
//!
//! ```text
//!  a long run ──► whole pieces straight into the target's buffer, proven there ─┐
//!            └──► ragged ends ─┐                                                ├─► Source::read_exact_at
//!  short runs ──► Cursor ──────┴─► Cache (one thread reads a piece, proves it) ─┘
//! ```
//!
//! The pieces that short runs of a box lie in are brought into the cache first, two at a time, by all threads that want some of them.
//!
//! Pieces of compressed files are their blocks: read as stored, proven, decoded into the buffer that they are for.
//!
//! Invariants: with [`Verify::Records`] no byte that a block table covers is handed out unproven; a record's bytes are
//! handed out before its CRC-32 is complete, so whoever makes something visible of them calls [`Reader::settle`] first: no record is left
//! half summed; until then nothing is read that was not asked for, but for the rest of its piece.

use std::{
    ops::Range,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use super::{
    blame,
    cache::{Block, Cache},
    checks::{Bad, FileChecks},
    options::Verify,
};
use crate::{CrcRecord, Error, FileId, Result, codec::Decoder, digest::BlockTable, source::Source};

mod bring;
mod cursor;
mod settle;
mod sizes;

pub(crate) use cursor::{Cells, Cursor};
pub(crate) use settle::Touched;

/// Runs from here on are read straight into the target's buffer.
pub(super) const LONG: usize = 64 << 10;

/// Most bytes that are read ahead of a short run, where no cache helps.
const WINDOW: u64 = 1 << 20;

/// Most stored bytes that are read at a time to be decoded, beyond one block.
const DECODED: u64 = 4 << 20;

/// What decoding takes.
#[derive(Debug)]
struct Decoding {
    decoder: Decoder,
    stored: Vec<u8>,
}

/// Reads the files of one source.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    source: &'a dyn Source,
    verify: Verify,
    files: Vec<Mutex<Option<Arc<FileChecks>>>>,
    known: Vec<Known>,
    cache: Cache,
    /// Whether others want the rest of a piece too; if not, only what is asked for is read.
    shared: bool,
    /// For compressed blocks; as many as threads have needed at a time.
    decoding: Mutex<Vec<Decoding>>,
    /// Which piece a thread that reads ahead begins with: each time another.
    turn: AtomicUsize,
    bytes: AtomicU64,
    reads: AtomicU64,
    verified: AtomicU64,
}

/// What was read so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReadCounts {
    pub(crate) bytes: u64,
    pub(crate) reads: u64,
    pub(crate) verified: u64,
}

impl<'a> Reader<'a> {
    /// A reader for work that wants every byte of what it touches; the cache takes `cache` bytes.
    pub(crate) fn shared(source: &'a dyn Source, verify: Verify, cache: u64) -> Self {
        Self::new(source, verify, cache, true)
    }

    /// A reader for single regions: reads what is asked for, and the blocks around it where those prove it.
    pub(crate) fn exact(source: &'a dyn Source, verify: Verify, cache: u64) -> Self {
        Self::new(source, verify, cache, false)
    }

    fn new(source: &'a dyn Source, verify: Verify, cache: u64, shared: bool) -> Self {
        let files = source.catalog().files.len();
        Self {
            source,
            verify,
            files: (0..files).map(|_| Mutex::default()).collect(),
            known: known(source, files),
            cache: Cache::new(cache),
            shared,
            decoding: Mutex::default(),
            turn: AtomicUsize::new(0),
            bytes: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            verified: AtomicU64::new(0),
        }
    }

    pub(crate) const fn source(&self) -> &'a dyn Source {
        self.source
    }

    pub(crate) fn counts(&self) -> ReadCounts {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ReadCounts { bytes: load(&self.bytes), reads: load(&self.reads), verified: load(&self.verified) }
    }

    /// What proves the bytes of `file`; its block table is read at the first call.
    pub(crate) fn checks(&self, file: FileId) -> Result<Arc<FileChecks>> {
        let entry = self.source.catalog().file(file)?;
        let at = file.0 as usize;
        let Some(slot) = self.files.get(at) else {
            return Err(Error::internal(format!("file {at} came after the reader")));
        };
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(checks) = &*slot {
            return Ok(Arc::clone(checks));
        }
        let known = self.known.get(at).map_or((&[][..], &[][..]), |known| (&known.records, &known.edges));
        let checks = match self.verify {
            // Compressed blocks can't be told apart without their table, believed or not.
            Verify::None if !entry.is_coded() => FileChecks::new(entry, None, &[], known.1)?,
            Verify::None | Verify::Records => {
                FileChecks::new(entry, self.source.blocks(file)?, known.0, known.1)?
            }
        };
        Ok(Arc::clone(slot.insert(Arc::new(checks))))
    }

    /// Fills `dst` from byte `offset` of `file`: for long runs.
    pub(crate) fn read(
        &self,
        cursor: &mut Cursor<'_, '_>,
        file: FileId,
        offset: u64,
        dst: &mut [u8],
    ) -> Result<()> {
        let checks = self.checks(file)?;
        if !checks.is_checked() {
            return self.raw(file, offset, dst);
        }
        let end = offset.saturating_add(dst.len() as u64);
        let (mut at, mut rest) = (offset, dst);
        while !rest.is_empty() {
            let first = checks.cuts.at(at);
            let whole = whole_pieces(&checks, first, at, end);
            if whole.is_empty() {
                let range = piece_range(&checks, first)?;
                let (now, later) = rest.split_at_mut(take(range.end.min(end) - at, rest.len()));
                // Part of a record proves nothing; then its piece is worth reading only for others.
                if self.shared || checks.has_blocks() {
                    cursor.copy(file, at, now)?;
                } else {
                    self.raw(file, at, now)?;
                }
                (at, rest) = (at + now.len() as u64, later);
                continue;
            }
            let upto = piece_range(&checks, whole.end - 1)?.end;
            let (now, later) = rest.split_at_mut(take(upto - at, rest.len()));
            self.whole(file, &checks, whole, now)?;
            (at, rest) = (upto, later);
        }
        Ok(())
    }

    /// Fills `dst`, which is as long as these pieces, and proves it.
    fn whole(
        &self,
        file: FileId,
        checks: &FileChecks,
        mut pieces: Range<usize>,
        dst: &mut [u8],
    ) -> Result<()> {
        if let Some(table) = checks.coded() {
            return self.decoded(file, checks, table, pieces, dst);
        }
        self.raw(file, piece_range(checks, pieces.start)?.start, dst)?;
        let mut unproven = &dst[..];
        let mut next = || {
            let Some(piece) = pieces.next() else { return Ok(None) };
            let range = piece_range(checks, piece)?;
            let (bytes, more) = unproven.split_at(take(range.end - range.start, unproven.len()));
            unproven = more;
            Ok::<_, Error>(Some((piece, bytes)))
        };
        while let Some(one) = next()? {
            match next()? {
                Some(other) => {
                    let two = [(checks, one.0, one.1), (checks, other.0, other.1)];
                    let [of_one, of_other] = FileChecks::check_two(two);
                    self.proven(file, of_one)?;
                    self.proven(file, of_other)?;
                }
                None => self.prove(file, checks, one.0, one.1)?,
            }
        }
        Ok(())
    }

    /// The same of a compressed file: neighbouring blocks are read at once, as far as [`DECODED`] goes.
    fn decoded(
        &self,
        file: FileId,
        checks: &FileChecks,
        table: &BlockTable,
        mut pieces: Range<usize>,
        mut dst: &mut [u8],
    ) -> Result<()> {
        let mut decoding = self.decoding()?;
        while !pieces.is_empty() {
            let stored = table.stored_of(&pieces);
            let near = stored.start.saturating_add(DECODED);
            let upto = pieces.clone().take_while(|it| table.stored_of(&(*it..it + 1)).end <= near).count();
            let now = pieces.start..pieces.start + upto.max(1);
            let stored = table.stored_of(&now);
            decoding.stored.resize(take(stored.end - stored.start, usize::MAX), 0);
            self.count(&decoding.stored);
            self.source.read_stored_at(file, stored.start, &mut decoding.stored)?;
            pieces.start = now.end;
            for piece in now {
                let Some(block) = table.block(piece) else { return Err(Error::internal("a block is gone")) };
                let at = |byte: u64| take(byte - stored.start, usize::MAX);
                let bytes =
                    decoding.stored.get(at(block.stored.start)..at(block.stored.end)).unwrap_or_default();
                if self.verify == Verify::Records {
                    self.prove(file, checks, piece, bytes)?;
                }
                let (to, rest) = dst.split_at_mut(take(block.logical.end - block.logical.start, dst.len()));
                let done = decoding.decoder.decode(block.codec, bytes, to);
                done.map_err(|error| self.told(file, &checks.undecoded(piece, &error)))?;
                dst = rest;
            }
        }
        self.decoding.lock().unwrap_or_else(PoisonError::into_inner).push(decoding);
        Ok(())
    }

    fn decoding(&self) -> Result<Decoding> {
        if let Some(spare) = self.decoding.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return Ok(spare);
        }
        let decoder = Decoder::new().map_err(|error| Error::internal(error.to_string()))?;
        Ok(Decoding { decoder, stored: Vec::new() })
    }

    /// A piece through the cache.
    pub(crate) fn piece(&self, file: FileId, checks: &FileChecks, piece: usize) -> Result<Block> {
        let range = piece_range(checks, piece)?;
        let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        self.cache.get((file.0, piece), len, |buffer| self.whole(file, checks, piece..piece + 1, buffer))
    }

    /// Bytes straight from the source, counted.
    pub(crate) fn raw(&self, file: FileId, offset: u64, dst: &mut [u8]) -> Result<()> {
        self.count(dst);
        self.source.read_exact_at(file, offset, dst)
    }

    fn count(&self, read: &[u8]) {
        self.bytes.fetch_add(read.len() as u64, Ordering::Relaxed);
        self.reads.fetch_add(1, Ordering::Relaxed);
    }

    fn prove(&self, file: FileId, checks: &FileChecks, piece: usize, bytes: &[u8]) -> Result<()> {
        self.proven(file, checks.check(piece, bytes))
    }

    fn proven(&self, file: FileId, checked: std::result::Result<u64, Bad>) -> Result<()> {
        match checked {
            Ok(proven) => {
                self.verified.fetch_add(proven, Ordering::Relaxed);
                Ok(())
            }
            Err(bad) => Err(self.told(file, &bad)),
        }
    }

    fn told(&self, file: FileId, bad: &Bad) -> Error {
        let catalog = self.source.catalog();
        let path = catalog.file(file).map_or("?", |entry| entry.path.as_str());
        let what = blame::describe(catalog, file, &bad.range);
        Error::corrupt(format!(
            "{path}: bytes {}..{}: {}; {what}",
            bad.stored.start, bad.stored.end, bad.message
        ))
        .hint(
            "`ckpt verify` lists every damaged tensor; take those files from another copy of the checkpoint",
        )
    }
}

/// The pieces from `first` on that lie whole in `at..end`; none where `at` is within one.
fn whole_pieces(checks: &FileChecks, first: usize, at: u64, end: u64) -> Range<usize> {
    let begins = checks.cuts.range(first).is_some_and(|range| range.start == at);
    let behind = checks.cuts.at(end);
    if begins && behind > first { first..behind } else { first..first }
}

fn piece_range(checks: &FileChecks, piece: usize) -> Result<Range<u64>> {
    let range = checks.cuts.range(piece);
    range.ok_or_else(|| {
        Error::corrupt(format!("bytes behind the last of {} pieces of a file", checks.cuts.len()))
    })
}

fn take(len: u64, most: usize) -> usize {
    usize::try_from(len).unwrap_or(most).min(most)
}

/// What chunks tell of the file that they lie in.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known {
    pub(crate) records: Vec<CrcRecord>,
    /// Where large chunks begin and end: a piece across two of them would be wanted at two times far apart.
    edges: Vec<u64>,
}

/// What chunks tell of each file.
pub(crate) fn known(source: &dyn Source, files: usize) -> Vec<Known> {
    let mut known = vec![Known::default(); files];
    for (entry, chunks) in source.catalog().iter() {
        for chunk in &chunks.chunks {
            let Some(known) = known.get_mut(chunk.file.0 as usize) else { continue };
            known.records.extend(chunk.record);
            let span = chunk.span(entry.dtype).filter(|span| *span >= WINDOW);
            let end = span.and_then(|span| span.checked_add(chunk.offset));
            known.edges.extend(end.map(|end| [chunk.offset, end]).into_iter().flatten());
        }
    }
    known
}
