//! From bytes of a file to what they are: the tensors, and the boxes of them, that a byte range holds.
//!
//! Exact for packed chunks and for those that are packed in another order of dimensions (a stored transpose); for
//! chunks with gaps between their rows, the smallest run of rows. Used only when something is wrong, so it scans.

use std::ops::Range;

use fqn::{Dims, Entry, Shape, TensorId};
use reshard::{Region, flat::boxes};

use super::grid::Grid;
use crate::{Catalog, Chunk, FileId};

/// A part of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Affected {
    pub(crate) id: TensorId,
    /// Boxes in global coordinates.
    pub(crate) boxes: Vec<Region>,
}

impl Affected {
    /// The boxes as text, a few of them.
    pub(crate) fn range(&self) -> String {
        let text: Vec<String> = self.boxes.iter().map(Region::to_string).collect();
        text.join(" + ")
    }
}

/// What the bytes `range` of `file` are to the tensors of the catalog.
pub(crate) fn affected(catalog: &Catalog, file: FileId, range: &Range<u64>) -> Vec<Affected> {
    let mut found = Vec::new();
    for (entry, chunks) in catalog.iter() {
        let here = chunks.chunks.iter().filter(|chunk| chunk.file == file);
        let boxes: Vec<Region> = here.flat_map(|chunk| within(entry, &chunk, range)).collect();
        if !boxes.is_empty() {
            found.push(Affected { id: entry.id(), boxes });
        }
    }
    found
}

/// One sentence on what the bytes `range` of `file` are.
pub(crate) fn describe(catalog: &Catalog, file: FileId, range: &Range<u64>) -> String {
    let found = affected(catalog, file, range);
    if found.is_empty() {
        return "no tensor lies there".to_owned();
    }
    let text: Vec<String> = found.iter().take(4).map(|it| format!("{} {}", it.id, it.range())).collect();
    let more = if found.len() > 4 { format!(" and {} more tensors", found.len() - 4) } else { String::new() };
    format!("it holds {}{more}", text.join(", "))
}

fn within(entry: &Entry, chunk: &Chunk, range: &Range<u64>) -> Vec<Region> {
    let whole = || vec![chunk.region.clone()];
    let Some(span) = chunk.span(entry.dtype) else { return whole() };
    let (start, end) = (range.start.max(chunk.offset), range.end.min(chunk.offset.saturating_add(span)));
    if start >= end {
        return Vec::new();
    }
    let bytes = start - chunk.offset..end - chunk.offset;
    let Ok(grid) = Grid::of(entry) else { return whole() };
    let Ok(cells) = grid.region(&chunk.region) else { return whole() };
    let flat = bytes.start / grid.width..bytes.end.div_ceil(grid.width);
    let found = in_order(&cells, chunk.strides.as_deref(), &flat);
    found.into_iter().map(|region| grid.elements(&region)).collect()
}

/// The boxes of `region` that lie at the cells `flat` of its storage.
fn in_order(region: &Region, strides: Option<&[u64]>, flat: &Range<u64>) -> Vec<Region> {
    let packed = Shape::new(region.extents()).row_major_strides().unwrap_or_default();
    let strides = strides.unwrap_or(&packed);
    let mut order: Vec<usize> = (0..region.rank()).collect();
    order.sort_by_key(|&dim| std::cmp::Reverse(strides.get(dim).copied().unwrap_or(0)));
    let extent = |dim: &usize| region.extents().get(*dim).copied().unwrap_or(1);
    let stored: Shape = order.iter().map(extent).collect();
    let dense = stored.row_major_strides().is_some_and(|dense| {
        dense.iter().zip(&order).all(|(want, dim)| extent(dim) <= 1 || strides.get(*dim) == Some(want))
    });
    if dense {
        let pieces = boxes(&stored, flat.clone()).unwrap_or_default();
        return pieces.iter().filter_map(|piece| placed(region, &order, piece)).collect();
    }
    rows(region, strides, order.first().copied(), flat).map_or_else(|| vec![region.clone()], |it| vec![it])
}

/// A box of the stored order, put back into the tensor's dimensions and place.
fn placed(region: &Region, order: &[usize], piece: &Region) -> Option<Region> {
    let (mut offsets, mut extents) = (Dims::from_slice(region.offsets()), Dims::from_slice(region.extents()));
    for ((dim, at), extent) in order.iter().zip(piece.offsets()).zip(piece.extents()) {
        *offsets.get_mut(*dim)? += at;
        *extents.get_mut(*dim)? = *extent;
    }
    Region::new(&offsets, &extents).ok()
}

/// The slices of the outermost stored dimension that reach into `flat`.
fn rows(region: &Region, strides: &[u64], outer: Option<usize>, flat: &Range<u64>) -> Option<Region> {
    let outer = outer?;
    let stride = strides.get(outer).copied().filter(|stride| *stride > 0)?;
    let inner = strides.iter().zip(region.extents()).enumerate().filter(|(dim, _)| *dim != outer);
    let reach = inner.map(|(_, (s, e))| s.saturating_mul(e.saturating_sub(1)));
    let inner_span = reach.fold(1_u64, u64::saturating_add);
    let extent = region.extents().get(outer).copied()?;
    let first = flat.start.saturating_sub(inner_span - 1).div_ceil(stride).min(extent.saturating_sub(1));
    let last = flat.end.saturating_sub(1) / stride;
    let (mut offsets, mut extents) = (Dims::from_slice(region.offsets()), Dims::from_slice(region.extents()));
    *offsets.get_mut(outer)? += first;
    *extents.get_mut(outer)? = last.min(extent - 1).checked_sub(first)? + 1;
    Region::new(&offsets, &extents).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(offsets: &[u64], extents: &[u64]) -> Region {
        Region::new(offsets, extents).unwrap()
    }

    #[test]
    fn bytes_of_a_packed_chunk_are_named_by_their_boxes() {
        let chunk = region(&[10, 20], &[4, 8]);
        assert_eq!(in_order(&chunk, None, &(8..24)), [region(&[11, 20], &[2, 8])]);
        let ragged = in_order(&chunk, None, &(6..9));
        assert_eq!(ragged, [region(&[10, 26], &[1, 2]), region(&[11, 20], &[1, 1])]);
    }

    #[test]
    fn bytes_of_a_stored_transpose_are_columns() {
        let chunk = region(&[0, 0], &[4, 8]);
        assert_eq!(in_order(&chunk, Some(&[1, 4]), &(4..12)), [region(&[0, 1], &[4, 2])]);
    }

    #[test]
    fn bytes_of_a_view_with_gaps_are_the_rows_that_reach_them() {
        let chunk = region(&[0, 0], &[4, 3]);
        assert_eq!(in_order(&chunk, Some(&[10, 1]), &(11..25)), [region(&[1, 0], &[2, 3])]);
        assert_eq!(in_order(&chunk, Some(&[10, 1]), &(2..3)), [region(&[0, 0], &[1, 3])]);
    }
}
