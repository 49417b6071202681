//! Dialect data: read once from the embedded TOML.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;

use super::{Dialect, Family, HeadKind, RopeOrder, Row};
use crate::pattern::{Pattern, PatternError, Template};

/// Why dialect data is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DialectError {
    /// Not the TOML that is expected.
    #[error("dialect data: {0}")]
    Toml(String),
    /// A name that is no pattern.
    #[error("dialect data: {0}")]
    Pattern(#[from] PatternError),
    /// A hole that another dialect's name does not fill.
    #[error("dialect data: {to} needs {{{hole}}}, which {from} does not have")]
    Hole {
        /// Name to write.
        to: String,
        /// Its hole.
        hole: String,
        /// Name read.
        from: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Data {
    family: String,
    dialect: BTreeMap<String, DialectData>,
    tensor: Vec<BTreeMap<String, toml::Value>>,
    #[serde(default)]
    derived: Vec<BTreeMap<String, toml::Value>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DialectData {
    title: String,
    rope: String,
}

/// The Llama family: dialects `hf` and `torchtitan`.
#[must_use]
pub fn llama() -> &'static Family {
    static FAMILY: LazyLock<Family> = LazyLock::new(|| {
        #[expect(clippy::expect_used, reason = "the data is part of this crate; a test reads it")]
        Family::from_toml(include_str!("../../data/dialect-llama.toml"))
            .expect("embedded dialect data is valid")
    });
    &FAMILY
}

impl Family {
    /// Reads a family from TOML.
    ///
    /// # Errors
    /// Unknown keys, names that are no patterns, names of one row that don't have the same captures.
    pub fn from_toml(text: &str) -> Result<Self, DialectError> {
        let data: Data = toml::from_str(text).map_err(|e| DialectError::Toml(e.to_string()))?;
        let order = |text: &str| match text {
            "halves" => Ok(RopeOrder::Halves),
            "pairs" => Ok(RopeOrder::Pairs),
            other => Err(DialectError::Toml(format!("rope is {other:?}, not halves or pairs"))),
        };
        let dialect = |(name, d): (&String, &DialectData)| {
            Ok(Dialect { name: name.clone(), title: d.title.clone(), rope: order(&d.rope)? })
        };
        let dialects = data.dialect.iter().map(dialect).collect::<Result<Vec<_>, DialectError>>()?;
        let tensors = data.tensor.iter().map(|row| Row::read(row, &dialects, false));
        let derived = data.derived.iter().map(|row| Row::read(row, &dialects, true));
        let rows = tensors.chain(derived).collect::<Result<_, _>>()?;
        Ok(Self { name: data.family, dialects, rows })
    }
}

impl Row {
    fn read(
        data: &BTreeMap<String, toml::Value>,
        dialects: &[Dialect],
        derived: bool,
    ) -> Result<Self, DialectError> {
        if let Some(key) = data.keys().find(|k| *k != "rope" && !dialects.iter().any(|d| d.name == **k)) {
            return Err(DialectError::Toml(format!("{key:?} is neither a dialect nor `rope`")));
        }
        let rope = match data.get("rope").map(|v| v.as_str().unwrap_or_default()) {
            None => None,
            Some("heads") => Some(HeadKind::Heads),
            Some("kv_heads") => Some(HeadKind::KvHeads),
            Some(other) => {
                return Err(DialectError::Toml(format!("rope is {other:?}, not heads or kv_heads")));
            }
        };
        let names = dialects.iter().map(|d| names(data.get(&d.name))).collect::<Result<Vec<_>, _>>()?;
        let row = Self { names, rope, derived };
        if !derived {
            row.check_holes()?;
        }
        Ok(row)
    }

    fn check_holes(&self) -> Result<(), DialectError> {
        for (from, _) in self.names.iter().flatten() {
            let captures = from.capture_names();
            for (_, to) in self.names.iter().filter_map(|n| n.first()) {
                if let Some(hole) = to.holes().find(|hole| !captures.contains(hole)) {
                    let (to, from) = (to.as_str().to_owned(), from.to_string());
                    return Err(DialectError::Hole { to, hole: hole.to_owned(), from });
                }
            }
        }
        Ok(())
    }
}

fn names(value: Option<&toml::Value>) -> Result<Vec<(Pattern, Template)>, DialectError> {
    let bad = || DialectError::Toml("names of a dialect are a list of texts".to_owned());
    let Some(value) = value else { return Ok(Vec::new()) };
    let texts = value.as_array().ok_or_else(bad)?.iter().map(|v| v.as_str().ok_or_else(bad));
    texts.map(|text| text.and_then(|t| Ok((Pattern::new(t)?, Template::new(t)?)))).collect()
}
