//! Region maps against reshape, permute, reshape of the elements themselves.

use proptest::prelude::*;
use smallvec::smallvec;

use super::*;

/// `array.reshape(factors).transpose(order).reshape(-1)`, element by element as the definition says: element `t` of
/// the result, read as digits in the permuted factors, is the source element with those digits put back in place.
fn reference(factors: &[u64], order: &[usize]) -> Vec<u64> {
    let permuted: Vec<u64> = order.iter().map(|&at| factors[at]).collect();
    let total: u64 = factors.iter().product();
    let source = |t: u64| {
        let (mut rest, mut digits) = (t, vec![0; factors.len()]);
        for (place, &extent) in permuted.iter().enumerate().rev() {
            digits[order[place]] = rest % extent;
            rest /= extent;
        }
        digits.iter().zip(factors).fold(0, |sum, (d, f)| sum * f + d)
    };
    (0..total).map(source).collect()
}

fn factors_and_order() -> impl Strategy<Value = (Vec<u64>, Vec<usize>)> {
    prop::collection::vec(1u64..5, 1..5)
        .prop_flat_map(|factors| (Just((0..factors.len()).collect::<Vec<_>>()).prop_shuffle(), Just(factors)))
        .prop_map(|(order, factors)| (factors, order))
}

proptest! {
    #[test]
    fn a_map_is_reshape_permute_reshape((factors, order) in factors_and_order()) {
        let flat = Shape::new(&[factors.iter().product()]);
        let map = RegionMap::refactor(&flat, &factors, &order, &flat).unwrap();
        for (target, source) in (0..).zip(reference(&factors, &order)) {
            prop_assert_eq!(map.map_linear(source), target);
        }
    }

    #[test]
    fn the_inverse_undoes_the_map((factors, order) in factors_and_order(), (f2, o2) in factors_and_order()) {
        let shape = Shape::new(&factors);
        let target: Shape = order.iter().map(|&at| factors[at]).collect();
        let map = RegionMap::refactor(&shape, &factors, &order, &target).unwrap();
        prop_assert!(map.then(&map.inverse()).unwrap().is_identity());
        prop_assert_eq!(map.inverse().inverse(), map.clone());
        for at in 0..shape.elements().unwrap() {
            let coords = coordinates(&shape, at);
            let there = map.map_index(&coords).unwrap();
            prop_assert_eq!(map.inverse().map_index(&there).unwrap(), coords);
        }
        // Composition of two different maps, where their sizes agree.
        if f2.iter().product::<u64>() == factors.iter().product::<u64>() {
            let second = RegionMap::refactor(&target, &f2, &o2, &target).unwrap();
            let both = map.then(&second).unwrap();
            for at in 0..shape.elements().unwrap() {
                prop_assert_eq!(both.map_linear(at), second.map_linear(map.map_linear(at)));
                prop_assert_eq!(both.inverse().map_linear(both.map_linear(at)), at);
            }
        }
    }

    #[test]
    fn row_runs_fill_the_range_once_and_agree_with_map_row(
        (factors, order) in factors_and_order(), width in 1u64..4, from in 0u64..40, len in 0u64..80,
    ) {
        let rows: u64 = factors.iter().product();
        let shape = Shape::new(&[rows, width]);
        let permute = RowPermute { dim: 0, factors: factors.into(), order: order.into() };
        let map = RegionMap::permute(&shape, &permute).unwrap();
        let twice = map.then(&map).unwrap();
        for map in [map, twice] {
            let mut next = from.min(rows);
            for run in map.row_runs(from..from + len).unwrap() {
                prop_assert_eq!(run.target, next);
                for k in 0..run.count {
                    prop_assert_eq!(map.map_row(run.source + k), Some(run.target + k));
                }
                next += run.count;
            }
            prop_assert_eq!(next, (from + len).min(rows).max(from.min(rows)));
        }
    }

    #[test]
    fn a_map_survives_json((factors, order) in factors_and_order()) {
        let shape = Shape::new(&factors);
        let flat = Shape::new(&[factors.iter().product()]);
        let map = RegionMap::refactor(&shape, &factors, &order, &flat).unwrap();
        let text = serde_json::to_string(&map).unwrap();
        prop_assert_eq!(serde_json::from_str::<RegionMap>(&text).unwrap(), map);
    }
}

#[test]
fn neighbours_that_stay_together_are_one_run() {
    let shape = Shape::new(&[12, 5]);
    let permute = RowPermute { dim: 0, factors: smallvec![2, 2, 3], order: smallvec![1, 0, 2] };
    let runs: Vec<_> = RegionMap::permute(&shape, &permute).unwrap().row_runs(0..12).unwrap().collect();
    let run = |target, source, count| RowRun { target, source, count };
    assert_eq!(runs, [run(0, 0, 3), run(3, 6, 3), run(6, 3, 3), run(9, 9, 3)]);
}

#[test]
fn an_identity_is_one_run_and_a_transpose_has_none() {
    let shape = Shape::new(&[6, 4]);
    let whole = RegionMap::identity(&shape).row_runs(0..100).unwrap().collect::<Vec<_>>();
    assert_eq!(whole, [RowRun { target: 0, source: 0, count: 6 }]);
    let transpose = RegionMap::transpose(&shape, 0, 1).unwrap();
    assert_eq!(transpose.target(), &Shape::new(&[4, 6]));
    assert_eq!(transpose.map_index(&[5, 3]).as_deref(), Some(&[3, 5][..]));
    assert!(transpose.row_runs(0..4).is_none());
    let square = RegionMap::transpose(&Shape::new(&[4, 4]), 0, 1).unwrap();
    assert!(square.row_runs(0..4).is_none());
}

#[test]
fn what_cannot_be_a_map_is_refused() {
    let shape = Shape::new(&[12, 5]);
    let permute = |factors: &[u64], order: &[usize]| {
        let rows = RowPermute { dim: 0, factors: factors.into(), order: order.into() };
        RegionMap::permute(&shape, &rows)
    };
    assert!(matches!(permute(&[5, 2], &[0, 1]), Err(RegionError::Factors { extent: 12, .. })));
    assert!(matches!(permute(&[6, 2], &[0, 0]), Err(RegionError::Order(_))));
    assert!(matches!(permute(&[6, 2], &[0]), Err(RegionError::Order(_))));
    let flat = RegionMap::identity(&Shape::new(&[60]));
    assert!(matches!(RegionMap::identity(&shape).then(&flat), Err(RegionError::Compose { .. })));
    let forged = r#"{"source":[4],"target":[4],"steps":[{"factors":[2,3],"order":[1,0]}]}"#;
    assert!(serde_json::from_str::<RegionMap>(forged).is_err());
}
