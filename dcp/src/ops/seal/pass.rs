//! The one read: every file in pieces of whole blocks, by any thread, digests and sums on the way.
//!
//! Memory: one piece of at most 4 MiB for each thread, and the digests.

use std::{
    collections::HashMap,
    ops::Range,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

use super::prints::{FilePrints, Part, combine, prints_of, sum_of};
use crate::{
    Cancel, Catalog, Error, FileId, Place, Progress, Result, Source, cores,
    digest::{BlockLayout, BlockTable, Sha256Digest},
    engine::{RegionReader, RunOptions, Verify, grid::Grid},
    fingerprint::{Fingerprint, FingerprintSum},
    ops::pieces::Piece,
};

/// What there is to read.
#[derive(Debug)]
pub(super) struct Pass<'s> {
    source: &'s dyn Source,
    grids: Vec<Grid>,
    files: Vec<File>,
    pieces: Vec<Piece>,
}

#[derive(Debug)]
struct File {
    id: FileId,
    layout: BlockLayout,
    prints: FilePrints,
}

/// What was found.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) tables: Vec<BlockTable>,
    pub(super) fingerprints: Vec<Fingerprint>,
    pub(super) hashed: u64,
    pub(super) read: u64,
    pub(super) records: usize,
    pub(super) gathered: usize,
}

/// What one thread found.
#[derive(Debug, Default)]
struct Share {
    digests: Vec<(usize, usize, Sha256Digest)>,
    sums: HashMap<usize, FingerprintSum>,
    parts: Vec<(usize, Part)>,
}

impl<'s> Pass<'s> {
    pub(super) fn new(source: &'s dyn Source) -> Result<Self> {
        let catalog = source.catalog();
        let (prints, grids) = prints_of(catalog)?;
        let (mut files, mut pieces) = (Vec::new(), Vec::new());
        for (at, (entry, mut prints)) in catalog.files.iter().zip(prints).enumerate() {
            let id = FileId(u32::try_from(at).map_err(|_| Error::internal("more than 2^32 files"))?);
            let edges = prints.sort();
            let layout = BlockLayout::new(entry.size, edges);
            let layout = layout.map_err(|error| Error::corrupt(error.to_string())).place(&entry.path)?;
            pieces.extend(Piece::cut(at, layout.ranges()));
            files.push(File { id, layout, prints });
        }
        Ok(Self { source, grids, files, pieces })
    }

    /// Reads everything.
    ///
    /// # Errors
    /// `Corrupt` for records whose CRC-32 differs, tensors named; `Cancelled`; what the source says.
    pub(super) fn run(
        &self,
        options: &RunOptions,
        progress: &dyn Progress,
        cancel: &Cancel,
    ) -> Result<Found> {
        let hashed: u64 = self.source.catalog().files.iter().map(|file| file.size).sum();
        let fits = usize::try_from(options.max_memory / (2 * Piece::MOST)).unwrap_or(usize::MAX);
        let threads = options.threads.get().min(fits).clamp(1, self.pieces.len().max(1));
        progress.begin("seal", hashed);
        let share = self.read(threads, progress, cancel);
        progress.end();
        let share = share?;
        let records = self.check_records(share.parts)?;
        let slow = self.slow();
        let mut sums = share.sums;
        let read = hashed + self.gather(&slow, &mut sums, cancel)?;
        let entries = self.source.catalog().registry.entries().iter().enumerate();
        let fingerprints = entries
            .map(|(at, entry)| sums.get(&at).copied().unwrap_or_default().finish(entry.dtype, &entry.shape))
            .collect();
        Ok(Found {
            tables: self.tables(share.digests)?,
            fingerprints,
            hashed,
            read,
            records,
            gathered: slow.len(),
        })
    }

