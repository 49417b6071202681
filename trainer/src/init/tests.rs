//! Frozen values, boxes against the whole, and statistics.

use proptest::prelude::*;

use super::*;

fn name(text: &str) -> Fqn {
    Fqn::new(text).unwrap()
}

fn region(offsets: &[u64], extents: &[u64]) -> Region {
    Region::new(offsets, extents).unwrap()
}

fn normals(seed: u64, fqn: &str, count: u64) -> Vec<f32> {
    let shape = [i64::try_from(count).unwrap()];
    values(seed, &name(fqn), Init::Normal(1.0), &shape, &region(&[0], &[count])).unwrap()
}

fn correlation(a: &[f32], b: &[f32]) -> f64 {
    let products = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
    products.sum::<f64>() / a.len() as f64
}

#[test]
fn the_values_of_a_seed_and_a_name_never_change() {
    let bits = |values: Vec<f32>| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(normals(0, "w", 6)), FROZEN_W);
    assert_eq!(bits(normals(42, "layers.0.attention.wq.weight", 6)), FROZEN_WQ);
    let far = region(&[u64::MAX / 8], &[2]);
    let found = values(7, &name("far"), Init::Normal(0.02), &[i64::MAX], &far).unwrap();
    assert_eq!(bits(found), FROZEN_FAR);
}

// From a second implementation (Python, with C's mathematics).
const FROZEN_W: [u32; 6] = [0x3f9e_f36d, 0x3f29_521d, 0xbe82_c6a2, 0x3ff0_5c77, 0xbdba_9e0c, 0x4007_eacf];
const FROZEN_WQ: [u32; 6] = [0x3ed7_286b, 0xbfe1_f2e1, 0xbf88_da09, 0xbef3_1389, 0x3f34_9ab0, 0x3e56_bece];
const FROZEN_FAR: [u32; 2] = [0x3cbe_35e5, 0x3c22_3e9d];

#[test]
fn values_are_normal_to_the_tails() {
    let count = 1 << 20;
    let values = normals(1, "layers.3.mlp.up.weight", count);
    let moment = |power: i32| {
        values.iter().map(|value| f64::from(*value).powi(power)).sum::<f64>() / values.len() as f64
    };
    // Five standard errors of each moment.
    let error = 5.0 / (count as f64).sqrt();
    assert!(moment(1).abs() < error, "mean {}", moment(1));
    assert!((moment(2) - 1.0).abs() < error * 2_f64.sqrt(), "variance {}", moment(2));
    assert!(moment(3).abs() < error * 15_f64.sqrt(), "third moment {}", moment(3));
    assert!((moment(4) - 3.0).abs() < error * 96_f64.sqrt(), "fourth moment {}", moment(4));
    for (limit, share) in [(1.0, 0.317_310_5), (2.0, 0.045_500_3), (3.0, 0.002_699_8), (4.0, 0.000_063_3)] {
        let beyond = values.iter().filter(|value| f64::from(value.abs()) > limit).count() as f64;
        let expected = share * count as f64;
        assert!(
            (beyond - expected).abs() < 5.0 * expected.sqrt(),
            "beyond {limit}: {beyond}, not {expected}"
        );
    }
}

#[test]
fn neighbours_names_and_seeds_are_not_correlated() {
    let count = 1 << 18;
    let values = normals(1, "a.weight", count);
    let error = 5.0 / (count as f64).sqrt();
    for lag in [1, 2, 3, 4, 5, 64, 1024] {
        let found = correlation(&values, values.get(lag..).unwrap());
        assert!(found.abs() < error, "lag {lag}: {found}");
    }
    for other in [normals(1, "b.weight", count), normals(2, "a.weight", count), normals(1, "a.weighu", count)]
    {
        assert!(correlation(&values, &other).abs() < error);
        // Squares too: a shared radius would show here.
        let squares = |values: &[f32]| values.iter().map(|v| v * v - 1.0).collect::<Vec<_>>();
        assert!(correlation(&squares(&values), &squares(&other)).abs() < 2.0 * error);
    }
}

#[test]
fn a_constant_is_the_same_everywhere_and_a_region_outside_is_refused() {
    let shape = [4, 6];
    let ones = values(0, &name("norm"), Init::Constant(1.0), &shape, &region(&[1, 2], &[2, 3])).unwrap();
    assert_eq!(ones, [1.0; 6]);
    let error = values(0, &name("norm"), Init::Normal(1.0), &shape, &region(&[3, 0], &[2, 6])).unwrap_err();
    assert!(error.to_string().contains("norm has no region [3..5, 0..6]"), "{error}");
}

proptest! {
    #[test]
    fn a_box_has_the_values_that_the_whole_tensor_has_there(
        (shape, offsets, extents) in prop::collection::vec((1_u64..7, 0_u64..7, 0_u64..7), 1..4).prop_map(|dims| {
            let shape: Vec<u64> = dims.iter().map(|(extent, ..)| *extent).collect();
            let offsets: Vec<u64> = dims.iter().map(|(extent, offset, _)| (*offset).min(*extent)).collect();
            let extents: Vec<u64> =
                dims.iter().zip(&offsets).map(|((extent, _, length), offset)| (*length).min(extent - offset)).collect();
            (shape, offsets, extents)
        })
    ) {
        let signed: Vec<i64> = shape.iter().map(|extent| i64::try_from(*extent).unwrap()).collect();
        let part = region(&offsets, &extents);
        let whole = region(&vec![0; shape.len()], &shape);
        let all = values(3, &name("w"), Init::Normal(0.5), &signed, &whole).unwrap();
        let bytes: Vec<u8> = all.iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut expected = vec![0; usize::try_from(part.elements() * 4).unwrap()];
        reshard::copy_region(&part, &reshard::Strided::row_major(&bytes, &whole), &mut expected, &part, 4).unwrap();
        let found = values(3, &name("w"), Init::Normal(0.5), &signed, &part).unwrap();
        prop_assert_eq!(found.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>(), expected);
    }
}
