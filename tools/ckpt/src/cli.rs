//! The command line: verbs, their options, and the options that every verb takes. One definition; help, completions
//! and errors come from it.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

use crate::{output, progress, subset::Share, target::Target, verbs::Worker};

const DEFAULT_MEMORY: &str = "512MiB";

/// See inside, prove, reshard and convert checkpoints.
#[derive(Debug, Parser)]
#[command(
    name = "ckpt",
    version,
    disable_help_subcommand = true,
    arg_required_else_help = true,
    max_term_width = 100
)]
#[command(after_help = "Formats are detected from content. `ckpt help exit-codes` lists the exit codes, \
    `ckpt help targets` how checkpoints are named, `ckpt help meshes` how meshes are written, \
    `ckpt help retention` what stays and what goes.")]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// Options that every verb takes.
#[derive(Debug, Args)]
pub(crate) struct Global {
    /// How results are printed.
    #[arg(long, global = true, value_enum, default_value = "auto", value_name = "MODE", env = "CKPT_FORMAT")]
    #[arg(help_heading = "Output")]
    format: output::Mode,
    /// Print one JSON object; the same as --format json.
    #[arg(long, global = true, help_heading = "Output")]
    json: bool,
    /// Print names or paths only.
    #[arg(short, long, global = true, help_heading = "Output")]
    pub(crate) quiet: bool,
    /// Never shorten a name to fit the terminal.
    #[arg(long, global = true, help_heading = "Output")]
    no_truncate: bool,
    /// When to colour.
    #[arg(
        long,
        global = true,
        value_enum,
        default_value = "auto",
        value_name = "WHEN",
        help_heading = "Output"
    )]
    color: When,
    /// How progress is shown, on stderr.
    #[arg(
        long,
        global = true,
        value_enum,
        default_value = "auto",
        value_name = "MODE",
        env = "CKPT_PROGRESS"
    )]
    #[arg(help_heading = "Output")]
    pub(crate) progress: progress::Mode,
    /// Memory that moving data may take.
    #[arg(long, global = true, value_parser = output::units::parse_bytes, default_value = DEFAULT_MEMORY)]
    #[arg(value_name = "SIZE", env = "CKPT_MAX_MEMORY", help_heading = "Performance")]
    pub(crate) max_memory: u64,
    /// Threads; all cores when not given.
    #[arg(short, long, global = true, value_name = "N", env = "CKPT_JOBS", help_heading = "Performance")]
    pub(crate) jobs: Option<NonZeroUsize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum When {
    Auto,
    Always,
    Never,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Show what is inside: step, mesh, tensors, placement, files. Reads metadata only.
    Inspect(Inspect),
    /// Check that a checkpoint is whole: every checksum, box cover, sizes, orphans. Reads everything.
    Verify(Verify),
    /// Give a foreign checkpoint hashes, fingerprints and a commit, without rewriting a byte of it.
    Seal(Seal),
    /// Write a checkpoint in another format, layout or naming.
    Convert(Convert),
    /// Write a checkpoint for another mesh.
    Reshard(Reshard),
    /// Write the model in a form that other software loads: safetensors, a Hugging Face folder, .pt, torch DCP.
    Export(Export),
    /// Copy checkpoints of a native store into a root, byte for byte, so that they need no other folder.
    Copy(Copy),
    /// Compare two checkpoints, tensor by tensor, worst first.
    Diff(Diff),
    /// List the checkpoints of a root, newest first.
    Ls(Ls),
    /// Show the records of a root, newest first, and why some have no effect.
    Log(Log),
    /// Name a checkpoint; a named one is never forgotten.
    Tag(Tag),
    /// Protect a checkpoint from being forgotten.
    Pin(Pin),
    /// Forget checkpoints by a policy, and say why each stays or goes. Their bytes go with `gc`.
    Forget(Forget),
    /// Delete what nothing needs, in two steps with a grace period between them.
    Gc(Gc),
    /// Show what takes how much space in a root.
    Du(Du),
    /// Examine a place: file system, durability, clocks, log, leftovers.
    Doctor(Doctor),
    /// Names: write a baseline, or check a checkpoint against one.
    #[command(subcommand)]
    Fqn(FqnVerb),
    /// Explain a topic or a verb: exit-codes, targets, meshes, formats, placement, retention.
    Help(Help),
    /// Print shell completions.
    Completions(Completions),
}

