//! The command line: verbs and their options. Options with a dot in their name are values of the configuration.

use std::{ffi::OsString, path::PathBuf, process::ExitCode, time::Duration};

use clap::{Args, Parser, Subcommand};
use dcp::formats::native::{Revision, RevisionError};
use trainer::{
    Result,
    config::{self, Override, Resolved},
    launch::{Meeting, Shown},
};

use crate::verbs::{Schedule, doctor, plan, preflight};

/// Train a language model on a mesh of ranks, and launch the ranks.
#[derive(Debug, Parser)]
#[command(name = "ckpt-train", version, arg_required_else_help = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// What is done.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Train: as one rank where a launcher started this process, else in this process alone.
    Train(Train),
    /// Start ranks on this machine, alone or with launchers on others, and start all again when one dies.
    Launch(Launch),
    /// Check a configuration on this machine, however many ranks it has: each runs the first step, the others imagined, on a model
    /// shrunk to what the mesh still divides; then what all did is compared. Proves that groups, messages, collectives and shapes
    /// agree, and that nobody waits for what never comes. With --rank: one rank at its real sizes.
    Check(Check),
    /// Prove on this machine, in seconds, that the whole road holds: four workers train in a pipeline, one is killed, they start again from
    /// the last checkpoint, another mesh goes on; names, samples and losses are those of one process.
    Preflight(preflight::Preflight),
    /// Show the configuration that would be used, or all keys.
    Config(Config),
    /// Show which names each stage has, and that together they are all; write the model's baseline.
    Stages(Stages),
    /// Say what a run needs and how fast it will be: memory, traffic, bubble, all meshes ranked.
    Plan(Box<plan::Plan>),
    /// Look at training data and at the log of consumed samples.
    Data {
        /// What to look at.
        #[command(subcommand)]
        verb: Data,
    },
    /// Pipeline schedules: draw, check, simulate and compare them. Needs no model, data or ranks.
    Schedule {
        /// What to do.
        #[command(subcommand)]
        verb: Schedule,
    },
    /// Continue a text with the model of a checkpoint.
    Generate(Generate),
    /// Compare two runs: losses bit for bit, speed, memory, schedule.
    Compare(Compare),
    /// Say what a symptom means and what to do; or look for symptoms in a run.
    Doctor(doctor::Doctor),
    /// Make one trace of all ranks' traces, for Perfetto.
    Trace {
        /// The folder of the run's metrics.
        folder: PathBuf,
    },
    /// List the exit codes, and what the launcher does about each.
    ExitCodes,
    /// Becomes a worker that ends with its launcher.
    #[command(hide = true)]
    Guard {
        /// Process id of the launcher.
        launcher: u32,
        /// The worker's program and arguments.
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
}

/// Where the configuration comes from.
#[derive(Debug, Args)]
pub(crate) struct Source {
    /// A TOML file.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A value that wins over the file's; also --KEY=VALUE, as in --training.steps=100.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// Options of `check`.
#[derive(Debug, Args)]
pub(crate) struct Check {
    #[command(flatten)]
    pub(crate) source: Source,
    /// Run this rank alone, at its real sizes: what memory and time it takes, and what it sends beside what `plan` says.
    #[arg(long, value_name = "RANK")]
    pub(crate) rank: Option<usize>,
    /// Run all ranks at once, as threads: slower, and compares values too.
    #[arg(long, conflicts_with = "rank")]
    pub(crate) threads: bool,
    /// Print JSON, with what each rank sends.
    #[arg(long)]
    pub(crate) json: bool,
}

impl Source {
    /// Whether there is any: a file, or a value.
    pub(crate) const fn given(&self) -> bool {
        self.config.is_some() || !self.set.is_empty()
    }

    pub(crate) fn resolve(&self) -> Result<Resolved> {
        self.resolve_with(&[])
    }

