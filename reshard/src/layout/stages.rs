//! Splitting layers over pipeline stages.
//!
//! A layer is known by the layer index of its tensors, or as a slice of a tensor that stacks all of them
//! (`pp:layers@0`). Experts are counted here too, layer by layer, since the part of `ep` that has one depends on how many
//! there are.
//!
//! Invariant of [`Stages`]: stages are contiguous in layer order and none is without a layer, unless the model has no
//! layers at all.

use std::{collections::BTreeMap, fmt, str::FromStr};

use fqn::{Registry, TensorId};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

mod weights;

use weights::{Weights, even};

/// How layers are split over stages. Text: `auto`, `weights`, or numbers of layers: `8,8,8,8`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum StageSplit {
    /// Contiguous and as even as can be; the first stages take one more.
    #[default]
    Auto,
    /// So many layers on each stage.
    Explicit(Vec<u64>),
    /// Contiguous, the heaviest stage as light as can be in bytes; embeddings count on the first stage, final norm and
    /// head on the last.
    Weights,
}

/// The stage of every layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stages {
    count: u64,
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
    #[error("{0:?} is no stage split; write `auto`, `weights`, or layers per stage: `8,8,8,8`")]
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
    /// An explicit split with a stage of no layers.
    #[error("stage split {0} leaves a stage without layers")]
    EmptyStage(String),
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
        Ok(Stages { count, of_layer, spans, experts: experts(registry) })
    }

    fn checked(&self, sizes: &[u64], layers: usize, stages: u64) -> Result<Vec<u64>, StageError> {
        let split = self.to_string();
        let given = sizes.iter().fold(0_u64, |sum, size| sum.saturating_add(*size));
        if u64::try_from(sizes.len()) != Ok(stages) {
            return Err(StageError::Count { split, given: sizes.len(), stages });
        }
        if sizes.contains(&0) {
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

    /// Number of layers on each stage.
    #[must_use]
    pub fn sizes(&self) -> Vec<u64> {
        let mut sizes: Vec<u64> = self.spans.iter().map(|(_, size)| *size).collect();
        sizes.resize(usize::try_from(self.count).unwrap_or(sizes.len()), 0);
        sizes
    }
}

impl fmt::Display for StageSplit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Weights => f.pad("weights"),
            Self::Explicit(sizes) => f.pad(&sizes.iter().map(u64::to_string).collect::<Vec<_>>().join(",")),
        }
    }
}

impl FromStr for StageSplit {
    type Err = StageError;
    fn from_str(text: &str) -> Result<Self, StageError> {
        match text {
            "auto" => Ok(Self::Auto),
            "weights" => Ok(Self::Weights),
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
