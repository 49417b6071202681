//! Sums of blocks against sums of one element after another.

use proptest::prelude::*;

use super::*;
use crate::element::{Element, decode};

/// What the definition of [`Stats`] says, literally; sums are taken of numbers that a power of two has brought near 1.
fn one_by_one(one: (Dtype, &[u8]), other: (Dtype, &[u8])) -> Stats {
    let mut stats = Stats::default();
    let (mut ulps, mut finite) = (0, Vec::new());
    let width = |dtype: Dtype| dtype.bits() as usize / 8;
    let bits = one.1.chunks_exact(width(one.0)).zip(other.1.chunks_exact(width(other.0)));
    let numbers = decode(one.0, one.1).unwrap().into_iter().zip(decode(other.0, other.1).unwrap());
    for (index, ((x, y), (a, b))) in (0..).zip(bits.zip(numbers)) {
        let (a, b) = (number(a), number(b));
        let equal = if one.0 == other.0 { x == y } else { a == b };
        stats.elements += 1;
        if !equal {
            stats.differing += 1;
            stats.first = stats.first.or(Some(index));
            ulps += u64::from(
                place(one.0, x, a.0).zip(place(other.0, y, b.0)).is_some_and(|(x, y)| (x - y).abs() > 1),
            );
        }
        for (side, (re, im)) in [a, b].into_iter().enumerate() {
            let nan = re.is_nan() || im.is_nan();
            stats.nans[side] += u64::from(nan);
            stats.infinities[side] += u64::from(!nan && (re.is_infinite() || im.is_infinite()));
        }
        if [a.0, a.1, b.0, b.1].iter().all(|it| it.is_finite()) {
            // Halves, whose difference is finite.
            let (x, y) = (times(a, -1), times(b, -1));
            let apart = (x.0 - y.0, x.1 - y.1);
            let distance = times((apart.0.hypot(apart.1), 0.0), 1).0;
            let relative = apart.0.hypot(apart.1) / x.0.hypot(x.1).max(y.0.hypot(y.1));
            // Halves of the smallest numbers are rounded.
            let exact = (a.0 - b.0).hypot(a.1 - b.1);
            let tiny = distance < 1e-300;
            stats.max_abs = stats.max_abs.max(if tiny { exact } else { distance });
            stats.max_rel =
                stats.max_rel.max(if tiny { exact / a.0.hypot(a.1).max(b.0.hypot(b.1)) } else { relative });
            finite.push((a, b));
        }
    }
    let halves = |at: (f64, f64), by: i32| times(times(at, by / 2), by - by / 2);
    let [ea, eb] = [exponent(finite.iter().map(|(a, _)| *a)), exponent(finite.iter().map(|(_, b)| *b))];
    // A difference of the largest numbers may be none of them, hence that of their quarters: beside it the smallest don't count.
    let fits = |(a, b): &((f64, f64), (f64, f64))| (a.0 - b.0).is_finite() && (a.1 - b.1).is_finite();
    let down = if finite.iter().all(fits) { 0 } else { -2 };
    let apart = |(a, b): &((f64, f64), (f64, f64))| {
        let (a, b) = (times(*a, down), times(*b, down));
        (a.0 - b.0, a.1 - b.1)
    };
    let ed = exponent(finite.iter().map(apart));
    let mut sums = [0.0_f64; 4];
    for pair in &finite {
        let (a, b, d) = (halves(pair.0, -ea), halves(pair.1, -eb), halves(apart(pair), -ed));
        let dot = |x: (f64, f64), y: (f64, f64)| x.0 * y.0 + x.1 * y.1;
        let terms = [dot(a, b), dot(a, a), dot(b, b), dot(d, d)];
        sums = std::array::from_fn(|at| sums[at] + terms[at]);
    }
    let [dot, a, b, squares] = sums;
    let (a, b, d) = (a.sqrt(), b.sqrt(), squares.sqrt());
    stats.l2 = halves((d, 0.0), ed - down).0;
    stats.rel_l2 = if a > 0.0 { halves((d / a, 0.0), ed - down - ea).0 } else { stats.l2 };
    stats.cosine = (a > 0.0 && b > 0.0).then(|| dot / (a * b));
    stats.beyond_one_ulp = (one.0 == other.0 && ordered(one.0)).then_some(ulps);
    stats
}

fn times((re, im): (f64, f64), power: i32) -> (f64, f64) {
    let by = 2_f64.powi(power);
    (re * by, im * by)
}

