//! Names that people know from elsewhere (TorchTitan's, older releases', other trainers') and the canonical ones.
//!
//! Two kinds: plain renames, and degrees of single axes, which set one part of `parallelism.mesh`.

use super::{ConfigError, layer::Leaf};
use crate::mesh::{Axis, MeshShape};

/// Renames. The canonical name stands on the right.
const RENAMED: &[(&str, &str)] = &[
    ("training.batch_size", "training.global_batch"),
    ("training.global_batch_size", "training.global_batch"),
    ("training.local_batch_size", "training.micro_batch"),
    ("training.micro_batch_size", "training.micro_batch"),
    ("training.max_steps", "training.steps"),
    ("debug.seed", "training.seed"),
    ("model.name", "model.kind"),
    ("optimizer.beta", "optimizer.betas"),
    ("parallelism.pipeline_schedule", "parallelism.schedule"),
    ("parallelism.pipeline_parallel_schedule", "parallelism.schedule"),
    ("parallelism.pipeline_parallel_schedule_csv", "parallelism.schedule_csv"),
    ("parallelism.num_pp_microbatches", "training.microbatches"),
    ("parallelism.data_parallel_replicate_degree", "parallelism.dp_replicate"),
    ("parallelism.data_parallel_shard_degree", "parallelism.dp_shard"),
    ("parallelism.enable_sequence_parallel", "parallelism.sequence_parallel"),
    ("parallelism.fsdp.strategy", "fsdp.strategy"),
    ("parallelism.fsdp_strategy", "fsdp.strategy"),
    ("fsdp.sharding_strategy", "fsdp.strategy"),
    ("parallelism.fsdp.reshard_after_forward", "fsdp.reshard_after_forward"),
    ("parallelism.fsdp_reshard_after_forward", "fsdp.reshard_after_forward"),
    ("activation_checkpoint.selective_ac_option", "activation_checkpoint.selective"),
    ("checkpoint.folder", "checkpoint.root"),
    ("checkpoint.keep_latest_k", "checkpoint.keep_last"),
    ("metrics.save_tb_folder", "metrics.folder"),
    ("comm.init_timeout_seconds", "comm.start_timeout"),
    ("comm.train_timeout_seconds", "comm.step_timeout"),
    ("data.path", "data.folder"),
    ("training.dataset_path", "data.folder"),
];

/// Names of the degree of one axis.
const DEGREES: &[(&str, Axis)] = &[
    ("parallelism.data_parallel_degree", Axis::Dp),
    ("parallelism.dp", Axis::Dp),
    ("parallelism.pipeline_parallel_degree", Axis::Pp),
    ("parallelism.pp", Axis::Pp),
    ("parallelism.tensor_parallel_degree", Axis::Tp),
    ("parallelism.tp", Axis::Tp),
];

/// Sections that other trainers name otherwise.
const SECTIONS: &[(&str, &str)] =
    &[("parallel", "parallelism"), ("dataset", "data"), ("experimental", "parallelism")];

/// Words that mean a canonical one.
const WORDS: &[(&str, &str, &str)] = &[
    ("parallelism.schedule", "automatic", "Auto"),
    ("training.mixed_precision_param", "bf16", "bfloat16"),
    ("training.mixed_precision_param", "fp32", "float32"),
    ("training.mixed_precision_reduce", "bf16", "bfloat16"),
    ("training.mixed_precision_reduce", "fp32", "float32"),
    ("fsdp.strategy", "fsdp", "full_shard"),
    ("fsdp.strategy", "zero3", "full_shard"),
    ("fsdp.strategy", "zero2", "shard_grad_op"),
    ("fsdp.strategy", "hsdp", "hybrid_shard"),
    ("fsdp.strategy", "ddp", "no_shard"),
];

/// The key whose words may have capitals.
const STRATEGY: &str = "fsdp.strategy";

/// The canonical name of `key`; itself when it is none of ours or canonical already.
pub(super) fn canonical(key: &str) -> &str {
    RENAMED.iter().find(|(alias, _)| *alias == key).map_or(key, |(_, canonical)| canonical)
}

/// All names that are understood besides the canonical ones.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    RENAMED.iter().map(|(alias, _)| *alias).chain(DEGREES.iter().map(|(alias, _)| *alias))
}

/// A leaf, under its canonical name and word.
pub(super) fn renamed(mut leaf: Leaf) -> Leaf {
    let section = leaf.key.split_once('.').and_then(|(section, rest)| {
        SECTIONS
            .iter()
            .find(|(alias, _)| *alias == section)
            .map(|(_, canonical)| format!("{canonical}.{rest}"))
    });
    leaf.key = canonical(section.as_deref().unwrap_or(&leaf.key)).to_owned();
    // torch writes strategies in capitals.
    let text = leaf.value.as_str().map(str::to_ascii_lowercase).filter(|_| leaf.key == STRATEGY);
    if let Some(text) = text {
        leaf.value = toml::Value::from(text);
    }
    let word = WORDS.iter().find(|(key, word, _)| *key == leaf.key && leaf.value.as_str() == Some(word));
    if let Some((_, _, canonical)) = word {
        leaf.value = toml::Value::from(*canonical);
    }
    leaf
}

/// The axis and size that a leaf sets, if it is a degree. Absent (TorchTitan's -1) is no degree.
pub(super) fn degree(leaf: &Leaf) -> Option<Result<(Axis, usize), ConfigError>> {
    let (_, axis) = DEGREES.iter().find(|(alias, _)| *alias == leaf.key)?;
    let size = leaf.value.as_integer().and_then(|size| usize::try_from(size).ok()).filter(|size| *size > 0);
    let refused = || ConfigError::WrongValue {
        at: leaf.origin.clone(),
        key: leaf.key.clone(),
        found: leaf.value.to_string(),
        expected: "a whole number of at least 1".to_owned(),
    };
    Some(size.map(|size| (*axis, size)).ok_or_else(refused))
}

/// `mesh` with another size of one axis.
pub(super) const fn with(mesh: MeshShape, axis: Axis, size: usize) -> MeshShape {
    match axis {
        Axis::Dp => MeshShape { dp: size, ..mesh },
        Axis::Pp => MeshShape { pp: size, ..mesh },
        Axis::Tp => MeshShape { tp: size, ..mesh },
    }
}
