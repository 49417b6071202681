//! The regions of all pieces of a tensor, quickly: dimensions are cut independently of each other, so what each holds is worked out
//! once for every choice of the coordinates that cut it, and a piece only looks up its stretches.

use fqn::Dims;
use smallvec::{SmallVec, smallvec};

use super::{Stretches, TensorLayout, below};
use crate::Region;

/// What a dimension holds, for every choice of the coordinates that cut it.
pub(super) struct Dimension {
    /// Positions among the tensor's cuts of those that cut this dimension, in their order, each with its extent.
    cuts: SmallVec<[(usize, usize); 2]>,
    /// One for each choice, that of the last cut fastest.
    held: Vec<Stretches>,
}

/// The dimensions of a tensor.
pub(super) fn by_dimension(tensor: &TensorLayout) -> SmallVec<[Dimension; 4]> {
    let each = tensor.uncut.iter().zip(tensor.shape.iter()).enumerate();
    each.map(|(dim, (uncut, end))| {
        let cuts = || tensor.cuts.iter().enumerate().filter(move |(_, cut)| cut.dim == dim);
        let mut held = vec![uncut.clone()];
        for (_, cut) in cuts() {
            held = held.iter().flat_map(|held| (0..cut.extent).map(|index| cut.part(held, index))).collect();
        }
        held.iter_mut().for_each(|held| *held = below(held, *end));
        let cuts = cuts().map(|(at, cut)| (at, usize::try_from(cut.extent).unwrap_or(usize::MAX))).collect();
        Dimension { cuts, held }
    })
    .collect()
}

impl Dimension {
    fn at(&self, at: &[u64]) -> Option<&Stretches> {
        let index = |cut: usize| at.get(cut).and_then(|index| usize::try_from(*index).ok()).unwrap_or(0);
        self.held.get(self.cuts.iter().fold(0, |choice, &(cut, extent)| choice * extent + index(cut)))
    }
}

/// The non-empty regions of the piece at coordinates `at` of the cutting axes.
pub(super) fn regions(dims: &[Dimension], at: &[u64]) -> SmallVec<[Region; 1]> {
    let mut regions = SmallVec::new();
    each_region(dims, at, |region| regions.push(region));
    regions
}

/// The same one after another: one, but for fused tensors.
pub(super) fn each_region(dims: &[Dimension], at: &[u64], mut each: impl FnMut(Region)) {
    let (mut offsets, mut extents) = (Dims::new(), Dims::new());
    for dim in dims {
        match dim.at(at).map(SmallVec::as_slice) {
            Some(&[(start, len)]) => {
                offsets.push(start);
                extents.push(len);
            }
            Some([_, ..]) => {
                return product(dims.iter().filter_map(|dim| dim.at(at))).into_iter().for_each(each);
            }
            _ => return,
        }
    }
    if let Ok(region) = Region::new(&offsets, &extents) {
        each(region);
    }
}

/// Every choice of one stretch of each dimension, the last dimension fastest.
pub(super) fn product<'a>(dims: impl Iterator<Item = &'a Stretches>) -> SmallVec<[Region; 1]> {
    let mut found: SmallVec<[(Dims, Dims); 1]> = smallvec![(Dims::new(), Dims::new())];
    for stretches in dims {
        let longer = found.iter().flat_map(|(offsets, extents)| {
            stretches.iter().map(move |&(start, len)| {
                let (mut offsets, mut extents) = (offsets.clone(), extents.clone());
                offsets.push(start);
                extents.push(len);
                (offsets, extents)
            })
        });
        found = longer.collect();
    }
    found.iter().filter_map(|(offsets, extents)| Region::new(offsets, extents).ok()).collect()
}
