//! Gathers any box of a tensor, row-major and packed, from the chunks that hold it, however those are stored.
//!
//! Cells are visited in the order of the *source*: the buffer is in memory and takes them in any order, files do not.
//! Invariant: a box is filled exactly, or an error names the tensor's box that chunks leave out or hold twice.

use std::cmp::Reverse;

use fqn::Shape;
use reshard::Region;
use smallvec::SmallVec;

use super::{
    reader::{Cells, Cursor, LONG},
    tensors::{Part, Tensor},
};
use crate::{Error, FileId, Result, digest::BLOCK_LEN};

/// One dimension of a copy: how many cells, and the bytes from one to the next on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Axis {
    extent: u64,
    src: u64,
    dst: u64,
}

type Axes = SmallVec<[Axis; 6]>;

/// Fills `dst` with `region`, a box of the tensor's cells.
pub(crate) fn gather(
    cursor: &mut Cursor<'_, '_>,
    tensor: &Tensor,
    region: &Region,
    dst: &mut [u8],
) -> Result<()> {
    let width = tensor.grid.width;
    if tensor.grid.bytes_of(region) != dst.len() as u64 {
        return Err(Error::internal(format!("{} bytes for region {region} of width {width}", dst.len())));
    }
    if cursor.brings() {
        let pieces = short_pieces(cursor, tensor, region)?;
        cursor.bring(&pieces)?;
    }
    let mut filled = 0_u64;
    for (part, shared) in tensor.sharing(region) {
        filled = filled.saturating_add(shared.elements());
        Route::new(cursor, tensor, part, &shared, region)?.copy(cursor, dst)?;
    }
    if filled == region.elements() {
        return Ok(());
    }
    let problem =
        if filled < region.elements() { "leave out part of" } else { "hold more than once a part of" };
    Err(Error::corrupt(format!("chunks {problem} {}", tensor.grid.elements(region))))
}

/// Pieces of files that short runs of a box lie in, in order.
fn short_pieces(cursor: &Cursor<'_, '_>, tensor: &Tensor, region: &Region) -> Result<Vec<(FileId, usize)>> {
    let mut pieces = Vec::new();
    for (part, shared) in tensor.sharing(region) {
        let route = Route::new(cursor, tensor, part, &shared, region)?;
        let (run, inner, outer) = route.split();
        // Cells that are far apart leave out pieces between them.
        let far = inner.is_some_and(|axis| axis.src >= u64::from(BLOCK_LEN));
        if !matches!(route.mode, Mode::Pieces) || run >= LONG as u64 || far {
            continue;
        }
        let cells = |axis: Axis| axis.src.saturating_mul(axis.extent.saturating_sub(1));
        let span = run.saturating_add(inner.map_or(0, cells));
        let (checks, mut seen) = (cursor.checks_of(part.file)?, 0..0);
        walk(outer, route.from, 0, &mut |from, _| {
            let run = from..from.saturating_add(span);
            if seen.start <= run.start && run.end <= seen.end {
                return Ok(());
            }
            let touched = checks.cuts.covering(&run);
            seen = checks.cuts.bytes(&touched);
            pieces.extend(touched.map(|piece| (part.file, piece)));
            Ok(())
        })?;
    }
    Ok(pieces)
}

/// The way of a box that `part` holds to its place in a buffer.
struct Route<'p> {
    part: &'p Part,
    axes: Axes,
    mode: Mode,
    /// First byte in the part's file, and in the buffer.
    from: u64,
    to: u64,
    width: u64,
}

impl<'p> Route<'p> {
    /// Of `shared`, which `part` holds, in a buffer that holds `region`.
    fn new(
        cursor: &Cursor<'_, '_>,
        tensor: &Tensor,
        part: &'p Part,
        shared: &Region,
        region: &Region,
    ) -> Result<Self> {
        let width = tensor.grid.width;
        let packed = Shape::new(region.extents()).row_major_strides().unwrap_or_default();
        let steps = packed.iter().map(|step| step.saturating_mul(width));
        let starts = shared.offsets().iter().zip(region.offsets()).map(|(at, base)| at - base);
        let to = starts.zip(steps.clone()).map(|(at, step)| at.saturating_mul(step));
        let to = to.fold(0, u64::saturating_add);
        let axes = axes(shared.extents(), &part.strides, &steps.collect::<SmallVec<[u64; 4]>>());
        let from = part.first_byte(shared);
        let mode = Mode::choose(cursor, part, &axes, split(&axes, width).0, width)?.from(from);
        Ok(Self { part, axes, mode, from, to, width })
    }

    fn split(&self) -> (u64, Option<Axis>, &[Axis]) {
        split(&self.axes, self.width)
    }

    fn copy(&self, cursor: &mut Cursor<'_, '_>, dst: &mut [u8]) -> Result<()> {
        let (run, inner, outer) = self.split();
        walk(outer, self.from, self.to, &mut |from, to| {
            let out = dst.get_mut(usize::try_from(to).unwrap_or(usize::MAX)..);
            let out = out.ok_or_else(|| Error::internal("a copy leaves its buffer"))?;
            match inner {
                None => self.mode.run(cursor, self.part, from, out, run),
                Some(axis) => self.mode.cells(cursor, self.part, from, out, axis, self.width),
            }
        })
    }
}

