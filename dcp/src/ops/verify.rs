//! [`verify`]: proves that a checkpoint is whole, or tells everything that is wrong with it.
//!
//! ```text
//!  adapter's audit ─┐
//!  box cover ───────┼─► findings (file, FQN, index range), sorted
//!  pieces of files ─┘
//!    any thread takes the next, reads it, compares block digests; CRC-32s are summed by record
//! ```
//!
//! Blocks are proven as they are stored: compressed ones are not decoded, and what they hold is named by the bytes that they decode to.
//!
//! Invariants: it never stops at the first finding; every byte that a block table or a CRC-32 covers is read once, but for those
//! that a [`Subset`] leaves out, which are counted; what nothing covers is counted and told, never passed off as proven; of a blob
//! that is shared with other checkpoints only the blocks with bytes of this one are read; memory is one block for each thread.

mod subset;

use std::{
    collections::HashMap,
    num::NonZeroUsize,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
};

use fqn::Entry;
use reshard::Region;
use serde::Serialize;

use super::crew;
use crate::{
    Cancel, Catalog, Chunks, Error, ErrorKind, FileId, Finding, FindingCode, Location, Progress, Result,
    Severity, Source,
    engine::{
        blame,
        checks::{Bad, Differs, FileChecks},
        cover::Cover,
        grid::Grid,
        reader::known,
    },
};

use subset::Chooser;
pub use subset::{Parts, Subset};

/// What is verified, and with what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifyOptions {
    /// Threads that read and hash; each holds one block of at most 1 MiB.
    pub threads: NonZeroUsize,
    /// Which part of the bytes is read; cover and metadata are always checked in full.
    pub subset: Subset,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        Self { threads: thread::available_parallelism().unwrap_or(NonZeroUsize::MIN), subset: Subset::All }
    }
}

/// What was found, and what was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// Everything found, worst first, then by file and tensor.
    pub findings: Vec<Finding>,
    /// Files that the catalog names.
    pub files: usize,
    /// Tensors whose cover was checked.
    pub tensors: usize,
    /// Bytes that were read.
    pub bytes: u64,
    /// What proved them.
    pub checksums: Checksums,
    /// Which part of the bytes was to be read.
    pub coverage: Coverage,
}

/// Which part of the bytes that something could prove was to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Coverage {
    /// Whether it was all of them: only then the checkpoint as a whole was verified.
    pub complete: bool,
    /// The parts, where only some were wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parts: Option<Parts>,
    /// Blocks, and records with a CRC-32, that were to be read.
    pub units: u64,
    /// Of how many.
    pub of_units: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Of how many.
    pub of_bytes: u64,
}

/// What proved bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Checksums {
    /// Files with a table of SHA-256 digests.
    pub block_files: usize,
    /// Bytes compared with such a table.
    pub block_bytes: u64,
    /// Files with CRC-32 records.
    pub record_files: usize,
    /// Bytes of such records.
    pub record_bytes: u64,
    /// Files of which nothing proves any byte.
    pub unproven_files: usize,
    /// Bytes of files that nothing proves.
    pub unproven_bytes: u64,
}

impl VerifyReport {
    /// Whether nothing says that data is wrong or missing.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.findings.iter().all(|finding| finding.severity < Severity::Error)
    }
}

/// Verifies a checkpoint.
///
/// # Errors
/// Only where it could not be verified: cancelled, or the store failed for another reason than missing or damaged data.
pub fn verify(
    source: &dyn Source,
    options: &VerifyOptions,
    progress: &dyn Progress,
    cancel: &Cancel,
) -> Result<VerifyReport> {
    let catalog = source.catalog();
    let mut findings = source.audit()?;
    for (entry, chunks) in catalog.iter() {
        findings.extend(cover(entry, chunks));
    }
    let nothing = options.subset == Subset::Nothing;
    let (mut targets, told) = if nothing { Default::default() } else { targets(source)? };
    findings.extend(told);
    let coverage = choose(&mut targets, options.subset);
    let mut checksums = Checksums::default();
    targets.iter().for_each(|target| checksums.count(target));
    let payload = Payload {
        source,
        targets,
        next: AtomicUsize::new(0),
        bytes: AtomicU64::new(0),
        told: Mutex::default(),
    };
    progress.begin("verify", checksums.block_bytes + checksums.record_bytes);
    let outcome = payload.all(options.threads.get(), progress, cancel);
    progress.end();
    outcome?;
    findings.extend(payload.told.into_inner().unwrap_or_else(PoisonError::into_inner));
    let key =
        |it: &Finding| (std::cmp::Reverse(it.severity), it.file.clone(), it.tensor.clone(), it.range.clone());
    findings.sort_by_cached_key(key);
    Ok(VerifyReport {
        findings,
        files: catalog.files.len(),
        tensors: catalog.tensors.len(),
        bytes: payload.bytes.into_inner(),
        checksums,
        coverage,
    })
}

