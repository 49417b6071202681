//! The loops of a copy. Every index has been checked against both buffers before; slices check again, so that a mistake
//! would leave bytes uncopied and never touch others.

/// A dimension to walk: how often, and bytes from one to the next in source and target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) count: usize,
    pub(super) from: usize,
    pub(super) to: usize,
}

/// Edge of the squares in which the two innermost dimensions are walked: 32 lines of 64 bytes on each side stay in
/// the first-level cache, so a transposed source is read line by line and not element by element.
const SQUARE: usize = 32;

impl Step {
    /// Whether this dimension, whole, is one step of `outer` in both buffers.
    pub(super) fn continues(&self, outer: &Self) -> bool {
        outer.from == self.from.saturating_mul(self.count) && outer.to == self.to.saturating_mul(self.count)
    }
}

/// Copies units of `unit` bytes along `steps`.
pub(super) fn run(source: &[u8], target: &mut [u8], unit: usize, steps: &[Step]) {
    match unit {
        1 => walk(source, target, steps, &mut plane(fixed::<1>)),
        2 => walk(source, target, steps, &mut plane(fixed::<2>)),
        4 => walk(source, target, steps, &mut plane(fixed::<4>)),
        8 => walk(source, target, steps, &mut plane(fixed::<8>)),
        16 => walk(source, target, steps, &mut plane(fixed::<16>)),
        32 => walk(source, target, steps, &mut plane(fixed::<32>)),
        _ => walk(source, target, steps, &mut plane(|source, target, step| long(source, target, unit, step))),
    }
}

/// Walks all but the two innermost dimensions.
fn walk(
    source: &[u8],
    target: &mut [u8],
    steps: &[Step],
    inner: &mut impl FnMut(&[u8], &mut [u8], Step, Step),
) {
    let once = Step { count: 1, from: 0, to: 0 };
    match steps {
        [] => inner(source, target, once, once),
        [only] => inner(source, target, once, *only),
        [rows, columns] => inner(source, target, *rows, *columns),
        [outer, rest @ ..] => {
            for nth in 0..outer.count {
                if let Some((source, target)) = advanced(source, target, outer, nth) {
                    walk(source, target, rest, inner);
                }
            }
        }
    }
}

fn advanced<'s, 't>(
    source: &'s [u8],
    target: &'t mut [u8],
    step: &Step,
    nth: usize,
) -> Option<(&'s [u8], &'t mut [u8])> {
    Some((source.get(nth * step.from..)?, target.get_mut(nth * step.to..)?))
}

/// Walks rows and columns: in squares where neighbours in the source lie across columns, else row by row.
fn plane(line: impl Fn(&[u8], &mut [u8], Step)) -> impl FnMut(&[u8], &mut [u8], Step, Step) {
    move |source, target, rows, columns| {
        let edge = if rows.from != 0 && rows.from < columns.from { SQUARE } else { columns.count.max(1) };
        for left in (0..columns.count).step_by(edge) {
            let part = Step { count: edge.min(columns.count - left), ..columns };
            let Some((source, target)) = advanced(source, target, &columns, left) else { continue };
            for row in 0..rows.count {
                if let Some((source, target)) = advanced(source, target, &rows, row) {
                    line(source, target, part);
                }
            }
        }
    }
}

fn fixed<const N: usize>(source: &[u8], target: &mut [u8], step: Step) {
    for nth in 0..step.count {
        let from = source.get(nth * step.from..).and_then(<[u8]>::first_chunk::<N>);
        let to = target.get_mut(nth * step.to..).and_then(<[u8]>::first_chunk_mut::<N>);
        if let (Some(from), Some(to)) = (from, to) {
            *to = *from;
        }
    }
}

fn long(source: &[u8], target: &mut [u8], unit: usize, step: Step) {
    for nth in 0..step.count {
        let from = source.get(nth * step.from..).and_then(|rest| rest.get(..unit));
        let to = target.get_mut(nth * step.to..).and_then(|rest| rest.get_mut(..unit));
        if let (Some(from), Some(to)) = (from, to) {
            to.copy_from_slice(from);
        }
    }
}
