//! Runs of rows that are copied together: what an executor asks for, without a table of the permutation.

use std::ops::Range;

use super::{RegionMap, gcd};

/// Rows that lie together in both tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowRun {
    /// First row in the target.
    pub target: u64,
    /// First row in the source.
    pub source: u64,
    /// Number of rows.
    pub count: u64,
}

/// Runs that fill a range of target rows, in ascending target order. Constant memory.
#[derive(Debug, Clone)]
pub struct RowRuns {
    back: RegionMap,
    width: u64,
    granule: u64,
    rows: Range<u64>,
    pending: Option<RowRun>,
}

impl RegionMap {
    /// Runs of source rows that fill the target's `rows`; `None` where the map does more than permute rows. Rows
    /// beyond the tensor are left out.
    #[must_use]
    pub fn row_runs(&self, rows: Range<u64>) -> Option<RowRuns> {
        let (width, extent) = (self.row_width()?, *self.source.first()?);
        let back = self.inverse();
        let granule =
            if width == 0 || back.is_identity() { extent } else { gcd(back.granule() / width, extent) };
        let rows = rows.start.min(extent)..rows.end.min(extent);
        Some(RowRuns { back, width, granule: granule.max(1), rows, pending: None })
    }
}

impl RowRuns {
    /// The next aligned run, not yet merged with its neighbours.
    fn piece(&mut self) -> Option<RowRun> {
        let target = self.rows.start;
        if target >= self.rows.end {
            return None;
        }
        let count = (self.granule - target % self.granule).min(self.rows.end - target);
        self.rows.start = target + count;
        let source = self.back.map_linear(target * self.width).checked_div(self.width).unwrap_or(target);
        Some(RowRun { target, source, count })
    }
}

impl Iterator for RowRuns {
    type Item = RowRun;

    fn next(&mut self) -> Option<RowRun> {
        let mut run = match self.pending.take() {
            Some(run) => run,
            None => self.piece()?,
        };
        while let Some(piece) = self.piece() {
            if piece.source != run.source + run.count {
                self.pending = Some(piece);
                break;
            }
            run.count += piece.count;
        }
        Some(run)
    }
}