/// Show what is inside.
#[derive(Debug, Args)]
pub(crate) struct Inspect {
    /// Checkpoint: PATH[@REVISION][#FQN-GLOB].
    pub(crate) target: Target,
    /// One line per tensor; repeated layers are not folded.
    #[arg(long)]
    pub(crate) tensors: bool,
    /// Every chunk: its box, file and offset.
    #[arg(long)]
    pub(crate) shards: bool,
    /// Files, with sizes and checksums.
    #[arg(long)]
    pub(crate) files: bool,
    /// Non-tensor state, with its values.
    #[arg(long)]
    pub(crate) objects: bool,
    /// Only tensors whose FQN matches this glob; the same as #GLOB.
    #[arg(long, value_name = "GLOB")]
    pub(crate) filter: Option<String>,
    /// Order of tensors.
    #[arg(long, value_enum, default_value = "stored", value_name = "ORDER")]
    pub(crate) sort: Sort,
    /// Print values: FQN or FQN[0:10, 5]; reads just these bytes.
    #[arg(long, value_name = "FQN[SLICE]")]
    pub(crate) value: Option<String>,
    /// With --value: read these bytes only, without the blocks around them that would prove them.
    #[arg(long, requires = "value")]
    pub(crate) unverified: bool,
}

/// Order of tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// As stored.
    Stored,
    /// By name.
    Name,
    /// Largest first.
    Size,
}

/// Check that a checkpoint is whole.
#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// Checkpoint: PATH or PATH@REVISION.
    pub(crate) target: Target,
    /// Check metadata and sizes only; read no tensor data.
    #[arg(long)]
    pub(crate) structure_only: bool,
    /// Read only a part of the data: 10%, 5GiB, or 3/7; parts 1/7 to 7/7 together read every block once.
    #[arg(long, value_name = "PART", conflicts_with = "structure_only")]
    pub(crate) subset: Option<Share>,
    /// With --subset: another number divides the data into other parts.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "subset")]
    pub(crate) subset_seed: u64,
    /// Note in the root's log what was found: the newest checkpoint that was found whole is never forgotten.
    #[arg(long, conflicts_with_all = ["structure_only", "subset"])]
    pub(crate) record: bool,
}

/// List checkpoints.
#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// Root: PATH or URL.
    pub(crate) root: Target,
    /// Only those of this run.
    #[arg(long, value_name = "RUN")]
    pub(crate) run: Option<String>,
    /// Meshes and metrics too; opens each checkpoint.
    #[arg(short, long)]
    pub(crate) long: bool,
}

/// Show the log.
#[derive(Debug, Args)]
pub(crate) struct Log {
    /// Root: PATH or URL.
    pub(crate) root: Target,
    /// Show so many records; 0 for all.
    #[arg(long, default_value_t = 20, value_name = "N")]
    pub(crate) limit: usize,
}

/// Name a checkpoint.
#[derive(Debug, Args)]
pub(crate) struct Tag {
    /// Checkpoint: ROOT or ROOT@REVISION; the newest when no revision is given.
    pub(crate) target: Target,
    /// The name; one that another checkpoint has moves.
    pub(crate) name: String,
    /// Take the name away.
    #[arg(long)]
    pub(crate) delete: bool,
}

/// Protect a checkpoint.
#[derive(Debug, Args)]
pub(crate) struct Pin {
    /// Checkpoint: ROOT or ROOT@REVISION; the newest when no revision is given.
    pub(crate) target: Target,
    /// Protect it no longer.
    #[arg(long)]
    pub(crate) release: bool,
}

