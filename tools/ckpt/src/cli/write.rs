//! Options of the verbs that write checkpoints: `seal`, `convert`, `reshard`, `export`, `copy`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::{output, target::Target, verbs::Worker};

/// Seal a foreign checkpoint.
#[derive(Debug, Args)]
pub(crate) struct Seal {
    /// The foreign checkpoint; it stays untouched.
    pub(crate) target: Target,
    /// Root that the manifest is committed to; PATH.sealed beside the checkpoint when not given.
    #[arg(long, value_name = "ROOT")]
    pub(crate) into: Option<String>,
    #[command(flatten)]
    pub(crate) naming: Naming,
    /// Training step to record, where the checkpoint does not say.
    #[arg(long, value_name = "N")]
    pub(crate) step: Option<u64>,
}

/// How names get placement rules.
#[derive(Debug, Args, Default)]
pub(crate) struct Naming {
    /// Placement preset; detected from the names when not given.
    #[arg(long, value_name = "NAME", help_heading = "Placement")]
    pub(crate) preset: Option<String>,
    /// TOML file of placement and rename rules, of rules for rank state, and of names that stack.
    #[arg(long, value_name = "FILE", help_heading = "Placement")]
    pub(crate) rules: Option<PathBuf>,
    /// One placement rule: layers.*.wq.weight=tp:0,dp:0. Repeatable; later ones win.
    #[arg(long, value_name = "GLOB=RULE", help_heading = "Placement")]
    pub(crate) place: Vec<String>,
    /// Attention heads, where shapes do not tell.
    #[arg(long, value_name = "N", help_heading = "Model facts")]
    pub(crate) heads: Option<u64>,
    /// Key/value heads, where shapes do not tell.
    #[arg(long, value_name = "N", help_heading = "Model facts")]
    pub(crate) kv_heads: Option<u64>,
    /// Folder of a config.json (and tokenizer files) that states the model's facts; passed through to Hugging Face exports.
    #[arg(long, value_name = "DIR", help_heading = "Model facts")]
    pub(crate) config: Option<PathBuf>,
}

/// What to write and how.
#[derive(Debug, Args)]
pub(crate) struct Writing {
    /// Only this part of the state.
    #[arg(long, value_enum, default_value = "all", help_heading = "Selection")]
    pub(crate) only: Part,
    /// Cast floating-point model tensors.
    #[arg(long, value_name = "DTYPE", help_heading = "Selection")]
    pub(crate) dtype: Option<String>,
    /// Write names of this dialect: hf, torchtitan.
    #[arg(long, value_name = "DIALECT", help_heading = "Selection")]
    pub(crate) names: Option<String>,
    /// What becomes of state that each data rank has of its own: dataloader.token_buffer=concat; also same, interleave, sum, ranks, drop.
    /// Repeatable; later ones win. See `ckpt help rank-state`.
    #[arg(long, value_name = "PATH=HOW", help_heading = "Selection")]
    pub(crate) rank_state: Vec<String>,
    /// Make one tensor of members of their own: 'MEMBERS=STACK@AXIS', or a word for the pairs that rules and presets know:
    /// experts, layers. Repeatable; `ckpt help stacking`.
    #[arg(long, value_name = "NAMES", help_heading = "Stacking")]
    pub(crate) stack: Vec<String>,
    /// Take a stack apart into its members: the same texts and words. Repeatable; done before --stack.
    #[arg(long, value_name = "NAMES", help_heading = "Stacking")]
    pub(crate) unstack: Vec<String>,
    /// Leave out state of single ranks that can't follow to another mesh.
    #[arg(long, help_heading = "Dangerous")]
    pub(crate) drop_per_rank: bool,
    /// Go on with a stopped run of the same command, and refuse where there is none. Without it a stopped run is gone on with too.
    #[arg(long, conflicts_with_all = ["dry_run", "plan"], help_heading = "Plan")]
    pub(crate) resume: bool,
    /// Show the plan and write nothing.
    #[arg(long, help_heading = "Plan")]
    pub(crate) dry_run: bool,
    /// Write the plan as JSON to this file, and nothing else.
    #[arg(long, value_name = "FILE", help_heading = "Plan")]
    pub(crate) plan: Option<PathBuf>,
    /// Run only if the plan equals the one in this file.
    #[arg(long, value_name = "FILE", conflicts_with = "plan", help_heading = "Plan")]
    pub(crate) apply: Option<PathBuf>,
    /// Read everything back and compare after writing.
    #[arg(long, help_heading = "Performance")]
    pub(crate) verify: bool,
}

/// Which part of the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// Everything.
    All,
    /// Parameters and buffers.
    Model,
    /// Optimizer state.
    Optimizer,
}