    fn read(&self, threads: usize, progress: &dyn Progress, cancel: &Cancel) -> Result<Share> {
        let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let (all, failure) = (Mutex::new(Share::default()), Mutex::new(None));
        let work = || {
            let (mut share, mut buffer) = (Share::default(), Vec::new());
            while !stop.load(Ordering::Relaxed) {
                let Some(piece) = self.pieces.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
                let done = cancel.check().and_then(|()| self.piece(piece, &mut buffer, &mut share));
                if let Err(error) = done {
                    stop.store(true, Ordering::Relaxed);
                    failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    break;
                }
                progress.advance(piece.len());
            }
            all.lock().unwrap_or_else(PoisonError::into_inner).add(share);
        };
        thread::scope(|scope| {
            (1..threads).map_while(|_| cores::start(scope, work)).for_each(drop);
            work();
        });
        match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(all.into_inner().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    fn piece(&self, piece: &Piece, buffer: &mut Vec<u8>, share: &mut Share) -> Result<()> {
        let file = self.files.get(piece.file).ok_or_else(|| Error::internal("a piece of no file"))?;
        let start = piece.bytes.start;
        piece.read(buffer, |start, buffer| self.source.read_exact_at(file.id, start, buffer))?;
        let blocks = piece.blocks.clone().filter_map(|block| Some((block, file.layout.range(block)?)));
        let (numbers, ranges): (Vec<usize>, Vec<Range<u64>>) = blocks.unzip();
        let bytes: Vec<&[u8]> = ranges.iter().map(|range| piece.block(range, buffer)).collect();
        let digests = numbers.into_iter().zip(Sha256Digest::of_each(&bytes));
        share.digests.extend(digests.map(|(block, digest)| (piece.file, block, digest)));
        file.prints.sums(&self.grids, start, buffer, &mut share.sums)?;
        share.parts.extend(file.prints.parts(start, buffer).map(|part| (piece.file, part)));
        Ok(())
    }

    /// Compares the CRC-32 of each record; how many there were.
    fn check_records(&self, parts: Vec<(usize, Part)>) -> Result<usize> {
        let mut by_file: HashMap<usize, Vec<Part>> = HashMap::new();
        parts.into_iter().for_each(|(file, part)| by_file.entry(file).or_default().push(part));
        let mut records = 0;
        for (at, file) in self.files.iter().enumerate() {
            let found = combine(by_file.remove(&at).unwrap_or_default());
            for record in &file.prints.records {
                records += 1;
                let crc = found.get(&(record.offset, record.len)).copied().unwrap_or(0);
                if crc != record.crc32 {
                    return Err(self.mismatch(file.id, record, crc));
                }
            }
        }
        Ok(records)
    }

    fn mismatch(&self, file: FileId, record: &crate::CrcRecord, found: u32) -> Error {
        let catalog: &Catalog = self.source.catalog();
        let bytes = record.offset..record.offset.saturating_add(record.len);
        let path = catalog.file(file).map(|entry| entry.path.clone()).unwrap_or_default();
        let what = crate::engine::blame::describe(catalog, file, &bytes);
        Error::corrupt(format!(
            "{path}: bytes {}..{} have CRC-32 {found:08x}, the file says {:08x}: {what}",
            bytes.start, bytes.end, record.crc32
        ))
        .hint("nothing was sealed; `ckpt verify` lists everything that is damaged")
    }

    fn tables(&self, mut digests: Vec<(usize, usize, Sha256Digest)>) -> Result<Vec<BlockTable>> {
        digests.sort_unstable_by_key(|(file, block, _)| (*file, *block));
        let mut digests = digests.into_iter().map(|(_, _, digest)| digest);
        let table = |file: &File| {
            let of_file = digests.by_ref().take(file.layout.len()).collect();
            BlockTable::new(file.layout.clone(), of_file).map_err(|error| Error::internal(error.to_string()))
        };
        self.files.iter().map(table).collect()
    }

    /// Tensors whose bytes don't come in the order of their elements, or not in whole elements.
    fn slow(&self) -> Vec<usize> {
        let mut slow: Vec<usize> = self.files.iter().flat_map(|file| file.prints.slow()).collect();
        slow.sort_unstable();
        slow.dedup();
        slow
    }

    /// Sums of these tensors, read element by element; the bytes that it took.
    fn gather(
        &self,
        slow: &[usize],
        sums: &mut HashMap<usize, FingerprintSum>,
        cancel: &Cancel,
    ) -> Result<u64> {
        let reader = RegionReader::new(self.source, Verify::None);
        for &tensor in slow {
            let grid = self.grids.get(tensor).ok_or_else(|| Error::internal("a tensor without a grid"))?;
            sums.insert(tensor, sum_of(&reader, tensor, grid, cancel)?);
        }
        Ok(reader.counts().0)
    }
}

impl Share {
    fn add(&mut self, other: Self) {
        self.digests.extend(other.digests);
        self.parts.extend(other.parts);
        other.sums.into_iter().for_each(|(tensor, sum)| *self.sums.entry(tensor).or_default() += sum);
    }
}
