//! Symbolic placement: how a tensor lies on *any* mesh, so that a new mesh yields a new layout with no model code.
//!
//! A [`PlacementRule`] is an ordered list of cuts `(axis, dim)` and a pipeline [`StageRule`]. The order is the order
//! of cutting: `tp:0,dp:0` cuts rows over `tp` first and each part over `dp` (FSDP inside TP: torch's
//! `_StridedShard`). An axis that a rule doesn't name replicates; an axis that a mesh lacks doesn't cut.
//!
//! Text form, used by manifests, `--place` and rules files: `tp:0,dp:0,pp:layer`, `dp:0,pp:first`, `replicate`.
//! Numbers come only when `reshard` resolves a rule on a mesh.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Name of a mesh axis: `dp`, `pp`, `tp`, `ep`, `cp`, `dp_replicate`, … Lower-case ASCII, digits, `_`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AxisName(Arc<str>);

/// One axis' part in a placement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AxisPlacement {
    /// Every coordinate of the axis holds the whole (or what earlier cuts left).
    Replicate,
    /// The axis cuts this dimension, by `ceil` chunks as `torch.chunk` does; late chunks may be empty.
    Shard(usize),
}

/// Which pipeline stages hold a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum StageRule {
    /// All of them: what no layer owns (step counters).
    #[default]
    All,
    /// The first stage: embeddings.
    First,
    /// The last stage: final norm, head.
    Last,
    /// First and last: tied embeddings.
    FirstAndLast,
    /// The stage that holds the tensor's layer, by the registry's layer index.
    Layer,
}

/// How a tensor lies on any mesh.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct PlacementRule {
    cuts: Vec<(AxisName, usize)>,
    /// Pipeline part of the rule, on the axis `pp`.
    pub stage: StageRule,
}

/// Why a text is no placement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// Not an axis name.
    #[error("axis name {0:?} is not lower-case letters, digits and `_`, starting with a letter")]
    AxisName(String),
    /// A part is not `axis:dim` or `pp:stage`.
    #[error(
        "{part:?} in placement {text:?} is neither `axis:dim` (tp:0) nor `pp:first|last|first+last|layer|all`"
    )]
    Part {
        /// The part.
        part: String,
        /// The whole text.
        text: String,
    },
    /// An axis cuts twice.
    #[error("axis {axis} appears twice in placement {text:?}")]
    Twice {
        /// The axis.
        axis: String,
        /// The whole text.
        text: String,
    },
}

impl AxisName {
    /// Checks `text` and makes it an axis name.
    ///
    /// # Errors
    /// Anything but a lower-case letter followed by at most 31 lower-case letters, digits or `_`.
    pub fn new(text: &str) -> Result<Self, PlacementError> {
        let mut bytes = text.bytes();
        let head = bytes.next().is_some_and(|b| b.is_ascii_lowercase());
        let tail = bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        if head && tail && text.len() <= 32 {
            Ok(Self(Arc::from(text)))
        } else {
            Err(PlacementError::AxisName(text.escape_default().to_string()))
        }
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is the pipeline axis, which places whole tensors instead of cutting them.
    #[must_use]
    pub fn is_pipeline(&self) -> bool {
        &*self.0 == "pp"
    }
}

impl PlacementRule {
    /// A rule from cuts in cutting order.
    ///
    /// # Errors
    /// An axis that appears twice, or `pp`, which cannot cut.
    pub fn new(cuts: Vec<(AxisName, usize)>, stage: StageRule) -> Result<Self, PlacementError> {
        let rule = Self { cuts, stage };
        for (at, (axis, dim)) in rule.cuts.iter().enumerate() {
            if axis.is_pipeline() {
                return Err(PlacementError::Part { part: format!("pp:{dim}"), text: rule.to_string() });
            }
            if rule.cuts.iter().take(at).any(|(other, _)| other == axis) {
                return Err(PlacementError::Twice { axis: axis.to_string(), text: rule.to_string() });
            }
        }
        Ok(rule)
    }

    /// Cuts in cutting order.
    #[must_use]
    pub fn cuts(&self) -> &[(AxisName, usize)] {
        &self.cuts
    }

    /// What `axis` does to the tensor.
    #[must_use]
    pub fn on(&self, axis: &AxisName) -> AxisPlacement {
        let cut = self.cuts.iter().find(|(name, _)| name == axis);
        cut.map_or(AxisPlacement::Replicate, |&(_, dim)| AxisPlacement::Shard(dim))
    }
}

impl fmt::Display for AxisName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for AxisName {
    type Err = PlacementError;
    fn from_str(s: &str) -> Result<Self, PlacementError> {
        Self::new(s)
    }
}

impl StageRule {
    const fn text(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::First => "first",
            Self::Last => "last",
            Self::FirstAndLast => "first+last",
            Self::Layer => "layer",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Self::All, Self::First, Self::Last, Self::FirstAndLast, Self::Layer]
            .into_iter()
            .find(|s| s.text() == text)
    }
}

impl fmt::Display for PlacementRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<String> = self.cuts.iter().map(|(axis, dim)| format!("{axis}:{dim}")).collect();
        if self.stage != StageRule::All {
            parts.push(format!("pp:{}", self.stage.text()));
        }
        if parts.is_empty() {
            return f.pad("replicate");
        }
        f.pad(&parts.join(","))
    }
}

impl FromStr for PlacementRule {
    type Err = PlacementError;
    fn from_str(text: &str) -> Result<Self, PlacementError> {
        if text == "replicate" {
            return Ok(Self::default());
        }
        let (mut cuts, mut stage) = (Vec::new(), None);
        for part in text.split(',').map(str::trim) {
            let bad = || PlacementError::Part { part: part.to_owned(), text: text.to_owned() };
            let (axis, what) = part.split_once(':').ok_or_else(bad)?;
            let axis = AxisName::new(axis)?;
            if !axis.is_pipeline() {
                cuts.push((axis, what.parse().map_err(|_| bad())?));
            } else if stage.replace(StageRule::parse(what).ok_or_else(bad)?).is_some() {
                return Err(PlacementError::Twice { axis: "pp".to_owned(), text: text.to_owned() });
            }
        }
        Self::new(cuts, stage.unwrap_or_default())
    }
}

macro_rules! serde_by_text {
    ($($kind:ty),*) => {$(
        impl Serialize for $kind {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $kind {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}
serde_by_text!(AxisName, PlacementRule);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placement_text_reads_back() {
        for text in ["tp:0,dp:0,pp:layer", "replicate", "pp:first+last", "dp:0", "ep:0,tp:1,dp:1,pp:layer"] {
            assert_eq!(text.parse::<PlacementRule>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn nonsense_is_refused_by_part() {
        for text in ["tp", "tp:x", "TP:0", "pp:0", "tp:0,tp:1", "pp:layer,pp:first", ""] {
            assert!(text.parse::<PlacementRule>().is_err(), "{text}");
        }
    }
}
