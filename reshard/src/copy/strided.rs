//! [`copy_region`]: what two buffers share, from any strides to row-major.
//!
//! Everything is checked before the first byte moves: that the box lies in both buffers, and that its farthest element
//! lies within the bytes. Dimensions that continue each other in both buffers merge, so that a row cut is one memcpy.

use fqn::Dims;
use smallvec::SmallVec;

use super::kernel::{Step, run};
use crate::Region;

/// Bytes that hold a region with given strides: what a foreign file has.
#[derive(Debug, Clone)]
pub struct Strided<'a> {
    bytes: &'a [u8],
    region: Region,
    strides: Dims,
}

/// Why nothing was copied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// The box isn't in a buffer's region.
    #[error("region {asked} does not lie within the {side}'s {held}")]
    Outside {
        /// `source` or `target`.
        side: &'static str,
        /// The box to copy.
        asked: Region,
        /// What the buffer holds.
        held: Region,
    },
    /// Strides of another number of dimensions.
    #[error("{strides} strides for region {region}")]
    Strides {
        /// Number of strides.
        strides: usize,
        /// The region.
        region: Region,
    },
    /// Fewer bytes than the box reaches.
    #[error("the {side} holds {bytes} bytes, but region {region} reaches to byte {reach}")]
    Short {
        /// `source` or `target`.
        side: &'static str,
        /// Bytes there are.
        bytes: usize,
        /// Bytes it takes to hold the box.
        reach: u128,
        /// The box to copy.
        region: Region,
    },
}

impl<'a> Strided<'a> {
    /// Packed row-major bytes of `region`.
    #[must_use]
    pub fn row_major(bytes: &'a [u8], region: &Region) -> Self {
        Self { bytes, region: region.clone(), strides: row_major(region) }
    }

    /// Bytes of `region` with `strides` in elements; the first byte is the region's first element. A stride of 0
    /// repeats (torch's `expand`).
    ///
    /// # Errors
    /// Strides of another number of dimensions.
    pub fn new(bytes: &'a [u8], region: &Region, strides: &[u64]) -> Result<Self, CopyError> {
        if strides.len() != region.rank() {
            return Err(CopyError::Strides { strides: strides.len(), region: region.clone() });
        }
        Ok(Self { bytes, region: region.clone(), strides: Dims::from_slice(strides) })
    }
}

/// Copies the elements of `what` from `source` to `target`, packed row-major bytes of `held`. All three regions are in
/// global coordinates; elements have `element_bytes` bytes. Other bytes of the target stay.
///
/// # Errors
/// A box that isn't in both regions, or buffers too short to hold it; nothing is copied then.
pub fn copy_region(
    what: &Region,
    source: &Strided<'_>,
    target: &mut [u8],
    held: &Region,
    element_bytes: usize,
) -> Result<(), CopyError> {
    let from = place(what, "source", &source.region, &source.strides)?;
    let strides = row_major(held);
    let to = place(what, "target", held, &strides)?;
    if what.is_empty() || element_bytes == 0 {
        return Ok(());
    }
    let start = from.within("source", what, source.bytes.len(), element_bytes)?;
    let source_bytes = source.bytes.get(start..).unwrap_or_default();
    let start = to.within("target", what, target.len(), element_bytes)?;
    let target_bytes = target.get_mut(start..).unwrap_or_default();
    let (unit, steps) = reduce(what, &source.strides, &strides, element_bytes);
    run(source_bytes, target_bytes, unit, &steps);
    Ok(())
}

/// First and last element of a box in a buffer.
struct Place {
    first: u128,
    last: u128,
}

fn place(what: &Region, side: &'static str, held: &Region, strides: &[u64]) -> Result<Place, CopyError> {
    let outside = || CopyError::Outside { side, asked: what.clone(), held: held.clone() };
    let inner = what.relative_to(held).filter(|inner| inner.fits(&held.extents().iter().copied().collect()));
    let inner = inner.ok_or_else(outside)?;
    let sum = |extra: fn(u64) -> u64| {
        let dims = inner.offsets().iter().zip(inner.extents()).zip(strides);
        dims.map(|((offset, extent), stride)| u128::from(offset + extra(*extent)) * u128::from(*stride)).sum()
    };
    Ok(Place { first: sum(|_| 0), last: sum(|extent| extent.saturating_sub(1)) })
}

impl Place {
    /// First byte of the box, once its last is known to be there.
    fn within(
        &self,
        side: &'static str,
        region: &Region,
        bytes: usize,
        element_bytes: usize,
    ) -> Result<usize, CopyError> {
        let element = element_bytes as u128;
        let reach = self.last.saturating_add(1).saturating_mul(element);
        let start = usize::try_from(self.first.saturating_mul(element)).ok();
        match start.filter(|_| reach <= bytes as u128) {
            Some(start) => Ok(start),
            None => Err(CopyError::Short { side, bytes, reach, region: region.clone() }),
        }
    }
}

fn row_major(region: &Region) -> Dims {
    let mut strides = Dims::from_elem(1, region.rank());
    let mut step = 1_u64;
    for (stride, extent) in strides.iter_mut().zip(region.extents()).rev() {
        *stride = step;
        // Saturates only for regions with an extent of 0, which are never walked.
        step = step.saturating_mul((*extent).max(1));
    }
    strides
}

/// Bytes that lie together in both buffers, and the steps over them, outermost first.
fn reduce(what: &Region, from: &[u64], to: &[u64], element_bytes: usize) -> (usize, SmallVec<[Step; 4]>) {
    let mut steps: SmallVec<[Step; 4]> = SmallVec::new();
    let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX).saturating_mul(element_bytes);
    let dims = what.extents().iter().zip(from).zip(to).filter(|((extent, _), _)| **extent > 1);
    for ((extent, from), to) in dims {
        let step =
            Step { count: usize::try_from(*extent).unwrap_or(usize::MAX), from: size(*from), to: size(*to) };
        match steps.last_mut() {
            Some(outer) if step.continues(outer) => *outer = Step { count: outer.count * step.count, ..step },
            _ => steps.push(step),
        }
    }
    let mut unit = element_bytes;
    if let Some(inner) = steps.last().copied().filter(|inner| inner.from == unit && inner.to == unit) {
        unit *= inner.count;
        steps.pop();
    }
    (unit, steps)
}