/// How short runs are read.
#[derive(Debug, Clone, Copy)]
enum Mode {
    /// By pieces of the file.
    Pieces,
    /// Together with the small gaps between them, up to this byte.
    Ahead(u64),
    /// One by one.
    Alone,
}

/// Gaps are read along when they are at most this part of what is wanted.
const GAP_SHARE: u64 = 25;

impl Mode {
    fn choose(cursor: &Cursor<'_, '_>, part: &Part, axes: &[Axis], run: u64, width: u64) -> Result<Self> {
        if cursor.by_piece(part.file)? {
            return Ok(Self::Pieces);
        }
        let span = axes.iter().map(|axis| axis.src.saturating_mul(axis.extent.saturating_sub(1)));
        let span = span.fold(width, u64::saturating_add);
        let wanted = axes.iter().fold(width, |product, axis| product.saturating_mul(axis.extent));
        let dense = span <= wanted.saturating_add(wanted / GAP_SHARE);
        Ok(if dense && span > run { Self::Ahead(span) } else { Self::Alone })
    }

    /// With the span counted from the first byte.
    const fn from(self, first: u64) -> Self {
        match self {
            Self::Ahead(span) => Self::Ahead(first.saturating_add(span)),
            other => other,
        }
    }

    fn run(
        self,
        cursor: &mut Cursor<'_, '_>,
        part: &Part,
        from: u64,
        out: &mut [u8],
        run: u64,
    ) -> Result<()> {
        let len = usize::try_from(run).unwrap_or(usize::MAX);
        let out = out.get_mut(..len).ok_or_else(|| Error::internal("a run leaves its buffer"))?;
        match self {
            Self::Pieces => cursor.fill(part.file, from, out),
            Self::Ahead(end) => cursor.ahead(part.file, from, end, out),
            Self::Alone => cursor.alone(part.file, from, out),
        }
    }

    fn cells(
        self,
        cursor: &mut Cursor<'_, '_>,
        part: &Part,
        from: u64,
        out: &mut [u8],
        axis: Axis,
        width: u64,
    ) -> Result<()> {
        let cell = usize::try_from(width).unwrap_or(usize::MAX);
        if matches!(self, Self::Pieces) {
            let (step, dst_step) = (axis.src, axis.dst);
            let cells = Cells { offset: from, step, dst_step, count: axis.extent, width: cell };
            return cursor.scatter(part.file, &cells, out);
        }
        for at in 0..axis.extent {
            let to = usize::try_from(axis.dst.saturating_mul(at)).unwrap_or(usize::MAX);
            let out = out.get_mut(to..).ok_or_else(|| Error::internal("a cell leaves its buffer"))?;
            self.run(cursor, part, from.saturating_add(axis.src.saturating_mul(at)), out, width)?;
        }
        Ok(())
    }
}

/// The dimensions of a copy, widest source step first, those that follow on each other on both sides merged.
fn axes(extents: &[u64], src: &[u64], dst: &[u64]) -> Axes {
    let all = extents.iter().zip(src).zip(dst).map(|((&extent, &src), &dst)| Axis { extent, src, dst });
    let mut axes: Axes = all.filter(|axis| axis.extent != 1).collect();
    axes.sort_by_key(|axis| Reverse(axis.src));
    let mut merged = Axes::new();
    for axis in axes {
        match merged.last_mut() {
            Some(outer)
                if Some(outer.src) == axis.src.checked_mul(axis.extent)
                    && Some(outer.dst) == axis.dst.checked_mul(axis.extent) =>
            {
                *outer = Axis { extent: outer.extent.saturating_mul(axis.extent), ..axis };
            }
            _ => merged.push(axis),
        }
    }
    merged
}

/// Splits off what is copied at once: a run of bytes, or (in the middle) an axis of single cells.
fn split(axes: &[Axis], width: u64) -> (u64, Option<Axis>, &[Axis]) {
    match axes.split_last() {
        None => (width, None, axes),
        Some((last, outer)) if last.src == width && last.dst == width => {
            (last.extent.saturating_mul(width), None, outer)
        }
        Some((last, outer)) => (width, Some(*last), outer),
    }
}

/// Visits every combination of positions, outermost axis slowest.
fn walk(axes: &[Axis], from: u64, to: u64, visit: &mut impl FnMut(u64, u64) -> Result<()>) -> Result<()> {
    let Some((axis, inner)) = axes.split_first() else { return visit(from, to) };
    for at in 0..axis.extent {
        let (src, dst) = (axis.src.saturating_mul(at), axis.dst.saturating_mul(at));
        walk(inner, from.saturating_add(src), to.saturating_add(dst), visit)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_cut_is_one_run_and_a_column_cut_one_for_each_row() {
        let rows = axes(&[3, 8], &[32, 4], &[32, 4]);
        assert_eq!(split(&rows, 4), (96, None, &[][..]));
        let columns = axes(&[3, 4], &[32, 4], &[16, 4]);
        assert_eq!(split(&columns, 4), (16, None, &[Axis { extent: 3, src: 32, dst: 16 }][..]));
    }

    #[test]
    fn a_transpose_is_visited_in_the_order_of_its_file() {
        let axes = axes(&[3, 8], &[4, 12], &[32, 4]);
        let (run, inner, outer) = split(&axes, 4);
        assert_eq!((run, inner), (4, Some(Axis { extent: 3, src: 4, dst: 32 })));
        assert_eq!(outer, [Axis { extent: 8, src: 12, dst: 4 }]);
    }
}
