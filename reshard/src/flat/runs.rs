//! [`runs`]: the contiguous stretches of a box within a row-major tensor, in order; [`run_count`]: how many they are.
//!
//! Trailing dimensions that the box spans whole merge into one run, so a row cut is a single run whatever the rank.

use fqn::{Dims, Shape};

use super::FlatError;
use crate::Region;

/// A stretch of elements that lie one after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Row-major index of the first element.
    pub start: u64,
    /// Number of elements, at least 1.
    pub len: u64,
}

/// Iterator over the runs of a box; see [`runs`].
#[derive(Debug, Clone)]
pub struct Runs {
    /// Extent, position and stride in elements of each dimension outside the run, outermost first.
    outer: smallvec::SmallVec<[(u64, u64, u64); 4]>,
    start: u64,
    len: u64,
    left: u64,
}

/// Walks `region` as contiguous runs of a row-major tensor of `shape`, in row-major order.
///
/// # Errors
/// A region outside `shape`, or a shape beyond 2^64 elements.
pub fn runs(region: &Region, shape: &Shape) -> Result<Runs, FlatError> {
    if !region.fits(shape) {
        return Err(FlatError::Outside { region: region.clone(), shape: shape.clone() });
    }
    if shape.elements().is_none() {
        return Err(FlatError::TooLarge(shape.clone()));
    }
    if region.is_empty() {
        return Ok(Runs { outer: smallvec::SmallVec::new(), start: 0, len: 0, left: 0 });
    }
    let strides: Dims = shape.row_major_strides().ok_or_else(|| FlatError::TooLarge(shape.clone()))?;
    let start = region.offsets().iter().zip(&strides).map(|(offset, stride)| offset * stride).sum();
    let split = outside(region, shape);
    let len = region.extents().iter().skip(split).product();
    let outer = region.extents().iter().zip(&strides).take(split).map(|(e, s)| (*e, 0, *s)).collect();
    Ok(Runs { outer, start, len, left: region.elements() / len })
}

/// Number of runs that `part` makes up of `chunk`, a box around it that lies packed: what is left of [`runs`] at first.
#[must_use]
pub fn run_count(part: &Region, chunk: &Region) -> u64 {
    if part.is_empty() {
        return 0;
    }
    part.extents().iter().take(outside(part, chunk.extents())).product()
}

/// Number of dimensions, outermost first, that a run does not reach over: it takes the trailing ones that the box spans
/// whole and the one before them.
fn outside(part: &Region, whole: &[u64]) -> usize {
    let spans = part.extents().iter().zip(whole).rev().take_while(|(own, all)| own == all).count();
    part.rank().saturating_sub(spans + 1)
}

impl Runs {
    /// Runs that are left to come.
    #[must_use]
    pub const fn left(&self) -> u64 {
        self.left
    }

    /// Elements in each run; all runs of a box are equally long.
    #[must_use]
    pub const fn run_len(&self) -> u64 {
        self.len
    }
}

impl Iterator for Runs {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        self.left = self.left.checked_sub(1)?;
        let run = Run { start: self.start, len: self.len };
        if self.left > 0 {
            for (extent, position, stride) in self.outer.iter_mut().rev() {
                *position += 1;
                self.start += *stride;
                if *position < *extent {
                    break;
                }
                self.start -= *stride * *extent;
                *position = 0;
            }
        }
        Some(run)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.left).ok();
        (left.unwrap_or(usize::MAX), left)
    }
}
