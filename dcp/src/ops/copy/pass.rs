//! The one read: every file in pieces of whole blocks, by any thread; digests compared, bytes written, sums taken on the way.
//!
//! Memory: one piece of at most 4 MiB for each thread. Tensors whose bytes don't come in the order of their elements are read once
//! more, for their fingerprints.

use std::{
    collections::{BTreeSet, HashMap},
    ops::Range,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use super::{
    super::{
        pieces::Piece,
        seal::prints::{FilePrints, prints_of, sum_of},
    },
    file::Target,
};
use crate::{
    Cancel, Catalog, Error, Location, Progress, Result, Source, crew,
    digest::BlockCodec,
    engine::{RegionReader, RunOptions, Verify, blame, grid::Grid},
    fingerprint::{Fingerprint, FingerprintSum},
    formats::native::NativeSource,
};

/// What was found.
#[derive(Debug)]
pub(super) struct Passed {
    /// One for each tensor.
    pub(super) fingerprints: Vec<Fingerprint>,
    /// Bytes that were copied.
    pub(super) bytes: u64,
}

struct Pass<'a> {
    source: &'a NativeSource,
    targets: &'a [Target],
    prints: Vec<FilePrints>,
    grids: Vec<Grid>,
    /// Files whose stored bytes are not those of elements.
    coded: Vec<bool>,
    pieces: Vec<Piece>,
    next: AtomicUsize,
}

impl Passed {
    /// Of a copy that was made before: as the source's manifest has it.
    pub(super) fn recorded(catalog: &Catalog) -> Self {
        let fingerprints = catalog.iter().map(|(entry, chunks)| {
            chunks.fingerprint.unwrap_or_else(|| FingerprintSum::default().finish(entry.dtype, &entry.shape))
        });
        Self { fingerprints: fingerprints.collect(), bytes: 0 }
    }
}

/// Copies every file that is not finished.
///
/// # Errors
/// `Corrupt` for blocks with another digest, tensors named; `Cancelled`; what the stores say.
pub(super) fn pass(
    source: &NativeSource,
    targets: &[Target],
    options: &RunOptions,
    progress: &dyn Progress,
    cancel: &Cancel,
) -> Result<Passed> {
    let (mut prints, grids) = prints_of(source.catalog())?;
    prints.iter_mut().for_each(|prints| drop(prints.sort()));
    let coded = |target: &Target| target.table.blocks().any(|block| block.codec != BlockCodec::None);
    let coded: Vec<bool> = targets.iter().map(coded).collect();
    let pieces: Vec<Piece> = targets
        .iter()
        .enumerate()
        .filter(|(_, target)| !target.is_kept())
        .flat_map(|(file, target)| pieces_of(file, target))
        .collect();
    let bytes = pieces.iter().map(Piece::len).sum();
    let pass = Pass { source, targets, prints, grids, coded, pieces, next: AtomicUsize::new(0) };
    let fits = usize::try_from(options.max_memory / (2 * Piece::MOST)).unwrap_or(usize::MAX);
    let threads = options.threads.get().min(fits).max(1);
    progress.begin("copy", bytes);
    let copied = crew::work(threads, || pass.serve(progress, cancel));
    progress.end();
    copied?;
    Ok(Passed { fingerprints: pass.fingerprints(threads, cancel)?, bytes })
}

/// A file in pieces of whole blocks; one without a byte has one piece all the same, so that it is made.
fn pieces_of(file: usize, target: &Target) -> Vec<Piece> {
    let mut pieces = Piece::cut(file, target.table.blocks().map(|block| block.stored));
    if pieces.is_empty() {
        pieces.push(Piece { file, blocks: 0..0, bytes: 0..0 });
    }
    target.expect(pieces.len());
    pieces
}