/// Of the largest magnitude.
fn exponent(numbers: impl Iterator<Item = (f64, f64)>) -> i32 {
    let most = numbers.fold(0.0_f64, |most, (re, im)| most.max(re.abs()).max(im.abs()));
    if most == 0.0 { 0 } else { i32::try_from(most.to_bits() >> 52).unwrap() - 1023 }
}

fn number(element: Element) -> (f64, f64) {
    match element {
        Element::Float(value) => (value, 0.0),
        Element::Int(value) => (value as f64, 0.0),
        Element::Uint(value) => (value as f64, 0.0),
        Element::Bool(value) => (u8::from(value).into(), 0.0),
        Element::Complex(re, im) => (re, im),
    }
}

/// Where a float stands in the row of all that its dtype has.
fn place(dtype: Dtype, bytes: &[u8], value: f64) -> Option<i128> {
    let magnitude = if dtype == Dtype::F8E8M0 { 8 } else { dtype.bits() - 1 };
    let bits = bytes.iter().rev().fold(0_u128, |bits, byte| bits << 8 | u128::from(*byte));
    let size = (bits & ((1 << magnitude) - 1)) as i128;
    (ordered(dtype) && !value.is_nan()).then_some(if bits >> magnitude == 0 { size } else { -size })
}

fn in_blocks(one: (Dtype, &[u8]), other: (Dtype, &[u8])) -> Stats {
    let mut sums = Sums::default();
    sums.add(0, one, other);
    sums.finish(Some(one.0).filter(|dtype| *dtype == other.0))
}

/// Sums within rounding, everything else exactly.
fn agree(fast: Stats, slow: Stats) -> Result<(), String> {
    let near = |a: f64, b: f64| {
        a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-12 * a.abs().max(b.abs())
    };
    // A cosine of nearly orthogonal tensors cancels.
    let cosine = match (fast.cosine, slow.cosine) {
        (Some(a), Some(b)) => near(a, b) || (a - b).abs() <= 1e-12,
        (a, b) => a == b,
    };
    let sums = near(fast.l2, slow.l2) && near(fast.rel_l2, slow.rel_l2) && cosine;
    let rest = |it: Stats| Stats { l2: 0.0, rel_l2: 0.0, cosine: None, ..it };
    // Complex magnitudes are rounded.
    let most = near(fast.max_abs, slow.max_abs) && near(fast.max_rel, slow.max_rel);
    if sums && most && rest(fast) == rest(slow) { Ok(()) } else { Err(format!("{fast:?}\nis not\n{slow:?}")) }
}

fn computed() -> impl Iterator<Item = Dtype> {
    Dtype::ALL.iter().copied().filter(|dtype| Numbers::of(*dtype).is_some())
}

/// Bytes with what is rare in random ones: zeros, infinities, NaNs, subnormals, and runs that stay the same.
fn packed(dtype: Dtype, seed: &[u8], elements: usize) -> Vec<u8> {
    let width = dtype.bits() as usize / 8;
    let mut state =
        seed.iter().fold(1_u64, |state, byte| state.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33).to_le_bytes()[0]
    };
    let tame = seed.first().is_some_and(|byte| byte % 3 == 0);
    let mut bytes = Vec::new();
    for _ in 0..elements {
        let mut element: Vec<u8> = (0..width).map(|_| next()).collect();
        let component =
            if matches!(dtype, Dtype::C32 | Dtype::C64 | Dtype::C128) { width / 2 } else { width };
        for part in element.chunks_mut(component) {
            let top = part.len() - 1;
            match next() {
                0..8 if !tame => part.fill(0xFF),
                8..16 => part.fill(0),
                16..24 => (part[..top].fill(0), part[top] = 0x80).1,
                24..32 if !tame => {
                    part.fill(0);
                    part[top] = 0x7F;
                    if let Some(below) = top.checked_sub(1) {
                        part[below] = 0x80;
                    }
                }
                32..40 if !tame => (part[..top].fill(0), part[top] = 0x7C).1,
                40..48 => part[top] = 0,
                _ => part[top] = (part[top] & 0x83) | 0x38,
            }
        }
        bytes.extend(element);
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn blocks_add_up_to_what_single_elements_do(
        seed in any::<[u8; 4]>(),
        other in any::<[u8; 4]>(),
        elements in prop_oneof![0..9_usize, 1000..1050_usize, 2040..2060_usize],
        changed in prop_oneof![Just(0_usize), 1..30_usize, 1000..2000_usize],
    ) {
        for dtype in computed() {
            let a = packed(dtype, &seed, elements);
            let mut b = a.clone();
            // From single units in the last place to everything.
            for at in 0..changed.min(b.len()) {
                let place = at * 61 % b.len();
                b[place] = b[place].wrapping_add(other[at % 4] % 4);
            }
            agree(in_blocks((dtype, &a), (dtype, &b)), one_by_one((dtype, &a), (dtype, &b)))
                .map_err(|why| TestCaseError::fail(format!("{dtype}: {why}")))?;
            for to in computed().filter(|to| *to != dtype) {
                let b = packed(to, &other, elements);
                agree(in_blocks((dtype, &a), (to, &b)), one_by_one((dtype, &a), (to, &b)))
                    .map_err(|why| TestCaseError::fail(format!("{dtype} and {to}: {why}")))?;
            }
        }
    }
}

