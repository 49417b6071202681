//! The command line: verbs, their options, and the options that every verb takes. One definition; help, completions
//! and errors come from it.

mod root;
mod write;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

use crate::{output, progress, subset::Share, target::Target};

pub(crate) use self::root::{Doctor, Du, Forget, Gc, Log, Ls, Pin, Tag};
pub(crate) use self::write::{Convert, Copy, Export, Naming, Part, Reshard, Seal, TargetFormat, Writing};

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
    /// Threads; when not given, one for each core, or 16 that read from a bucket.
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
