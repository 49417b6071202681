//! Flat ranges of a tensor's row-major index as boxes, and back.
//!
//! A range peels into at most `2·nd − 1` boxes: partial rows of ever lower dimension before the middle block and
//! after it. The boxes come in row-major order and are each contiguous in it.

use std::ops::Range;

use fqn::{Dims, Shape};

use crate::{Region, RegionError, flat::runs};

/// Why a range or a box isn't part of a tensor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FlatError {
    /// A range that ends before it starts, or beyond the tensor.
    #[error("flat range {start}..{end} does not lie within the {elements} elements of shape {shape}")]
    Range {
        /// First element.
        start: u64,
        /// One past the last element.
        end: u64,
        /// Elements there are.
        elements: u64,
        /// Shape of the tensor.
        shape: Shape,
    },
    /// A box outside the shape, or of other dimensions.
    #[error("region {region} does not lie within shape {shape}")]
    Outside {
        /// The box.
        region: Region,
        /// Shape of the tensor.
        shape: Shape,
    },
    /// More than 2^64 elements.
    #[error("shape {0} has more than 2^64 elements")]
    TooLarge(Shape),
    /// A group that no rank shares.
    #[error("a flat group needs at least one rank")]
    NoRanks,
    /// An alignment of 0 elements.
    #[error("a flat buffer can't be aligned to 0 elements, or to a part of one")]
    Alignment,
    /// Tensors that together exceed 64 bits.
    #[error("the tensors of a flat group, with their padding, have more than 2^64 elements")]
    GroupTooLarge,
    /// Numbers that make no region.
    #[error(transparent)]
    Region(#[from] RegionError),
}

/// The boxes of the flat range `range` of a tensor of `shape`, in row-major order; none for an empty range.
///
/// # Errors
/// A range outside the tensor.
pub fn boxes(shape: &Shape, range: Range<u64>) -> Result<Vec<Region>, FlatError> {
    let elements = shape.elements().ok_or_else(|| FlatError::TooLarge(shape.clone()))?;
    let Range { start, end } = range;
    if start > end || end > elements {
        return Err(FlatError::Range { start, end, elements, shape: shape.clone() });
    }
    let strides = shape.row_major_strides().ok_or_else(|| FlatError::TooLarge(shape.clone()))?;
    let (mut found, mut at) = (Vec::new(), start);
    while at < end {
        let (region, taken) = largest(shape, &strides, at, end)?;
        found.push(region);
        at += taken;
    }
    Ok(found)
}

/// The largest box that begins at flat index `at`, is contiguous, and ends by `end`.
fn largest(shape: &Shape, strides: &[u64], at: u64, end: u64) -> Result<(Region, u64), FlatError> {
    let (mut offsets, mut extents, mut left) = (Dims::new(), Dims::new(), at);
    for stride in strides {
        offsets.push(left / stride);
        left %= stride;
        extents.push(1);
    }
    // The outermost dimension whose slices `at` is aligned to and of which at least one fits.
    let fits = |stride: &u64| at.is_multiple_of(*stride) && end - at >= *stride;
    let Some(dim) = strides.iter().position(fits) else {
        return Ok((Region::whole(shape)?, 1));
    };
    let parts = shape.iter().zip(strides).zip(&offsets).zip(extents.iter_mut()).enumerate();
    let mut taken = 1;
    for (d, (((whole, stride), offset), extent)) in parts.skip(dim) {
        *extent = if d == dim { ((end - at) / stride).min(whole - offset) } else { *whole };
        taken *= *extent;
    }
    Ok((Region::new(&offsets, &extents)?, taken))
}

/// The flat ranges that `regions` cover together, sorted, touching ones merged.
///
/// # Errors
/// A region outside `shape`.
pub fn ranges(shape: &Shape, regions: &[Region]) -> Result<Vec<Range<u64>>, FlatError> {
    let mut found: Vec<Range<u64>> = Vec::new();
    for region in regions {
        found.extend(runs(region, shape)?.map(|run| run.start..run.start + run.len));
    }
    found.sort_unstable_by_key(|range| (range.start, range.end));
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in found {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    Ok(merged)
}
