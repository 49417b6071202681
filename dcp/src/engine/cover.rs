//! [`Cover`]: which boxes of a tensor its chunks leave out, and which they hold more than once.
//!
//! Slabs between neighbouring edges are looked at one dimension after another; slabs that the same chunks reach are
//! looked at together. Findings are bounded: a checkpoint that is wrong everywhere is not listed cell by cell.

use fqn::{Dims, Shape};
use reshard::Region;

/// Most boxes that are named of each kind.
const MOST: usize = 64;

/// What is wrong with how boxes cover a tensor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Cover {
    /// Boxes that nothing holds.
    pub(crate) gaps: Vec<Region>,
    /// Boxes that are held more than once.
    pub(crate) overlaps: Vec<Region>,
}

impl Cover {
    /// How `regions`, which lie within it, cover a tensor of `shape`.
    pub(crate) fn of(shape: &Shape, regions: &[Region]) -> Self {
        let mut cover = Self::default();
        let held: Vec<&Region> = regions.iter().filter(|region| !region.is_empty()).collect();
        if shape.elements() != Some(0) {
            cover.look(shape, &held, &mut Dims::new(), &mut Dims::new());
        }
        cover
    }

    fn look(&mut self, shape: &Shape, regions: &[&Region], offsets: &mut Dims, extents: &mut Dims) {
        let dim = offsets.len();
        let Some(&whole) = shape.get(dim).filter(|_| regions.len() > 1) else {
            return self.judge(shape, regions, offsets, extents);
        };
        // A sweep: regions come in where they begin and leave where they end, so that a slab costs what reaches it, not all there is.
        let mut coming: Vec<&Region> = regions.to_vec();
        coming.sort_by_key(|region| std::cmp::Reverse(span(region, dim)));
        let mut here: Vec<&Region> = Vec::new();
        let mut slab: Option<(u64, u64)> = None;
        for (start, end) in edges(regions, dim, whole) {
            let begins = |region: &&Region| span(region, dim).is_some_and(|(from, _)| from <= start);
            let ends = |region: &&Region| span(region, dim).is_none_or(|(_, to)| to <= start);
            if here.iter().any(ends) || coming.last().is_some_and(begins) {
                self.look_at_slab(shape, &here, slab.take(), offsets, extents);
                here.retain(|region| !ends(region));
                while let Some(region) = coming.pop_if(|region| begins(&*region)) {
                    here.push(region);
                }
            }
            slab = Some((slab.map_or(start, |(from, _)| from), end));
            if self.gaps.len() >= MOST && self.overlaps.len() >= MOST {
                return;
            }
        }
        self.look_at_slab(shape, &here, slab, offsets, extents);
    }

    /// Looks at what the same regions reach.
    fn look_at_slab(
        &mut self,
        shape: &Shape,
        here: &[&Region],
        slab: Option<(u64, u64)>,
        offsets: &mut Dims,
        extents: &mut Dims,
    ) {
        let Some((start, end)) = slab else { return };
        offsets.push(start);
        extents.push(end - start);
        self.look(shape, here, offsets, extents);
        offsets.pop();
        extents.pop();
    }

    /// At most one region, or all dimensions looked at.
    fn judge(&mut self, shape: &Shape, regions: &[&Region], offsets: &Dims, extents: &Dims) {
        let (mut at, mut size) = (offsets.clone(), extents.clone());
        if let ([one], true) = (regions, offsets.len() < shape.rank()) {
            return self.around(shape, one, at, size);
        }
        at.resize(shape.rank(), 0);
        size.extend(shape.iter().skip(size.len()).copied());
        let list = match regions.len() {
            0 => &mut self.gaps,
            1 => return,
            _ => &mut self.overlaps,
        };
        if let Some(region) = Region::new(&at, &size).ok().filter(|_| list.len() < MOST) {
            list.push(region);
        }
    }

    /// What a single region leaves out of a slab.
    fn around(&mut self, shape: &Shape, one: &Region, mut offsets: Dims, mut extents: Dims) {
        for dim in offsets.len()..shape.rank() {
            let (Some((from, to)), Some(&whole)) = (span(one, dim), shape.get(dim)) else { return };
            for (start, end) in [(0, from), (to, whole)] {
                if start < end {
                    let (mut at, mut size) = (offsets.clone(), extents.clone());
                    at.push(start);
                    size.push(end - start);
                    self.judge(shape, &[], &at, &size);
                }
            }
            offsets.push(from);
            extents.push(to - from);
        }
    }
}

fn span(region: &Region, dim: usize) -> Option<(u64, u64)> {
    let (offset, extent) = region.offsets().get(dim).zip(region.extents().get(dim))?;
    Some((*offset, offset.saturating_add(*extent)))
}

/// Stretches of a dimension between neighbouring edges.
fn edges(regions: &[&Region], dim: usize, whole: u64) -> Vec<(u64, u64)> {
    let mut edges: Vec<u64> =
        regions.iter().filter_map(|it| span(it, dim)).flat_map(|(a, b)| [a, b]).collect();
    edges.extend([0, whole]);
    edges.sort_unstable();
    edges.dedup();
    edges.windows(2).filter_map(|pair| Some((*pair.first()?, *pair.last()?))).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn gaps_and_overlaps_are_those_of_counting_every_element(
            shape in prop::collection::vec(1_u64..5, 0..4),
            boxes in prop::collection::vec(prop::collection::vec((0_u64..5, 0_u64..5), 4), 0..5),
        ) {
            let regions: Vec<Region> = boxes.iter().map(|dims| {
                let dims = shape.iter().zip(dims).map(|(whole, (at, len))| (at % whole, len % (whole - at % whole + 1)));
                let (offsets, extents): (Vec<u64>, Vec<u64>) = dims.unzip();
                Region::new(&offsets, &extents).unwrap()
            }).collect();
            let shape = Shape::new(&shape);
            let elements = usize::try_from(shape.elements().unwrap()).unwrap();
            let mut wanted = vec![0_u32; elements];
            let count = |regions: &[Region], counts: &mut Vec<u32>| {
                for run in regions.iter().flat_map(|it| cells(it, &shape)) {
                    counts[run] += 1;
                }
            };
            count(&regions, &mut wanted);
            let cover = Cover::of(&shape, &regions);
            let (mut gaps, mut overlaps) = (vec![0; elements], vec![0; elements]);
            count(&cover.gaps, &mut gaps);
            count(&cover.overlaps, &mut overlaps);
            for (at, held) in wanted.iter().enumerate() {
                prop_assert_eq!(gaps[at], u32::from(*held == 0));
                prop_assert_eq!(overlaps[at], u32::from(*held > 1));
            }
        }
    }

    fn cells(region: &Region, shape: &Shape) -> Vec<usize> {
        let runs = reshard::flat::runs(region, shape).unwrap();
        runs.flat_map(|run| run.start..run.start + run.len).map(|at| usize::try_from(at).unwrap()).collect()
    }
}
