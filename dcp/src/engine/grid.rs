//! [`Grid`]: a tensor as a grid of whole bytes, so that the rest of the engine never meets a dtype.
//!
//! Elements narrower than a byte are counted in bytes along the last dimension; a box of them must begin and end on
//! byte boundaries there. All other dtypes keep their coordinates. Invariant: a grid's cell is at least one byte, and
//! its row-major order is that of the elements.

use fqn::{Dims, Dtype, Entry, Shape};
use reshard::Region;

use crate::{Error, Result};

/// A tensor as a grid of cells of `width` bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grid {
    /// Extents in cells.
    pub(crate) shape: Shape,
    /// Bytes of a cell.
    pub(crate) width: u64,
    /// The dtype whose elements are as wide as a cell: the tensor's own, or bytes.
    pub(crate) cell: Dtype,
    packed: Option<Dtype>,
}

impl Grid {
    /// The grid of a tensor of this dtype and shape.
    ///
    /// # Errors
    /// A shape that overflows, or whose rows do not fill whole bytes.
    pub(crate) fn new(dtype: Dtype, shape: &Shape) -> Result<Self> {
        let (width, packed) = dtype.element_bytes().map_or((1, Some(dtype)), |width| (width, None));
        let cell = if packed.is_some() { Dtype::U8 } else { dtype };
        let mut grid = Self { shape: shape.clone(), width, cell, packed };
        grid.shape = Shape::from(grid.cells(shape).ok_or_else(|| unfit(dtype, &format!("shape {shape}")))?);
        grid.bytes().ok_or_else(|| unfit(dtype, &format!("shape {shape}")))?;
        Ok(grid)
    }

    /// The grid of an entry's tensor.
    pub(crate) fn of(entry: &Entry) -> Result<Self> {
        Self::new(entry.dtype, &entry.shape).map_err(|error| error.at(entry.id()))
    }

    /// A box of elements as a box of cells.
    pub(crate) fn region(&self, region: &Region) -> Result<Region> {
        let Some(dtype) = self.packed else { return Ok(region.clone()) };
        let cells = self.cells(region.offsets()).zip(self.cells(region.extents()));
        let made = cells.and_then(|(offsets, extents)| Region::new(&offsets, &extents).ok());
        made.ok_or_else(|| unfit(dtype, &format!("region {region}")))
    }

    /// A box of cells as the box of elements that they hold.
    pub(crate) fn elements(&self, cells: &Region) -> Region {
        let Some(dtype) = self.packed else { return cells.clone() };
        let elements = |dims: &[u64]| {
            let mut dims = Dims::from_slice(dims);
            if let Some(last) = dims.last_mut() {
                *last = last.saturating_mul(8) / u64::from(dtype.bits());
            }
            dims
        };
        Region::new(&elements(cells.offsets()), &elements(cells.extents())).unwrap_or_else(|_| cells.clone())
    }

    /// Bytes of the whole tensor.
    pub(crate) fn bytes(&self) -> Option<u64> {
        self.shape.elements()?.checked_mul(self.width)
    }

    /// Bytes of a box of cells; boxes lie in the grid, whose size was checked.
    pub(crate) fn bytes_of(&self, cells: &Region) -> u64 {
        cells.elements().saturating_mul(self.width)
    }

    /// Whether elements are narrower than a byte.
    pub(crate) const fn is_packed(&self) -> bool {
        self.packed.is_some()
    }

    fn cells(&self, dims: &[u64]) -> Option<Dims> {
        let mut cells = Dims::from_slice(dims);
        if let Some(dtype) = self.packed {
            let last = cells.last_mut()?;
            *last = dtype.bytes_for(*last)?;
        }
        Some(cells)
    }
}

fn unfit(dtype: Dtype, what: &str) -> Error {
    Error::incompatible(format!("{what} of {dtype} overflows, or does not begin and end on byte boundaries"))
        .hint("elements narrower than a byte can only be cut where whole bytes end")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_elements_are_counted_in_bytes_along_the_last_dimension() {
        let grid = Grid::new(Dtype::F6E2M3, &Shape::new(&[3, 8])).unwrap();
        assert_eq!((&grid.shape[..], grid.width), (&[3, 6][..], 1));
        let cut = Region::new(&[1, 4], &[2, 4]).unwrap();
        let cells = grid.region(&cut).unwrap();
        assert_eq!(cells, Region::new(&[1, 3], &[2, 3]).unwrap());
        assert_eq!(grid.elements(&cells), cut);
        assert!(grid.region(&Region::new(&[0, 1], &[1, 3]).unwrap()).is_err());
        assert!(Grid::new(Dtype::F4E2M1, &Shape::new(&[])).is_err());
    }

    #[test]
    fn whole_byte_elements_keep_their_coordinates() {
        let grid = Grid::new(Dtype::C128, &Shape::new(&[2, 3])).unwrap();
        assert_eq!((grid.bytes(), grid.width), (Some(96), 16));
        assert!(Grid::new(Dtype::F64, &Shape::new(&[1 << 62])).is_err());
    }
}