/// Forget checkpoints by a policy.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("policy").required(true).multiple(true)))]
pub(crate) struct Forget {
    /// Root: PATH or URL.
    pub(crate) root: Target,
    /// Keep the newest N of each run's line.
    #[arg(long, value_name = "N", group = "policy", help_heading = "What stays")]
    pub(crate) keep_last: Option<NonZeroUsize>,
    /// Keep the first checkpoint of every K training steps.
    #[arg(long, value_name = "K", group = "policy", help_heading = "What stays")]
    pub(crate) keep_every: Option<NonZeroU64>,
    /// Keep what is no older than this, by the store's clock: 14d, 36h, 90m.
    #[arg(long, value_name = "PERIOD", value_parser = output::units::parse_period, group = "policy")]
    #[arg(help_heading = "What stays")]
    pub(crate) keep_within: Option<Duration>,
    /// Keep the best N by a metric that was saved: loss:min:3, accuracy:max. Repeatable.
    #[arg(long, value_name = "METRIC:min|max[:N]", group = "policy", help_heading = "What stays")]
    pub(crate) keep_best: Vec<String>,
    /// Only of this run; each run by itself when not given.
    #[arg(long, value_name = "RUN")]
    pub(crate) run: Option<String>,
    /// Show what would stay and go, and forget nothing. Where ages matter, the store is asked for the time by an empty object that is removed.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Collect garbage.
#[derive(Debug, Args)]
pub(crate) struct Gc {
    /// Root: PATH or URL.
    pub(crate) root: Target,
    /// How long readers of forgotten checkpoints have to finish.
    #[arg(long, value_name = "PERIOD", value_parser = output::units::parse_period, default_value = "1d")]
    pub(crate) grace: Duration,
    /// After how long without a write a save without a commit counts as stopped.
    #[arg(long, value_name = "PERIOD", value_parser = output::units::parse_period, default_value = "1d")]
    pub(crate) orphans_after: Duration,
    /// Also what holds a manifest that no record names: a save stopped at its last moment, or a checkpoint whose record was lost.
    #[arg(long, help_heading = "Dangerous")]
    pub(crate) sealed: bool,
    /// Show what would be condemned and deleted, and change nothing. Where ages matter, the store is asked for the time by an empty object that
    /// is removed.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Show what takes space.
#[derive(Debug, Args)]
pub(crate) struct Du {
    /// Root: PATH or URL.
    pub(crate) root: Target,
}

/// Examine a place.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Root, or a folder or URL that shall become one.
    pub(crate) root: Target,
}

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
    /// TOML file of placement and rename rules.
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
    /// Leave out per-rank state that has no meaning on another mesh.
    #[arg(long, help_heading = "Dangerous")]
    pub(crate) drop_per_rank: bool,
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

/// Compare two checkpoints.
#[derive(Debug, Args)]
pub(crate) struct Diff {
    /// First checkpoint.
    pub(crate) a: Target,
    /// Second checkpoint.
    pub(crate) b: Target,
    /// How closely to look.
    #[arg(long, value_enum, default_value = "values", value_name = "LEVEL")]
    pub(crate) level: Level,
    /// Show so many tensors; 0 for all.
    #[arg(long, default_value_t = 10, value_name = "N")]
    pub(crate) top: usize,
    /// Only this part of the state.
    #[arg(long, value_enum, default_value = "all")]
    pub(crate) only: Part,
}

/// How closely `diff` looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Level {
    /// Fingerprints where both sides have them; no data is read then.
    Hash,
    /// Values: how far apart, and where.
    Values,
}

/// Names.
#[derive(Debug, Subcommand)]
pub(crate) enum FqnVerb {
    /// Write the table of names, shapes, dtypes and roles as JSON.
    Baseline(Baseline),
    /// Check a checkpoint against a baseline.
    Check(Check),
}

/// Write a baseline.
#[derive(Debug, Args)]
pub(crate) struct Baseline {
    /// Checkpoint: PATH or PATH@REVISION.
    pub(crate) target: Target,
    /// File to write; stdout when not given.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) naming: Naming,
}

/// Check against a baseline.
#[derive(Debug, Args)]
pub(crate) struct Check {
    /// Checkpoint: PATH or PATH@REVISION.
    pub(crate) target: Target,
    /// Baseline file.
    #[arg(long, value_name = "FILE")]
    pub(crate) baseline: PathBuf,
    /// Check the model's tensors only.
    #[arg(long)]
    pub(crate) model_only: bool,
}

/// Explain a topic.
#[derive(Debug, Args)]
pub(crate) struct Help {
    /// Topic or verb.
    pub(crate) topic: Option<String>,
}

/// Print shell completions.
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// Shell.
    pub(crate) shell: clap_complete::Shell,
}

impl Global {
    /// The output mode, `auto` resolved.
    pub(crate) fn mode(&self) -> output::Mode {
        match self.format {
            _ if self.json => output::Mode::Json,
            output::Mode::Auto if output::terminal_width().is_some() => output::Mode::Human,
            output::Mode::Auto => output::Mode::Plain,
            mode => mode,
        }
    }

    /// Width to fit lines into.
    pub(crate) fn width(&self) -> Option<usize> {
        if self.no_truncate { None } else { output::terminal_width() }
    }

    fn apply_color(&self) {
        match self.color {
            When::Always => anstream::ColorChoice::Always.write_global(),
            When::Never => anstream::ColorChoice::Never.write_global(),
            When::Auto => {}
        }
    }
}

/// Reads the command line; `Err` is the exit code of a run that ends here (help, version, wrong usage).
pub(crate) fn parse() -> Result<Cli, ExitCode> {
    match Cli::try_parse() {
        Ok(cli) => {
            cli.global.apply_color();
            Ok(cli)
        }
        Err(error) => {
            // Nothing can be done when the terminal is gone.
            let _ = error.print();
            Err(ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(crate::exit::USAGE.number)))
        }
    }
}

/// The definition, for completions and help.
pub(crate) fn command() -> clap::Command {
    Cli::command()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        command().debug_assert();
    }
}
