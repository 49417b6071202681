//! [`SquareSum`]: a sum of squares that depends neither on order nor on sharding, so that the gradient norm has the same
//! bits on every mesh.
//!
//! The square of an f32 is an integer of 48 bits times a power of two. Squares are added as integers:
//!
//! ```text
//!  |x| <  1    unit 2^-96    (squares below 2^-96 are dropped, of others what lies below 2^-96: only for |x| < 2^-25)
//!  |x| >= 1    unit 2^-46    (exact)
//! ```
//!
//! What is dropped is dropped of each element alone, before any sum: less than 2^-96 each, so that even 2^40 elements lose
//! less than 2^-56 of a squared norm. Up to 2^32 elements below 1 and a norm of 2^41 fit; more is an overflow, which
//! travels as a flag, as NaN and infinity do, and counts as not finite.

/// Elements between two flushes of the bins: 2^48 times as many fit 64 bits.
const FLUSH: usize = 1 << 15;
/// Independent bins side by side, so that neighbours of one exponent do not wait for each other.
const LANES: usize = 4;
/// The lowest exponent whose squares have no bits below 2^-96.
const FINEST: u32 = 102;
/// The exponent of 1.
const ONE: u32 = 127;
const NOT_FINITE: u32 = 255;
const MANTISSA: u32 = 0x7f_ffff;

/// Length of [`SquareSum::to_bytes`].
pub const BYTES: usize = 33;

/// A sum of squares of f32 values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SquareSum {
    /// Of elements below 1, in units of 2^-96.
    small: u128,
    /// Of the others, in units of 2^-46.
    large: u128,
    nan: bool,
    infinite: bool,
    overflow: bool,
}

/// What a sum is worth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Norm {
    /// The root of the sum.
    Finite(f64),
    /// At least one element is NaN, infinite, or the sum is too large: which, for people.
    NotFinite(&'static str),
}

impl SquareSum {
    /// Adds the squares of `values`.
    pub fn add(&mut self, values: &[f32]) {
        for part in values.chunks(FLUSH) {
            let mut bins = [[0_u64; 256]; LANES];
            let groups = part.chunks_exact(LANES);
            for (lane, value) in bins.iter_mut().zip(groups.remainder()) {
                count(lane, *value);
            }
            for group in groups {
                for (lane, value) in bins.iter_mut().zip(group) {
                    count(lane, *value);
                }
            }
            self.flush(&bins);
            let special = bins.iter().any(|lane| lane.last().is_some_and(|bin| *bin > 0));
            if special {
                self.nan |= part.iter().any(|value| value.is_nan());
                self.infinite |= part.iter().any(|value| value.is_infinite());
            }
        }
    }

    /// Adds another sum.
    pub fn merge(&mut self, other: &Self) {
        let (small, over) = self.small.overflowing_add(other.small);
        let (large, beyond) = self.large.overflowing_add(other.large);
        *self = Self {
            small,
            large,
            nan: self.nan || other.nan,
            infinite: self.infinite || other.infinite,
            overflow: self.overflow || other.overflow || over || beyond,
        };
    }

    /// Whether everything that was added is finite and the sum fits.
    #[must_use]
    pub const fn is_finite(&self) -> bool {
        !self.nan && !self.infinite && !self.overflow
    }

    /// The root of the sum: two exact integers, rounded to f64, added, and the root rounded.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "rounding to f64 is what is wanted")]
    pub fn norm(&self) -> Norm {
        if self.nan {
            return Norm::NotFinite("NaN");
        }
        if self.infinite {
            return Norm::NotFinite("infinity");
        }
        if self.overflow {
            return Norm::NotFinite("a norm of 2^41 or more");
        }
        Norm::Finite((self.small as f64 * 2_f64.powi(-96) + self.large as f64 * 2_f64.powi(-46)).sqrt())
    }

    /// For other ranks.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; BYTES] {
        let flags = u8::from(self.nan) | u8::from(self.infinite) << 1 | u8::from(self.overflow) << 2;
        let all = self.small.to_le_bytes().into_iter().chain(self.large.to_le_bytes()).chain([flags]);
        let mut bytes = [0; BYTES];
        bytes.iter_mut().zip(all).for_each(|(to, byte)| *to = byte);
        bytes
    }

    /// What another rank sent; `None` for anything else.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (small, rest) = bytes.split_first_chunk::<16>()?;
        let (large, rest) = rest.split_first_chunk::<16>()?;
        let &[flags] = rest else { return None };
        Some(Self {
            small: u128::from_le_bytes(*small),
            large: u128::from_le_bytes(*large),
            nan: flags & 1 != 0,
            infinite: flags & 2 != 0,
            overflow: flags & 4 != 0,
        })
        .filter(|_| flags < 8)
    }

    fn flush(&mut self, bins: &[[u64; 256]; LANES]) {
        for (exponent, at) in (FINEST..NOT_FINITE).zip(FINEST as usize..) {
            let sum: u128 = bins.iter().filter_map(|lane| lane.get(at)).map(|bin| u128::from(*bin)).sum();
            if sum == 0 {
                continue;
            }
            let mut part = Self::default();
            if exponent < ONE {
                part.small = sum << (2 * (exponent - FINEST));
            } else if 2 * (exponent - ONE) < sum.leading_zeros() {
                part.large = sum << (2 * (exponent - ONE));
            } else {
                part.overflow = true;
            }
            self.merge(&part);
        }
    }
}

