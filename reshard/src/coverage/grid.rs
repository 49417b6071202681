//! [`is_grid`]: chunks that are the cells of a grid, each once. Straight cuts make such; they tile their tensor, and that is seen
//! without comparing corners: `n · d · log` of the cuts in a dimension.
//!
//! If every chunk is one cell of a grid that fills the tensor, no cell comes twice, and there are as many chunks as cells, then
//! the chunks tile the tensor. Whatever fails here may still tile it in another way.

use crate::Region;

/// Whether the chunks with elements are the cells of a grid over all of `shape`, each once. All lie within it, and it has elements.
pub(super) fn is_grid<'a>(shape: &[u64], chunks: &(impl Iterator<Item = &'a Region> + Clone)) -> bool {
    let filled = chunks.clone().filter(|region| !region.is_empty());
    let starts: Vec<Vec<u64>> = (0..shape.len()).map(|dim| starts(dim, filled.clone())).collect();
    let count = filled.clone().count();
    let cells = starts.iter().try_fold(1_usize, |cells, starts| cells.checked_mul(starts.len()));
    // No chunks are no grid over a tensor that has elements.
    if count == 0 || cells != Some(count) {
        return false;
    }
    let mut seen = vec![false; count];
    filled.into_iter().all(|region| {
        let cell = cell_of(shape, &starts, region);
        // A cell that was seen before is none.
        cell.and_then(|cell| seen.get_mut(cell)).is_some_and(|seen| !std::mem::replace(seen, true))
    })
}

/// Where chunks begin in a dimension, ascending, each place once.
fn starts<'a>(dim: usize, chunks: impl Iterator<Item = &'a Region>) -> Vec<u64> {
    let mut starts: Vec<u64> = Vec::new();
    for start in chunks.filter_map(|region| region.offsets().get(dim)) {
        // Neighbours in a list often begin alike.
        if starts.last() != Some(start) {
            starts.push(*start);
        }
    }
    if !starts.is_sorted() {
        starts.sort_unstable();
    }
    starts.dedup();
    starts
}

/// The number of the cell that the chunk is, if it is one.
fn cell_of(shape: &[u64], starts: &[Vec<u64>], region: &Region) -> Option<usize> {
    let mut cell = 0;
    for (((offset, extent), starts), whole) in
        region.offsets().iter().zip(region.extents()).zip(starts).zip(shape)
    {
        let at = starts.binary_search(offset).ok()?;
        let end = starts.get(at + 1).unwrap_or(whole);
        if offset + extent != *end || starts.first() != Some(&0) {
            return None;
        }
        cell = cell * starts.len() + at;
    }
    Some(cell)
}
