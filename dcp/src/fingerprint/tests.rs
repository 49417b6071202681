//! Frozen vectors, an independent slow reference, and the properties that fingerprints are for.

use std::collections::HashSet;

use fqn::{Dtype, Shape};
use proptest::prelude::*;
use reshard::Region;

use super::{ElementWidth, Engine, Fingerprint, FingerprintError, FingerprintSum, mix};

const WIDTHS: [ElementWidth; 5] =
    [ElementWidth::One, ElementWidth::Two, ElementWidth::Four, ElementWidth::Eight, ElementWidth::Sixteen];

/// `(index, bits, lane 0, lane 1)`, computed outside this crate from the formulas of the module doc.
const MIXED: [(u64, u64, u64, u64); 5] = [
    (0x0, 0x0, 0xac36_681c_ce54_4192, 0x3b29_41f8_9979_ed04),
    (0x1, 0x0, 0x300e_7583_56a0_b173, 0x6839_c222_5847_4b69),
    (0x0, 0x1, 0xc7b4_7152_946a_6d50, 0xca07_b69a_4969_c751),
    (0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210, 0x4c5e_535c_824b_7494, 0x5dc1_ff85_ace8_3c0d),
    (u64::MAX, u64::MAX, 0x1293_c728_fea7_4797, 0xcba8_46bb_3845_8f95),
];

/// The round as FIPS 197 writes it: byte by byte, no tables.
mod slow {
    fn times(a: u8, b: u8) -> u8 {
        (0..8).rev().fold(0, |product: u8, bit| {
            let doubled = (product << 1) ^ ((product >> 7) * 0x1b);
            doubled ^ ((b >> bit & 1) * a)
        })
    }

    fn substituted(x: u8) -> u8 {
        let inverse = (1..=255).find(|&y| times(x, y) == 1).unwrap_or(0);
        (0..8).fold(0, |out, bit| {
            let parity = [0, 4, 5, 6, 7].iter().fold(0, |p, k| p ^ (inverse >> ((bit + k) % 8) & 1));
            out | (parity ^ (0x63 >> bit & 1)) << bit
        })
    }

    pub(super) fn mix(index: u64, bits: u64) -> [u64; 2] {
        let pi = "243f6a8885a308d313198a2e03707344a4093822299f31d0082efa98ec4e6c89\
                  452821e638d01377be5466cf34e90c6cc0ac29b7c97c50dd3f84d5b5b5470917";
        let mut state: Vec<u8> = [index.to_le_bytes(), bits.to_le_bytes()].concat();
        for round in 0..4 {
            let shifted: Vec<u8> = (0..16).map(|n| substituted(state[(n + 4 * (n % 4)) % 16])).collect();
            state = (0..16)
                .map(|n| {
                    let row = |k: usize| shifted[n / 4 * 4 + (n + k) % 4];
                    let at = 32 * round + 2 * n;
                    let key = u8::from_str_radix(&pi[at..at + 2], 16).unwrap();
                    times(row(0), 2) ^ times(row(1), 3) ^ row(2) ^ row(3) ^ key
                })
                .collect();
        }
        [0, 8].map(|at| u64::from_le_bytes(state[at..at + 8].try_into().unwrap()))
    }

    /// The sum as the module doc defines it, element by element.
    pub(super) fn sum(width: usize, indices: impl Iterator<Item = u64>, bytes: &[u8]) -> [u64; 2] {
        let mut lanes = [0_u64; 2];
        for (index, element) in indices.zip(bytes.chunks(width)) {
            for (half, part) in element.chunks(8).enumerate() {
                let mut bits = [0; 8];
                bits[..part.len()].copy_from_slice(part);
                let index = if width == 16 { index.wrapping_mul(2) + half as u64 } else { index };
                let mixed = mix(index, u64::from_le_bytes(bits));
                lanes = [lanes[0].wrapping_add(mixed[0]), lanes[1].wrapping_add(mixed[1])];
            }
        }
        lanes
    }
}

fn sum_of(width: ElementWidth, first: u64, bytes: &[u8]) -> FingerprintSum {
    let mut sum = FingerprintSum::default();
    sum.add_run(width, first, bytes).unwrap();
    sum
}

fn sample(len: usize) -> Vec<u8> {
    (0..len).map(|n| u8::try_from((n * 7 + 3) % 256).unwrap()).collect()
}

#[test]
fn the_mix_has_its_frozen_values() {
    for (index, bits, low, high) in MIXED {
        assert_eq!(mix::mix(index, bits), [low, high]);
        assert_eq!(slow::mix(index, bits), [low, high]);
    }
}

