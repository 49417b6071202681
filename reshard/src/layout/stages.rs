//! Splitting layers over pipeline stages.
//!
//! A layer is known by the layer index of its tensors, or as a slice of a tensor that stacks all of them
//! (`pp:layers@0`). Experts are counted here too, layer by layer, since the part of `ep` that has one depends on how many
//! there are.
//!
//! Invariant of [`Stages`]: stages are contiguous in layer order, and none but the first and the last (which have embedding
//! and head) is without a layer, unless the model has no layers at all.

use std::{collections::BTreeMap, fmt, str::FromStr};

use fqn::{Entry, Registry, StageRule, TensorId};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

mod weights;

use weights::{Weights, even};

/// How layers are split over stages. Text: `auto`, `weights`, numbers of layers: `8,8,8,8`, or those with the rank of each
/// stage: `8@0,8@1,8@1,8@0`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum StageSplit {
    /// Contiguous and as even as can be; the first stages take one more.
    #[default]
    Auto,
    /// So many layers on each stage.
    Explicit(Vec<u64>),
    /// So many layers on each stage, and its coordinate on `pp`: ranks that run several stages each.
    Placed(Vec<(u64, u64)>),
    /// Contiguous, the heaviest stage as light as can be in bytes; embeddings count on the first stage, final norm and
    /// head on the last.
    Weights,
}

/// The stage of every layer: its coordinate on `pp`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stages {
    count: u64,
    /// Where the first and the last stage are.
    ends: (u64, u64),
    of_layer: BTreeMap<u32, u64>,
    /// First layer and number of layers of each stage; of none where there are no layers.
    spans: Vec<(u32, u64)>,
    /// Experts of each layer; of tensors of no layer under `None`.
    experts: BTreeMap<Option<u32>, u64>,
}

/// Why layers don't split over stages.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StageError {
    /// Neither a keyword nor numbers.
    #[error(
        "{0:?} is no stage split; write `auto`, `weights`, layers per stage: `8,8,8,8`, or with the stage's rank: `8@0,8@1,8@1,8@0`"
    )]
    Text(String),
    /// More stages than layers.
    #[error("{layers} layers do not fill {stages} pipeline stages; pp can be at most {layers}")]
    TooFewLayers {
        /// Layers there are.
        layers: usize,
        /// Stages asked for.
        stages: u64,
    },
    /// An explicit split for another number of stages.
    #[error("stage split {split} names {given} stages, but the mesh has pp={stages}")]
    Count {
        /// The split.
        split: String,
        /// Stages it names.
        given: usize,
        /// Stages there are.
        stages: u64,
    },
    /// An explicit split for another number of layers.
    #[error("stage split {split} places {given} layers, but the model has {layers}")]
    Layers {
        /// The split.
        split: String,
        /// Layers it places.
        given: u64,
        /// Layers there are.
        layers: usize,
    },
    /// A stacked tensor of more layers than any model has.
    #[error("{tensor} stacks {layers} layers; at most {MAX_LAYERS} can be")]
    TooManyLayers {
        /// The tensor.
        tensor: TensorId,
        /// Extent of its dimension of layers.
        layers: u64,
    },
    /// An explicit split with a stage of nothing: only the first and the last have anything but layers.
    #[error("stage split {0} leaves a stage without layers")]
    EmptyStage(String),
    /// A stage on a rank that isn't there, or a rank without a stage.
    #[error("stage split {split} on pp={ranks}: {why}")]
    Placement {
        /// The split.
        split: String,
        /// Ranks on `pp`.
        ranks: u64,
        /// What is wrong.
        why: String,
    },
}

/// Most layers that a stacked tensor may have: a bound on what a hostile shape can make a split allocate.
pub const MAX_LAYERS: u64 = 1 << 16;

impl StageSplit {
    /// The stage of every layer that `registry` names, on `count` stages.
    ///
    /// # Errors
    /// Fewer layers than stages, or an explicit split that doesn't add up.
    pub fn resolve(&self, registry: &Registry, count: u64) -> Result<Stages, StageError> {
        let weights = Weights::of(registry)?;
        let layers = weights.layers.len();
        let sizes = match self {
            Self::Placed(stages) => return self.placed(stages, &weights, registry, count),
            _ if layers == 0 => Vec::new(),
            Self::Explicit(sizes) => self.checked(sizes, layers, count)?,
            _ if u64::try_from(layers).is_ok_and(|layers| layers < count) => {
                return Err(StageError::TooFewLayers { layers, stages: count });
            }
            Self::Auto => even(layers, count),
            Self::Weights => weights.balanced(count),
        };
        let (mut of_layer, mut spans) = (BTreeMap::new(), Vec::with_capacity(sizes.len()));
        let mut names = weights.layers.keys().copied().peekable();
        for (size, stage) in sizes.into_iter().zip(0_u64..) {
            spans.extend(names.peek().map(|first| (*first, size)));
            of_layer
                .extend(names.by_ref().map(|layer| (layer, stage)).take(usize::try_from(size).unwrap_or(0)));
        }
        Ok(Stages { count, ends: (0, count.saturating_sub(1)), of_layer, spans, experts: experts(registry) })
    }

