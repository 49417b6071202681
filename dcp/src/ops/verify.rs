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
//! that is shared with other checkpoints only the blocks with bytes of this one are read; memory is two blocks for each thread, of which
//! there are no more than the bound has room for.

mod payload;
mod subset;
mod targets;

use std::num::NonZeroUsize;

use fqn::Entry;
use reshard::Region;
use serde::Serialize;

use crate::{
    Cancel, Chunks, Finding, FindingCode, Progress, Result, Severity, Source,
    engine::{cover::Cover, grid::Grid, threads, threads_in},
};

use payload::Payload;
use targets::{choose, targets};

pub use subset::{Parts, Subset};

/// Bytes that a thread holds, with as much to spare.
const PER_THREAD: u64 = 4 << 20;

/// What is verified, and with what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifyOptions {
    /// Threads that read and hash; each holds two blocks of at most 1 MiB.
    pub threads: NonZeroUsize,
    /// Bytes of their blocks.
    pub max_memory: u64,
    /// Which part of the bytes is read; cover and metadata are always checked in full.
    pub subset: Subset,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        Self { threads: threads(&[]), max_memory: 512 << 20, subset: Subset::All }
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
    let payload = Payload::new(source, targets);
    progress.begin("verify", checksums.block_bytes + checksums.record_bytes);
    let threads = threads_in(options.max_memory, PER_THREAD, options.threads);
    let outcome = payload.all(threads, progress, cancel);
    progress.end();
    outcome?;
    let (told, bytes) = payload.finish();
    findings.extend(told);
    let key =
        |it: &Finding| (std::cmp::Reverse(it.severity), it.file.clone(), it.tensor.clone(), it.range.clone());
    findings.sort_by_cached_key(key);
    Ok(VerifyReport {
        findings,
        files: catalog.files.len(),
        tensors: catalog.tensors.len(),
        bytes,
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

#[cfg(test)]
mod tests;
