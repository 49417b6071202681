//! Lanes of no instruction set, which every processor has: what bits the others must give.

use super::{BIAS, Lanes};

/// Of each lane, or of each pair of lanes.
fn each(a: [f32; 16], b: [f32; 16], of: impl Fn(f32, f32) -> f32) -> [f32; 16] {
    std::array::from_fn(|lane| of(a[lane], b[lane]))
}

impl Lanes for [f32; 16] {
    const COUNT: usize = 16;

    fn splat(value: f32) -> Self {
        [value; 16]
    }

    fn load(from: &[f32]) -> Self {
        std::array::from_fn(|lane| from[lane])
    }

    fn store(self, to: &mut [f32]) {
        to[..16].copy_from_slice(&self);
    }

    fn add(self, other: Self) -> Self {
        each(self, other, |a, b| a + b)
    }

    fn sub(self, other: Self) -> Self {
        each(self, other, |a, b| a - b)
    }

    fn mul(self, other: Self) -> Self {
        each(self, other, |a, b| a * b)
    }

    fn max(self, other: Self) -> Self {
        each(self, other, |a, b| if a > b { a } else { b })
    }

    fn mul_add(self, factor: Self, sum: Self) -> Self {
        std::array::from_fn(|lane| self[lane].mul_add(factor[lane], sum[lane]))
    }

    fn power(self) -> Self {
        self.map(|value| f32::from_bits(value.to_bits().wrapping_add(BIAS.cast_unsigned()) << 23))
    }
}
