//! The check against counting every element, queries against scans, defects by name.

use fqn::Shape;
use proptest::prelude::*;

use super::{CoverageError, Index, check};
use crate::Region;

fn region(offsets: &[u64], extents: &[u64]) -> Region {
    Region::new(offsets, extents).unwrap()
}

/// Times each element is held, row-major, by visiting every element.
fn counts(shape: &Shape, chunks: &[Region]) -> Vec<u32> {
    let strides = shape.row_major_strides().unwrap();
    (0..shape.elements().unwrap())
        .map(|index| {
            let at: Vec<u64> = strides.iter().zip(shape.iter()).map(|(s, n)| index / s % n).collect();
            let point = region(&at, &vec![1; at.len()]);
            u32::try_from(chunks.iter().filter(|chunk| chunk.intersect(&point).is_some()).count()).unwrap()
        })
        .collect()
}

fn guillotine(whole: Region, cuts: &[(usize, u64)]) -> Vec<Region> {
    let mut parts = vec![whole];
    for &(which, at) in cuts {
        let pick = which % parts.len();
        let part = parts[pick].clone();
        let Some(dim) = (0..part.rank()).filter(|d| part.extents()[*d] > 1).nth(which % part.rank().max(1))
        else {
            continue;
        };
        let low = 1 + at % (part.extents()[dim] - 1);
        let (mut first, mut rest) = (part.extents().to_vec(), part.extents().to_vec());
        let mut offsets = part.offsets().to_vec();
        first[dim] = low;
        rest[dim] -= low;
        parts[pick] = region(part.offsets(), &first);
        offsets[dim] += low;
        parts.push(region(&offsets, &rest));
    }
    parts
}

fn shapes() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(prop_oneof![1 => Just(0_u64), 3 => Just(1_u64), 12 => 2_u64..7], 0..5)
}

/// A tiling, then some chunks moved, dropped or repeated.
fn chunkings() -> impl Strategy<Value = (Shape, Vec<Region>)> {
    let damage = prop::collection::vec((0_u8..4, 0_usize..100, 0_u64..6), 0..3);
    (shapes(), prop::collection::vec((0_usize..50, 0_u64..50), 0..12), damage).prop_map(
        |(dims, cuts, damage)| {
            let shape = Shape::new(&dims);
            let mut chunks = guillotine(Region::whole(&shape).unwrap(), &cuts);
            for (kind, which, by) in damage {
                let at = which % chunks.len().max(1);
                let Some(chunk) = chunks.get(at).cloned() else { continue };
                match kind {
                    0 => drop(chunks.remove(at)),
                    1 => chunks.push(chunk),
                    2 if chunk.rank() > 0 => {
                        let (mut offsets, dim) = (chunk.offsets().to_vec(), which % chunk.rank());
                        offsets[dim] = by.min(dims[dim] - chunk.extents()[dim]);
                        chunks[at] = region(&offsets, chunk.extents());
                    }
                    3 => chunks.insert(0, chunk),
                    _ => {}
                }
            }
            (shape, chunks)
        },
    )
}

