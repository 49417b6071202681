//! [`CopyPlan`]: what is copied from where, and the proof that it can be done, made before anything is written.

use std::collections::HashMap;

use fqn::{Dtype, Entry};
use reshard::Region;

use super::{cast::Cast, grid::Grid, origin::Origin, rows::RowMap, tensors::Tensors};
use crate::{Catalog, Error, Place, Result, TargetLayout, TargetSpec, TargetTensor};

/// What is copied from where.
#[derive(Debug, Clone)]
pub struct CopyPlan {
    /// What the target shall hold.
    pub spec: TargetSpec,
    /// Where each of its tensors comes from; parallel to the spec's tensors.
    pub sources: Vec<SourceRef>,
}

/// Where a target's tensor comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceRef {
    /// Position in the source's catalog.
    pub tensor: usize,
    /// Which of its rows the target's rows are.
    pub map: RowMap,
    /// The dtype to cast to; `None` leaves the bits as they are.
    pub cast: Option<Dtype>,
}

impl SourceRef {
    /// The tensor as it is.
    #[must_use]
    pub const fn plain(tensor: usize) -> Self {
        Self { tensor, map: RowMap::identity(), cast: None }
    }
}

/// A tensor of the target, found possible.
#[derive(Debug)]
pub(crate) struct Job<'p> {
    pub(crate) entry: &'p Entry,
    pub(crate) grid: Grid,
    /// Position in the source's catalog.
    pub(crate) source: usize,
    /// The source's grid, in the target's dtype.
    pub(crate) source_grid: Grid,
    pub(crate) map: &'p RowMap,
    pub(crate) cast: Option<Cast>,
    /// What the source's tensor was recorded as, where the source shows it otherwise.
    pub(crate) origin: Option<Origin<'p>>,
    /// Whether every row of the source's tensor is in the target's exactly once.
    pub(crate) whole: bool,
}

impl CopyPlan {
    /// Checks what does not depend on the layout: dtypes, shapes, and that the source's chunks tile what is wanted.
    pub(crate) fn jobs<'p>(&'p self, catalog: &'p Catalog, tensors: &Tensors<'_>) -> Result<Vec<Job<'p>>> {
        if self.spec.tensors.len() != self.sources.len() {
            return Err(Error::internal(format!(
                "{} tensors, {} sources",
                self.spec.tensors.len(),
                self.sources.len()
            )));
        }
        let pairs = self.spec.tensors.iter().zip(&self.sources);
        pairs.map(|(target, source)| job(target, source, catalog, tensors).place(target.entry.id())).collect()
    }
}

fn job<'p>(
    target: &'p TargetTensor,
    source: &'p SourceRef,
    catalog: &'p Catalog,
    tensors: &Tensors<'_>,
) -> Result<Job<'p>> {
    let entry = &target.entry;
    let from = catalog.registry.entries().get(source.tensor);
    let from =
        from.ok_or_else(|| Error::internal(format!("tensor {} is not in the source", source.tensor)))?;
    let dtype = source.cast.unwrap_or(from.dtype);
    if dtype != entry.dtype {
        return Err(Error::incompatible(format!(
            "{} in the source, {} in the target",
            from.dtype, entry.dtype
        ))
        .hint("ask for the cast by name if it is meant"));
    }
    if !source.map.fits(&from.shape, &entry.shape) {
        return Err(Error::incompatible(format!(
            "shape {} in the source does not give {} in the target",
            from.shape, entry.shape
        )));
    }
    tensors.get(source.tensor)?.covered()?;
    Ok(Job {
        entry,
        grid: Grid::of(entry)?,
        source: source.tensor,
        source_grid: Grid::new(dtype, &from.shape)?,
        map: &source.map,
        cast: Cast::new(from.dtype, dtype)?,
        origin: Origin::of(catalog, source.tensor)?,
        whole: source.map.is_permutation(from.shape.first().copied().unwrap_or(1)),
    })
}

/// A chunk of the target, in cells.
#[derive(Debug)]
pub(crate) struct Piecework {
    /// Which job it is part of.
    pub(crate) job: usize,
    /// The first job whose tensor the source has row by row between this one's: they are copied side by side.
    pub(crate) group: usize,
    pub(crate) file: usize,
    pub(crate) region: Region,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// Its place among the chunks of its file.
    pub(crate) place: usize,
    /// Cell of the tensor, row-major, that it begins with.
    pub(crate) first: u64,
    /// Cells of a row of the tensor.
    pub(crate) stride: u64,
    /// Bytes of the whole tensor.
    pub(crate) tensor_bytes: u64,
    /// Bytes of a cell.
    pub(crate) width: u64,
}

