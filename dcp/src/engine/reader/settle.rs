//! The end of a copy: records of which only some pieces were read are read to their ends and judged.
//!
//! A record is left incomplete where a tensor is a view of a part of its storage, where this process copies only its share of the files,
//! and where an earlier run copied some of them. What other processes copied is not at hand: that its record is whole now, in a file that
//! is still the same (see [`Source::stamp`](crate::Source::stamp)), is what can be known of it.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use super::{Reader, piece_range, take};
use crate::{
    Cancel, FileId, Progress, Result, crew,
    engine::{Verify, checks::FileChecks},
};

/// Bytes of files that a copy was made from.
pub(crate) type Touched = BTreeMap<FileId, Vec<Range<u64>>>;

impl Reader<'_> {
    /// Whether there are records, so that something may be left to settle.
    pub(crate) fn has_records(&self) -> bool {
        self.verify == Verify::Records && self.known.iter().any(|known| !known.records.is_empty())
    }

    /// Judges every record of which something was read here, or lies in what others `touched`.
    ///
    /// # Errors
    /// `Corrupt`, naming file, tensors and boxes, for a record whose CRC-32 differs; `Cancelled`; what the source says.
    pub(crate) fn settle(
        &self,
        touched: &Touched,
        threads: usize,
        progress: &dyn Progress,
        cancel: &Cancel,
    ) -> Result<()> {
        let pieces = self.unsettled(touched)?;
        if pieces.is_empty() {
            return Ok(());
        }
        let ranges = pieces.iter().filter_map(|(_, checks, piece)| checks.cuts.range(*piece));
        let bytes = ranges.map(|range| range.end - range.start).sum();
        let next = AtomicUsize::new(0);
        progress.begin("prove", bytes);
        let settled = crew::work(threads.min(pieces.len()), || {
            let mut buffer = Vec::new();
            while let Some((file, checks, piece)) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                let read = cancel.check().and_then(|()| self.unread(*file, checks, *piece, &mut buffer));
                if read.is_err() {
                    next.store(pieces.len(), Ordering::Relaxed);
                }
                read?;
                progress.advance(buffer.len() as u64);
            }
            Ok(())
        });
        progress.end();
        settled
    }

    fn unread(&self, file: FileId, checks: &FileChecks, piece: usize, buffer: &mut Vec<u8>) -> Result<()> {
        let range = piece_range(checks, piece)?;
        buffer.resize(take(range.end - range.start, usize::MAX), 0);
        self.whole(file, checks, piece..piece + 1, buffer)
    }

    /// The pieces that are left to read, in the order of the files.
    fn unsettled(&self, touched: &Touched) -> Result<Vec<(FileId, Arc<FileChecks>, usize)>> {
        let mut pieces = Vec::new();
        for (at, known) in (0..).zip(&self.known) {
            if known.records.is_empty() {
                continue;
            }
            let file = FileId(at);
            let ranges = touched.get(&file).map_or(&[][..], Vec::as_slice);
            let slot = self.files.get(file.0 as usize);
            let is_read = slot.is_some_and(|it| it.lock().unwrap_or_else(PoisonError::into_inner).is_some());
            if !is_read && ranges.is_empty() {
                continue;
            }
            let checks = self.checks(file)?;
            pieces.extend(checks.missing(ranges).map(|piece| (file, Arc::clone(&checks), piece)));
        }
        Ok(pieces)
    }
}
