//! [`Request`]: what a conversion, a reshard or an export shall do. Data; what of it fits is for the plan to say.

use fqn::{Dtype, Entry, pattern::Pattern};
use reshard::{Mesh, StageSplit};
use serde_json::{Map, Value};

use crate::{Format, codec::Codecs, engine::RunOptions, ops::naming::NamingRequest, rank_state::RankScheme};

/// What a conversion, a reshard or an export shall do.
#[derive(Debug, Clone)]
pub struct Request {
    /// Which tensors.
    pub select: Select,
    /// Mesh that the user says the source was written on.
    pub from: Option<Mesh>,
    /// Mesh to lay out for; the source's, or one rank, where `None`.
    pub to: Option<Mesh>,
    /// How layers are split over `pp`.
    pub split: Option<StageSplit>,
    /// Placement.
    pub naming: NamingRequest,
    /// Names to write.
    pub names: Names,
    /// Cast of floating-point model tensors.
    pub cast: Option<Dtype>,
    /// Step to record where the source does not say.
    pub step: Option<u64>,
    /// Leave out state of single ranks that can't follow, instead of refusing it.
    pub drop_per_rank: bool,
    /// What becomes of state that every data rank has of its own; before the rules file's and what the checkpoint records.
    pub rank_state: RankScheme,
    /// Format of the target.
    pub format: Format,
    /// Facts to keep beside the source's own, see [`crate::Catalog::extra`].
    pub extra: Map<String, Value>,
    /// Which roles are stored compressed; the native store alone can.
    pub codecs: Codecs,
    /// What tells that a source without digests is still the same, see [`crate::Source::stamp`]: part of the plan's digest.
    pub stamp: Option<String>,
    /// Options of the target beyond the format, as text: part of the plan's digest.
    pub target: String,
    /// With what it will be run: the cost says what that takes.
    pub run: RunOptions,
}

/// Which names to write.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Names {
    /// As they are.
    #[default]
    Keep,
    /// Those of a dialect, or nothing.
    Dialect(String),
    /// Those of a dialect where the names are of another one that is known, as they are otherwise.
    Preferred(String),
}

/// Which tensors are wanted.
#[derive(Debug, Clone, Default)]
pub struct Select {
    /// Parameters and buffers only, optimizer state only, or everything.
    pub part: Part,
    /// Names.
    pub glob: Option<Pattern>,
}

/// A part of the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Part {
    /// Everything.
    #[default]
    All,
    /// Parameters and buffers.
    Model,
    /// Optimizer state.
    Optimizer,
}

impl Request {
    /// Everything, as it is, as a target of `format`.
    #[must_use]
    pub fn new(format: Format) -> Self {
        Self {
            select: Select::default(),
            from: None,
            to: None,
            split: None,
            naming: NamingRequest::default(),
            names: Names::default(),
            cast: None,
            step: None,
            drop_per_rank: false,
            rank_state: RankScheme::default(),
            format,
            extra: Map::new(),
            codecs: Codecs::NONE,
            stamp: None,
            target: String::new(),
            run: RunOptions::default(),
        }
    }

    /// Whether the target holds whole tensors, whatever the mesh.
    pub(super) const fn is_whole(&self) -> bool {
        matches!(self.format, Format::Hf | Format::Safetensors | Format::Pt)
    }
}

impl Select {
    /// Whether a tensor is.
    pub(in crate::ops) fn wants(&self, entry: &Entry) -> bool {
        let part = match self.part {
            Part::All => true,
            Part::Model => entry.role.is_model(),
            Part::Optimizer => entry.role.is_optimizer(),
        };
        part && self.glob.as_ref().is_none_or(|glob| glob.matches(entry.fqn.as_str()))
    }
}
