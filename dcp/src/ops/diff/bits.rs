//! Packed elements of one dtype compared by their bits: which differ, and by how many units in the last place.

use fqn::Dtype;

/// How many elements of this width differ.
pub(super) fn differing(width: usize, x: &[u8], y: &[u8]) -> u64 {
    match width {
        1 => count::<1>(x, y),
        2 => count::<2>(x, y),
        4 => count::<4>(x, y),
        8 => count::<8>(x, y),
        _ => {
            let pairs = x.chunks_exact(width).zip(y.chunks_exact(width));
            pairs.map(|(x, y)| u64::from(x != y)).sum()
        }
    }
}

fn count<const N: usize>(x: &[u8], y: &[u8]) -> u64 {
    let pairs = x.as_chunks::<N>().0.iter().zip(y.as_chunks::<N>().0);
    pairs.map(|(x, y)| u32::from(x != y)).sum::<u32>().into()
}

/// Whether bits of this dtype are ordered as its values are, once the sign is taken apart.
pub(super) const fn ordered(dtype: Dtype) -> bool {
    matches!(
        dtype,
        Dtype::F64
            | Dtype::F32
            | Dtype::F16
            | Dtype::BF16
            | Dtype::F8E4M3FN
            | Dtype::F8E5M2
            | Dtype::F8E4M3FNUZ
            | Dtype::F8E5M2FNUZ
            | Dtype::F8E8M0
    )
}

/// How many elements of a block are more than one representable number apart; none where `dtype` is not [`ordered`].
///
/// `a` and `b` are the values where some may be NaN, which is at no distance; without them none may be.
pub(super) fn beyond_one_ulp(dtype: Dtype, x: &[u8], y: &[u8], values: Option<(&[f64], &[f64])>) -> u64 {
    let sign_apart = |value: i32, size: i32| {
        let sign = value >> 31;
        (size ^ sign) - sign
    };
    // Distances stay below 2^32 - 1, so that none wraps to one.
    let far = |x: i32, y: i32| x.wrapping_sub(y).wrapping_add(1).cast_unsigned() > 2;
    let narrow = |bits: u8| sign_apart(bits.cast_signed().into(), (bits & 0x7F).into());
    let short = |bits: u16| sign_apart(bits.cast_signed().into(), (bits & 0x7FFF).into());
    let single = |bits: u32| sign_apart(bits.cast_signed(), (bits & 0x7FFF_FFFF).cast_signed());
    let double = |bits: u64| {
        let sign = bits.cast_signed() >> 63;
        ((bits & (u64::MAX >> 1)).cast_signed() ^ sign) - sign
    };
    match dtype {
        Dtype::F8E8M0 => tally(x, y, values, |[x], [y]| far(x.into(), y.into())),
        Dtype::F64 => tally(x, y, values, |x, y| {
            let apart = double(u64::from_le_bytes(x)).wrapping_sub(double(u64::from_le_bytes(y)));
            apart.wrapping_add(1).cast_unsigned() > 2
        }),
        Dtype::F32 => {
            tally(x, y, values, |x, y| far(single(u32::from_le_bytes(x)), single(u32::from_le_bytes(y))))
        }
        Dtype::F16 | Dtype::BF16 => {
            tally(x, y, values, |x, y| far(short(u16::from_le_bytes(x)), short(u16::from_le_bytes(y))))
        }
        dtype if ordered(dtype) => tally(x, y, values, |[x], [y]| far(narrow(x), narrow(y))),
        _ => 0,
    }
}

fn tally<const N: usize>(
    x: &[u8],
    y: &[u8],
    values: Option<(&[f64], &[f64])>,
    far: impl Fn([u8; N], [u8; N]) -> bool,
) -> u64 {
    let pairs = x.as_chunks::<N>().0.iter().zip(y.as_chunks::<N>().0);
    let Some((a, b)) = values else {
        return pairs.map(|(x, y)| u32::from(far(*x, *y))).sum::<u32>().into();
    };
    let numbers = a.iter().zip(b).map(|(a, b)| !a.is_nan() && !b.is_nan());
    pairs.zip(numbers).map(|((x, y), number)| u64::from(number && far(*x, *y))).sum()
}