/// What is wrong with how the chunks of a tensor cover it.
fn cover(entry: &Entry, chunks: &Chunks) -> Vec<Finding> {
    let id = entry.id();
    let error = |code, text: String| Finding::new(Severity::Error, code, text).tensor(id.clone());
    let outside = chunks.chunks.iter().filter(|chunk| !chunk.region.fits(&entry.shape));
    let mut found: Vec<Finding> = outside
        .map(|chunk| {
            let text = format!("a chunk lies outside the shape {}", entry.shape);
            error(FindingCode::OutOfBounds, text).range(&chunk.region)
        })
        .collect();
    let grid = match Grid::of(entry) {
        Ok(grid) => grid,
        Err(problem) => return vec![error(FindingCode::LengthMismatch, problem.to_string())],
    };
    let inside = chunks.chunks.iter().filter(|chunk| chunk.region.fits(&entry.shape));
    let regions: Vec<Region> = match inside.map(|chunk| grid.region(&chunk.region)).collect::<Result<_>>() {
        Ok(regions) => regions,
        Err(problem) => {
            found.push(error(FindingCode::LengthMismatch, problem.to_string()));
            return found;
        }
    };
    let Err((first, cover)) = Cover::check(&grid.shape, &regions) else { return found };
    let before = found.len();
    let gap = "no chunk holds these elements; a rank's file or its metadata is missing";
    found.extend(
        cover.gaps.iter().map(|it| error(FindingCode::Gap, gap.to_owned()).range(&grid.elements(it))),
    );
    let twice = "more than one chunk claims these elements";
    let overlap = |it: &Region| error(FindingCode::Overlap, twice.to_owned()).range(&grid.elements(it));
    found.extend(cover.overlaps.iter().map(overlap));
    if found.len() == before {
        found.push(error(FindingCode::Other, first.to_string()));
    } else if cover.stopped {
        let text = "there may be more of these than is listed: only so many are looked for";
        found.push(error(FindingCode::Other, text.to_owned()));
    }
    found
}

/// A file whose payload is read.
#[derive(Debug)]
struct Target {
    file: FileId,
    path: String,
    size: u64,
    checks: FileChecks,
    /// Whether other checkpoints have bytes in it too: only blocks with chunks of this one are its concern.
    shared: Option<Vec<std::ops::Range<u64>>>,
    /// Its pieces that are read, ascending.
    pieces: Vec<u32>,
    /// Bytes of them.
    wanted: u64,
    /// Number of the first of these among those of all.
    first: usize,
    /// Whether it turned out that it can't be read, so that this is told once.
    lost: AtomicBool,
}

/// The files, and what is wrong with their checksums.
fn targets(source: &dyn Source) -> Result<(Vec<Target>, Vec<Finding>)> {
    let catalog = source.catalog();
    let known = known(source, catalog.files.len());
    let mut shared = shared(catalog);
    let (mut targets, mut told) = (Vec::new(), Vec::new());
    for (at, (entry, known)) in catalog.files.iter().zip(&known).enumerate() {
        let file = FileId(u32::try_from(at).map_err(|_| Error::internal("more than 2^32 files"))?);
        let checks = source.blocks(file).and_then(|table| FileChecks::new(entry, table, &known.records, &[]));
        match checks {
            Ok(checks) => {
                let (path, size, lost) = (entry.path.clone(), entry.size, AtomicBool::new(false));
                let (shared, pieces) = (shared.remove(&file), Vec::new());
                targets.push(Target { file, path, size, checks, shared, pieces, wanted: 0, first: 0, lost });
            }
            Err(error) if is_data(&error) => {
                let code = FindingCode::of_error(&error, FindingCode::DigestMismatch);
                let finding = Finding::new(Severity::Error, code, error.to_string());
                told.push(finding.file(entry.path.clone()));
            }
            Err(error) => return Err(error),
        }
    }
    Ok((targets, told))
}

