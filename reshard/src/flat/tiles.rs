//! [`tiles`]: a box in pieces of bounded size, each contiguous in the box's own row-major order, in that order.
//!
//! Writing the pieces one after another writes the packed box; so a target larger than memory is still sequential.

use fqn::Dims;

use crate::Region;

/// Iterator over the pieces of a box; see [`tiles`].
#[derive(Debug, Clone)]
pub struct Tiles {
    region: Region,
    /// The dimension that pieces cut; those before it have extent 1 in a piece, those after it are whole.
    dim: usize,
    /// Extent of a piece along `dim`.
    step: u64,
    /// Offset of the next piece, relative to the region; `None` at the end.
    at: Option<Dims>,
}

/// Cuts `region` into pieces of at most `max_elements` (at least 1). An empty region has none.
#[must_use]
pub fn tiles(region: &Region, max_elements: u64) -> Tiles {
    let max = max_elements.max(1);
    let (mut dim, mut inner) = (region.rank(), 1_u64);
    while let Some(extent) = dim.checked_sub(1).and_then(|d| region.extents().get(d)) {
        if inner.saturating_mul(*extent) > max {
            break;
        }
        inner = inner.saturating_mul(*extent);
        dim -= 1;
    }
    // Dimensions from `dim` on fit whole; the one before it is cut.
    let (dim, step) = match dim.checked_sub(1) {
        Some(cut) => (cut, max / inner.max(1)),
        None => (0, region.extents().first().copied().unwrap_or(1)),
    };
    let at = (!region.is_empty()).then(|| Dims::from_elem(0, region.rank()));
    Tiles { region: region.clone(), dim, step, at }
}

impl Tiles {
    fn advance(&self, mut at: Dims) -> Option<Dims> {
        for (d, (place, extent)) in at.iter_mut().zip(self.region.extents()).enumerate().rev() {
            if d > self.dim {
                continue;
            }
            *place = place.saturating_add(if d == self.dim { self.step } else { 1 });
            if *place < *extent {
                return Some(at);
            }
            *place = 0;
        }
        None
    }
}

impl Iterator for Tiles {
    type Item = Region;

    fn next(&mut self) -> Option<Region> {
        let at = self.at.take()?;
        let (mut offsets, mut extents) = (Dims::new(), Dims::new());
        let dims = at.iter().zip(self.region.offsets()).zip(self.region.extents());
        for (d, ((place, offset), extent)) in dims.enumerate() {
            offsets.push(offset + place);
            extents.push(match d.cmp(&self.dim) {
                std::cmp::Ordering::Less => 1,
                std::cmp::Ordering::Equal => self.step.min(extent - place),
                std::cmp::Ordering::Greater => *extent,
            });
        }
        self.at = self.advance(at);
        Region::new(&offsets, &extents).ok()
    }
}
