//! [`Dtype`]: every element type of torch and safetensors, with the names both use for it.
//!
//! The canonical text (serde, `--json`, manifests) is lower case: `f32`, `bf16`, `f8_e4m3fn`. Sub-byte types are
//! carried, never computed with: two or more elements share a byte, so boxes of them must end on byte boundaries.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! dtypes {
    ($($variant:ident $bits:literal $name:literal $torch:expr, $safetensors:expr, $doc:literal;)*) => {
        /// Element type of a tensor.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Dtype { $(#[doc = $doc] $variant,)* }

        impl Dtype {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Bits of one element; complex types count both parts.
            #[must_use]
            pub const fn bits(self) -> u32 {
                match self { $(Self::$variant => $bits,)* }
            }

            /// Canonical name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Attribute name in the `torch` module, where torch has the type.
            #[must_use]
            pub const fn torch_name(self) -> Option<&'static str> {
                match self { $(Self::$variant => $torch,)* }
            }

            /// `dtype` text in a safetensors header, where that format has the type.
            #[must_use]
            pub const fn safetensors_name(self) -> Option<&'static str> {
                match self { $(Self::$variant => $safetensors,)* }
            }
        }
    };
}

dtypes! {
    F64 64 "f64" Some("float64"), Some("F64"), "IEEE binary64.";
    F32 32 "f32" Some("float32"), Some("F32"), "IEEE binary32.";
    F16 16 "f16" Some("float16"), Some("F16"), "IEEE binary16.";
    BF16 16 "bf16" Some("bfloat16"), Some("BF16"), "The upper half of binary32.";
    F8E4M3FN 8 "f8_e4m3fn" Some("float8_e4m3fn"), Some("F8_E4M3"), "8-bit float, finite only with NaN.";
    F8E5M2 8 "f8_e5m2" Some("float8_e5m2"), Some("F8_E5M2"), "8-bit float with infinities.";
    F8E4M3FNUZ 8 "f8_e4m3fnuz" Some("float8_e4m3fnuz"), Some("F8_E4M3FNUZ"), "8-bit float, no negative zero.";
    F8E5M2FNUZ 8 "f8_e5m2fnuz" Some("float8_e5m2fnuz"), Some("F8_E5M2FNUZ"), "8-bit float, no negative zero.";
    F8E8M0 8 "f8_e8m0" Some("float8_e8m0fnu"), Some("F8_E8M0"), "8-bit power of two: block scales.";
    F6E2M3 6 "f6_e2m3" None, Some("F6_E2M3"), "6-bit float, packed.";
    F6E3M2 6 "f6_e3m2" None, Some("F6_E3M2"), "6-bit float, packed.";
    F4E2M1 4 "f4_e2m1" None, Some("F4"), "4-bit float, packed.";
    F4E2M1X2 8 "f4_e2m1x2" Some("float4_e2m1fn_x2"), None, "Two 4-bit floats as one torch element.";
    I64 64 "i64" Some("int64"), Some("I64"), "Signed 64-bit.";
    I32 32 "i32" Some("int32"), Some("I32"), "Signed 32-bit.";
    I16 16 "i16" Some("int16"), Some("I16"), "Signed 16-bit.";
    I8 8 "i8" Some("int8"), Some("I8"), "Signed 8-bit.";
    U64 64 "u64" Some("uint64"), Some("U64"), "Unsigned 64-bit.";
    U32 32 "u32" Some("uint32"), Some("U32"), "Unsigned 32-bit.";
    U16 16 "u16" Some("uint16"), Some("U16"), "Unsigned 16-bit.";
    U8 8 "u8" Some("uint8"), Some("U8"), "Unsigned 8-bit.";
    Bool 8 "bool" Some("bool"), Some("BOOL"), "One byte, zero or one.";
    C32 32 "c32" Some("complex32"), None, "Two binary16.";
    C64 64 "c64" Some("complex64"), Some("C64"), "Two binary32.";
    C128 128 "c128" Some("complex128"), None, "Two binary64.";
}

/// A text that names no element type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown dtype {0:?}")]
pub struct UnknownDtype(pub String);

impl Dtype {
    /// Bytes that `elements` take, packed; `None` on overflow or where they do not fill whole bytes.
    #[must_use]
    pub const fn bytes_for(self, elements: u64) -> Option<u64> {
        match elements.checked_mul(self.bits() as u64) {
            Some(bits) if bits.is_multiple_of(8) => Some(bits / 8),
            _ => None,
        }
    }

    /// Bytes of one element; `None` for sub-byte types.
    #[must_use]
    pub const fn element_bytes(self) -> Option<u64> {
        self.bytes_for(1)
    }

    /// The type that torch calls `torch.<name>`.
    #[must_use]
    pub fn from_torch_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|d| d.torch_name() == Some(name))
    }

    /// The type that a safetensors header calls `name`.
    #[must_use]
    pub fn from_safetensors_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|d| d.safetensors_name() == Some(name))
    }

    /// Whether values are real floating-point numbers: what a cast of weights may touch.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F64 | Self::F32 | Self::F16 | Self::BF16)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Dtype {
    type Err = UnknownDtype;
    fn from_str(s: &str) -> Result<Self, UnknownDtype> {
        Self::ALL.iter().copied().find(|d| d.name() == s).ok_or_else(|| UnknownDtype(s.to_owned()))
    }
}

impl Serialize for Dtype {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Dtype {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_a_dtype_leads_back_to_it() {
        for &dtype in Dtype::ALL {
            assert_eq!(dtype.name().parse(), Ok(dtype));
            if let Some(torch) = dtype.torch_name() {
                assert_eq!(Dtype::from_torch_name(torch), Some(dtype));
            }
            if let Some(safe) = dtype.safetensors_name() {
                assert_eq!(Dtype::from_safetensors_name(safe), Some(dtype));
            }
        }
    }

    #[test]
    fn packed_types_have_bytes_only_where_they_fill_them() {
        assert_eq!(Dtype::F4E2M1.bytes_for(3), None);
        assert_eq!(Dtype::F4E2M1.bytes_for(4), Some(2));
        assert_eq!(Dtype::F6E2M3.bytes_for(4), Some(3));
        assert_eq!(Dtype::C128.element_bytes(), Some(16));
        assert_eq!(Dtype::F64.bytes_for(u64::MAX), None);
    }
}