    /// With settings that win over those of the command line.
    pub(crate) fn resolve_with(&self, more: &[String]) -> Result<Resolved> {
        let overrides: std::result::Result<Vec<Override>, _> =
            self.set.iter().chain(more).map(|text| text.parse()).collect();
        config::resolve(self.config.as_deref(), &overrides?)
    }
}

/// Options of `train`.
#[derive(Debug, Args)]
pub(crate) struct Train {
    #[command(flatten)]
    pub(crate) source: Source,
    /// Print the resolved configuration, with the origin of each value and its SHA-256, and end.
    #[arg(long)]
    pub(crate) print_config: bool,
}

/// Options of `config`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Config {
    #[command(subcommand)]
    pub(crate) verb: Option<ConfigVerb>,
    #[command(flatten)]
    pub(crate) source: Source,
    /// Print JSON, as it is stored in checkpoints.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `stages`.
#[derive(Debug, Args)]
pub(crate) struct Stages {
    #[command(flatten)]
    pub(crate) source: Source,
    /// Also show what each pipeline rank does in a step, in order.
    #[arg(long)]
    pub(crate) schedule: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Write names, shapes and places of the unsplit model to FILE: what `ckpt fqn check` holds a checkpoint to.
    #[arg(long, value_name = "FILE")]
    pub(crate) baseline: Option<PathBuf>,
}

/// Options of `compare`.
#[derive(Debug, Args)]
pub(crate) struct Compare {
    /// Metrics of one run: their folder, or a rank's file such as metrics/rank_00000.jsonl.
    pub(crate) first: PathBuf,
    /// And of the other.
    pub(crate) second: PathBuf,
    /// The curve to compare.
    #[arg(long, default_value = "loss_metrics/global_avg_loss", value_name = "NAME")]
    pub(crate) name: String,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What to show besides the configuration.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigVerb {
    /// All keys: what they take, their defaults, what they mean.
    Keys,
}

/// Options of `generate`.
#[derive(Debug, Args)]
pub(crate) struct Generate {
    /// The run's store: folder or URL.
    pub(crate) root: String,
    /// Which of its checkpoints: latest, latest~N, step:N, seq:N, tag:NAME.
    #[arg(long, default_value = "latest", value_name = "REVISION", value_parser = revision)]
    pub(crate) revision: Revision,
    /// The text to continue; its bytes are the tokens.
    #[arg(long, value_name = "TEXT")]
    pub(crate) prompt: String,
    /// How many tokens to add, each the likeliest.
    #[arg(long, default_value_t = 32, value_name = "N")]
    pub(crate) tokens: usize,
    /// Also write prompt, logits behind each of its tokens, and continuation as a safetensors file.
    #[arg(long, value_name = "FILE")]
    pub(crate) logits: Option<PathBuf>,
}

/// What to look at.
#[derive(Debug, Subcommand)]
pub(crate) enum Data {
    /// The files of a folder as training data: bytes, digests, samples.
    Describe {
        /// The folder.
        folder: PathBuf,
        /// Tokens of a sample.
        #[arg(long, default_value_t = 128)]
        seq_len: u64,
    },
    /// Prove that every sample was consumed exactly once.
    CheckLog {
        /// The log of consumed samples of a run.
        file: PathBuf,
    },
}

/// Options of `launch`. Names that torchrun has for them are understood too.
#[derive(Debug, Args)]
pub(crate) struct Launch {
    /// Ranks to start on this machine.
    #[arg(short, long, value_name = "N", aliases = ["nproc-per-node", "nproc_per_node"])]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) nproc: u16,
    /// How often all ranks are started again after a death.
    #[arg(long, default_value_t = 0, value_name = "N", alias = "max_restarts")]
    pub(crate) max_restarts: u32,
    /// How long ranks may take to end by themselves before they are killed.
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = lapse)]
    pub(crate) grace: Duration,
    /// Port of the store that ranks meet at; any free one, if not given.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: Option<u16>,
    /// Folder of rank_00000.log and its like.
    #[arg(long, default_value = "logs", value_name = "FOLDER", aliases = ["log-dir", "log_dir"])]
    pub(crate) logs: PathBuf,
    /// Whose output goes to the console: all, or ranks such as 0,3.
    #[arg(long, default_value = "all", value_name = "RANKS", env = "LOG_RANK")]
    pub(crate) show: Shown,
    /// Name of the run in the environment of its ranks; on several machines also what tells runs apart that use one address.
    #[arg(long, value_name = "NAME", aliases = ["rdzv-id", "rdzv_id"])]
    pub(crate) run_id: Option<String>,
    /// Start this program instead of `ckpt-train train`.
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) program: Option<OsString>,
    /// Arguments of `ckpt-train train`, or of the program.
    #[arg(last = true, value_name = "ARGUMENTS")]
    pub(crate) arguments: Vec<OsString>,
    // Last: its heading goes on to the end of the help.
    #[command(flatten)]
    pub(crate) machines: Machines,
}

