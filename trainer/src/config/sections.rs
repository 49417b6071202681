//! The typed configuration: one struct per section, named as TorchTitan names them.
//!
//! Invariant: field names are the keys that `keys` declares (a test holds the two together); values that may be left out
//! are filled in by `resolve`, so that a resolved configuration has them all.

use std::time::Duration;

use dcp::codec::Codecs;
use serde::{Deserialize, Serialize};

use super::lapse;
use crate::mesh::MeshShape;

macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum $name { $($(#[$vdoc])* #[serde(rename = $text)] $variant,)* }

        impl $name {
            /// As they are written.
            pub const NAMES: &'static [&'static str] = &[$($text,)*];

            /// As it is written.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

choice! {
    /// How sums are made.
    Mode {
        /// The same bits on every mesh.
        Exact = "exact",
        /// In whatever order is fastest.
        Fast = "fast",
    }
}

choice! {
    /// What numbers are computed on or carried.
    Numbers {
        /// f32.
        Float32 = "float32",
        /// bf16.
        Bfloat16 = "bfloat16",
    }
}

choice! {
    /// How the learning rate falls after the warm-up.
    Decay {
        /// Not at all.
        Constant = "constant",
        /// In a straight line.
        Linear = "linear",
        /// Along half a cosine.
        Cosine = "cosine",
    }
}

choice! {
    /// How data parallelism shares out weights, moments and gradients; see [`Sharding`](super::Sharding).
    Strategy {
        /// All of them over all of dp; gathered weights are freed after each use (ZeRO-3).
        FullShard = "full_shard",
        /// All of them over all of dp; gathered weights stay until the end of the step (ZeRO-2).
        ShardGradOp = "shard_grad_op",
        /// Over dp_shard ranks, and repeated on dp_replicate.
        HybridShard = "hybrid_shard",
        /// Not at all: every rank has everything (DDP).
        NoShard = "no_shard",
    }
}

choice! {
    /// Whether gathered weights are freed after forward.
    Reshard {
        /// Without a pipeline, yes; with one, no, as every microbatch would gather them again.
        Default = "default",
        /// After each use.
        Always = "always",
        /// At the end of the step.
        Never = "never",
    }
}

choice! {
    /// What to do when the newest checkpoint is damaged.
    OnDamage {
        /// Name it and resume from the one before.
        Fallback = "fallback",
        /// Name it and stop.
        Stop = "stop",
    }
}

choice! {
    /// What proves the boxes that a rank loads.
    LoadProof {
        /// The fingerprints that the sums of all ranks add up to: a rank reads its own bytes alone.
        Group = "group",
        /// The blocks around each box: a rank reads them whole.
        Blocks = "blocks",
    }
}

choice! {
    /// How a token's operations are counted.
    FlopsFormula {
        /// 6 for each parameter but the table, and attention's.
        Palm = "palm",
        /// 6 for each parameter.
        SixN = "6n",
    }
}

choice! {
    /// What to do when a background save failed.
    OnSaveFailure {
        /// Stop at the next save or at the end.
        Stop = "stop",
        /// Say so and go on training.
        Continue = "continue",
    }
}

choice! {
    /// Whether to resume.
    Resume {
        /// From the newest checkpoint of the run, or from the beginning where there is none.
        Auto = "auto",
        /// From the newest checkpoint; having none is an error.
        Require = "require",
        /// Never; a run that has checkpoints is in the way.
        Never = "never",
    }
}

choice! {
    /// Transports.
    TransportKind {
        /// `gloo` where there are several processes, else `local`.
        Auto = "auto",
        /// Ranks are threads of this process.
        Local = "local",
        /// Ranks are processes; libtorch's gloo carries the tensors.
        Gloo = "gloo",
    }
}

choice! {
    /// When a send returns.
    CommMode {
        /// At once, as long as there is room.
        Async = "async",
        /// When the receiver has taken the message.
        Sync = "sync",
    }
}

choice! {
    /// What happens to a message on purpose.
    MessageFault {
        /// Nothing.
        None = "none",
        /// It is lost.
        Drop = "drop",
        /// The next one overtakes it.
        Swap = "swap",
        /// It ends too early.
        Cut = "cut",
        /// It has another shape.
        Shape = "shape",
        /// It has another dtype.
        Dtype = "dtype",
    }
}

choice! {
    /// What the letters of a schedule's file mean.
    ScheduleDialect {
        /// Found out from the file, and refused where that is not certain.
        Auto = "auto",
        /// I: gradient of inputs, B: of inputs and weights. torch since 2.6.
        Newer = "newer",
        /// B: gradient of inputs, BW: of inputs and weights. torch before.
        Older = "older",
    }
}

choice! {
    /// Which layers are computed again in backward.
    Recomputed {
        /// None.
        None = "none",
        /// All.
        Full = "full",
        /// Some of them, or all but their products.
        Selective = "selective",
    }
}

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

/// The model section: its kind, and keys that the kind defines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelTable {
    /// `llama` or `gpt2`.
    pub kind: String,
    /// The kind's own keys.
    #[serde(flatten)]
    pub keys: toml::Table,
}

impl Default for ModelTable {
    fn default() -> Self {
        Self { kind: "llama".to_owned(), keys: toml::Table::new() }
    }
}

impl ModelTable {
    /// Fills in what follows from other sections; yields the keys and from what they follow.
    pub(super) fn fill(&mut self, seq_len: u64) -> Vec<(&'static str, &'static str)> {
        let length = i64::try_from(seq_len).unwrap_or(i64::MAX);
        let derived = [("vocab", 256, "bytes as tokens"), ("max_length", length, "training.seq_len")];
        let missing = derived.into_iter().filter(|(name, ..)| !self.keys.contains_key(*name));
        let missing: Vec<_> = missing.collect();
        for (name, value, _) in &missing {
            self.keys.insert((*name).to_owned(), toml::Value::Integer(*value));
        }
        missing.into_iter().map(|(name, _, from)| (name, from)).collect()
    }

    /// The kind's own keys as the model's configuration type.
    ///
    /// # Errors
    /// `Config` for keys that the model does not have, and for missing ones.
    pub fn parsed<T: serde::de::DeserializeOwned>(&self) -> crate::Result<T> {
        toml::Value::Table(self.keys.clone()).try_into().map_err(|error: toml::de::Error| {
            crate::Error::config(format!("model.kind={}: {}", self.kind, error.message().trim_end()))
                .hint("`ckpt-train config keys` lists the keys of each model")
                .caused_by(error)
        })
    }
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
    /// Evenly; embedding and head count as a layer each.
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

/// What is recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "`keys` says what each means")]
pub struct Metrics {
    pub folder: String,
    pub log_freq: u64,
    pub tensorboard: bool,
    pub peak_tflops: f64,
    pub flops_formula: FlopsFormula,
    pub flops_per_token: f64,
    pub trace_first: u64,
    pub trace_steps: u64,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            folder: "metrics".to_owned(),
            log_freq: 10,
            tensorboard: false,
            peak_tflops: 0.0,
            flops_formula: FlopsFormula::Palm,
            flops_per_token: 0.0,
            trace_first: 0,
            trace_steps: 1,
        }
    }
}

/// The transport and its time limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "`keys` says what each means")]
pub struct Comm {
    pub transport: TransportKind,
    pub mode: CommMode,
    pub buffers: u64,
    #[serde(with = "lapse")]
    pub start_timeout: Duration,
    #[serde(with = "lapse")]
    pub step_timeout: Duration,
    pub dump_folder: String,
    pub dump_actions: u64,
}

impl Default for Comm {
    fn default() -> Self {
        Self {
            transport: TransportKind::Auto,
            mode: CommMode::Async,
            buffers: 32,
            start_timeout: Duration::from_secs(300),
            step_timeout: Duration::from_secs(100),
            dump_folder: "dumps".to_owned(),
            dump_actions: 64,
        }
    }
}

/// Faults on purpose. Steps count from 1; 0 means never. A rank dies or hangs in the run's first incarnation only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "`keys` says what each means")]
pub struct Debug {
    pub slow_save_step: u64,
    #[serde(with = "lapse")]
    pub slow_save: Duration,
    pub fail_save_step: u64,
    pub fail_save_rank: u64,
    pub nan_step: u64,
    pub nan_rank: u64,
    pub die_step: u64,
    pub die_rank: u64,
    pub hang_step: u64,
    pub hang_rank: u64,
    pub tensors_step: u64,
    pub tensors_folder: String,
    pub virtual_device: String,
    pub message_fault: MessageFault,
    pub message_step: u64,
    pub message_rank: u64,
}

impl Default for Debug {
    fn default() -> Self {
        Self {
            slow_save_step: 0,
            slow_save: Duration::ZERO,
            fail_save_step: 0,
            fail_save_rank: 0,
            nan_step: 0,
            nan_rank: 0,
            die_step: 0,
            die_rank: 0,
            hang_step: 0,
            hang_rank: 0,
            tensors_step: 0,
            tensors_folder: "tensors".to_owned(),
            virtual_device: OFF.to_owned(),
            message_fault: MessageFault::None,
            message_step: 0,
            message_rank: 0,
        }
    }
}

/// What `debug.virtual_device` is without one.
const OFF: &str = "off";

impl Debug {
    /// Whether actions sleep instead of computing.
    #[must_use]
    pub fn is_virtual(&self) -> bool {
        self.virtual_device != OFF
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
