//! [`Origin`]: what a job's tensor was recorded as, so that it is proven by the fingerprints of that.
//!
//! What is copied is added up twice: in the coordinates of the target, and, box by box as the lineage says, in those of the tensors
//! that were recorded. The second way does not use where the target's bytes were put: it is the source's own order of elements.

use std::collections::BTreeMap;

use reshard::{Assembly, AssemblyPart, Region, Strided, copy_region};

use super::{grid::Grid, plan::Job};
use crate::{
    Catalog, Error, Lineage, Recorded, Result,
    fingerprint::{Fingerprint, FingerprintSum},
};

/// What the tensor of a job was recorded as.
#[derive(Debug)]
pub(crate) struct Origin<'c> {
    made: &'c Assembly,
    /// Those that it is made of, by their position among the recorded: only those with a fingerprint.
    grids: BTreeMap<usize, Grid>,
    /// See [`Lineage::abreast`].
    pub(crate) abreast: Option<(usize, u64)>,
}

impl<'c> Origin<'c> {
    /// Of a tensor of the catalog; `None` for one that is shown as it was recorded.
    pub(crate) fn of(catalog: &'c Catalog, tensor: usize) -> Result<Option<Self>> {
        let lineage = &catalog.lineage;
        let Some(made) = lineage.of(tensor) else { return Ok(None) };
        let mut grids = BTreeMap::new();
        for part in made.parts() {
            let known = lineage.recorded().get(part.source).filter(|it| it.fingerprint.is_some());
            if let (Some(Recorded { dtype, shape, .. }), false) = (known, grids.contains_key(&part.source)) {
                grids.insert(part.source, Grid::new(*dtype, shape)?);
            }
        }
        Ok(Some(Self { made, grids, abreast: lineage.abreast(tensor) }))
    }

    /// Adds the bytes of `cells`, a box of the tensor, to the sums of what they were recorded as; their keys begin at `base`.
    pub(crate) fn add(
        &self,
        grid: &Grid,
        cells: &Region,
        bytes: &[u8],
        (base, sums): (usize, &mut Vec<(usize, FingerprintSum)>),
    ) -> Result<()> {
        if self.grids.is_empty() {
            return Ok(());
        }
        let mut scratch = Vec::new();
        for AssemblyPart { source, from, to } in self.made.of(&grid.elements(cells)) {
            let Some(recorded) = self.grids.get(&source) else { continue };
            let bytes = within(grid, cells, &grid.region(&to)?, bytes, &mut scratch)?;
            let mut sum = FingerprintSum::default();
            super::copy::add(&mut sum, recorded, &recorded.region(&from)?, bytes)?;
            match sums.iter_mut().find(|(at, _)| *at == base + source) {
                Some((_, known)) => *known += sum,
                None => sums.push((base + source, sum)),
            }
        }
        Ok(())
    }
}

/// The bytes of `part` out of those of `cells`, packed.
fn within<'b>(
    grid: &Grid,
    cells: &Region,
    part: &Region,
    bytes: &'b [u8],
    scratch: &'b mut Vec<u8>,
) -> Result<&'b [u8]> {
    let len = usize::try_from(grid.bytes_of(part)).unwrap_or(usize::MAX);
    if let Some(start) = adjacent(grid, cells, part) {
        let found = bytes.get(start..start.saturating_add(len));
        return found.ok_or_else(|| Error::internal("a part that lies outside its box"));
    }
    scratch.clear();
    scratch.resize(len, 0);
    let width = usize::try_from(grid.width).unwrap_or(usize::MAX);
    let copied = copy_region(part, &Strided::row_major(bytes, cells), scratch, part, width);
    copied.map_err(|error| Error::internal(error.to_string()))?;
    Ok(scratch)
}

/// Where the bytes of `part` begin among those of `cells`, if they lie together.
fn adjacent(grid: &Grid, cells: &Region, part: &Region) -> Option<usize> {
    let extents = || part.extents().iter().zip(cells.extents());
    let inner = extents().rev().take_while(|(part, whole)| part == whole).count();
    let outer = part.rank().saturating_sub(inner + 1);
    if extents().take(outer).any(|(part, _)| *part != 1) {
        return None;
    }
    let strides = fqn::Shape::new(cells.extents()).row_major_strides()?;
    let starts = part.offsets().iter().zip(cells.offsets()).zip(&strides);
    let first =
        starts.map(|((at, base), stride)| Some(at.checked_sub(*base)? * stride)).sum::<Option<u64>>()?;
    usize::try_from(first.checked_mul(grid.width)?).ok()
}

/// Compares what was added up with what was recorded, of every tensor that the target holds whole and uncast; how many of the jobs'
/// tensors are proven by it.
pub(crate) fn prove(
    catalog: &Catalog,
    jobs: &[Job<'_>],
    sums: &BTreeMap<usize, FingerprintSum>,
) -> Result<usize> {
    let lineage = &catalog.lineage;
    let uncast = || jobs.iter().filter(|job| job.cast.is_none() && job.whole);
    let made = || uncast().filter_map(|job| Some((job, job.origin.as_ref()?.made)));
    let mut held: BTreeMap<usize, (u64, &Job<'_>)> = BTreeMap::new();
    for (job, made) in made() {
        for part in made.parts() {
            held.entry(part.source).or_insert((0, job)).0 += part.from.elements();
        }
    }
    for (at, (elements, job)) in &held {
        let found = sums.get(at).copied().unwrap_or_default();
        if let Some((recorded, fingerprint)) = comparable(lineage, *at, *elements) {
            same(job, recorded, fingerprint, found)?;
        }
    }
    let proven = |part: &AssemblyPart| {
        held.get(&part.source)
            .is_some_and(|(elements, _)| comparable(lineage, part.source, *elements).is_some())
    };
    Ok(made().filter(|(_, made)| made.parts().iter().all(proven)).count())
}

/// A recorded tensor and its fingerprint, if it has one and so many elements.
fn comparable(lineage: &Lineage, at: usize, elements: u64) -> Option<(&Recorded, Fingerprint)> {
    let recorded = lineage.recorded().get(at)?;
    Some((recorded, recorded.fingerprint.filter(|_| recorded.shape.elements() == Some(elements))?))
}

fn same(job: &Job<'_>, recorded: &Recorded, fingerprint: Fingerprint, found: FingerprintSum) -> Result<()> {
    let computed = found.finish(recorded.dtype, &recorded.shape);
    if computed == fingerprint {
        return Ok(());
    }
    let (from, to) = (&recorded.id, job.entry.id());
    let text = format!(
        "{from}: fingerprint {computed} was computed from the bytes that were copied to {to}, the source recorded {fingerprint}"
    );
    Err(Error::corrupt(text)
        .hint("the source's data changed after it was written; `ckpt verify` names the damaged files"))
}
