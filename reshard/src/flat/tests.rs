//! Flat ranges, runs and tiles against the indices themselves.

use fqn::Shape;
use proptest::prelude::*;

use super::{FlatError, boxes, ranges, run_count, runs, tiles};
use crate::Region;

/// Row-major indices of a region's elements, by counting through every element of the shape.
fn indices(shape: &Shape, region: &Region) -> Vec<u64> {
    let strides = shape.row_major_strides().unwrap();
    let inside = |index: &u64| {
        let mut dims = strides.iter().zip(shape.iter()).zip(region.offsets().iter().zip(region.extents()));
        dims.all(|((stride, extent), (o, e))| {
            let at = index / stride % extent;
            at >= *o && at < o + e
        })
    };
    (0..shape.elements().unwrap()).filter(inside).collect()
}

fn shape_and_region() -> impl Strategy<Value = (Shape, Region)> {
    let dim = prop_oneof![
        Just((0_u64, 0_u64, 0_u64)),
        (1_u64..8).prop_flat_map(|n| { (0..=n).prop_flat_map(move |o| (Just(n), Just(o), 0..=n - o)) })
    ];
    prop::collection::vec(dim, 0..5).prop_map(|dims| {
        let column = |f: fn(&(u64, u64, u64)) -> u64| dims.iter().map(f).collect::<Vec<_>>();
        let region = Region::new(&column(|d| d.1), &column(|d| d.2)).unwrap();
        (Shape::new(&column(|d| d.0)), region)
    })
}

proptest! {
    #![proptest_config(crate::strategies::config())]

    #[test]
    fn a_flat_range_is_its_boxes_and_its_boxes_are_the_range(
        (shape, _) in shape_and_region(), ends in (any::<u64>(), any::<u64>())
    ) {
        let n = shape.elements().unwrap();
        let ends = (ends.0 % (n + 1), ends.1 % (n + 1));
        let (a, b) = (ends.0.min(ends.1), ends.0.max(ends.1));
        let found = boxes(&shape, a..b).unwrap();
        prop_assert!(found.len() < (2 * shape.rank()).max(2), "{} boxes of {shape}", found.len());
        let elements: Vec<u64> = found.iter().flat_map(|region| indices(&shape, region)).collect();
        prop_assert_eq!(elements, (a..b).collect::<Vec<_>>());
        let back = ranges(&shape, &found).unwrap();
        prop_assert_eq!(back, Vec::from_iter((a < b).then_some(a..b)));
    }

    #[test]
    fn runs_are_the_elements_of_a_region_in_order_and_as_long_as_can_be((shape, region) in shape_and_region()) {
        let found: Vec<_> = runs(&region, &shape).unwrap().collect();
        let elements: Vec<u64> = found.iter().flat_map(|run| run.start..run.start + run.len).collect();
        prop_assert_eq!(elements, indices(&shape, &region));
        prop_assert_eq!(runs(&region, &shape).unwrap().size_hint().0, found.len());
    }

    #[test]
    fn runs_are_counted_without_being_walked((shape, region) in shape_and_region(), (by, at) in (0_u64..9, 0..4_usize)) {
        let left = runs(&region, &shape).unwrap().left();
        prop_assert_eq!(run_count(&region, &Region::whole(&shape).unwrap()), left);
        // Where a chunk lies in its tensor makes no difference.
        let moved = |of: &Region| {
            let mut offsets = of.offsets().to_vec();
            offsets.iter_mut().skip(at).for_each(|offset| *offset += by);
            Region::new(&offsets, of.extents()).unwrap()
        };
        prop_assert_eq!(run_count(&moved(&region), &moved(&Region::whole(&shape).unwrap())), left);
    }

    #[test]
    fn tiles_are_the_elements_of_a_region_in_order_and_bounded(
        (shape, region) in shape_and_region(), max in 1_u64..40
    ) {
        let mut elements = Vec::new();
        for tile in tiles(&region, max) {
            prop_assert!(tile.elements() <= max && !tile.is_empty());
            elements.extend(indices(&shape, &tile));
        }
        prop_assert_eq!(elements, indices(&shape, &region));
    }
}

#[test]
fn a_range_peels_into_partial_rows_and_a_middle_block() {
    let text =
        |range| boxes(&Shape::new(&[4, 5]), range).unwrap().iter().map(Region::to_string).collect::<Vec<_>>();
    assert_eq!(text(3..17), ["[0..1, 3..5]", "[1..3, 0..5]", "[3..4, 0..2]"]);
    assert_eq!(text(0..20), ["[0..4, 0..5]"]);
    assert_eq!(boxes(&Shape::new(&[]), 0..1).unwrap(), [Region::new(&[], &[]).unwrap()]);
}

#[test]
fn what_lies_outside_is_refused_with_its_numbers() {
    let refused = boxes(&Shape::new(&[4, 5]), 3..21).unwrap_err().to_string();
    assert_eq!(refused, "flat range 3..21 does not lie within the 20 elements of shape 4x5");
    assert!(matches!(boxes(&Shape::new(&[u64::MAX, 3]), 0..1), Err(FlatError::TooLarge(_))));
    let region = Region::new(&[3], &[2]).unwrap();
    assert!(matches!(runs(&region, &Shape::new(&[4])), Err(FlatError::Outside { .. })));
    assert!(matches!(runs(&region, &Shape::new(&[9, 9])), Err(FlatError::Outside { .. })));
}

#[test]
fn trailing_whole_dimensions_merge_into_one_run() {
    let rows = Region::new(&[1, 0, 0], &[2, 3, 4]).unwrap();
    assert_eq!(
        runs(&rows, &Shape::new(&[9, 3, 4])).unwrap().map(|run| (run.start, run.len)).collect::<Vec<_>>(),
        [(12, 24)]
    );
}
