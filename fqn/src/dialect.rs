//! Naming dialects: the same model under another library's names, and in its element order.
//!
//! A family is data (`data/dialect-llama.toml`): each row gives one tensor's name in each dialect. Names translate
//! in any direction; where two dialects order elements differently, a [`RegionMap`] says how. Optimizer slots follow
//! their parameter.
//!
//! # Rotary row order
//! Hugging Face rotates halves, Meta's and TorchTitan's models rotate adjacent pairs, so that the rows of `q` and
//! `k` differ by a permutation within each head. Pairs to halves is
//! `w.view(heads, d/2, 2, in).transpose(1, 2).reshape(heads·d, in)`; halves to pairs is its inverse,
//! `w.view(heads, 2, d/2, in).transpose(1, 2).reshape(…)`. Shapes alone don't tell the head count (4096 rows are
//! 32 × 128 or 64 × 64), and a wrong one gives a model that loads and talks nonsense: it must be given.
//!
//! Invariant: every tensor of the input is translated, left out as derived, or the translation fails and names it.

use crate::{
    Fqn, RegionError, RegionMap, TensorId,
    pattern::{Pattern, Template},
};

mod detect;
mod load;
#[cfg(test)]
mod tests;
mod translate;

pub use detect::{Detection, is_known_name};
pub use load::{DialectError, llama};
pub use translate::{Translated, Translation};

/// How a dialect orders the rows of a head under rotary embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RopeOrder {
    /// First parts of all pairs, then second parts.
    Halves,
    /// The two parts of each pair side by side.
    Pairs,
}

/// Which head count splits the rows of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HeadKind {
    /// Query heads.
    Heads,
    /// Key and value heads.
    KvHeads,
}

/// A family of models and its names in every dialect.
#[derive(Debug, Clone)]
pub struct Family {
    /// Name of the family: `llama`.
    pub name: String,
    /// Its dialects.
    pub dialects: Vec<Dialect>,
    rows: Vec<Row>,
}

/// One library's way of naming.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dialect {
    /// Short name: `hf`, `torchtitan`.
    pub name: String,
    /// Name for people.
    pub title: String,
    /// Its order of rotary rows.
    pub rope: RopeOrder,
}

/// A tensor of the family: per dialect the names read (any) and written (the first).
#[derive(Debug, Clone)]
struct Row {
    names: Vec<Vec<(Pattern, Template)>>,
    rope: Option<HeadKind>,
    derived: bool,
}

/// Why a registry cannot be translated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TranslateError {
    /// A dialect that the family lacks.
    #[error("the {family} family has no dialect {name:?} (it has {known})")]
    UnknownDialect {
        /// Dialect asked for.
        name: String,
        /// Family.
        family: String,
        /// What there is.
        known: String,
    },
    /// Names that no rule of the dialect covers.
    #[error(
        "{count} names are not {dialect} names of the {family} family, first {first}: rename them by rules, or leave them out",
        count = names.len(),
        first = names.first().map_or_else(String::new, ToString::to_string)
    )]
    Unmatched {
        /// All of them, in order.
        names: Vec<TensorId>,
        /// Dialect that they were read in.
        dialect: String,
        /// Family.
        family: String,
    },
    /// The head count is needed and unknown.
    #[error(
        "the rows of {fqn} are reordered per head, and its {rows} rows don't tell the head count: pass {flag}, or the model's config.json"
    )]
    HeadCount {
        /// Parameter.
        fqn: Fqn,
        /// Its rows.
        rows: u64,
        /// What to pass.
        flag: &'static str,
    },
    /// The head count doesn't divide the rows into even heads.
    #[error(
        "{fqn} has {rows} rows, which {heads} {what} don't split into heads of an even size: check {flag}"
    )]
    Heads {
        /// Parameter.
        fqn: Fqn,
        /// Its rows.
        rows: u64,
        /// Count given.
        heads: u64,
        /// `heads` or `KV heads`.
        what: &'static str,
        /// What to pass.
        flag: &'static str,
    },
    /// The two head counts give different head sizes.
    #[error("{heads} heads over {q_rows} query rows are heads of {}, {kv_heads} KV heads over {k_rows} key rows are heads of {}: one of --heads, --kv-heads is wrong", q_rows / heads, k_rows / kv_heads)]
    HeadSize {
        /// Query heads.
        heads: u64,
        /// Query rows.
        q_rows: u64,
        /// KV heads.
        kv_heads: u64,
        /// Key rows.
        k_rows: u64,
    },
    /// A slot whose elements do not correspond to the parameter's.
    #[error(
        "{id} has shape {shape}, its parameter {parameter}: rows of the parameter are reordered, and how the slot follows is unknown"
    )]
    Slot {
        /// The slot.
        id: TensorId,
        /// Its shape.
        shape: Box<crate::Shape>,
        /// Shape of the parameter.
        parameter: Box<crate::Shape>,
    },
    /// The map is impossible.
    #[error("{fqn}: {source}")]
    Region {
        /// Parameter.
        fqn: Fqn,
        /// Why.
        source: Box<RegionError>,
    },
    /// A translated name is no name, or is taken.
    #[error("translating {from} gives {to:?}, which {why}")]
    Target {
        /// Tensor.
        from: TensorId,
        /// Name made.
        to: String,
        /// What is wrong with it.
        why: String,
    },
}