/// What this checkpoint has in files that lie in other folders of the root: bytes from the first to the last of each chunk,
/// ascending.
fn shared(catalog: &Catalog) -> HashMap<FileId, Vec<std::ops::Range<u64>>> {
    let of_root = |file: &FileId| catalog.file(*file).is_ok_and(|it| it.location == Location::InRoot);
    let mut spans: HashMap<FileId, Vec<std::ops::Range<u64>>> = (0_u32..)
        .map(FileId)
        .take(catalog.files.len())
        .filter(of_root)
        .map(|file| (file, Vec::new()))
        .collect();
    if spans.is_empty() {
        return spans;
    }
    for (entry, chunks) in catalog.iter() {
        for chunk in &chunks.chunks {
            let Some(spans) = spans.get_mut(&chunk.file) else { continue };
            let end = chunk.span(entry.dtype).and_then(|span| span.checked_add(chunk.offset));
            spans.push(chunk.offset..end.unwrap_or(u64::MAX));
        }
    }
    for spans in spans.values_mut() {
        spans.sort_unstable_by_key(|span| (span.start, span.end));
        spans.dedup_by(|next, span| {
            let meets = next.start <= span.end;
            if meets {
                span.end = span.end.max(next.end);
            }
            meets
        });
    }
    spans
}

/// Decides which pieces are read.
fn choose(targets: &mut [Target], subset: Subset) -> Coverage {
    let all =
        |targets: &[Target]| targets.iter().flat_map(Target::units).map(|(_, bytes)| bytes).sum::<u64>();
    let (mut coverage, mut first) = (Coverage { of_bytes: all(targets), ..Coverage::default() }, 0);
    let mut chooser = Chooser::new(subset, coverage.of_bytes);
    for target in targets {
        let mut pieces = Vec::new();
        let mut wanted = 0;
        for (unit, bytes) in target.units() {
            coverage.of_units += 1;
            if chooser.next() {
                coverage.units += 1;
                wanted += bytes;
                pieces.extend(unit.filter_map(|piece| u32::try_from(piece).ok()));
            }
        }
        coverage.bytes += wanted;
        (target.first, target.wanted) = (first, wanted);
        first += pieces.len();
        target.pieces = pieces;
    }
    coverage.parts = subset.parts(coverage.of_bytes).filter(|_| coverage.units < coverage.of_units);
    coverage.complete = subset != Subset::Nothing && coverage.units == coverage.of_units;
    coverage
}

impl Target {
    /// What proves itself as a whole: pieces, and bytes of them.
    fn units(&self) -> impl Iterator<Item = (std::ops::Range<usize>, u64)> + '_ {
        let range = |piece| self.checks.cuts.range(piece).unwrap_or_default();
        let concerns = move |unit: &std::ops::Range<usize>| {
            let Some(spans) = &self.shared else { return true };
            let (start, end) = (range(unit.start).start, range(unit.end.saturating_sub(1)).end);
            let at = spans.partition_point(|span| span.end <= start);
            spans.get(at).is_some_and(|span| span.start < end)
        };
        let bytes = move |unit: std::ops::Range<usize>| {
            let stored = |piece| self.checks.stored(piece).unwrap_or_default();
            let len = unit.clone().map(stored).map(|it| it.end - it.start).sum();
            (unit, len)
        };
        self.checks.units().filter(concerns).map(bytes)
    }
}

impl Checksums {
    fn count(&mut self, target: &Target) {
        if target.checks.has_blocks() {
            self.block_files += 1;
            self.block_bytes += target.wanted;
        } else if target.checks.is_checked() {
            self.record_files += 1;
            self.record_bytes += target.wanted;
            self.unproven_bytes += target.size.saturating_sub(target.checks.proven_bytes());
        } else {
            self.unproven_files += 1;
            self.unproven_bytes += target.size;
        }
    }
}

/// Whether an error says that data is damaged or missing, not that it could not be looked at.
fn is_data(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound | ErrorKind::Unsupported)
}

/// The pieces of all files, handed out one by one.
struct Payload<'a> {
    source: &'a dyn Source,
    targets: Vec<Target>,
    next: AtomicUsize,
    bytes: AtomicU64,
    told: Mutex<Vec<Finding>>,
}

