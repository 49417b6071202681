//! [`check`]: chunks tile a tensor exactly: within its bounds, no element twice, none left out.
//!
//! The number of chunks over each element is a step function, and so is the 1 that it must be everywhere. Two step
//! functions are equal exactly when their mixed differences are: every box adds +1 or −1 at each of its corners, and
//! after adding all chunks and taking away the whole, every corner must have come to 0. So the check sorts corners
//! and never compares boxes: `n · 2^d · log n`, the same for grids, thin slices and any other arrangement, with `d`
//! the dimensions that are cut at all. The first corner (in row-major order) that doesn't come to 0 is the first
//! element that is covered wrongly, and its sign says which way.
//!
//! Most tensors are cut straight through in each dimension: `grid` sees that first, and faster.

use fqn::{Dims, Shape};

use super::{defect, grid};
use crate::Region;

/// How chunks fail to tile a tensor. Indices are positions in the list of chunks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CoverageError {
    /// A chunk that isn't in the tensor.
    #[error("chunk {chunk} at {region} reaches outside shape {shape}")]
    Outside {
        /// The chunk.
        chunk: usize,
        /// Where it says it lies.
        region: Region,
        /// Shape of the tensor.
        shape: Shape,
    },
    /// Two chunks that share elements.
    #[error("chunks {first} and {second} both hold {region}")]
    Overlap {
        /// One chunk.
        first: usize,
        /// The other.
        second: usize,
        /// What both hold.
        region: Region,
    },
    /// Elements in no chunk.
    #[error("no chunk holds {region}")]
    Gap {
        /// A box that is held by none; its first element is the first such of the tensor.
        region: Region,
    },
    /// A shape that no region can have.
    #[error("shape {0} has more than 2^64 elements")]
    TooLarge(Shape),
    /// Many chunks, cut in so many dimensions that the check would not end in reasonable time.
    #[error("{chunks} chunks that cut {dims} dimensions are too many to check")]
    TooManyCorners {
        /// Chunks there are.
        chunks: usize,
        /// Dimensions that are cut.
        dims: usize,
    },
}

/// Corners held at once: 128 MiB of keys. More are sorted in several rounds.
const ROUND: u64 = 1 << 24;

/// Most corners that a check takes: minutes. A million chunks cut in ten dimensions stay below it.
const MOST: u64 = 1 << 31;

/// Checks that `chunks` tile a tensor of `shape`. Empty chunks are allowed anywhere within the bounds.
///
/// # Errors
/// The first chunk out of bounds; else the first element, row-major, that is in no chunk or in two, as a region.
pub fn check<'a>(
    shape: &Shape,
    chunks: impl IntoIterator<Item = &'a Region, IntoIter: Clone>,
) -> Result<(), CoverageError> {
    let chunks = chunks.into_iter();
    if let Some((chunk, region)) = chunks.clone().enumerate().find(|(_, region)| !region.fits(shape)) {
        return Err(CoverageError::Outside { chunk, region: region.clone(), shape: shape.clone() });
    }
    let whole = Region::whole(shape).map_err(|_| CoverageError::TooLarge(shape.clone()))?;
    if whole.is_empty() || grid::is_grid(shape, &chunks) {
        return Ok(());
    }
    let filled = chunks.clone().filter(|region| !region.is_empty());
    let grid = Grid::new(&whole, filled.clone());
    let count = filled.clone().count() as u64 + 1;
    let corners = count.checked_shl(u32::try_from(grid.dims.len()).unwrap_or(u32::MAX));
    let Some(corners) = corners.filter(|n| *n <= MOST && n >> grid.dims.len() == count) else {
        let (chunks, dims) = (chunks.count(), grid.dims.len());
        return Err(CoverageError::TooManyCorners { chunks, dims });
    };
    let rounds = corners.div_ceil(ROUND);
    let first = if grid.points < u128::from(u64::MAX / 4) {
        grid.first_wrong::<u64>(&whole, &filled, rounds)
    } else {
        grid.first_wrong::<u128>(&whole, &filled, rounds)
    };
    first.map_or(Ok(()), |(at, held)| Err(defect::describe(&whole, &chunks, &at, held)))
}