impl HeadKind {
    pub(crate) const fn flag(self) -> &'static str {
        match self {
            Self::Heads => "--heads",
            Self::KvHeads => "--kv-heads",
        }
    }

    const fn what(self) -> &'static str {
        match self {
            Self::Heads => "heads",
            Self::KvHeads => "KV heads",
        }
    }
}

impl Family {
    /// The dialect called `name`.
    ///
    /// # Errors
    /// No such dialect.
    pub fn dialect(&self, name: &str) -> Result<&Dialect, TranslateError> {
        self.position(name).and_then(|at| self.dialects.get(at)).ok_or_else(|| self.unknown(name))
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.dialects.iter().position(|d| d.name == name)
    }

    fn unknown(&self, name: &str) -> TranslateError {
        let known = self.dialects.iter().map(|d| d.name.as_str()).collect::<Vec<_>>().join(", ");
        TranslateError::UnknownDialect { name: name.to_owned(), family: self.name.clone(), known }
    }

    /// The name of parameter `name` of dialect `from` in dialect `to`; `None` where no rule covers it.
    #[must_use]
    pub fn rename(&self, name: &str, from: &str, to: &str) -> Option<String> {
        let (from, to) = (self.position(from)?, self.position(to)?);
        self.rows.iter().find_map(|row| row.rename(name, from, to))
    }
}

impl Row {
    fn captures<'n>(&self, name: &'n str, dialect: usize) -> Option<crate::pattern::Captures<'n>> {
        self.names.get(dialect)?.iter().find_map(|(pattern, _)| pattern.captures(name))
    }

    fn rename(&self, name: &str, from: usize, to: usize) -> Option<String> {
        let captures = self.captures(name, from)?;
        self.names.get(to)?.first()?.1.fill(&captures)
    }
}

/// Map of rotary rows between two orders, for a tensor whose dimension 0 holds `heads` heads.
///
/// # Errors
/// Heads that don't split the rows into even sizes.
pub fn rope_map(
    shape: &crate::Shape,
    heads: u64,
    from: RopeOrder,
    to: RopeOrder,
) -> Result<RegionMap, RegionError> {
    let rows = shape.first().copied().unwrap_or(0);
    let half = rows / heads.max(1) / 2;
    let factors = match (from, to) {
        (RopeOrder::Pairs, RopeOrder::Halves) => [heads, half, 2],
        (RopeOrder::Halves, RopeOrder::Pairs) => [heads, 2, half],
        _ => return Ok(RegionMap::identity(shape)),
    };
    let rows = crate::RowPermute { dim: 0, factors: factors[..].into(), order: [0, 2, 1][..].into() };
    RegionMap::permute(shape, &rows)
}
