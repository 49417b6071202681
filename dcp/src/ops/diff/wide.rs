//! [`Wide`]: a sum whose exponent has no bounds that squares of `f64` could reach. Squares of 1e200 overflow and those of
//! 1e-200 vanish, and a cosine made of them would be no number, or depend on the order of additions.

/// Bits of one unit of the exponents here.
const UNIT: i32 = 300;

/// A number `m · 2^(300 e)`.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wide {
    m: f64,
    e: i32,
}

/// What the numbers of a block are multiplied by before they are squared: `2^(300 units)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Scale(i32);

impl Scale {
    /// The scale at which a sum of squares neither overflows nor vanishes, by what it came to without one. `any` tells whether
    /// any of the numbers is not zero.
    pub(super) fn of(squares: f64, any: impl FnOnce() -> bool) -> Self {
        if squares.is_nan() || squares > power(3) {
            Self(-2)
        } else if squares < power(-2) && any() {
            Self(2)
        } else {
            Self(0)
        }
    }

    /// Whether it changes nothing.
    pub(super) const fn is_one(self) -> bool {
        self.0 == 0
    }

    /// The numbers at this scale.
    pub(super) fn of_numbers(self, numbers: &[f64]) -> Vec<f64> {
        numbers.iter().map(|number| number * power(self.0)).collect()
    }

    /// The differences of numbers at this scale: neither the numbers, which may be larger by far, nor the differences leave `f64`.
    pub(super) fn of_differences(self, a: &[f64], b: &[f64]) -> Vec<f64> {
        let by = power(self.0);
        let each = a.iter().zip(b);
        if self.0 > 0 {
            each.map(|(a, b)| (a - b) * by).collect()
        } else {
            each.map(|(a, b)| a * by - b * by).collect()
        }
    }
}

/// `2^(300 units)`, for units between -3 and 3.
fn power(units: i32) -> f64 {
    2_f64.powi(UNIT * units)
}

impl Wide {
    /// A sum of products, of numbers at one scale and numbers at another.
    pub(super) fn of_products(sum: f64, [one, other]: [Scale; 2]) -> Self {
        Self::new(sum, -(one.0 + other.0))
    }

    fn new(mut m: f64, mut e: i32) -> Self {
        let (least, most) = (2_f64.powi(-UNIT / 2), 2_f64.powi(UNIT / 2));
        if m == 0.0 || !m.is_finite() {
            return Self { m, e: 0 };
        }
        while m.abs() >= most {
            (m, e) = (m * power(-1), e + 1);
        }
        while m.abs() < least {
            (m, e) = (m * power(1), e - 1);
        }
        Self { m, e }
    }

    pub(super) fn add(&mut self, other: Self) {
        let (large, small) = if self.e >= other.e { (*self, other) } else { (other, *self) };
        *self = match (large.m == 0.0, large.e - small.e) {
            (true, _) => small,
            (false, 0) => Self::new(large.m + small.m, large.e),
            (false, 1) => Self::new(small.m.mul_add(power(-1), large.m), large.e),
            (false, _) => large,
        };
    }

    pub(super) const fn is_zero(self) -> bool {
        self.m == 0.0
    }

    /// The square root.
    pub(super) fn root(self) -> Self {
        let odd = self.e.rem_euclid(2);
        Self::new((self.m * power(odd)).sqrt(), (self.e - odd) / 2)
    }

    /// This divided by another.
    pub(super) fn over(self, other: Self) -> Self {
        Self::new(self.m / other.m, self.e - other.e)
    }

    /// As near as `f64` comes to it.
    pub(super) fn value(self) -> f64 {
        let step = power(self.e.signum());
        (0..self.e.abs().min(5)).fold(self.m, |value, _| value * step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn square(number: f64) -> Wide {
        let scale = Scale::of(number * number, || number != 0.0);
        let scaled = scale.of_numbers(&[number])[0];
        Wide::of_products(scaled * scaled, [scale; 2])
    }

    #[test]
    fn the_root_of_a_square_is_the_number_however_large_or_small() {
        for number in [0.0, 1.0, 3.0, 1e-308, 1.5e-200, 1e-100, 1e100, 1e154, 1e155, 1.25e300, f64::MAX] {
            let root = square(number).root().value();
            assert!((root - number).abs() <= number * 1e-15, "{number:e}: {root:e}");
        }
        // The smallest of all has one bit.
        assert_eq!(square(f64::from_bits(1)).root().value(), f64::from_bits(1));
    }

    #[test]
    fn large_and_small_squares_add_up() {
        for number in [1e-250, 1e-60, 1.0, 1e60, 1e250] {
            let mut sum = square(3.0 * number);
            sum.add(square(4.0 * number));
            assert!((sum.root().value() / number - 5.0).abs() < 1e-14, "{number:e}");
            let mut other = square(1e-300);
            other.add(sum);
            sum.add(square(1e-300));
            assert_eq!(sum.root().value(), other.root().value());
            assert!((sum.root().value() / number - 5.0).abs() < 1e-14, "{number:e}");
        }
    }

    #[test]
    fn ratios_of_what_no_float_holds_are_right() {
        let ratio = square(1e250).over(square(5e249));
        assert!((ratio.value() - 4.0).abs() < 1e-14, "{ratio:?}");
        assert_eq!(square(1e-200).value(), 0.0);
        assert_eq!(square(1e200).value(), f64::INFINITY);
    }
}
