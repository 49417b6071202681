//! [`Lanes`]: f32 side by side in a register, and the choice of the widest that the processor has.
//!
//! Invariants: every kind of lanes gives the same bits, lane by lane; code with lanes of an instruction set runs only
//! where that was found, by [`Width::run`] alone; elsewhere that is an error.

#![expect(unsafe_code, reason = "instructions that not every processor has")]

#[cfg(test)]
mod plain;

use crate::{Error, Result};

/// As many values as one register holds.
pub(super) trait Lanes: Copy {
    /// How many.
    const COUNT: usize;
    fn splat(value: f32) -> Self;
    /// The first of `from`, as many as there are lanes.
    fn load(from: &[f32]) -> Self;
    fn store(self, to: &mut [f32]);
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// The larger one; `other`, if either is NaN or both are zeros.
    fn max(self, other: Self) -> Self;
    /// `self · factor + sum`, rounded once.
    fn mul_add(self, factor: Self, sum: Self) -> Self;
    /// 2 to the power of the integer in the low bits of a sum with [`ROUND`].
    fn power(self) -> Self;
}

/// Added to a number below 2^22, leaves it in the low bits, rounded to an integer.
const ROUND: f32 = 12_582_912.0;
/// Of f32: what exponents are stored with.
const BIAS: i32 = 127;

/// 2^x for x ≤ 0, to about a unit in the last place; 0 below 2^-126. NaN stays.
#[inline(always)]
pub(super) fn exp2<L: Lanes>(x: L) -> L {
    let x = L::splat(-127.0).max(x);
    let rounded = x.add(L::splat(ROUND));
    let rest = x.sub(rounded.sub(L::splat(ROUND)));
    // Of the Cephes library: 2^rest for |rest| ≤ 1/2.
    let mut sum = L::splat(1.535_336_2e-4);
    for factor in [1.339_887_5e-3, 9.618_437e-3, 5.550_332_6e-2, 2.402_264_7e-1, 6.931_472e-1, 1.0] {
        sum = sum.mul_add(rest, L::splat(factor));
    }
    sum.mul(rounded.power())
}

/// Something to do with any lanes. What it calls must be `inline(always)`: only then is it compiled for their instructions.
pub(super) trait Work {
    /// `ROWS`: how many rows fit the registers beside two of columns.
    fn run<L: Lanes, const ROWS: usize>(self);
}

/// Lanes that this processor has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Width {
    /// Of no instruction set: what the others are compared with.
    #[cfg(test)]
    Plain,
    /// AVX2 and FMA.
    Eight,
    /// AVX-512.
    Sixteen,
}

impl Width {
    /// Does it.
    ///
    /// # Errors
    /// `Internal` for a width that was not found: nothing is done then.
    pub(super) fn run<W: Work>(self, work: W) -> Result<()> {
        #[cfg(test)]
        if self == Self::Plain {
            work.run::<[f32; 16], 4>();
            return Ok(());
        }
        if !Self::found().contains(&self) {
            return Err(Error::internal(format!(
                "attention on {self:?} lanes, which this processor has not"
            )));
        }
        self.run_found(work);
        Ok(())
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64 as arch;

    use super::{BIAS, Lanes, Width, Work};

    macro_rules! lanes {
        ($name:ident, $floats:ident, $count:literal: $splat:ident, $load:ident, $store:ident, $add:ident, $sub:ident,
         $mul:ident, $max:ident, $mul_add:ident; $bits:ident, $floats_of:ident, $add_bits:ident, $splat_bits:ident,
         $shift:ident) => {
            #[derive(Clone, Copy)]
            pub(super) struct $name(arch::$floats);

            // SAFETY, for all of it: `Width::run` has seen that the processor has these instructions; slices are as long
            // as what is read or written.
            #[expect(clippy::undocumented_unsafe_blocks, reason = "one reason for all, above")]
            impl Lanes for $name {
                const COUNT: usize = $count;

                #[inline(always)]
                fn splat(value: f32) -> Self {
                    Self(unsafe { arch::$splat(value) })
                }

                #[inline(always)]
                fn load(from: &[f32]) -> Self {
                    Self(unsafe { arch::$load(from[..$count].as_ptr()) })
                }

                #[inline(always)]
                fn store(self, to: &mut [f32]) {
                    unsafe { arch::$store(to[..$count].as_mut_ptr(), self.0) }
                }

                #[inline(always)]
                fn add(self, other: Self) -> Self {
                    Self(unsafe { arch::$add(self.0, other.0) })
                }

                #[inline(always)]
                fn sub(self, other: Self) -> Self {
                    Self(unsafe { arch::$sub(self.0, other.0) })
                }

                #[inline(always)]
                fn mul(self, other: Self) -> Self {
                    Self(unsafe { arch::$mul(self.0, other.0) })
                }

                #[inline(always)]
                fn max(self, other: Self) -> Self {
                    Self(unsafe { arch::$max(self.0, other.0) })
                }

                #[inline(always)]
                fn mul_add(self, factor: Self, sum: Self) -> Self {
                    Self(unsafe { arch::$mul_add(self.0, factor.0, sum.0) })
                }

                #[inline(always)]
                fn power(self) -> Self {
                    // The shift leaves nothing of the rounding constant.
                    Self(unsafe {
                        let biased = arch::$add_bits(arch::$bits(self.0), arch::$splat_bits(BIAS));
                        arch::$floats_of(arch::$shift::<23>(biased))
                    })
                }
            }
        };
    }

    lanes!(Eight, __m256, 8: _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_add_ps, _mm256_sub_ps,
        _mm256_mul_ps, _mm256_max_ps, _mm256_fmadd_ps; _mm256_castps_si256, _mm256_castsi256_ps, _mm256_add_epi32,
        _mm256_set1_epi32, _mm256_slli_epi32);
    lanes!(Sixteen, __m512, 16: _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_add_ps, _mm512_sub_ps,
        _mm512_mul_ps, _mm512_max_ps, _mm512_fmadd_ps; _mm512_castps_si512, _mm512_castsi512_ps, _mm512_add_epi32,
        _mm512_set1_epi32, _mm512_slli_epi32);

    #[target_feature(enable = "avx2,fma")]
    fn eight<W: Work>(work: W) {
        work.run::<Eight, 4>();
    }

    #[target_feature(enable = "avx512f,avx2,fma")]
    fn sixteen<W: Work>(work: W) {
        work.run::<Sixteen, 8>();
    }

    impl Width {
        /// What this processor has, the widest first.
        pub(in crate::torch::attention) fn found() -> Vec<Self> {
            let half = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let full = half && is_x86_feature_detected!("avx512f");
            [(full, Self::Sixteen), (half, Self::Eight)]
                .into_iter()
                .filter_map(|(there, it)| there.then_some(it))
                .collect()
        }

        /// For [`Width::run`] alone, which has looked whether this width was found.
        pub(super) fn run_found<W: Work>(self, work: W) {
            match self {
                #[cfg(test)]
                Self::Plain => {}
                // SAFETY: found.
                Self::Eight => unsafe { eight(work) },
                // SAFETY: found.
                Self::Sixteen => unsafe { sixteen(work) },
            }
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl Width {
    pub(in crate::torch::attention) fn found() -> Vec<Self> {
        Vec::new()
    }

    #[expect(clippy::needless_pass_by_value, reason = "as where there are lanes")]
    fn run_found<W: Work>(self, _: W) {}
}
