//! Elements as numbers: decoding little-endian bytes of every dtype into values that people and comparisons need.
//!
//! 8-bit floats follow the OCP 8-bit floating point specification (e4m3fn: exponent bias 7, no infinities, one NaN per
//! sign; e5m2: bias 15, IEEE-like; e8m0: 2^(e-127)); the `fnuz` forms have biases 8 and 16, no negative zero, and NaN
//! at 0x80.

use fqn::Dtype;

/// One element.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Element {
    /// A floating-point number; narrower types are exact in it.
    Float(f64),
    /// A signed integer.
    Int(i64),
    /// An unsigned integer.
    Uint(u64),
    /// A truth value.
    Bool(bool),
    /// A complex number: real and imaginary part.
    Complex(f64, f64),
}

impl Element {
    /// As JSON; NaN and infinities as text, complex numbers as a pair.
    #[must_use]
    pub fn to_json(self) -> serde_json::Value {
        match self {
            Self::Float(value) => float_json(value),
            Self::Int(value) => value.into(),
            Self::Uint(value) => value.into(),
            Self::Bool(value) => value.into(),
            Self::Complex(re, im) => vec![float_json(re), float_json(im)].into(),
        }
    }
}

fn float_json(value: f64) -> serde_json::Value {
    serde_json::Number::from_f64(value).map_or_else(|| value.to_string().into(), Into::into)
}

/// Decodes packed little-endian elements; `None` for sub-byte types. A last, incomplete element is left out.
#[must_use]
pub fn decode(dtype: Dtype, bytes: &[u8]) -> Option<Vec<Element>> {
    use Element::{Bool, Complex, Float, Int, Uint};
    Some(match dtype {
        Dtype::F64 => each(bytes, |b| Float(f64::from_le_bytes(b))),
        Dtype::F32 => each(bytes, |b| Float(f32::from_le_bytes(b).into())),
        Dtype::F16 => each(bytes, |b| Float(half::f16::from_le_bytes(b).into())),
        Dtype::BF16 => each(bytes, |b| Float(half::bf16::from_le_bytes(b).into())),
        Dtype::F8E4M3FN | Dtype::F8E5M2 | Dtype::F8E4M3FNUZ | Dtype::F8E5M2FNUZ | Dtype::F8E8M0 => {
            each(bytes, |[b]| Float(small_float(dtype, b)))
        }
        Dtype::I64 => each(bytes, |b| Int(i64::from_le_bytes(b))),
        Dtype::I32 => each(bytes, |b| Int(i32::from_le_bytes(b).into())),
        Dtype::I16 => each(bytes, |b| Int(i16::from_le_bytes(b).into())),
        Dtype::I8 => each(bytes, |b| Int(i8::from_le_bytes(b).into())),
        Dtype::U64 => each(bytes, |b| Uint(u64::from_le_bytes(b))),
        Dtype::U32 => each(bytes, |b| Uint(u32::from_le_bytes(b).into())),
        Dtype::U16 => each(bytes, |b| Uint(u16::from_le_bytes(b).into())),
        Dtype::U8 | Dtype::F4E2M1X2 => each(bytes, |[b]| Uint(b.into())),
        Dtype::Bool => each(bytes, |[b]| Bool(b != 0)),
        Dtype::C32 => each(bytes, |[a, b, c, d]| {
            Complex(half::f16::from_le_bytes([a, b]).into(), half::f16::from_le_bytes([c, d]).into())
        }),
        Dtype::C64 => each(bytes, |[a, b, c, d, e, f, g, h]| {
            Complex(f32::from_le_bytes([a, b, c, d]).into(), f32::from_le_bytes([e, f, g, h]).into())
        }),
        Dtype::C128 => each(bytes, |b: [u8; 16]| {
            let bits = u128::from_le_bytes(b);
            #[expect(clippy::cast_possible_truncation, reason = "the two halves of 128 bits")]
            let (re, im) = (bits as u64, (bits >> 64) as u64);
            Complex(f64::from_bits(re), f64::from_bits(im))
        }),
        _ => return None,
    })
}

fn each<const N: usize>(bytes: &[u8], decode: impl Fn([u8; N]) -> Element) -> Vec<Element> {
    bytes.as_chunks::<N>().0.iter().map(|chunk| decode(*chunk)).collect()
}

/// The value of an 8-bit float.
fn small_float(dtype: Dtype, bits: u8) -> f64 {
    let (mantissa_bits, bias) = match dtype {
        Dtype::F8E8M0 if bits == 0xFF => return f64::NAN,
        Dtype::F8E8M0 => return 2_f64.powi(i32::from(bits) - 127),
        Dtype::F8E4M3FN => (3, 7),
        Dtype::F8E4M3FNUZ => (3, 8),
        Dtype::F8E5M2FNUZ => (2, 16),
        _ => (2, 15),
    };
    let special = match dtype {
        Dtype::F8E4M3FN => bits & 0x7F == 0x7F,
        Dtype::F8E4M3FNUZ | Dtype::F8E5M2FNUZ => bits == 0x80,
        _ => bits & 0x7F > 0x7C,
    };
    let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
    if special {
        return f64::NAN;
    }
    if dtype == Dtype::F8E5M2 && bits & 0x7F == 0x7C {
        return sign * f64::INFINITY;
    }
    let exponent = i32::from((bits & 0x7F) >> mantissa_bits);
    let fraction = f64::from(bits & ((1 << mantissa_bits) - 1)) / f64::from(1_u32 << mantissa_bits);
    if exponent == 0 {
        sign * fraction * 2_f64.powi(1 - bias)
    } else {
        sign * (1.0 + fraction) * 2_f64.powi(exponent - bias)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bit_floats_have_the_values_of_their_specification() {
        let of = |dtype, bits| small_float(dtype, bits);
        assert_eq!(of(Dtype::F8E4M3FN, 0x7E), 448.0);
        assert_eq!(of(Dtype::F8E4M3FN, 0x01), 2_f64.powi(-9));
        assert!(of(Dtype::F8E4M3FN, 0xFF).is_nan());
        assert_eq!(of(Dtype::F8E5M2, 0x7B), 57344.0);
        assert_eq!(of(Dtype::F8E5M2, 0xFC), f64::NEG_INFINITY);
        assert!(of(Dtype::F8E5M2, 0x7D).is_nan());
        assert_eq!(of(Dtype::F8E4M3FNUZ, 0x7F), 240.0);
        assert_eq!(of(Dtype::F8E5M2FNUZ, 0x7F), 57344.0);
        assert!(of(Dtype::F8E5M2FNUZ, 0x80).is_nan());
        assert_eq!(of(Dtype::F8E8M0, 127), 1.0);
    }

    #[test]
    fn numbers_decode_little_endian_and_odd_tails_are_left_out() {
        assert_eq!(decode(Dtype::BF16, &[0x80, 0x3F, 0x00]), Some(vec![Element::Float(1.0)]));
        assert_eq!(decode(Dtype::I16, &[0xFF, 0xFF]), Some(vec![Element::Int(-1)]));
        assert_eq!(decode(Dtype::C32, &[0, 0x3C, 0, 0xBC]), Some(vec![Element::Complex(1.0, -1.0)]));
        assert_eq!(decode(Dtype::F4E2M1, &[0]), None);
        assert_eq!(
            decode(Dtype::F32, &f32::NAN.to_le_bytes()).unwrap()[0].to_json(),
            serde_json::json!("NaN")
        );
    }
}
