//! What to say when chunks don't tile: the gap as a box, or the two chunks that overlap. Linear in the chunks.

use fqn::Dims;

use super::CoverageError;
use crate::Region;

/// The defect at element `at`, which is held by `excess` chunks too many (negative: by none).
pub(super) fn describe<'a>(
    whole: &Region,
    chunks: &(impl Iterator<Item = &'a Region> + Clone),
    at: &Dims,
    excess: i64,
) -> CoverageError {
    let element = Region::new(at, &vec![1; at.len()]);
    let point = element.unwrap_or_else(|_| whole.clone());
    if excess > 0 {
        let mut holders = chunks.clone().enumerate().filter(|(_, chunk)| chunk.intersect(&point).is_some());
        if let (Some((first, a)), Some((second, b))) = (holders.next(), holders.next()) {
            let region = a.intersect(b).unwrap_or(point);
            return CoverageError::Overlap { first, second, region };
        }
    }
    CoverageError::Gap { region: grow(whole, chunks, &point) }
}

/// The free element `point` grown along each dimension, innermost first, as far as no chunk is met.
fn grow<'a>(whole: &Region, chunks: &(impl Iterator<Item = &'a Region> + Clone), point: &Region) -> Region {
    let mut free = point.clone();
    for dim in (0..point.rank()).rev() {
        let (Some(&start), Some(&end)) = (free.offsets().get(dim), whole.extents().get(dim)) else {
            continue;
        };
        let reach = |end: u64| {
            let mut extents = Dims::from_slice(free.extents());
            extents.get_mut(dim).into_iter().for_each(|extent| *extent = end - start);
            Region::new(free.offsets(), &extents).ok()
        };
        let Some(far) = reach(end) else { continue };
        let met = chunks.clone().filter(|chunk| chunk.intersect(&far).is_some());
        let stop = met.filter_map(|chunk| chunk.offsets().get(dim)).copied().min().unwrap_or(end);
        free = reach(stop.max(start + 1)).unwrap_or(free);
    }
    free
}