/// Checks the layout that a sink decided on, and returns its chunks in cells, in the layout's order.
pub(crate) fn piecework(jobs: &[Job<'_>], layout: &TargetLayout) -> Result<Vec<Piecework>> {
    let mut places = vec![0_usize; layout.files.len()];
    let mut work = Vec::with_capacity(layout.chunks.len());
    let groups = groups(jobs);
    for chunk in &layout.chunks {
        let job = jobs.get(chunk.tensor);
        let job = job.ok_or_else(|| Error::internal(format!("the layout has a tensor {}", chunk.tensor)))?;
        let place = places.get_mut(chunk.file);
        let place = place.ok_or_else(|| Error::internal(format!("the layout has a file {}", chunk.file)))?;
        if !chunk.region.fits(&job.entry.shape) {
            return Err(Error::internal(format!("{}: the layout has {}", job.entry.id(), chunk.region)));
        }
        let region = job.grid.region(&chunk.region).place(job.entry.id())?;
        let strides = job.grid.shape.row_major_strides().unwrap_or_default();
        let first =
            region.offsets().iter().zip(&strides).map(|(at, stride)| at.saturating_mul(*stride)).sum();
        let bytes = job.grid.bytes_of(&region);
        // Rows of those that lie between each other are as far apart in the source as all of them are long.
        let (group, abreast) = groups.get(chunk.tensor).copied().unwrap_or((chunk.tensor, 1));
        let spread = |cells: u64| cells.saturating_mul(abreast);
        work.push(Piecework {
            job: chunk.tensor,
            group,
            file: chunk.file,
            region,
            offset: chunk.offset,
            bytes,
            place: *place,
            first: spread(first),
            stride: spread(strides.first().copied().unwrap_or(1)),
            tensor_bytes: spread(job.grid.bytes().unwrap_or(0)),
            width: job.grid.width,
        });
        *place += 1;
    }
    check_files(layout, &work)?;
    check_cover(jobs, &work)?;
    Ok(work)
}

/// For each job, the first that lies in the source between its rows, and how many of them there are.
fn groups(jobs: &[Job<'_>]) -> Vec<(usize, u64)> {
    let mut first: HashMap<usize, usize> = HashMap::new();
    let each = jobs.iter().enumerate().map(|(at, job)| match job.origin.as_ref().and_then(|it| it.abreast) {
        Some((recorded, many)) => (*first.entry(recorded).or_insert(at), many),
        None => (at, 1),
    });
    each.collect()
}

/// Chunks and head pieces of a file lie inside it and do not overlap, in ascending order.
fn check_files(layout: &TargetLayout, work: &[Piecework]) -> Result<()> {
    let mut spans: Vec<Vec<(u64, u64)>> = vec![Vec::new(); layout.files.len()];
    for chunk in work {
        if let Some(spans) = spans.get_mut(chunk.file) {
            let sorted = spans.last().is_none_or(|(start, _)| *start <= chunk.offset);
            if !sorted {
                return Err(Error::internal(format!(
                    "chunks of file {} are not sorted by offset",
                    chunk.file
                )));
            }
            spans.push((chunk.offset, chunk.bytes));
        }
    }
    for (file, mut spans) in layout.files.iter().zip(spans) {
        spans.extend(file.head.iter().map(|piece| (piece.offset, piece.bytes.len() as u64)));
        spans.sort_unstable();
        let mut end = 0_u64;
        for (start, len) in spans {
            if start < end {
                return Err(Error::internal(format!(
                    "{}: bytes from {start} on are claimed twice",
                    file.path
                )));
            }
            end = start.saturating_add(len);
        }
        if end > file.size {
            return Err(Error::internal(format!(
                "{}: its contents end at {end}, beyond {}",
                file.path, file.size
            )));
        }
    }
    Ok(())
}

fn check_cover(jobs: &[Job<'_>], work: &[Piecework]) -> Result<()> {
    let mut regions: Vec<Vec<Region>> = vec![Vec::new(); jobs.len()];
    for chunk in work {
        if let Some(regions) = regions.get_mut(chunk.job) {
            regions.push(chunk.region.clone());
        }
    }
    for (job, regions) in jobs.iter().zip(&regions) {
        super::tensors::covered(&job.grid, regions).map_err(|error| {
            Error::internal(format!("the layout does not tile {}: {error}", job.entry.id()))
        })?;
    }
    Ok(())
}
