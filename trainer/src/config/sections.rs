//! The typed configuration: one struct per section, named as TorchTitan names them.
//!
//! Invariant: field names are the keys that `keys` declares (a test holds the two together); values that may be left out
//! are filled in by `resolve`, so that a resolved configuration has them all.

mod around;
mod choices;
mod model;

use std::time::Duration;

use dcp::codec::Codecs;
use serde::{Deserialize, Serialize};

pub use self::{
    around::{Comm, Debug, Metrics},
    choices::*,
    model::ModelTable,
};
use super::lapse;
use crate::mesh::MeshShape;

/// The whole configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Which model, and its own keys.
    pub model: ModelTable,
    /// AdamW.
    pub optimizer: Optimizer,
    /// Learning rate over steps.
    pub lr_scheduler: LrScheduler,
    /// Steps and batches.
    pub training: Training,
    /// The virtual mesh.
    pub exact: Exact,
    /// The real mesh.
    pub parallelism: Parallelism,
    /// What data-parallel ranks hold.
    pub fsdp: Fsdp,
    /// What of a forward stays for its backward.
    pub activation_checkpoint: ActivationCheckpoint,
    /// The text.
    pub data: Data,
    /// Saving and resuming.
    pub checkpoint: Checkpoint,
    /// What is recorded.
    pub metrics: Metrics,
    /// The transport.
    pub comm: Comm,
    /// Faults on purpose.
    pub debug: Debug,
}

/// AdamW.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "`keys` says what each means, for people and for the compiler once")]
pub struct Optimizer {
    pub lr: f64,
    pub betas: [f64; 2],
    pub eps: f64,
    pub weight_decay: f64,
    pub fused: bool,
}

impl Default for Optimizer {
    fn default() -> Self {
        Self { lr: 3e-4, betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1, fused: false }
    }
}

/// Learning rate over steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "`keys` says what each means")]
pub struct LrScheduler {
    pub warmup_steps: u64,
    pub decay_type: Decay,
    pub decay_steps: u64,
    pub min_lr_factor: f64,
}

impl Default for LrScheduler {
    fn default() -> Self {
        Self { warmup_steps: 0, decay_type: Decay::Cosine, decay_steps: 0, min_lr_factor: 0.1 }
    }
}

/// Steps and batches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "`keys` says what each means")]
pub struct Training {
    pub steps: u64,
    pub global_batch: u64,
    pub micro_batch: u64,
    pub microbatches: u64,
    pub seq_len: u64,
    pub seed: u64,
    pub max_norm: f64,
    pub mode: Mode,
    pub device: Device,
    pub mixed_precision_param: Numbers,
    pub mixed_precision_reduce: Numbers,
}

impl Default for Training {
    fn default() -> Self {
        Self {
            steps: 100,
            global_batch: 8,
            micro_batch: 1,
            microbatches: 0,
            seq_len: 128,
            seed: 0,
            max_norm: 1.0,
            mode: Mode::Exact,
            device: Device::Cpu,
            mixed_precision_param: Numbers::Float32,
            mixed_precision_reduce: Numbers::Float32,
        }
    }
}

/// The virtual mesh of exact mode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "`keys` says what each means")]
pub struct Exact {
    pub virtual_tp: u64,
}

/// The real mesh, and what runs on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "`keys` says what each means")]
pub struct Parallelism {
    #[serde(with = "mesh_text")]
    pub mesh: MeshShape,
    pub dp_replicate: u64,
    pub dp_shard: u64,
    pub schedule: String,
    pub schedule_csv: String,
    pub schedule_dialect: ScheduleDialect,
    pub stages_per_rank: u64,
    pub stage_split: StageSplit,
    pub live_microbatches: u64,
    pub ties: Ties,
    pub tp_across_nodes: bool,
    pub sequence_parallel: bool,
}

impl Default for Parallelism {
    fn default() -> Self {
        Self {
            mesh: MeshShape { dp: 1, pp: 1, tp: 1 },
            dp_replicate: 0,
            dp_shard: 0,
            schedule: "1F1B".to_owned(),
            schedule_csv: String::new(),
            schedule_dialect: ScheduleDialect::Auto,
            stages_per_rank: 0,
            stage_split: StageSplit::Auto,
            live_microbatches: 0,
            ties: Ties::Reject,
            tp_across_nodes: false,
            sequence_parallel: false,
        }
    }
}

impl Parallelism {
    /// The file that holds the schedule, if one does.
    #[must_use]
    pub fn schedule_file(&self) -> Option<&str> {
        let named = Some(self.schedule_csv.as_str()).filter(|path| !path.is_empty());
        named.or_else(|| {
            Some(self.schedule.as_str()).filter(|name| name.to_ascii_lowercase().ends_with(".csv"))
        })
    }
}

/// What data-parallel ranks hold of weights, moments and gradients.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "`keys` says what each means")]
pub struct Fsdp {
    pub strategy: Strategy,
    pub reshard_after_forward: Reshard,
    pub prefetch: bool,
}

impl Default for Fsdp {
    fn default() -> Self {
        Self { strategy: Strategy::FullShard, reshard_after_forward: Reshard::Default, prefetch: true }
    }
}

/// What of a forward stays for its backward.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "`keys` says what each means")]
pub struct ActivationCheckpoint {
    pub mode: Recomputed,
    pub selective: String,
    pub queue: bool,
}

impl Default for ActivationCheckpoint {
    fn default() -> Self {
        Self { mode: Recomputed::None, selective: "op".to_owned(), queue: false }
    }
}

/// How layers are shared out over stages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum StageSplit {
    /// So many layers to each stage, in order.
    Layers(Vec<u64>),
    /// Evenly; where there are fewer layers than stages, embedding and head count as a layer each.
    #[serde(with = "auto_text")]
    Auto,
}

/// The text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "`keys` says what each means")]
pub struct Data {
    pub folder: String,
}

/// Saving and resuming.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "`keys` says what each means")]
pub struct Checkpoint {
    pub root: String,
    pub run: String,
    pub interval: u64,
    pub keep_last: u64,
    #[serde(with = "lapse")]
    pub grace: Duration,
    pub codec: Codecs,
    pub share: bool,
    pub on_damage: OnDamage,
    pub on_save_failure: OnSaveFailure,
    pub verify: LoadProof,
    pub resume: Resume,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self {
            root: "checkpoints".to_owned(),
            run: "main".to_owned(),
            interval: 100,
            keep_last: 0,
            grace: Duration::from_secs(15 * 60),
            codec: Codecs::NONE,
            share: false,
            on_damage: OnDamage::Fallback,
            on_save_failure: OnSaveFailure::Stop,
            verify: LoadProof::Group,
            resume: Resume::Auto,
        }
    }
}

mod mesh_text {
    use serde::{Deserialize, Deserializer, Serializer, de};

    use crate::mesh::MeshShape;

    pub(super) fn serialize<S: Serializer>(mesh: &MeshShape, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(mesh)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<MeshShape, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

mod auto_text {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str("auto")
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<(), D::Error> {
        match String::deserialize(from)?.as_str() {
            "auto" => Ok(()),
            other => Err(de::Error::custom(format!("{other:?} is no stage split"))),
        }
    }
}