#[test]
fn sums_of_every_width_have_their_frozen_values() {
    let frozen = [
        (ElementWidth::One, 0xfea0_06ff_bd8b_547f, 0x06a1_f53c_b686_db06),
        (ElementWidth::Two, 0x2489_f822_897b_59e3, 0x5ca4_113d_b264_2536),
        (ElementWidth::Four, 0x80d4_2e5a_c7d6_4a06, 0x94cc_b5f7_3e03_8c96),
        (ElementWidth::Eight, 0xc738_5485_504d_c7ee, 0x84ca_3324_2858_70ff),
        (ElementWidth::Sixteen, 0x55a5_0818_94c1_827e, 0x01b4_a324_849a_754c),
    ];
    for (width, low, high) in frozen {
        assert_eq!(sum_of(width, 5, &sample(24 * width.bytes())).lanes(), [low, high], "{width:?}");
    }
}

#[test]
fn strided_sums_have_their_frozen_values() {
    let frozen = [
        (ElementWidth::One, 0x5e56_98bc_bf98_ea43, 0xfb0d_e442_835a_532a),
        (ElementWidth::Two, 0x6213_4bfb_45b9_d8ec, 0xe561_c922_c599_09ad),
        (ElementWidth::Four, 0xeaa2_0b06_89ad_b540, 0x936a_9713_8e75_4285),
        (ElementWidth::Eight, 0xc2b1_34ad_66f0_7245, 0xc7b2_2861_ea5d_caeb),
    ];
    for (width, low, high) in frozen {
        let mut sum = FingerprintSum::default();
        sum.add_strided(width, 5, 3, &sample(24 * width.bytes())).unwrap();
        assert_eq!(sum.lanes(), [low, high], "{width:?}");
    }
}

#[test]
fn fingerprints_have_their_frozen_values() {
    let sum = sum_of(ElementWidth::Four, 0, &sample(96));
    assert_eq!(sum.finish(Dtype::F32, &Shape::new(&[4, 6])).to_string(), "264bd47b44b2affb72dff6a60a608f7f");
    assert_eq!(
        FingerprintSum::default().finish(Dtype::F32, &Shape::new(&[0, 6])).to_string(),
        "9e2ec917e3448c063ac99a25d01f7d75"
    );
    assert_eq!(
        sum_of(ElementWidth::Four, 0, &sample(4)).finish(Dtype::F32, &Shape::new(&[])).to_string(),
        "85fbc848614191da2f0c32e9021d5b6f"
    );
}

#[test]
fn a_fingerprint_depends_on_dtype_and_shape() {
    let sum = sum_of(ElementWidth::Two, 0, &sample(48));
    let all = [
        sum.finish(Dtype::BF16, &Shape::new(&[4, 6])),
        sum.finish(Dtype::F16, &Shape::new(&[4, 6])),
        sum.finish(Dtype::BF16, &Shape::new(&[6, 4])),
        sum.finish(Dtype::BF16, &Shape::new(&[24])),
        sum.finish(Dtype::BF16, &Shape::new(&[24, 1])),
    ];
    assert_eq!(HashSet::from(all).len(), all.len());
}

#[test]
fn a_ragged_run_is_refused_and_adds_nothing() {
    let mut sum = FingerprintSum::default();
    let error = sum.add_run(ElementWidth::Four, 0, &[0; 7]).unwrap_err();
    assert_eq!(error, FingerprintError::Ragged { bytes: 7, width: 4 });
    assert_eq!(sum, FingerprintSum::default());
}

fn region(offsets: &[u64], extents: &[u64]) -> Region {
    Region::new(offsets, extents).unwrap()
}

#[test]
fn a_region_outside_its_tensor_or_with_other_bytes_is_refused() {
    let shape = Shape::new(&[4, 6]);
    let mut sum = FingerprintSum::default();
    for (it, bytes) in [
        (region(&[3, 0], &[2, 6]), 48),
        (region(&[0, 0], &[2, 6]), 44),
        (region(&[u64::MAX - 2, 0], &[2, 6]), 48),
        (region(&[0], &[4]), 16),
    ] {
        let error = sum.add_region(Dtype::F32, &shape, &it, &vec![0; bytes]).unwrap_err();
        assert!(matches!(error, FingerprintError::Region { .. }), "{error}");
    }
    assert!(sum.add_region(Dtype::U8, &Shape::new(&[u64::MAX, 4]), &region(&[0, 0], &[1, 1]), &[0]).is_err());
    assert_eq!(sum, FingerprintSum::default());
}