    /// Layers of several stages on a rank: no tensor that stacks them can be cut so.
    fn placed(
        &self,
        stages: &[(u64, u64)],
        weights: &Weights,
        registry: &Registry,
        ranks: u64,
    ) -> Result<Stages, StageError> {
        let refused = |why: String| StageError::Placement { split: self.to_string(), ranks, why };
        if let Some((stage, (_, rank))) = stages.iter().enumerate().find(|(_, (_, rank))| *rank >= ranks) {
            return Err(refused(format!("stage {stage} is on rank {rank}, which isn't there")));
        }
        if let Some(idle) = (0..ranks).find(|rank| !stages.iter().any(|(_, on)| on == rank)) {
            return Err(refused(format!("rank {idle} has no stage")));
        }
        let stacks = |entry: &&Entry| {
            entry.placement.as_ref().is_some_and(|rule| matches!(rule.stage, StageRule::Layers(_)))
        };
        if let Some(stack) = registry.entries().iter().find(stacks) {
            let why =
                format!("{} stacks layers, which only go to stages in order, one on each rank", stack.id());
            return Err(refused(why));
        }
        let sizes: Vec<u64> = stages.iter().map(|(size, _)| *size).collect();
        let sizes = self.checked(&sizes, weights.layers.len(), sizes.len() as u64)?;
        let mut names = weights.layers.keys().copied();
        let mut of_layer = BTreeMap::new();
        for (size, (_, rank)) in sizes.into_iter().zip(stages) {
            of_layer
                .extend(names.by_ref().map(|layer| (layer, *rank)).take(usize::try_from(size).unwrap_or(0)));
        }
        let ends = stages.first().zip(stages.last()).map_or((0, 0), |(first, last)| (first.1, last.1));
        Ok(Stages { count: ranks, ends, of_layer, spans: Vec::new(), experts: experts(registry) })
    }

    fn checked(&self, sizes: &[u64], layers: usize, stages: u64) -> Result<Vec<u64>, StageError> {
        let split = self.to_string();
        let given = sizes.iter().fold(0_u64, |sum, size| sum.saturating_add(*size));
        if u64::try_from(sizes.len()) != Ok(stages) {
            return Err(StageError::Count { split, given: sizes.len(), stages });
        }
        let inner = sizes.get(1..sizes.len().saturating_sub(1)).unwrap_or_default();
        if inner.contains(&0) {
            return Err(StageError::EmptyStage(split));
        }
        if u64::try_from(layers) != Ok(given) {
            return Err(StageError::Layers { split, given, layers });
        }
        Ok(sizes.to_vec())
    }
}

/// One more than the highest expert index of each layer.
fn experts(registry: &Registry) -> BTreeMap<Option<u32>, u64> {
    let mut found: BTreeMap<Option<u32>, u64> = BTreeMap::new();
    for entry in registry.entries() {
        if let Some(expert) = entry.expert {
            let count = found.entry(entry.layer).or_default();
            *count = (*count).max(u64::from(expert) + 1);
        }
    }
    found
}

impl Stages {
    /// Number of stages.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Coordinates of the first and of the last stage.
    #[must_use]
    pub const fn ends(&self) -> (u64, u64) {
        self.ends
    }

    /// Stage of `layer`; `None` for a layer that isn't there.
    #[must_use]
    pub fn of(&self, layer: u32) -> Option<u64> {
        self.of_layer.get(&layer).copied()
    }

    /// The layers of `stage` in a tensor that stacks `layers` of them: first one and number. A stage that has none of
    /// them is an empty stretch where they would begin.
    #[must_use]
    pub fn span(&self, stage: u64, layers: u64) -> (u64, u64) {
        let at = |stage: u64| {
            // Layers that the split doesn't know belong to the last stage.
            let span = usize::try_from(stage).ok().and_then(|stage| self.spans.get(stage));
            span.map_or(layers, |(first, _)| u64::from(*first).min(layers))
        };
        let start = if stage == 0 { 0 } else { at(stage) };
        (start, at(stage.saturating_add(1)).saturating_sub(start))
    }

    /// Number of experts of `layer`, or of tensors of no layer: one more than the highest index that names hold.
    #[must_use]
    pub fn experts(&self, layer: Option<u32>) -> u64 {
        self.experts.get(&layer).copied().unwrap_or(0)
    }

    /// Number of layers on each coordinate.
    #[must_use]
    pub fn sizes(&self) -> Vec<u64> {
        let mut sizes = vec![0; usize::try_from(self.count).unwrap_or(0)];
        for stage in self.of_layer.values() {
            let size = usize::try_from(*stage).ok().and_then(|stage| sizes.get_mut(stage));
            size.into_iter().for_each(|size| *size += 1);
        }
        sizes
    }
}

impl fmt::Display for StageSplit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Weights => f.pad("weights"),
            Self::Explicit(sizes) => f.pad(&sizes.iter().map(u64::to_string).collect::<Vec<_>>().join(",")),
            Self::Placed(stages) => {
                let each = stages.iter().map(|(size, rank)| format!("{size}@{rank}"));
                f.pad(&each.collect::<Vec<_>>().join(","))
            }
        }
    }
}

impl FromStr for StageSplit {
    type Err = StageError;
    fn from_str(text: &str) -> Result<Self, StageError> {
        match text {
            "auto" => Ok(Self::Auto),
            "weights" => Ok(Self::Weights),
            places if places.contains('@') => {
                let number = |text: &str| text.trim().parse::<u64>().ok();
                let place =
                    |text: &str| text.split_once('@').and_then(|(size, on)| number(size).zip(number(on)));
                let stages: Option<Vec<_>> = places.split(',').map(place).collect();
                stages.map(Self::Placed).ok_or_else(|| StageError::Text(text.escape_default().to_string()))
            }
            numbers => {
                let sizes: Result<Vec<u64>, _> =
                    numbers.split(',').map(|number| number.trim().parse()).collect();
                sizes.map(Self::Explicit).map_err(|_| StageError::Text(text.escape_default().to_string()))
            }
        }
    }
}

impl Serialize for StageSplit {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for StageSplit {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}