/// Options of `launch` on several machines, where it is called once on each.
#[derive(Debug, Args)]
#[command(next_help_heading = "Several machines (call it once on each)")]
pub(crate) struct Machines {
    /// Machines of the run.
    #[arg(long, default_value = "1", value_name = "N", value_parser = nodes)]
    pub(crate) nnodes: u16,
    /// Which of them this is, from 0. Node 0 decides and serves the store; ranks are numbered machine by machine.
    #[arg(long, value_name = "I", alias = "node_rank")]
    pub(crate) node_rank: Option<u16>,
    /// Where node 0 listens: a name or address of it that every machine reaches it by, and a port.
    #[arg(long, value_name = "HOST:PORT", aliases = ["rdzv-endpoint", "rdzv_endpoint"])]
    pub(crate) rdzv: Option<Meeting>,
    /// How long machines wait for each other to come, and to come back after a loss.
    #[arg(long, default_value = "5m", value_name = "TIME", value_parser = lapse)]
    pub(crate) rdzv_timeout: Duration,
    /// How long a machine may be silent before it is taken for gone.
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = lapse)]
    pub(crate) node_timeout: Duration,
    /// As torchrun has it: the host of --rdzv.
    #[arg(long, hide = true, alias = "master_addr", conflicts_with = "rdzv")]
    master_addr: Option<String>,
    /// As torchrun has it: the port of --rdzv.
    #[arg(long, hide = true, alias = "master_port", default_value_t = 29_500, conflicts_with = "rdzv")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    master_port: u16,
    /// As torchrun has it. Ours is neither, and does the same.
    #[arg(long, hide = true, alias = "rdzv_backend", value_parser = ["c10d", "static"])]
    rdzv_backend: Option<String>,
}

impl Machines {
    /// Where node 0 listens, however it was said.
    pub(crate) fn meeting(&self) -> Option<Meeting> {
        let spelled = || self.master_addr.clone().map(|host| Meeting { host, port: self.master_port });
        self.rdzv.clone().or_else(spelled)
    }
}

fn nodes(text: &str) -> std::result::Result<u16, String> {
    match text.parse() {
        Ok(nodes @ 1..=4096) => Ok(nodes),
        _ if text.contains(':') => Err(format!(
            "{text:?} is a range, and ranks of a mesh are as many as it has: give one number of machines"
        )),
        _ => Err(format!("{text:?} is no number of machines from 1 to 4096")),
    }
}

fn revision(text: &str) -> std::result::Result<Revision, RevisionError> {
    text.parse()
}

fn lapse(text: &str) -> std::result::Result<Duration, String> {
    config::lapse(text).ok_or_else(|| format!("{text:?} is no length of time such as 500ms, 5s or 2m"))
}

/// The command line of this process; else what it ends with at once: help, version, or a refusal.
pub(crate) fn parse() -> std::result::Result<Cli, ExitCode> {
    parse_from(std::env::args_os())
}

/// As [`parse`], of these arguments.
pub(crate) fn parse_from(
    arguments: impl IntoIterator<Item = OsString>,
) -> std::result::Result<Cli, ExitCode> {
    Cli::try_parse_from(config::dotted(arguments)).map_err(|error| {
        // Help and version are no failures; a closed console is none of ours.
        let _ = error.print();
        ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(crate::exit::USAGE.number))
    })
}