/// Write in another format, layout or naming.
#[derive(Debug, Args)]
pub(crate) struct Convert {
    /// Source checkpoint: PATH[@REVISION][#FQN-GLOB].
    pub(crate) source: Target,
    /// Target; must not exist, except a native root, which gains a commit.
    pub(crate) target: String,
    /// Target format.
    #[arg(long = "as", value_enum, default_value = "native", value_name = "FORMAT")]
    pub(crate) target_format: TargetFormat,
    /// Mesh the source was written on, where it does not say; checked where it does.
    #[arg(long, value_name = "MESH")]
    pub(crate) from: Option<String>,
    /// Mesh to lay the target out for: 4x2x8, or dp=4,pp=2,tp=8.
    #[arg(long, value_name = "MESH")]
    pub(crate) to: Option<String>,
    /// How layers are split over pp: auto, weights, or a list like 8,8,8,8; as the source records, else auto.
    #[arg(long, value_name = "SPLIT")]
    pub(crate) stage_split: Option<String>,
    /// Largest shard of a Hugging Face target, as few as that takes; by default 5GB, and 2, 4 or 8 where each has 256MB.
    #[arg(long, value_parser = output::units::parse_bytes, value_name = "SIZE")]
    pub(crate) max_shard_size: Option<u64>,
    /// Training step to record, where the source does not say.
    #[arg(long, value_name = "N")]
    pub(crate) step: Option<u64>,
    /// Compress a native target: none, zstd, planes (byte planes, then zstd), or by role: exp_avg=planes,param=none.
    #[arg(long, value_name = "CODEC")]
    pub(crate) codec: Option<dcp::codec::Codecs>,
    /// Write only this share of the files, as one of several workers: i/N, auto (as torchrun, SLURM or Open MPI say) or auto/N
    /// (Kubernetes). Who finishes last commits.
    #[arg(long, env = "CKPT_WORKER", value_name = "I/N", help_heading = "Performance")]
    pub(crate) worker: Option<Worker>,
    #[command(flatten)]
    pub(crate) naming: Naming,
    #[command(flatten)]
    pub(crate) writing: Writing,
}

/// Formats that can be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TargetFormat {
    /// Our own store.
    Native,
    /// torch.distributed.checkpoint.
    TorchDcp,
    /// A Hugging Face folder.
    Hf,
    /// One safetensors file.
    Safetensors,
    /// A torch.save archive.
    Pt,
}

/// Write for another mesh.
#[derive(Debug, Args)]
pub(crate) struct Reshard {
    /// Source checkpoint: PATH[@REVISION][#FQN-GLOB].
    pub(crate) source: Target,
    /// Target root; the source's own root gains a commit when not given.
    pub(crate) target: Option<String>,
    /// Mesh the checkpoint is laid out for; refused when it says otherwise.
    #[arg(long, value_name = "MESH")]
    pub(crate) from: Option<String>,
    /// Mesh to lay it out for: 8x1x8, or dp=8,pp=1,tp=8.
    #[arg(long, value_name = "MESH")]
    pub(crate) to: String,
    /// How layers are split over pp: auto, weights, or a list like 8,8,8,8; as the source records, else auto.
    #[arg(long, value_name = "SPLIT")]
    pub(crate) stage_split: Option<String>,
    /// Compress the target: none, zstd, planes (byte planes, then zstd), or by role: exp_avg=planes,param=none.
    #[arg(long, value_name = "CODEC")]
    pub(crate) codec: Option<dcp::codec::Codecs>,
    /// Write only this share of the files, as one of several workers: i/N, auto (as torchrun, SLURM or Open MPI say) or auto/N
    /// (Kubernetes). Who finishes last commits.
    #[arg(long, env = "CKPT_WORKER", value_name = "I/N", help_heading = "Performance")]
    pub(crate) worker: Option<Worker>,
    #[command(flatten)]
    pub(crate) naming: Naming,
    #[command(flatten)]
    pub(crate) writing: Writing,
}

/// Write the model for other software.
#[derive(Debug, Args)]
pub(crate) struct Export {
    /// Source checkpoint: PATH[@REVISION][#FQN-GLOB].
    pub(crate) source: Target,
    /// Target; must not exist.
    pub(crate) target: String,
    /// Target format.
    #[arg(long = "as", value_enum, default_value = "hf", value_name = "FORMAT")]
    pub(crate) target_format: TargetFormat,
    /// Largest shard of a Hugging Face target, as few as that takes; by default 5GB, and 2, 4 or 8 where each has 256MB.
    #[arg(long, value_parser = output::units::parse_bytes, value_name = "SIZE")]
    pub(crate) max_shard_size: Option<u64>,
    #[command(flatten)]
    pub(crate) naming: Naming,
    #[command(flatten)]
    pub(crate) writing: Writing,
}

/// Copy into a root.
#[derive(Debug, Args)]
pub(crate) struct Copy {
    /// Checkpoints of native stores: PATH or PATH@REVISION.
    #[arg(required = true, num_args = 1..)]
    pub(crate) sources: Vec<Target>,
    /// Root to copy them to; it gains commits.
    #[arg(required = true)]
    pub(crate) target: String,
    /// Every checkpoint of the root, oldest first, but for what was copied before and forgotten in the target.
    #[arg(long)]
    pub(crate) all: bool,
    /// Run to commit them to; their own when not given.
    #[arg(long, value_name = "NAME")]
    pub(crate) run: Option<String>,
    /// Name for the copy.
    #[arg(long, value_name = "NAME")]
    pub(crate) tag: Option<String>,
    /// Show what would be copied and write nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
}
