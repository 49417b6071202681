//! The walk over a region: which canonical indices its bytes stand at, in as few strided runs as there are.
//!
//! Invariant: runs, in order, cover the region's row-major bytes without gap; all runs are equally long.

use fqn::{Dims, Dtype, Shape};
use reshard::Region;

/// Axes that a region fills are merged with the axis before; the innermost axis that is left is the run, so that a
/// single column is one run as well.
#[derive(Debug, Clone)]
pub(super) struct RegionWalk {
    /// `(extent, index stride)` of the axes around the run, outermost first.
    around: Vec<(u64, u64)>,
    first: u64,
    /// Distance between the canonical indices of neighbours in a run.
    pub(super) step: u64,
}

impl RegionWalk {
    /// `None` if the region doesn't lie in the shape or its rows cut through bytes, or the shape exceeds an index.
    pub(super) fn new(dtype: Dtype, shape: &Shape, region: &Region) -> Option<Self> {
        let size = in_units(dtype, shape)?;
        let (start, reach) = (in_units(dtype, region.offsets())?, in_units(dtype, region.extents())?);
        if size.len() != start.len() {
            return None;
        }
        let (mut stride, mut first) = (1_u64, 0_u64);
        let mut axes: Vec<(u64, u64)> = Vec::with_capacity(size.len());
        for ((&size, &start), &reach) in size.iter().zip(&start).zip(&reach).rev() {
            if start.checked_add(reach)? > size {
                return None;
            }
            match axes.last_mut() {
                Some((inner, step)) if inner.checked_mul(*step) == Some(stride) => {
                    *inner = inner.checked_mul(reach)?;
                }
                _ if reach == 1 => {}
                _ => axes.push((reach, stride)),
            }
            first = first.wrapping_add(start.wrapping_mul(stride));
            // An empty axis still has to bound the index of the axes before it.
            stride = stride.checked_mul(size.max(1))?;
        }
        let step = axes.first().map_or(1, |&(_, stride)| stride);
        let around = axes.into_iter().skip(1).rev().collect();
        Some(Self { around, first, step })
    }

    /// All of a tensor.
    pub(super) const fn whole() -> Self {
        Self { around: Vec::new(), first: 0, step: 1 }
    }

    /// How many runs there are; not to be asked of an empty region.
    pub(super) fn runs(&self) -> u64 {
        self.around.iter().map(|&(extent, _)| extent).product()
    }

    /// The index of the first element of a run; runs are in the order of the region's bytes.
    pub(super) fn first(&self, run: u64) -> u64 {
        let mut rest = run;
        self.around.iter().rev().fold(self.first, |index, &(extent, stride)| {
            let at = rest % extent;
            rest /= extent;
            index + at * stride
        })
    }
}

/// Extents or offsets in units of the index: elements, or bytes along the last axis where elements are narrower.
fn in_units(dtype: Dtype, dims: &[u64]) -> Option<Dims> {
    let mut dims = Dims::from_slice(dims);
    if dtype.element_bytes().is_none() {
        let last = dims.last_mut()?;
        *last = dtype.bytes_for(*last)?;
    }
    Some(dims)
}
