//! [`Cover`]: which boxes of a tensor its chunks leave out, and which they hold more than once.
//!
//! Slabs between neighbouring edges are looked at one dimension after another; slabs that the same chunks reach are
//! looked at together. Findings are bounded: a checkpoint that is wrong everywhere is not listed cell by cell. So is the looking:
//! boxes that lie across each other in many dimensions have more slabs than anyone could look at (`n` boxes in `d` dimensions up to
//! `(2n)^d`), so what it may cost grows with the number of boxes alone, and where it stops is said.

use fqn::{Dims, Shape};
use reshard::{Region, coverage, coverage::CoverageError};

/// Most boxes that are named of each kind.
const MOST: usize = 64;

/// Looks at a box that are spent before looking stops: so many, and so many for each box. A grid with some chunks wrong costs a few
/// for each.
const LOOKS: usize = 1 << 16;
const LOOKS_PER_BOX: usize = 256;

/// What is wrong with how boxes cover a tensor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Cover {
    /// Boxes that nothing holds.
    pub(crate) gaps: Vec<Region>,
    /// Boxes that are held more than once.
    pub(crate) overlaps: Vec<Region>,
    /// Whether looking or naming stopped before the end: there may be more of both.
    pub(crate) stopped: bool,
    /// Looks that are left.
    looks: usize,
}

impl Cover {
    /// Whether `regions` tile a tensor of `shape` exactly.
    ///
    /// # Errors
    /// The first thing that is wrong, and how they cover it: every chunk of a large checkpoint passes here, and only what fails the
    /// quick check is looked at in detail. What can't be checked is refused, and not looked at either.
    pub(crate) fn check(shape: &Shape, regions: &[Region]) -> Result<(), (CoverageError, Self)> {
        let Err(error) = coverage::check(shape, regions) else { return Ok(()) };
        let cover = match error {
            CoverageError::TooManyCorners { .. } => Self { stopped: true, ..Self::default() },
            _ => Self::of(shape, regions),
        };
        Err((error, cover))
    }

    /// How `regions`, which lie within it, cover a tensor of `shape`.
    fn of(shape: &Shape, regions: &[Region]) -> Self {
        let looks = LOOKS.saturating_add(regions.len().saturating_mul(LOOKS_PER_BOX));
        let mut cover = Self { looks, ..Self::default() };
        let held: Vec<&Region> = regions.iter().filter(|region| !region.is_empty()).collect();
        if shape.elements() != Some(0) {
            cover.look(shape, &held, &mut Dims::new(), &mut Dims::new());
        }
        cover
    }

    /// Spends looks; false where none are left.
    fn spend(&mut self, looks: usize) -> bool {
        self.stopped |= self.looks < looks;
        self.looks = self.looks.saturating_sub(looks);
        !self.stopped
    }

    fn look(&mut self, shape: &Shape, regions: &[&Region], offsets: &mut Dims, extents: &mut Dims) {
        if !self.spend(1 + regions.len()) {
            return;
        }
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
            if !self.spend(1 + here.len()) {
                return;
            }
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
                self.stopped = true;
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
        if list.len() >= MOST {
            self.stopped = true;
        } else if let Ok(region) = Region::new(&at, &size) {
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
            prop_assert!(!cover.stopped);
            let (mut gaps, mut overlaps) = (vec![0; elements], vec![0; elements]);
            count(&cover.gaps, &mut gaps);
            count(&cover.overlaps, &mut overlaps);
            for (at, held) in wanted.iter().enumerate() {
                prop_assert_eq!(gaps[at], u32::from(*held == 0));
                prop_assert_eq!(overlaps[at], u32::from(*held > 1));
            }
        }
    }

    #[test]
    fn boxes_that_lie_across_each_other_in_ten_dimensions_are_refused_and_not_looked_at_for_ever() {
        let shape = Shape::new(&[64; 10]);
        let nested: Vec<Region> = (0..32).map(|at| Region::new(&[at; 10], &[64 - at; 10]).unwrap()).collect();
        let (error, cover) = Cover::check(&shape, &nested).unwrap_err();
        assert!(matches!(error, CoverageError::Overlap { .. }), "{error}");
        assert!(cover.stopped && cover.gaps.is_empty() && !cover.overlaps.is_empty(), "{cover:?}");
    }

    #[test]
    fn what_has_too_many_corners_to_check_is_refused_without_a_look() {
        let shape = Shape::new(&[2; 40]);
        let halves: Vec<Region> = (0..40)
            .map(|dim| {
                let mut extents = [2; 40];
                extents[dim] = 1;
                Region::new(&[0; 40], &extents).unwrap()
            })
            .collect();
        let (error, cover) = Cover::check(&shape, &halves).unwrap_err();
        assert!(matches!(error, CoverageError::TooManyCorners { chunks: 40, dims: 40 }), "{error}");
        assert!(cover.stopped && cover.gaps.is_empty() && cover.overlaps.is_empty(), "{cover:?}");
    }

    #[test]
    fn a_large_grid_with_a_chunk_missing_is_looked_at_to_the_end() {
        let of = |at: u64| Region::new(&[at / 64 * 2, at % 64 * 2], &[2, 2]).unwrap();
        let most: Vec<Region> = (0..64 * 64).filter(|at| *at != 1000).map(of).collect();
        let (_, cover) = Cover::check(&Shape::new(&[128, 128]), &most).unwrap_err();
        assert_eq!((cover.gaps, cover.overlaps, cover.stopped), (vec![of(1000)], vec![], false));
    }

    fn cells(region: &Region, shape: &Shape) -> Vec<usize> {
        let runs = reshard::flat::runs(region, shape).unwrap();
        runs.flat_map(|run| run.start..run.start + run.len).map(|at| usize::try_from(at).unwrap()).collect()
    }
}