#[test]
fn packed_dtypes_are_summed_as_bytes_and_regions_must_end_on_them() {
    let shape = Shape::new(&[3, 4]);
    let bytes = sample(6);
    let mut halves = FingerprintSum::default();
    for (at, part) in [(0, [bytes[0], bytes[2], bytes[4]]), (2, [bytes[1], bytes[3], bytes[5]])] {
        halves.add_region(Dtype::F4E2M1, &shape, &region(&[0, at], &[3, 2]), &part).unwrap();
    }
    assert_eq!(halves, sum_of(ElementWidth::One, 0, &bytes));
    assert!(halves.add_region(Dtype::F4E2M1, &shape, &region(&[0, 1], &[3, 2]), &[0; 3]).is_err());
}

#[test]
fn text_forms_round_trip_and_other_spellings_are_refused() {
    let sum = FingerprintSum::from_lanes([0x0123_4567_89ab_cdef, 1]);
    assert_eq!(sum.to_string(), "efcdab89674523010100000000000000");
    assert_eq!(sum.to_string().parse(), Ok(sum));
    let print = Fingerprint::from_bytes(*b"0123456789abcdef");
    assert_eq!(print.to_string().parse(), Ok(print));
    assert_eq!(serde_json::from_str::<Fingerprint>(&serde_json::to_string(&print).unwrap()).unwrap(), print);
    for bad in ["", "0", "+0000000000000000000000000000000", "ABCDEF00000000000000000000000000"] {
        assert!(bad.parse::<Fingerprint>().is_err(), "{bad}");
        assert!(bad.parse::<FingerprintSum>().is_err(), "{bad}");
    }
}

#[test]
fn the_portable_mix_agrees_with_every_engine_at_every_short_length_and_alignment() {
    let bytes = sample(64 * 16 * 3 + 64);
    for engine in Engine::available() {
        for width in WIDTHS {
            for (start, count) in (0..17).flat_map(|start| (0..140).map(move |count| (start, count))) {
                let run = &bytes[start..start + count * width.bytes()];
                let mut by_engine = FingerprintSum::default();
                by_engine.add_strided_by(engine, width, u64::MAX - 9, 3, run).unwrap();
                let mut by_element = FingerprintSum::default();
                for (k, element) in run.chunks(width.bytes()).enumerate() {
                    let index = (u64::MAX - 9).wrapping_add(3 * k as u64);
                    by_element.add_strided_by(Engine::available()[0], width, index, 1, element).unwrap();
                }
                assert_eq!(by_engine, by_element, "{engine:?} {width:?} start {start} count {count}");
            }
        }
    }
}

proptest! {
    #[test]
    fn every_engine_agrees_with_the_slow_reference(
        bytes in prop::collection::vec(any::<u8>(), 0..96),
        skip in 0_usize..16,
        first in any::<u64>(),
        step in prop_oneof![Just(1), Just(0), 0_u64..5000, any::<u64>()],
        width in prop::sample::select(&WIDTHS[..]),
    ) {
        let start = skip.min(bytes.len());
        let run = &bytes[start..bytes.len() - (bytes.len() - start) % width.bytes()];
        let indices = (0..).map(|k: u64| first.wrapping_add(step.wrapping_mul(k)));
        let expected = slow::sum(width.bytes(), indices, run);
        for engine in Engine::available() {
            let mut sum = FingerprintSum::default();
            sum.add_strided_by(engine, width, first, step, run).unwrap();
            prop_assert_eq!(sum.lanes(), expected, "{:?}", engine);
        }
    }

    #[test]
    fn parts_in_any_cut_and_order_add_up_to_the_whole(
        bytes in prop::collection::vec(any::<u8>(), 0..4096),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        order in any::<u64>(),
        width in prop::sample::select(&WIDTHS[..]),
    ) {
        let count = bytes.len() / width.bytes();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(count + 1)).chain([0, count]).collect();
        cuts.sort_unstable();
        let mut parts: Vec<_> = cuts.windows(2).map(|ends| (ends[0], ends[1])).collect();
        parts.sort_by_key(|part| (part.0 as u64).wrapping_mul(order | 1));
        let sum: FingerprintSum = parts
            .iter()
            .map(|&(from, to)| sum_of(width, from as u64, &bytes[from * width.bytes()..to * width.bytes()]))
            .sum();
        prop_assert_eq!(sum, sum_of(width, 0, &bytes[..count * width.bytes()]));
    }

    #[test]
    fn regions_that_tile_a_tensor_add_up_to_the_whole(
        shape in prop::collection::vec(0_u64..7, 0..5),
        cut_axis in any::<prop::sample::Index>(),
        cut_at in any::<prop::sample::Index>(),
        second_axis in any::<prop::sample::Index>(),
        dtype in prop::sample::select(&[Dtype::U8, Dtype::BF16, Dtype::F32, Dtype::C64, Dtype::C128][..]),
    ) {
        let width = ElementWidth::of(dtype);
        let bytes = sample(usize::try_from(shape.iter().product::<u64>()).unwrap() * width.bytes());
        let mut boxes = vec![(vec![0; shape.len()], shape.clone())];
        if !shape.is_empty() {
            for axis in [cut_axis.index(shape.len()), second_axis.index(shape.len())] {
                let at = cut_at.index(usize::try_from(shape[axis]).unwrap() + 1) as u64;
                boxes = boxes.into_iter().flat_map(|it| split(it, axis, at)).collect();
            }
        }
        let mut sum = FingerprintSum::default();
        for (offset, extent) in &boxes {
            let part = gathered(&bytes, width.bytes(), &shape, offset, extent);
            sum.add_region(dtype, &Shape::new(&shape), &region(offset, extent), &part).unwrap();
        }
        prop_assert_eq!(sum, sum_of(width, 0, &bytes));
    }
}

