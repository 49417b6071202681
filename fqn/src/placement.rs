//! Symbolic placement: how a tensor lies on *any* mesh, so that a new mesh yields a new layout with no model code.
//!
//! A [`PlacementRule`] is an ordered list of cuts and a pipeline [`StageRule`]. The order is the order of cutting:
//! `tp:0,dp:0` cuts rows over `tp` first and each part over `dp` (FSDP inside TP: torch's `_StridedShard`);
//! `dp:0,tp:0` cuts the other way round. An axis that a rule doesn't name replicates; an axis that a mesh lacks doesn't
//! cut. The text form is used by manifests, `--place` and rules files:
//!
//! | part | meaning |
//! | --- | --- |
//! | `tp:0` | `tp` cuts dimension 0, by `ceil` chunks |
//! | `dp+cp:0` | both axes cut as one, of so many parts as they have ranks together, the last one fastest |
//! | `tp:0%128` | the dimension is padded to a multiple of 128 × tp before it is cut (vocabulary padding) |
//! | `ep:expert` | the tensor is one expert's: whole on the part of `ep` that has this expert |
//! | `pp:layer`, `pp:first`, `pp:last`, `pp:first+last` | the stage of its layer; the first, the last stage; both |
//! | `pp:layers@0` | dimension 0 stacks the layers: each stage holds its own |
//! | `replicate` | every rank holds all |
//!
//! Numbers come only when `reshard` resolves a rule on a mesh.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smallvec::SmallVec;

mod text;

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
    /// All of them: this dimension stacks the layers, and each stage holds its own.
    Layers(usize),
}

/// One cut of a rule: axes that act as one, the dimension that they cut, and its padding.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AxisCut {
    /// The axes, slowest first. Mostly one.
    pub axes: SmallVec<[AxisName; 1]>,
    /// The dimension.
    pub dim: usize,
    /// The dimension is padded to a multiple of this times the number of parts before it is cut. Padding belongs to
    /// no tensor: it holds no elements, and a format that stores it fills it.
    pub pad: Option<u64>,
}

/// How a tensor lies on any mesh.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct PlacementRule {
    cuts: Vec<AxisCut>,
    expert: Option<AxisName>,
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
        "{part:?} in placement {text:?} is neither `axis:dim` (tp:0, dp+cp:0, tp:0%128) nor `ep:expert` nor \
         `pp:first|last|first+last|layer|layers@dim|all`"
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
    /// An axis that no mesh is spelt with, in a text that a person wrote: it would silently replicate.
    #[error("no mesh axis is called {axis:?}{}", nearest.map_or_else(String::new, |near| format!(", did you mean {near:?}?")))]
    Unknown {
        /// The axis.
        axis: String,
        /// The known axis that is nearest.
        nearest: Option<&'static str>,
    },
}

