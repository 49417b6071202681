//! [`RowMap`]: which row of the source each row of a target comes from.
//!
//! It is what a region map comes to where only dimension 0 is concerned (parts of a fused tensor, interleaved heads,
//! permuted rows of rotary embeddings, rows that pad a vocabulary): copying between boxes, so it composes with any cut.
//! Invariant: runs tile the target's rows in order.

use fqn::{Dims, Shape};
use reshard::Region;

use crate::{Error, Result};

/// Rows of a target, by the rows of its source that they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RowMap {
    /// Ascending in the target; empty for the identity.
    runs: Vec<RowRun>,
}

/// Consecutive rows of the target that are consecutive in the source too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowRun {
    /// First row in the target.
    pub target: u64,
    /// First row in the source.
    pub source: u64,
    /// Number of rows.
    pub rows: u64,
}

impl RowMap {
    /// Every row is itself.
    #[must_use]
    pub const fn identity() -> Self {
        Self { runs: Vec::new() }
    }

    /// These runs; those that follow on each other are merged.
    ///
    /// # Errors
    /// Runs that do not tile the target's rows from 0 on, in order.
    pub fn new(runs: impl IntoIterator<Item = RowRun>) -> Result<Self> {
        let mut merged: Vec<RowRun> = Vec::new();
        let mut next = 0_u64;
        for run in runs {
            let ends = run.target.checked_add(run.rows).zip(run.source.checked_add(run.rows));
            let Some((end, _)) = ends.filter(|_| run.target == next) else {
                return Err(Error::incompatible(format!(
                    "a row map goes on at row {} of the target where row {next} is due",
                    run.target
                )));
            };
            next = end;
            match merged.last_mut() {
                Some(last) if last.source + last.rows == run.source => last.rows += run.rows,
                _ if run.rows == 0 => {}
                _ => merged.push(run),
            }
        }
        Ok(Self { runs: merged })
    }

    /// Whether every row is itself.
    #[must_use]
    pub fn is_identity(&self) -> bool {
        self.runs.is_empty()
    }

    /// Whether a tensor of `source` shape gives one of `target` shape by this map.
    pub(crate) fn fits(&self, source: &Shape, target: &Shape) -> bool {
        if self.is_identity() {
            return source == target;
        }
        let (Some((have, inner)), Some((want, same))) = (source.split_first(), target.split_first()) else {
            return false;
        };
        let rows = self.runs.last().map_or(0, |run| run.target + run.rows);
        inner == same && rows == *want && self.runs.iter().all(|run| run.source + run.rows <= *have)
    }

    /// Whether every row of the source (of which there are `rows`) is in the target exactly once.
    pub(crate) fn is_permutation(&self, rows: u64) -> bool {
        let mut sources: Vec<(u64, u64)> = self.runs.iter().map(|run| (run.source, run.rows)).collect();
        sources.sort_unstable();
        let mut next = 0;
        let follow = sources.iter().all(|(at, rows)| std::mem::replace(&mut next, at + rows) == *at);
        self.is_identity() || (follow && next == rows)
    }

    /// The boxes of the source that a box of the target consists of, in the order of its rows.
    pub(crate) fn of(&self, region: &Region) -> Result<Vec<Region>> {
        let rows = region.offsets().first().zip(region.extents().first());
        let Some((&first, &count)) = rows.filter(|_| !self.is_identity()) else {
            return Ok(vec![region.clone()]);
        };
        let end = first.saturating_add(count);
        let begin = self.runs.partition_point(|run| run.target + run.rows <= first);
        let here = self.runs.iter().skip(begin).take_while(|run| run.target < end);
        here.map(|run| {
            let (from, to) = (run.target.max(first), (run.target + run.rows).min(end));
            moved(region, run.source + (from - run.target), to - from)
        })
        .collect()
    }
}

/// The box with other rows.
fn moved(region: &Region, row: u64, rows: u64) -> Result<Region> {
    let (mut offsets, mut extents) = (Dims::from_slice(region.offsets()), Dims::from_slice(region.extents()));
    if let (Some(offset), Some(extent)) = (offsets.first_mut(), extents.first_mut()) {
        (*offset, *extent) = (row, rows);
    }
    Region::new(&offsets, &extents).map_err(|error| Error::internal(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(target: u64, source: u64, rows: u64) -> RowRun {
        RowRun { target, source, rows }
    }

    #[test]
    fn a_box_is_split_where_rows_come_from_elsewhere() {
        let map = RowMap::new([run(0, 4, 2), run(2, 0, 4)]).unwrap();
        let found = map.of(&Region::new(&[1, 3], &[3, 5]).unwrap()).unwrap();
        let wanted = [Region::new(&[5, 3], &[1, 5]).unwrap(), Region::new(&[0, 3], &[2, 5]).unwrap()];
        assert_eq!(found, wanted);
        assert!(map.fits(&Shape::new(&[6, 8]), &Shape::new(&[6, 8])));
        assert!(map.is_permutation(6) && !map.is_permutation(7));
    }

    #[test]
    fn runs_must_tile_the_target_and_are_merged() {
        assert!(RowMap::new([run(0, 0, 2), run(3, 2, 1)]).is_err());
        let map = RowMap::new([run(0, 1, 2), run(2, 3, 2)]).unwrap();
        assert_eq!(map, RowMap::new([run(0, 1, 4)]).unwrap());
        assert!(!map.fits(&Shape::new(&[4]), &Shape::new(&[4])));
        assert!(map.fits(&Shape::new(&[5]), &Shape::new(&[4])));
    }

    #[test]
    fn the_identity_leaves_boxes_alone_whatever_their_rank() {
        let scalar = Region::new(&[], &[]).unwrap();
        assert_eq!(RowMap::identity().of(&scalar).unwrap(), [scalar]);
    }
}
