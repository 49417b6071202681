//! Casts between floating-point dtypes: to nearest, ties to even, in one rounding.
//!
//! NaNs stay NaNs, values beyond the target's range become infinities, as torch does.

use fqn::Dtype;
use half::{bf16, f16};

use crate::{Error, Result};

/// A cast that was found possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cast {
    from: Dtype,
    to: Dtype,
}

impl Cast {
    /// The cast from one dtype to another; `None` where they are the same.
    ///
    /// # Errors
    /// `Incompatible` for anything but f64, f32, f16 and bf16.
    pub(crate) fn new(from: Dtype, to: Dtype) -> Result<Option<Self>> {
        if from == to {
            return Ok(None);
        }
        if from.is_float() && to.is_float() {
            return Ok(Some(Self { from, to }));
        }
        Err(Error::incompatible(format!("{from} can't be cast to {to}"))
            .hint("casts are between f64, f32, f16 and bf16; leave the dtype as it is"))
    }

    pub(crate) const fn from(self) -> Dtype {
        self.from
    }

    /// Casts the elements of `src` into `dst`, which holds as many.
    pub(crate) fn apply(self, src: &[u8], dst: &mut [u8]) -> Result<()> {
        let counts = [(self.from, src.len()), (self.to, dst.len())].map(|(dtype, len)| {
            let width = dtype.element_bytes().and_then(|width| usize::try_from(width).ok()).unwrap_or(1);
            (len / width, len % width)
        });
        if counts[0] != counts[1] || counts[0].1 != 0 {
            return Err(Error::internal(format!(
                "{} bytes of {} for {} of {}",
                src.len(),
                self.from,
                dst.len(),
                self.to
            )));
        }
        match self.from {
            Dtype::F64 => each::<8>(src, dst, self.to, f64::from_le_bytes),
            Dtype::F32 => self.singles(src, dst),
            Dtype::F16 => each::<2>(src, dst, self.to, |bytes| f16::from_le_bytes(bytes).to_f64()),
            _ => each::<2>(src, dst, self.to, |bytes| bf16::from_le_bytes(bytes).to_f64()),
        }
        Ok(())
    }

    /// The casts that checkpoints mostly need, without the way through f64.
    fn singles(self, src: &[u8], dst: &mut [u8]) {
        match self.to {
            Dtype::BF16 => map::<4, 2>(src, dst, |it| bf16::from_f32(f32::from_le_bytes(it)).to_le_bytes()),
            Dtype::F16 => map::<4, 2>(src, dst, |it| f16::from_f32(f32::from_le_bytes(it)).to_le_bytes()),
            to => each::<4>(src, dst, to, |bytes| f64::from(f32::from_le_bytes(bytes))),
        }
    }
}

/// Casts by way of f64, which holds every value of the others exactly.
fn each<const S: usize>(src: &[u8], dst: &mut [u8], to: Dtype, value: impl Fn([u8; S]) -> f64) {
    match to {
        Dtype::F64 => map::<S, 8>(src, dst, |it| value(it).to_le_bytes()),
        Dtype::F32 => map::<S, 4>(src, dst, |it| single(value(it)).to_le_bytes()),
        Dtype::F16 => map::<S, 2>(src, dst, |it| f16::from_f32(odd(value(it))).to_le_bytes()),
        _ => map::<S, 2>(src, dst, |it| bf16::from_f32(odd(value(it))).to_le_bytes()),
    }
}

fn map<const S: usize, const D: usize>(src: &[u8], dst: &mut [u8], cast: impl Fn([u8; S]) -> [u8; D]) {
    for (from, to) in src.as_chunks::<S>().0.iter().zip(dst.as_chunks_mut::<D>().0) {
        *to = cast(*from);
    }
}

#[expect(clippy::cast_possible_truncation, reason = "rounding to nearest is what is wanted")]
const fn single(value: f64) -> f32 {
    value as f32
}

/// The f32 that rounds to the same 16-bit float as `value`: rounded to odd, so that two roundings are as one. f32 has
/// more than two bits more than either, which is what that takes.
fn odd(value: f64) -> f32 {
    let near = single(value);
    if !near.is_finite() || f64::from(near) == value {
        return near;
    }
    let beyond = f64::from(near).abs() > value.abs();
    f32::from_bits((near.to_bits() - u32::from(beyond)) | 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cast(from: Dtype, to: Dtype, src: &[u8]) -> Vec<u8> {
        let count = src.len() / usize::try_from(from.element_bytes().unwrap()).unwrap();
        let mut dst = vec![0; count * usize::try_from(to.element_bytes().unwrap()).unwrap()];
        Cast::new(from, to).unwrap().unwrap().apply(src, &mut dst).unwrap();
        dst
    }

    #[test]
    fn a_value_just_beyond_the_middle_is_not_rounded_twice() {
        // 1 + 2^-8 is the middle of two bf16 neighbours and exact in f32; a little more must go up.
        let middle = 1.0 + 2_f64.powi(-8);
        for (value, wanted) in [
            (middle, bf16::ONE),
            (middle + 2_f64.powi(-40), bf16::from_bits(0x3f81)),
            (middle - 2_f64.powi(-40), bf16::ONE),
            (-middle - 2_f64.powi(-40), bf16::from_bits(0xbf81)),
            (1e300, bf16::INFINITY),
            (-1e-300, bf16::NEG_ZERO),
        ] {
            assert_eq!(
                cast(Dtype::F64, Dtype::BF16, &value.to_le_bytes()),
                wanted.to_le_bytes(),
                "{value:e}"
            );
        }
        let middle = 1.0 + 2_f64.powi(-11);
        assert_eq!(cast(Dtype::F64, Dtype::F16, &middle.to_le_bytes()), f16::ONE.to_le_bytes());
        let above = middle + 2_f64.powi(-45);
        assert_eq!(cast(Dtype::F64, Dtype::F16, &above.to_le_bytes()), f16::from_bits(0x3c01).to_le_bytes());
    }

    #[test]
    fn every_16_bit_float_comes_back_from_the_wider_ones() {
        for narrow in [Dtype::F16, Dtype::BF16] {
            let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
            for wide in [Dtype::F32, Dtype::F64] {
                let back = cast(wide, narrow, &cast(narrow, wide, &all));
                for (bits, back) in (0..=u16::MAX).zip(back.as_chunks::<2>().0) {
                    let (exponent, mantissa) =
                        if narrow == Dtype::F16 { (0x7c00, 0x3ff) } else { (0x7f80, 0x7f) };
                    let nan = |bits: u16| bits & exponent == exponent && bits & mantissa != 0;
                    let back = u16::from_le_bytes(*back);
                    assert!(
                        back == bits || (nan(bits) && nan(back)),
                        "{narrow} {bits:04x} came back as {back:04x}"
                    );
                }
            }
        }
    }

    #[test]
    fn integers_are_not_cast() {
        assert!(Cast::new(Dtype::I32, Dtype::F32).is_err());
        assert!(Cast::new(Dtype::F8E5M2, Dtype::F32).is_err());
        assert_eq!(Cast::new(Dtype::I32, Dtype::I32).unwrap(), None);
    }
}