impl Payload<'_> {
    fn all(&self, threads: usize, progress: &dyn Progress, cancel: &Cancel) -> Result<()> {
        crew::work(threads, || self.serve(progress, cancel))
    }

    fn serve(&self, progress: &dyn Progress, cancel: &Cancel) -> Result<()> {
        let mut buffers = [Vec::new(), Vec::new()];
        loop {
            cancel.check()?;
            // Two at a time: blocks are hashed in pairs.
            let first = self.next.fetch_add(2, Ordering::Relaxed);
            let Some(one) = self.nth(first) else { return Ok(()) };
            if let Err(error) = self.two(one, self.nth(first + 1), &mut buffers, progress) {
                // Other threads need not go on: this is not about the data.
                self.next.store(usize::MAX / 2, Ordering::Relaxed);
                return Err(error);
            }
        }
    }

    /// A piece by its number among those of all files.
    fn nth(&self, number: usize) -> Option<(&Target, usize)> {
        let at = self.targets.partition_point(|target| target.first <= number);
        let target = self.targets.get(at.checked_sub(1)?)?;
        let piece = target.pieces.get(number - target.first)?;
        Some((target, usize::try_from(*piece).ok()?))
    }

    fn two(
        &self,
        one: (&Target, usize),
        other: Option<(&Target, usize)>,
        [buffer, other_buffer]: &mut [Vec<u8>; 2],
        progress: &dyn Progress,
    ) -> Result<()> {
        let read = self.read(one, buffer, progress)?;
        let other = match other {
            Some(other) if self.read(other, other_buffer, progress)? => Some(other),
            _ => None,
        };
        let one = Some(one).filter(|_| read);
        match (one, other) {
            (Some((target, one)), Some((of, other))) if std::ptr::eq(target, of) => {
                for checked in target.checks.check_two([(one, buffer), (other, other_buffer)]) {
                    self.judge(target, checked);
                }
            }
            alone => {
                for ((target, piece), bytes) in [alone.0, alone.1]
                    .into_iter()
                    .zip([buffer, other_buffer])
                    .filter_map(|(it, bytes)| Some((it?, bytes)))
                {
                    self.judge(target, target.checks.check(piece, bytes));
                }
            }
        }
        Ok(())
    }

    /// Reads the stored bytes of a piece; false where there is nothing to prove, or the file can't be read, which is told once.
    fn read(
        &self,
        (target, piece): (&Target, usize),
        buffer: &mut Vec<u8>,
        progress: &dyn Progress,
    ) -> Result<bool> {
        let Some(range) = target.checks.stored(piece).filter(|_| target.checks.covers(piece)) else {
            return Ok(false);
        };
        let len = range.end - range.start;
        progress.advance(len);
        if target.lost.load(Ordering::Relaxed) {
            return Ok(false);
        }
        buffer.resize(usize::try_from(len).unwrap_or_default(), 0);
        match self.source.read_stored_at(target.file, range.start, buffer) {
            Ok(()) => {
                self.bytes.fetch_add(len, Ordering::Relaxed);
                Ok(true)
            }
            Err(error) if is_data(&error) => {
                if !target.lost.swap(true, Ordering::Relaxed) {
                    let code = if error.kind() == ErrorKind::NotFound {
                        FindingCode::MissingFile
                    } else {
                        FindingCode::SizeMismatch
                    };
                    self.tell(target, code, &error.to_string(), &(0..u64::MAX));
                }
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn judge(&self, target: &Target, checked: std::result::Result<bool, Bad>) {
        if let Err(Bad { range, stored, what, message }) = checked {
            let code = match what {
                Differs::Block => FindingCode::BlockMismatch,
                Differs::Record => FindingCode::CrcMismatch,
            };
            let text = format!("bytes {}..{}: {message}", stored.start, stored.end);
            self.tell(target, code, &text, &range);
        }
    }

    /// A finding for each tensor that the bytes hold.
    fn tell(&self, target: &Target, code: FindingCode, text: &str, range: &std::ops::Range<u64>) {
        let hint = "take the file from another copy of the checkpoint";
        let finding = || Finding::new(Severity::Error, code, text).file(target.path.clone()).hint(hint);
        let catalog: &Catalog = self.source.catalog();
        let affected = blame::affected(catalog, target.file, range);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if affected.is_empty() {
            told.push(finding());
        }
        told.extend(affected.into_iter().map(|it| finding().range(&it.range()).tensor(it.id)));
    }
}

#[cfg(test)]
mod tests;
