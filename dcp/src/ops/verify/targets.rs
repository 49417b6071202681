//! The files of a checkpoint, in pieces, and which of them are read.

use std::{collections::HashMap, ops::Range, sync::atomic::AtomicBool};

use super::{
    Checksums, Coverage,
    subset::{Chooser, Subset},
};
use crate::{
    Catalog, Error, ErrorKind, FileId, Finding, FindingCode, Location, Result, Severity, Source,
    engine::{checks::FileChecks, reader::known},
};

/// A file whose payload is read.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) file: FileId,
    pub(super) path: String,
    size: u64,
    pub(super) checks: FileChecks,
    /// Whether other checkpoints have bytes in it too: only blocks with chunks of this one are its concern.
    shared: Option<Vec<Range<u64>>>,
    /// Its pieces that are read, ascending.
    pub(super) pieces: Vec<u32>,
    /// Bytes of them.
    wanted: u64,
    /// Number of the first of these among those of all.
    pub(super) first: usize,
    /// Whether it turned out that it can't be read, so that this is told once.
    pub(super) lost: AtomicBool,
}

/// The files, and what is wrong with their checksums.
pub(super) fn targets(source: &dyn Source) -> Result<(Vec<Target>, Vec<Finding>)> {
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
fn shared(catalog: &Catalog) -> HashMap<FileId, Vec<Range<u64>>> {
    let of_root = |file: &FileId| catalog.file(*file).is_ok_and(|it| it.location == Location::InRoot);
    let mut spans: HashMap<FileId, Vec<Range<u64>>> = (0_u32..)
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
pub(super) fn choose(targets: &mut [Target], subset: Subset) -> Coverage {
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
    fn units(&self) -> impl Iterator<Item = (Range<usize>, u64)> + '_ {
        let range = |piece| self.checks.cuts.range(piece).unwrap_or_default();
        let concerns = move |unit: &Range<usize>| {
            let Some(spans) = &self.shared else { return true };
            let (start, end) = (range(unit.start).start, range(unit.end.saturating_sub(1)).end);
            let at = spans.partition_point(|span| span.end <= start);
            spans.get(at).is_some_and(|span| span.start < end)
        };
        let bytes = move |unit: Range<usize>| {
            let stored = |piece| self.checks.stored(piece).unwrap_or_default();
            let len = unit.clone().map(stored).map(|it| it.end - it.start).sum();
            (unit, len)
        };
        self.checks.units().filter(concerns).map(bytes)
    }
}

impl Checksums {
    pub(super) fn count(&mut self, target: &Target) {
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
pub(super) fn is_data(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound | ErrorKind::Unsupported)
}
