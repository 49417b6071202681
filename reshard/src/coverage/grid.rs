//! [`Grid`]: chunks that are the cells of a grid, each once. Straight cuts make such; they tile what they span, and that is
//! seen without comparing corners: `n · d · log` of the cuts in a dimension. Which of them meet a box takes a search in
//! each dimension and no tree.
//!
//! If every chunk is one cell of a grid, no cell comes twice, and there are as many chunks as cells, then the chunks tile
//! the box that they span. Whatever fails here may still tile it in another way.

use fqn::Dims;
use smallvec::SmallVec;

use crate::Region;

/// Chunks of one tensor that are the cells of a grid.
#[derive(Debug, Clone)]
pub(crate) struct Grid {
    /// Where cells begin in each dimension, ascending, and at last where the grid ends.
    bounds: Vec<Vec<u64>>,
    /// Position in the caller's list of the chunk that is each cell, row-major.
    cells: Vec<usize>,
}

/// Whether the chunks with elements are the cells of a grid over all of `shape`, each once. All lie within it, and it has elements.
pub(super) fn is_grid<'a>(shape: &[u64], chunks: &(impl Iterator<Item = &'a Region> + Clone)) -> bool {
    Grid::new(chunks).is_some_and(|grid| {
        let ends = grid.bounds.iter().map(|bounds| (bounds.first().copied(), bounds.last().copied()));
        ends.eq(shape.iter().map(|extent| (Some(0), Some(*extent))))
    })
}

impl Grid {
    /// The grid that the chunks with elements are; `None` where they are none, or there is no chunk.
    pub(crate) fn new<'a>(chunks: &(impl Iterator<Item = &'a Region> + Clone)) -> Option<Self> {
        let filled = || chunks.clone().enumerate().filter(|(_, region)| !region.is_empty());
        let (_, first) = filled().next()?;
        let bounds: Vec<Vec<u64>> =
            (0..first.rank()).map(|dim| bounds(dim, filled().map(|(_, region)| region))).collect();
        let count = filled().count();
        let cells = bounds.iter().try_fold(1_usize, |cells, bounds| cells.checked_mul(bounds.len() - 1));
        if cells != Some(count) {
            return None;
        }
        let mut grid = Self { bounds, cells: vec![usize::MAX; count] };
        for (at, region) in filled() {
            let cell = grid.cell_of(region)?;
            // A cell that was seen before is none.
            if std::mem::replace(grid.cells.get_mut(cell)?, at) != usize::MAX {
                return None;
            }
        }
        Some(grid)
    }

    /// The number of the cell that the chunk is, if it is one.
    fn cell_of(&self, region: &Region) -> Option<usize> {
        if region.rank() != self.bounds.len() {
            return None;
        }
        let mut cell = 0;
        for ((offset, extent), bounds) in region.offsets().iter().zip(region.extents()).zip(&self.bounds) {
            let at = bounds.binary_search(offset).ok()?;
            if bounds.get(at + 1) != Some(&(offset + extent)) {
                return None;
            }
            cell = cell * (bounds.len() - 1) + at;
        }
        Some(cell)
    }

    /// Whether all of `region` lies in the grid, so that cells tile it.
    pub(crate) fn spans(&self, region: &Region) -> bool {
        let ends = region.offsets().iter().zip(region.extents());
        region.rank() == self.bounds.len()
            && ends.zip(&self.bounds).all(|((offset, extent), bounds)| {
                bounds.first().is_some_and(|first| first <= offset)
                    && bounds.last().is_some_and(|last| offset.saturating_add(*extent) <= *last)
            })
    }

    /// What each cell shares with `region`, and which chunk it is, cells in row-major order. `region` has elements and
    /// [`Self::spans`] it.
    pub(crate) fn meeting(&self, region: &Region) -> Vec<(usize, Region)> {
        let ends = region.offsets().iter().zip(region.extents()).zip(&self.bounds);
        let spans = ends.map(|((offset, extent), bounds)| {
            let first = bounds.partition_point(|start| start <= offset).saturating_sub(1);
            (first, bounds.partition_point(|start| *start < offset.saturating_add(*extent)))
        });
        let spans: SmallVec<[(usize, usize); 4]> = spans.collect();
        let mut at: SmallVec<[usize; 4]> = spans.iter().map(|(first, _)| *first).collect();
        let mut found = Vec::with_capacity(spans.iter().map(|(first, last)| last - first).product());
        loop {
            found.extend(self.shared(region, &at));
            // The next cell: the last dimension is fastest.
            let mut dims = at.iter_mut().zip(&spans).rev();
            let moved = dims.any(|(place, (first, last))| {
                *place += 1;
                let inside = *place < *last;
                if !inside {
                    *place = *first;
                }
                inside
            });
            if !moved {
                return found;
            }
        }
    }

    fn shared(&self, region: &Region, at: &[usize]) -> Option<(usize, Region)> {
        let (mut cell, mut offsets, mut extents) = (0, Dims::new(), Dims::new());
        let dims = at.iter().zip(&self.bounds).zip(region.offsets().iter().zip(region.extents()));
        for ((at, bounds), (offset, extent)) in dims {
            let start = *bounds.get(*at)?.max(offset);
            offsets.push(start);
            extents.push((*bounds.get(at + 1)?).min(offset + extent).checked_sub(start)?);
            cell = cell * (bounds.len() - 1) + at;
        }
        Some((*self.cells.get(cell)?, Region::new(&offsets, &extents).ok()?))
    }
}

/// Where chunks begin in a dimension, ascending, each place once, then where the last of them ends.
fn bounds<'a>(dim: usize, chunks: impl Iterator<Item = &'a Region>) -> Vec<u64> {
    let (mut starts, mut end): (Vec<u64>, u64) = (Vec::new(), 0);
    for region in chunks {
        let (Some(start), Some(extent)) = (region.offsets().get(dim), region.extents().get(dim)) else {
            continue;
        };
        end = end.max(start.saturating_add(*extent));
        // Neighbours in a list often begin alike.
        if starts.last() != Some(start) {
            starts.push(*start);
        }
    }
    if !starts.is_sorted() {
        starts.sort_unstable();
    }
    starts.dedup();
    starts.push(end);
    starts
}