/// The dimensions that chunks cut, and the numbering of corner points in them.
struct Grid {
    /// Dimension and the stride of its corner coordinate, outermost first.
    dims: Vec<(usize, u128)>,
    rank: usize,
    /// Number of corner points.
    points: u128,
}

/// A corner's number and its sign in one integer: twice the number, odd where the corner takes away.
trait Key: Copy + Ord + TryFrom<u128> + Into<u128> {}
impl Key for u64 {}
impl Key for u128 {}

impl Grid {
    fn new<'a>(whole: &Region, chunks: impl Iterator<Item = &'a Region>) -> Self {
        let mut cut = vec![false; whole.rank()];
        for chunk in chunks {
            let extents = chunk.extents().iter().zip(whole.extents());
            cut.iter_mut().zip(extents).for_each(|(cut, (own, all))| *cut |= own != all);
        }
        // An element count below 2^64 and extents of at least 2 bound this by 2^64 · 1.5^64 < 2^102.
        let (mut dims, mut points) = (Vec::new(), 1_u128);
        for (dim, (extent, _)) in
            whole.extents().iter().zip(cut).enumerate().filter(|(_, (_, cut))| *cut).rev()
        {
            dims.push((dim, points));
            points *= u128::from(*extent) + 1;
        }
        dims.reverse();
        Self { dims, rank: whole.rank(), points }
    }

    /// The first point whose corners don't come to 0, and what they come to.
    fn first_wrong<'a, K: Key>(
        &self,
        whole: &Region,
        chunks: &(impl Iterator<Item = &'a Region> + Clone),
        rounds: u64,
    ) -> Option<(Dims, i64)> {
        let wrong = (0..rounds).filter_map(|round| {
            let mut keys: Vec<K> = Vec::new();
            let mine = |point: u128| rounds == 1 || point % u128::from(rounds) == u128::from(round);
            for chunk in chunks.clone() {
                self.push_corners(chunk, 0, &mut keys, &mine);
            }
            self.push_corners(whole, 1, &mut keys, &mine);
            keys.sort_unstable();
            first_unbalanced(&keys)
        });
        wrong.min_by_key(|(point, _)| *point).map(|(point, sum)| (self.point(point), sum))
    }

    fn push_corners<K: Key>(
        &self,
        region: &Region,
        sign: u128,
        keys: &mut Vec<K>,
        mine: &impl Fn(u128) -> bool,
    ) {
        let mut base = 0;
        let mut spans: smallvec::SmallVec<[u128; 8]> = smallvec::SmallVec::new();
        for (dim, stride) in &self.dims {
            let place = region.offsets().get(*dim).zip(region.extents().get(*dim));
            let (offset, extent) = place.map_or((0, 0), |(o, e)| (*o, *e));
            base += u128::from(offset) * stride;
            spans.push(u128::from(extent) * stride);
        }
        for corner in 0..1_u64 << spans.len() {
            let ends = spans.iter().enumerate().filter(|(at, _)| corner >> at & 1 == 1);
            let point = base + ends.map(|(_, span)| span).sum::<u128>();
            let key = point * 2 + (sign ^ u128::from(corner.count_ones() % 2));
            keys.extend(mine(point).then(|| K::try_from(key).ok()).flatten());
        }
    }

    fn point(&self, mut number: u128) -> Dims {
        let mut at = Dims::from_elem(0, self.rank);
        for (dim, stride) in &self.dims {
            if let Some(coord) = at.get_mut(*dim) {
                *coord = u64::try_from(number / stride).unwrap_or(u64::MAX);
            }
            number %= stride;
        }
        at
    }
}

fn first_unbalanced<K: Key>(keys: &[K]) -> Option<(u128, i64)> {
    let halves = |a: &K, b: &K| {
        let (a, b): (u128, u128) = ((*a).into(), (*b).into());
        a >> 1 == b >> 1
    };
    keys.chunk_by(halves).find_map(|same| {
        let sum: i64 = same.iter().map(|key| if (*key).into() & 1 == 0 { 1 } else { -1 }).sum();
        let point = same.first().map(|key| (*key).into() >> 1)?;
        (sum != 0).then_some((point, sum))
    })
}