impl Pass<'_> {
    fn serve(&self, progress: &dyn Progress, cancel: &Cancel) -> Result<()> {
        let mut buffer = Vec::new();
        while let Some(piece) = self.pieces.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            let done = cancel.check().and_then(|()| self.piece(piece, &mut buffer));
            if let Err(error) = done {
                // Other threads need not go on.
                self.next.store(usize::MAX / 2, Ordering::Relaxed);
                return Err(error);
            }
            progress.advance(piece.len());
        }
        Ok(())
    }

    fn piece(&self, piece: &Piece, buffer: &mut Vec<u8>) -> Result<()> {
        let lost = || Error::internal("a piece of no file");
        let target = self.targets.get(piece.file).ok_or_else(lost)?;
        let start = piece.bytes.start;
        piece.read(buffer, |start, buffer| self.source.read_stored_at(target.id, start, buffer))?;
        for block in piece.blocks.clone() {
            let Some(at_block) = target.table.block(block) else { continue };
            let range = at_block.stored;
            if target.table.check(block, piece.block(&range, buffer)).is_err() {
                return Err(self.damaged(target, block, &range, &at_block.logical));
            }
        }
        let mut sums = HashMap::new();
        if self.coded.get(piece.file) == Some(&false) {
            let prints = self.prints.get(piece.file).ok_or_else(lost)?;
            prints.sums(&self.grids, start, buffer, &mut sums)?;
        }
        target.write(start, buffer, sums)
    }

    fn damaged(&self, target: &Target, block: usize, range: &Range<u64>, logical: &Range<u64>) -> Error {
        let catalog = self.source.catalog();
        let text = format!(
            "{}: bytes {}..{}: block {block} has another SHA-256 than its table says; ",
            target.entry.path, range.start, range.end
        );
        // A blob is proven by its table as a whole, so it can't be copied without a block of another checkpoint.
        let of_others = target.entry.location == Location::InRoot
            && blame::affected(catalog, target.id, logical).is_empty();
        if of_others {
            return Error::corrupt(text + "this checkpoint has no tensor there, others that share the file may")
                .hint("a copy takes shared files whole; `ckpt convert` reads only what belongs to this checkpoint, and writes it anew");
        }
        Error::corrupt(text + &blame::describe(catalog, target.id, logical))
            .hint("nothing was committed; `ckpt verify` lists everything that is damaged")
    }

    /// The fingerprint of every tensor, of the bytes that were copied.
    fn fingerprints(&self, threads: usize, cancel: &Cancel) -> Result<Vec<Fingerprint>> {
        let mut sums: HashMap<usize, FingerprintSum> = HashMap::new();
        for (tensor, sum) in self.targets.iter().flat_map(Target::sums) {
            *sums.entry(tensor).or_default() += sum;
        }
        sums.extend(self.gather(threads, cancel)?);
        let entries = self.source.catalog().registry.entries().iter().enumerate();
        let sum = |at: usize| sums.get(&at).copied().unwrap_or_default();
        Ok(entries.map(|(at, entry)| sum(at).finish(entry.dtype, &entry.shape)).collect())
    }

    /// Tensors whose sums can't be taken from the files as they are.
    fn slow(&self) -> Vec<usize> {
        let mut slow: BTreeSet<usize> = self.prints.iter().flat_map(FilePrints::slow).collect();
        for (tensor, (_, chunks)) in self.source.catalog().iter().enumerate() {
            let coded =
                |file: u32| usize::try_from(file).ok().and_then(|at| self.coded.get(at)) == Some(&true);
            if chunks.chunks.iter().any(|chunk| coded(chunk.file.0)) {
                slow.insert(tensor);
            }
        }
        slow.into_iter().collect()
    }

    /// Sums of these tensors, read element by element from the source, each block proven again.
    fn gather(&self, threads: usize, cancel: &Cancel) -> Result<Vec<(usize, FingerprintSum)>> {
        let (slow, next, found) = (self.slow(), AtomicUsize::new(0), Mutex::new(Vec::new()));
        if slow.is_empty() {
            return Ok(Vec::new());
        }
        let reader = RegionReader::new(self.source, Verify::Records);
        crew::work(threads.min(slow.len()), || {
            while let Some(tensor) = slow.get(next.fetch_add(1, Ordering::Relaxed)) {
                let grid =
                    self.grids.get(*tensor).ok_or_else(|| Error::internal("a tensor without a grid"))?;
                let sum = sum_of(&reader, *tensor, grid, cancel)?;
                found.lock().unwrap_or_else(PoisonError::into_inner).push((*tensor, sum));
            }
            Ok(())
        })?;
        Ok(found.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}