/// Adds the square of a value to the bin of its exponent; the lowest bin takes all below, shifted to its unit.
#[inline]
fn count(bins: &mut [u64; 256], value: f32) {
    let bits = value.to_bits();
    let exponent = bits >> 23 & 255;
    let normal = u32::from(exponent > 0) << 23;
    let mantissa = u64::from(bits & MANTISSA | normal);
    let shift = 2 * FINEST.saturating_sub(exponent.max(1));
    // A square has at most 48 bits: nothing is left of one that is shifted further.
    let square = (mantissa * mantissa) >> shift.min(63);
    if let Some(bin) = bins.get_mut(exponent.max(FINEST) as usize) {
        *bin += square;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sum(values: &[f32]) -> SquareSum {
        let mut sum = SquareSum::default();
        sum.add(values);
        sum
    }

    /// One element, in the two units, by plain arithmetic.
    fn plain(value: f32) -> SquareSum {
        let exponent = (value.to_bits() >> 23 & 255).cast_signed();
        let mantissa = u128::from(value.to_bits() & MANTISSA | u32::from(exponent > 0) << 23);
        let power = 2 * (exponent.max(1) - 150);
        let unit = if exponent < 127 { -96 } else { -46 };
        let shifted = match power - unit {
            shift @ 0.. => (mantissa * mantissa) << shift,
            shift @ -127..0 => (mantissa * mantissa) >> -shift,
            _ => 0,
        };
        if unit == -96 {
            SquareSum { small: shifted, ..SquareSum::default() }
        } else {
            SquareSum { large: shifted, ..SquareSum::default() }
        }
    }

    fn finite() -> impl Strategy<Value = f32> {
        any::<u32>()
            .prop_map(f32::from_bits)
            .prop_filter("representable", |value| value.abs() < 2_f32.powi(36))
    }

    proptest! {
        #[test]
        fn squares_are_added_as_integers(values in prop::collection::vec(finite(), 0..200)) {
            let mut expected = SquareSum::default();
            for value in &values {
                expected.merge(&plain(*value));
            }
            prop_assert_eq!(sum(&values), expected);
        }

        #[test]
        fn order_and_sharding_change_nothing(
            mut values in prop::collection::vec(finite(), 1..300),
            cut in any::<prop::sample::Index>(),
        ) {
            let whole = sum(&values);
            values.reverse();
            let (left, right) = values.split_at(cut.index(values.len()));
            let mut parts = sum(right);
            parts.merge(&sum(left));
            prop_assert_eq!(parts, whole);
            prop_assert_eq!(SquareSum::from_bytes(&parts.to_bytes()), Some(whole));
        }
    }

    #[test]
    fn long_sums_agree_with_double_precision() {
        let mut values = Vec::new();
        crate::init::Normals::new(1, "norm", 1e-3).extend(&mut values, 0, 300_001);
        values.push(1000.5);
        let plain: f64 = values.iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
        let Norm::Finite(norm) = sum(&values).norm() else { panic!("not finite") };
        assert!((norm / plain.sqrt() - 1.0).abs() < 1e-14, "{norm} {}", plain.sqrt());
        assert_eq!(sum(&[3.0, 4.0]).norm(), Norm::Finite(5.0));
        assert_eq!(sum(&[]).norm(), Norm::Finite(0.0));
    }

    #[test]
    fn the_largest_bins_do_not_overflow_between_flushes() {
        let most = f32::from_bits(0x3f7f_ffff);
        let values = vec![most; 4 * FLUSH + 3];
        let Norm::Finite(norm) = sum(&values).norm() else { panic!("not finite") };
        let expected = f64::from(most) * (values.len() as f64).sqrt();
        assert!((norm / expected - 1.0).abs() < 1e-15);
    }

    #[test]
    fn what_is_not_finite_is_said_and_spreads() {
        for (value, name) in [
            (f32::NAN, "NaN"),
            (-f32::NAN, "NaN"),
            (f32::INFINITY, "infinity"),
            (f32::NEG_INFINITY, "infinity"),
            (f32::MAX, "a norm of 2^41 or more"),
        ] {
            let mut all = sum(&[1.0, value, 2.0]);
            assert_eq!(all.norm(), Norm::NotFinite(name));
            all = SquareSum::from_bytes(&all.to_bytes()).unwrap();
            let mut clean = sum(&[1.0]);
            clean.merge(&all);
            assert!(!clean.is_finite() && clean.norm() == Norm::NotFinite(name));
        }
        let mut full = SquareSum { small: u128::MAX, ..SquareSum::default() };
        full.merge(&sum(&[0.5]));
        assert!(!full.is_finite());
    }

    #[test]
    fn bytes_of_anything_else_are_refused() {
        assert_eq!(SquareSum::from_bytes(&[0; 32]), None);
        assert_eq!(SquareSum::from_bytes(&[8; 33]), None);
    }
}