impl AxisName {
    /// Axes that a person may name: those of every mesh that can be spelt.
    pub const KNOWN: [&'static str; 7] = ["dp", "dp_replicate", "dp_shard", "pp", "tp", "ep", "cp"];

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
    /// A rule from cuts in cutting order; `(axis, dim)` is one.
    ///
    /// # Errors
    /// An axis that appears twice, a cut over no axis or padded to multiples of 0, or `pp`, which cannot cut.
    pub fn new<C: Into<AxisCut>>(
        cuts: impl IntoIterator<Item = C>,
        stage: StageRule,
    ) -> Result<Self, PlacementError> {
        Self { cuts: cuts.into_iter().map(Into::into).collect(), expert: None, stage }.checked()
    }

    /// The same rule for a tensor that is one expert's: whole on the part of `axis` that has this expert.
    ///
    /// # Errors
    /// An axis that cuts already, or `pp`.
    pub fn of_expert(self, axis: AxisName) -> Result<Self, PlacementError> {
        Self { expert: Some(axis), ..self }.checked()
    }

    /// The same stages and expert, without cuts.
    #[must_use]
    pub fn uncut(&self) -> Self {
        Self { cuts: Vec::new(), expert: self.expert.clone(), stage: self.stage }
    }

    fn checked(self) -> Result<Self, PlacementError> {
        let mut named: Vec<&AxisName> = Vec::new();
        for cut in &self.cuts {
            if cut.axes.is_empty() || cut.pad == Some(0) || cut.axes.iter().any(AxisName::is_pipeline) {
                return Err(PlacementError::Part { part: cut.to_string(), text: self.to_string() });
            }
            named.extend(&cut.axes);
        }
        if let Some(axis) = self.expert.as_ref().filter(|axis| axis.is_pipeline()) {
            return Err(PlacementError::Part { part: format!("{axis}:expert"), text: self.to_string() });
        }
        named.extend(&self.expert);
        named.sort_unstable();
        match named.windows(2).find_map(|pair| pair.first().filter(|axis| pair.last() == Some(*axis))) {
            Some(axis) => Err(PlacementError::Twice { axis: axis.to_string(), text: self.to_string() }),
            None => Ok(self),
        }
    }

    /// Cuts in cutting order.
    #[must_use]
    pub fn cuts(&self) -> &[AxisCut] {
        &self.cuts
    }

    /// The axis over which experts are shared out, for a tensor that is one expert's.
    #[must_use]
    pub const fn expert_axis(&self) -> Option<&AxisName> {
        self.expert.as_ref()
    }

    /// What `axis` does to the tensor's elements. An axis that shares out whole tensors ([`Self::stage`],
    /// [`Self::expert_axis`]) cuts none.
    #[must_use]
    pub fn on(&self, axis: &AxisName) -> AxisPlacement {
        let cut = self.cuts.iter().find(|cut| cut.axes.contains(axis));
        cut.map_or(AxisPlacement::Replicate, |cut| AxisPlacement::Shard(cut.dim))
    }

    /// Checks that every axis is one that a mesh can be spelt with: for rules that people write, where a mistyped axis
    /// would silently replicate.
    ///
    /// # Errors
    /// [`PlacementError::Unknown`], with the nearest axis there is.
    pub fn check_axes(&self) -> Result<(), PlacementError> {
        let mut axes = self.cuts.iter().flat_map(|cut| &cut.axes).chain(&self.expert);
        let unknown = axes.find(|axis| !AxisName::KNOWN.contains(&axis.as_str()));
        unknown.map_or(Ok(()), |axis| Err(axis.unknown()))
    }
}

impl AxisName {
    /// The error that names the known axis nearest to this one.
    #[must_use]
    pub fn unknown(&self) -> PlacementError {
        // Of two that are equally near, the one that begins alike is meant.
        let apart = |known: &&'static str| {
            (strsim::damerau_levenshtein(known, &self.0), known.bytes().next() != self.0.bytes().next())
        };
        let near = Self::KNOWN.iter().copied().min_by_key(|known| apart(known));
        let nearest = near.filter(|known| apart(known).0 <= 1 + known.len() / 2);
        PlacementError::Unknown { axis: self.to_string(), nearest }
    }
}

impl From<(AxisName, usize)> for AxisCut {
    fn from((axis, dim): (AxisName, usize)) -> Self {
        Self { axes: SmallVec::from_iter([axis]), dim, pad: None }
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
        for text in [
            "tp:0,dp:0,pp:layer",
            "replicate",
            "pp:first+last",
            "dp:0",
            "ep:0,tp:1,dp:1,pp:layer",
            "tp:0%128,dp+cp:0,pp:first",
            "ep:expert",
            "tp:0,dp:0,ep:expert,pp:layer",
            "tp:1,pp:layers@0",
        ] {
            assert_eq!(text.parse::<PlacementRule>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn nonsense_is_refused_by_part() {
        for text in [
            "tp",
            "tp:x",
            "TP:0",
            "pp:0",
            "tp:0,tp:1",
            "pp:layer,pp:first",
            "",
            "tp+tp:0",
            "dp+:0",
            "tp+pp:0",
            "tp:0%0",
            "tp:0%",
            "pp:layers@",
            "pp:expert",
            "ep:0,ep:expert",
            "ep:expert,ep:expert",
        ] {
            assert!(text.parse::<PlacementRule>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_axis_that_no_mesh_has_is_named_with_the_nearest_one() {
        let check = |text: &str| text.parse::<PlacementRule>().unwrap().check_axes();
        assert_eq!(check("tp:0,dp_shard+cp:0,ep:expert"), Ok(()));
        let refused = |text: &str| check(text).unwrap_err().to_string();
        assert_eq!(refused("tp:0,dpp:0"), "no mesh axis is called \"dpp\", did you mean \"dp\"?");
        assert_eq!(
            refused("dp_shards:0"),
            "no mesh axis is called \"dp_shards\", did you mean \"dp_shard\"?"
        );
        assert_eq!(refused("sequence:0"), "no mesh axis is called \"sequence\"");
    }
}
