//! [`Tensors`]: the source's tensors as boxes of cells with the places of their bytes, made when first wanted.

use std::{
    ops::Range,
    sync::{Arc, OnceLock},
};

use fqn::Dims;
use reshard::{Index, Region, coverage};

use super::{cover::Cover, grid::Grid};
use crate::{Catalog, Chunk, Chunks, Error, FileId, Result};

/// The tensors of a catalog, ready to be read.
#[derive(Debug)]
pub(crate) struct Tensors<'a> {
    catalog: &'a Catalog,
    ready: Vec<OnceLock<Arc<Tensor>>>,
}

/// One tensor, ready to be read.
#[derive(Debug)]
pub(crate) struct Tensor {
    pub(crate) grid: Grid,
    pub(crate) parts: Vec<Part>,
    index: Index,
}

/// A chunk in cells.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) region: Region,
    pub(crate) file: FileId,
    /// Byte of its first cell.
    pub(crate) offset: u64,
    /// Bytes from one cell to the next, for each dimension.
    pub(crate) strides: Dims,
}

impl<'a> Tensors<'a> {
    pub(crate) fn new(catalog: &'a Catalog) -> Self {
        Self { catalog, ready: (0..catalog.tensors.len()).map(|_| OnceLock::new()).collect() }
    }

    /// The tensor at a position of the catalog.
    pub(crate) fn get(&self, at: usize) -> Result<Arc<Tensor>> {
        let missing =
            || Error::internal(format!("tensor {at} is not in this catalog of {}", self.ready.len()));
        let slot = self.ready.get(at).ok_or_else(missing)?;
        if let Some(ready) = slot.get() {
            return Ok(Arc::clone(ready));
        }
        let entry = self.catalog.registry.entries().get(at).ok_or_else(missing)?;
        let chunks = self.catalog.tensors.get(at).ok_or_else(missing)?;
        let made = Tensor::new(Grid::of(entry)?, chunks).map_err(|error| error.at(entry.id()))?;
        Ok(Arc::clone(slot.get_or_init(|| Arc::new(made))))
    }
}

impl Tensor {
    fn new(grid: Grid, chunks: &Chunks) -> Result<Self> {
        let parts = chunks.chunks.iter().map(|chunk| Part::new(&grid, &chunk)).collect::<Result<Vec<_>>>()?;
        let index = Index::new(parts.iter().map(|part| &part.region));
        Ok(Self { grid, parts, index })
    }

    /// The parts that share cells with `region`, and what they share.
    pub(crate) fn sharing(&self, region: &Region) -> Vec<(&Part, Region)> {
        let found = self.index.meeting(region).into_iter().filter_map(|at| self.parts.get(at));
        found.filter_map(|part| Some((part, part.region.intersect(region)?))).collect()
    }

    /// Whether the parts tile a box of it. To count cells is not enough: what one part holds twice can make up for what none holds.
    pub(crate) fn covers(&self, region: &Region) -> Result<()> {
        let shared: Vec<Region> = self.sharing(region).into_iter().map(|(_, shared)| shared).collect();
        if region.is_empty() || matches!(shared.as_slice(), [one] if one == region) {
            return Ok(());
        }
        let inner: Option<Vec<Region>> = shared.iter().map(|it| it.relative_to(region)).collect();
        let inner = inner.ok_or_else(|| Error::internal("a shared box that begins before its region"))?;
        coverage::check(&fqn::Shape::new(region.extents()), &inner).map_err(|error| {
            let text =
                format!("chunks leave out, or hold more than once, a part of {}", self.grid.elements(region));
            Error::corrupt(text).caused_by(error)
        })
    }

    /// Whether the parts tile the tensor.
    pub(crate) fn covered(&self) -> Result<()> {
        let regions: Vec<Region> = self.parts.iter().map(|part| part.region.clone()).collect();
        covered(&self.grid, &regions)
    }
}

/// Whether boxes of cells tile the tensor exactly.
///
/// # Errors
/// `Corrupt`, naming boxes that are left out and that are held twice.
pub(crate) fn covered(grid: &Grid, regions: &[Region]) -> Result<()> {
    let Err((error, cover)) = Cover::check(&grid.shape, regions) else { return Ok(()) };
    let list = |boxes: &[Region]| {
        let text: Vec<String> = boxes.iter().take(4).map(|it| grid.elements(it).to_string()).collect();
        text.join(", ")
    };
    match (cover.gaps.is_empty(), cover.overlaps.is_empty()) {
        (true, true) => Err(Error::corrupt(error.to_string()).caused_by(error)),
        (false, _) => Err(Error::corrupt(format!("no chunk holds {}", list(&cover.gaps)))),
        (true, false) => Err(Error::corrupt(format!("more than one chunk holds {}", list(&cover.overlaps)))),
    }
}

impl Part {
    fn new(grid: &Grid, chunk: &Chunk) -> Result<Self> {
        let region = grid.region(&chunk.region)?;
        let strides = match &chunk.strides {
            Some(_) if grid.is_packed() && !chunk.is_packed() => {
                return Err(Error::unsupported(format!(
                    "chunk {} has strides, and elements narrower than a byte",
                    chunk.region
                )));
            }
            Some(strides) if !grid.is_packed() => strides.clone(),
            _ => fqn::Shape::new(region.extents()).row_major_strides().unwrap_or_default(),
        };
        let bytes = strides.iter().map(|stride| stride.checked_mul(grid.width)).collect::<Option<Dims>>();
        let strides = bytes
            .ok_or_else(|| Error::corrupt(format!("chunk {} has strides beyond 64 bits", chunk.region)))?;
        Ok(Self { region, file: chunk.file, offset: chunk.offset, strides })
    }

    /// From the first byte of `shared`, a box within this part, to its last; with what lies between its cells.
    pub(crate) fn span(&self, shared: &Region, width: u64) -> Range<u64> {
        let first = self.first_byte(shared);
        let steps = shared.extents().iter().zip(&self.strides);
        let last = steps.map(|(extent, stride)| extent.saturating_sub(1).saturating_mul(*stride));
        first..last.fold(first.saturating_add(width), u64::saturating_add)
    }

    /// Byte of the first cell of `shared`, a box within this part. Its chunk's span was checked to lie in the file.
    pub(crate) fn first_byte(&self, shared: &Region) -> u64 {
        let starts = shared.offsets().iter().zip(self.region.offsets()).map(|(at, base)| at - base);
        let steps = starts.zip(&self.strides).map(|(at, stride)| at.saturating_mul(*stride));
        steps.fold(self.offset, u64::saturating_add)
    }
}