type Cut = (Vec<u64>, Vec<u64>);

fn split((offset, extent): Cut, axis: usize, at: u64) -> Vec<Cut> {
    let end = offset[axis] + extent[axis];
    let at = at.clamp(offset[axis], end);
    let (mut low, mut high) = ((offset.clone(), extent.clone()), (offset, extent));
    low.1[axis] = at - low.0[axis];
    high.0[axis] = at;
    high.1[axis] = end - at;
    vec![low, high]
}

/// The row-major bytes of a box, element by element.
fn gathered(bytes: &[u8], width: usize, shape: &[u64], offset: &[u64], extent: &[u64]) -> Vec<u8> {
    (0..extent.iter().product::<u64>())
        .flat_map(|element| {
            let (mut rest, mut index, mut stride) = (element, 0, 1);
            for axis in (0..shape.len()).rev() {
                index += (offset[axis] + rest % extent[axis]) * stride;
                rest /= extent[axis];
                stride *= shape[axis];
            }
            let at = usize::try_from(index).unwrap() * width;
            bytes[at..at + width].to_vec()
        })
        .collect()
}

/// The sums that structured mistakes lead to: each is the difference that one mistake makes to some tensor, so two
/// equal ones, or a zero, are a mistake that the fingerprint can't see or can't tell from another.
#[test]
fn a_million_structured_mistakes_all_change_the_sum_and_differ_from_each_other() {
    let engine = Engine::available()[0];
    let one =
        |index: u64, bits: u64| FingerprintSum::from_lanes(engine.lanes::<8>(index, 1, &bits.to_le_bytes()));
    let minus = |a: FingerprintSum, b: FingerprintSum| {
        let ([a0, a1], [b0, b1]) = (a.lanes(), b.lanes());
        FingerprintSum::from_lanes([a0.wrapping_sub(b0), a1.wrapping_sub(b1)])
    };
    let values = [0.0_f32, 1.0, -1.0, 0.5, 1.5, 1e-3, 3.0e8].map(|v| u64::from(v.to_bits()));
    let mut seen = HashSet::with_capacity(1_300_000);
    let mut record = |difference: FingerprintSum| assert!(seen.insert(difference), "collision: {difference}");
    record(FingerprintSum::default());
    for index in 0..2800_u64 {
        for (n, &bits) in values.iter().enumerate() {
            let here = one(index, bits);
            for bit in 0..32 {
                record(minus(one(index, bits ^ 1 << bit), here));
            }
            for near in [1, 2, 16, 64] {
                // Two different elements swapped: rows, heads or blocks in the wrong place.
                for &other in &values[..n] {
                    let swapped = one(index, other) + one(index + near, bits);
                    record(minus(swapped, here + one(index + near, other)));
                }
                // One element moved a unit up and another a unit down: sums and means don't see it.
                let balanced = one(index, bits + 1) + one(index + near, bits.wrapping_sub(1));
                record(minus(balanced, here + one(index + near, bits)));
                // Both signs flipped; both of a pair replaced by the other's neighbour.
                let flipped = one(index, bits ^ 1 << 31) + one(index + near, bits ^ 1 << 31);
                record(minus(flipped, here + one(index + near, bits)));
                // An equal block stands elsewhere.
                record(minus(one(index + 1_000_000 * near, bits), here));
            }
        }
    }
    assert!(seen.len() >= 1_000_000, "{}", seen.len());
}