#[test]
fn squares_that_no_float_holds_still_make_a_cosine() {
    let bytes = |numbers: &[f64]| numbers.iter().flat_map(|it| it.to_le_bytes()).collect::<Vec<u8>>();
    for size in [1e-250, 1e-170, 1.0, 1e170, 1e250, 1e307] {
        let (a, b) = (bytes(&[3.0 * size, 4.0 * size]), bytes(&[4.0 * size, 3.0 * size]));
        let stats = in_blocks((Dtype::F64, &a), (Dtype::F64, &b));
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-14 * b;
        assert!(near(stats.cosine.unwrap(), 0.96), "{stats:?}");
        assert!(near(stats.l2, 2_f64.sqrt() * size), "{stats:?}");
        assert!(near(stats.rel_l2, 2_f64.sqrt() / 5.0), "{stats:?}");
        let same = in_blocks((Dtype::F64, &a), (Dtype::F64, &a));
        assert!((same.cosine.unwrap() - 1.0).abs() < 1e-14 && same.l2 == 0.0, "{same:?}");
    }
    let (a, b) = (bytes(&[1e308, -1.5e308]), bytes(&[1.0, 2.0]));
    let stats = in_blocks((Dtype::F64, &a), (Dtype::F64, &b));
    assert!((stats.cosine.unwrap() + 2.0 / (3.25_f64.sqrt() * 5_f64.sqrt())).abs() < 1e-14, "{stats:?}");
    let (a, b) = (bytes(&[1e300, 2e-300]), bytes(&[1e300, 1e-300]));
    let stats = in_blocks((Dtype::F64, &a), (Dtype::F64, &b));
    assert_eq!((stats.l2, stats.cosine), (1e-300, Some(1.0)), "{stats:?}");
    let stats = in_blocks((Dtype::F64, &bytes(&[f64::MAX])), (Dtype::F64, &bytes(&[f64::MIN])));
    assert_eq!((stats.max_abs, stats.max_rel, stats.cosine), (f64::INFINITY, 2.0, Some(-1.0)));
}

#[test]
fn every_half_is_the_number_that_it_is() {
    let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let mut values = Vec::new();
    Numbers::of(Dtype::F16).unwrap().read(&bytes, 1, &mut values);
    let wanted = decode(Dtype::F16, &bytes).unwrap().into_iter().map(|it| number(it).0);
    assert_eq!(values.len(), 1 << 16);
    assert!(
        values.into_iter().zip(wanted).all(|(a, b)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()))
    );
}

#[test]
fn the_first_difference_is_told_across_blocks_and_tiles() {
    let a = vec![0_u8; 4 * 3 * BLOCK];
    let mut b = a.clone();
    b[4 * (2 * BLOCK + 5)] = 1;
    let mut sums = Sums::default();
    sums.add(0, (Dtype::F32, &a), (Dtype::F32, &a));
    sums.add(3 * BLOCK as u64, (Dtype::F32, &a), (Dtype::F32, &b));
    let stats = sums.finish(Some(Dtype::F32));
    assert_eq!(
        (stats.first, stats.differing, stats.elements),
        (Some(5 * BLOCK as u64 + 5), 1, 6 * BLOCK as u64)
    );
    assert_eq!(stats.beyond_one_ulp, Some(0));
}

#[test]
fn a_difference_of_the_smallest_number_counts_beside_the_largest() {
    let bytes = |numbers: &[f64]| numbers.iter().flat_map(|it| it.to_le_bytes()).collect::<Vec<u8>>();
    let (a, b) = (bytes(&[f64::MAX, 0.0, 0.0, 0.0]), bytes(&[f64::MAX, 0.0, 5e-324, 0.0]));
    for dtype in [Dtype::F64, Dtype::C128] {
        let (fast, slow) = (in_blocks((dtype, &a), (dtype, &b)), one_by_one((dtype, &a), (dtype, &b)));
        assert_eq!((fast.l2, slow.l2, fast.differing), (5e-324, 5e-324, 1), "{dtype}");
        agree(fast, slow).unwrap();
    }
}