proptest! {
    #![proptest_config(crate::strategies::config())]

    #[test]
    fn the_check_agrees_with_counting_every_element((shape, chunks) in chunkings()) {
        let counts = counts(&shape, &chunks);
        let first = counts.iter().position(|n| *n != 1);
        let strides = shape.row_major_strides().unwrap();
        let flat = |r: &Region| r.offsets().iter().zip(&strides).map(|(o, s)| o * s).sum::<u64>();
        match check(&shape, &chunks) {
            Ok(()) => prop_assert_eq!(first, None),
            Err(CoverageError::Gap { region }) => {
                let at = first.unwrap();
                prop_assert_eq!((counts[at], flat(&region)), (0, at as u64));
                prop_assert!(region.fits(&shape));
                prop_assert!(chunks.iter().all(|chunk| chunk.intersect(&region).is_none()));
            }
            Err(CoverageError::Overlap { first: a, second: b, region }) => {
                let at = first.unwrap();
                prop_assert!(counts[at] > 1 && a < b);
                prop_assert_eq!(chunks[a].intersect(&chunks[b]), Some(region));
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
    }

    #[test]
    fn a_query_finds_what_a_scan_finds((shape, chunks) in chunkings(), (a, b) in (0_u64..7, 1_u64..7)) {
        let offsets: Vec<u64> = shape.iter().map(|n| a.min(*n)).collect();
        let extents: Vec<u64> = shape.iter().zip(&offsets).map(|(n, o)| b.min(n - o)).collect();
        let asked = region(&offsets, &extents);
        let scan = chunks.iter().enumerate().filter(|(_, chunk)| chunk.intersect(&asked).is_some());
        prop_assert_eq!(Index::new(&chunks).meeting(&asked), scan.map(|(at, _)| at).collect::<Vec<_>>());
    }
}

#[test]
fn defects_are_named_by_region() {
    let shape = Shape::new(&[4, 6]);
    let text = |chunks: &[Region]| check(&shape, chunks).unwrap_err().to_string();
    let halves = [region(&[0, 0], &[4, 3]), region(&[0, 3], &[4, 3])];
    assert_eq!(check(&shape, &halves), Ok(()));
    assert_eq!(text(&halves[..1]), "no chunk holds [0..4, 3..6]");
    assert_eq!(text(&[]), "no chunk holds [0..4, 0..6]");
    let wide = [region(&[0, 0], &[4, 4]), region(&[0, 3], &[4, 3])];
    assert_eq!(text(&wide), "chunks 0 and 1 both hold [0..4, 3..4]");
    assert_eq!(text(&[region(&[0, 4], &[4, 3])]), "chunk 0 at [0..4, 4..7] reaches outside shape 4x6");
    assert_eq!(text(&[region(&[0], &[4])]), "chunk 0 at [0..4] reaches outside shape 4x6");
}

#[test]
fn a_gap_and_an_overlap_of_one_size_do_not_hide_each_other() {
    let chunks = [region(&[0], &[4]), region(&[3], &[4])];
    assert!(matches!(check(&Shape::new(&[8]), &chunks), Err(CoverageError::Overlap { .. })));
    let gap_first = [region(&[1], &[4]), region(&[4], &[4])];
    assert_eq!(check(&Shape::new(&[8]), &gap_first).unwrap_err().to_string(), "no chunk holds [0..1]");
}

#[test]
fn empty_chunks_scalars_and_huge_shapes_are_checked_too() {
    let empty = [region(&[0, 0], &[1, 3]), region(&[1, 0], &[0, 3])];
    assert_eq!(check(&Shape::new(&[1, 3]), &empty), Ok(()));
    assert_eq!(check(&Shape::new(&[]), &[region(&[], &[])]), Ok(()));
    assert!(matches!(check(&Shape::new(&[]), &[]), Err(CoverageError::Gap { .. })));
    let huge = [u64::MAX / 3, 3];
    let columns = [region(&[0, 0], &[huge[0], 1]), region(&[0, 1], &[huge[0] - 1, 2])];
    let row = huge[0] - 1;
    assert_eq!(
        check(&Shape::new(&huge), &columns).unwrap_err().to_string(),
        format!("no chunk holds [{row}..{}, 1..3]", huge[0])
    );
    let many = Shape::new(&[2; 40]);
    let cut = [region(&[0; 40], &[1; 40])];
    assert!(matches!(check(&many, &cut), Err(CoverageError::TooManyCorners { chunks: 1, dims: 40 })));
}

#[test]
fn more_corners_than_one_round_holds_are_still_checked() {
    // 2^18 unit chunks cut in 6 dimensions have 2^24 corners.
    let shape = Shape::new(&[8; 6]);
    let mut chunks: Vec<Region> = crate::flat::tiles(&Region::whole(&shape).unwrap(), 1).collect();
    assert_eq!(check(&shape, &chunks), Ok(()));
    let lost = chunks.remove(200_000);
    assert_eq!(check(&shape, &chunks), Err(CoverageError::Gap { region: lost }));
}
