//! [`Codecs`]: which tensors are compressed, and how. Rules by role, because the role says what the bytes are like: weights
//! hardly compress, moments more.

use std::{collections::BTreeMap, fmt, str::FromStr};

use fqn::{Dtype, Role};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::digest::BlockCodec;

/// How the blocks of a tensor are stored, where they shrink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Codec {
    /// As they are: the file stays a plain safetensors file.
    #[default]
    None,
    /// As zstd frames.
    Zstd,
    /// The bytes of elements in planes, then as zstd frames.
    Planes,
}

impl Codec {
    const ALL: [Self; 3] = [Self::None, Self::Zstd, Self::Planes];

    /// The text form.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Zstd => "zstd",
            Self::Planes => "planes",
        }
    }

    /// How a block of elements of `dtype` is stored. Complex numbers are pairs of floats; elements of one byte or less have one plane.
    #[must_use]
    pub const fn of_blocks(self, dtype: Dtype) -> BlockCodec {
        match self {
            Self::None => BlockCodec::None,
            Self::Zstd => BlockCodec::Zstd,
            Self::Planes => match dtype {
                Dtype::C32 => BlockCodec::Planes2,
                Dtype::C64 => BlockCodec::Planes4,
                Dtype::C128 => BlockCodec::Planes8,
                _ => match dtype.bits() {
                    16 => BlockCodec::Planes2,
                    32 => BlockCodec::Planes4,
                    64 => BlockCodec::Planes8,
                    _ => BlockCodec::Zstd,
                },
            },
        }
    }
}

/// Which roles are compressed, and how. As text: `planes`; or `exp_avg=planes,exp_avg_sq=planes`; or `planes,param=none`. An item
/// without a role is for all others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Codecs {
    others: Codec,
    /// By the text of the role. None says the same as `others`, so that equal rules are equal.
    roles: BTreeMap<String, Codec>,
}

/// A text that says no codecs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecsError {
    /// No such codec.
    #[error("{0:?} is no codec: none, zstd and planes are")]
    Codec(String),
    /// No such role.
    #[error(transparent)]
    Role(#[from] fqn::UnknownRole),
    /// A role, or all others, twice.
    #[error("{0} has two codecs")]
    Twice(String),
}

impl Codecs {
    /// Nothing compressed.
    pub const NONE: Self = Self { others: Codec::None, roles: BTreeMap::new() };

    /// The codec of a role.
    #[must_use]
    pub fn of(&self, role: &Role) -> Codec {
        if self.roles.is_empty() {
            return self.others;
        }
        self.roles.get(&role.to_string()).copied().unwrap_or(self.others)
    }

    /// Whether nothing is compressed.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.others == Codec::None && self.roles.is_empty()
    }
}

impl FromStr for Codec {
    type Err = CodecsError;

    fn from_str(text: &str) -> Result<Self, CodecsError> {
        let found = Self::ALL.into_iter().find(|codec| codec.name() == text);
        found.ok_or_else(|| CodecsError::Codec(text.chars().take(80).collect()))
    }
}

impl FromStr for Codecs {
    type Err = CodecsError;

    fn from_str(text: &str) -> Result<Self, CodecsError> {
        let (mut others, mut roles) = (None, BTreeMap::new());
        for item in text.split(',').map(str::trim) {
            let twice = match item.rsplit_once('=') {
                None => others.replace(item.parse()?).map(|_: Codec| "every other role".to_owned()),
                Some((role, codec)) => {
                    let role = role.trim().parse::<Role>()?.to_string();
                    let before = roles.insert(role.clone(), codec.trim().parse()?);
                    before.map(|_: Codec| role)
                }
            };
            twice.map_or(Ok(()), |what| Err(CodecsError::Twice(what)))?;
        }
        let others = others.unwrap_or_default();
        roles.retain(|_, codec| *codec != others);
        Ok(Self { others, roles })
    }
}

impl fmt::Display for Codecs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut items: Vec<String> = Vec::new();
        if self.others != Codec::None || self.roles.is_empty() {
            items.push(self.others.name().to_owned());
        }
        items.extend(self.roles.iter().map(|(role, codec)| format!("{role}={}", codec.name())));
        f.write_str(&items.join(","))
    }
}

impl Serialize for Codecs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Codecs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_read_back_and_the_role_decides() {
        for (text, again) in [
            ("none", "none"),
            ("planes", "planes"),
            ("planes, param=none", "planes,param=none"),
            ("exp_avg_sq=zstd,exp_avg=planes", "exp_avg=planes,exp_avg_sq=zstd"),
            ("slot:a=b=zstd", "slot:a=b=zstd"),
            ("zstd,param=zstd", "zstd"),
            ("param=none", "none"),
        ] {
            let codecs: Codecs = text.parse().unwrap();
            assert_eq!(codecs.to_string(), again);
            assert_eq!(again.parse::<Codecs>().unwrap(), codecs);
            assert_eq!(codecs.is_none(), again == "none");
        }
        let codecs: Codecs = "zstd,param=none,exp_avg=planes".parse().unwrap();
        let of = [Role::Param, Role::ExpAvg, Role::ExpAvgSq].map(|role| codecs.of(&role));
        assert_eq!(of, [Codec::None, Codec::Planes, Codec::Zstd]);
        assert!(Codecs::NONE.is_none() && Codecs::default() == Codecs::NONE);
    }

    #[test]
    fn other_texts_are_refused_and_the_choices_told() {
        for (text, told) in [
            ("", "none, zstd and planes"),
            ("gzip", "\"gzip\""),
            ("weights=zstd", "param, buffer, master"),
            ("zstd,planes", "every other role has two"),
            ("param=zstd,param=none", "param has two"),
            ("param=", "\"\" is no codec"),
        ] {
            let error = text.parse::<Codecs>().unwrap_err().to_string();
            assert!(error.contains(told), "{text}: {error}");
        }
    }

    #[test]
    fn planes_are_as_wide_as_the_numbers_that_elements_are_made_of() {
        let of = |dtype: Dtype| Codec::Planes.of_blocks(dtype);
        for dtype in [Dtype::F16, Dtype::BF16, Dtype::I16, Dtype::U16, Dtype::C32] {
            assert_eq!(of(dtype), BlockCodec::Planes2, "{dtype}");
        }
        for dtype in [Dtype::F32, Dtype::I32, Dtype::U32, Dtype::C64] {
            assert_eq!(of(dtype), BlockCodec::Planes4, "{dtype}");
        }
        for dtype in [Dtype::F64, Dtype::I64, Dtype::U64, Dtype::C128] {
            assert_eq!(of(dtype), BlockCodec::Planes8, "{dtype}");
        }
        for dtype in [Dtype::Bool, Dtype::U8, Dtype::I8, Dtype::F8E8M0, Dtype::F4E2M1] {
            assert_eq!(of(dtype), BlockCodec::Zstd, "{dtype}");
        }
        assert_eq!(Codec::Zstd.of_blocks(Dtype::F32), BlockCodec::Zstd);
        assert_eq!(Codec::None.of_blocks(Dtype::F32), BlockCodec::None);
    }
}
