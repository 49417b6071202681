//! Options of `ckpt-train schedule`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use schedule::{Goal, csv::Dialect};

use super::numbers::{Amounts, Durations, amount, amounts, durations, share};
use crate::cli::Source;

/// What to do with a schedule.
#[derive(Debug, Subcommand)]
pub(crate) enum Schedule {
    /// Draw it: on the terminal, as SVG, as a Chrome trace; or write it as CSV.
    Show(Show),
    /// Validate it, lower it, and check that its communication is safe; say where it is not.
    Check(Check),
    /// Say how long it takes, what of that is idle, and what each rank holds; beside what the literature's formulas say.
    Simulate(Simulate),
    /// Compare all schedules, or those named, for the same numbers: the fastest within the memory limit first.
    Compare(Compare),
}

/// Which schedule.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// Its name, as in 1F1B or ZBH1; `auto` makes one for --times, --memory and --limit.
    #[arg(conflicts_with = "csv")]
    pub(crate) name: Option<String>,
    /// Read it from a CSV file: one row for each rank, one cell for each action.
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// What B means in the file: newer (both gradients) or older (that of the inputs); found out if it can be.
    #[arg(long, value_name = "DIALECT", requires = "csv")]
    pub(crate) dialect: Option<Dialect>,
    #[command(flatten)]
    pub(crate) numbers: Numbers,
}

/// What a schedule is for. Without --pp and --microbatches they come from the configuration.
#[derive(Debug, Args)]
pub(crate) struct Numbers {
    /// Pipeline ranks.
    #[arg(long, value_name = "P")]
    pub(crate) pp: Option<usize>,
    /// Microbatches of a step.
    #[arg(short, long, value_name = "M")]
    pub(crate) microbatches: Option<usize>,
    /// Stages of each rank; as few as the schedule takes, if not given.
    #[arg(long, value_name = "V")]
    pub(crate) stages_per_rank: Option<usize>,
    /// Times of forward, input gradient, weight gradient and, if it takes any, a transfer: of a rank's share of a
    /// microbatch; or, given once for each stage, of the stages.
    #[arg(long, value_name = "F,I,W[,T]", value_parser = durations)]
    pub(crate) times: Vec<Durations>,
    /// Which share of the weight gradients can be computed apart from the input gradients, from 0 to 1.
    #[arg(long, value_name = "SHARE", default_value = "1", value_parser = share)]
    pub(crate) splittable: f64,
    /// Memory of a microbatch's activations, of what of them is left for the weight gradient, and of weights and optimizer:
    /// of a rank's share, or once for each stage; as in 1.5GiB. Without it, microbatches are counted.
    #[arg(long, value_name = "A[,K[,WEIGHTS]]", value_parser = amounts)]
    pub(crate) memory: Vec<Amounts>,
    /// The most that a rank may hold, as memory is counted; once, or once for each rank.
    #[arg(long, value_name = "AMOUNT", value_parser = amount)]
    pub(crate) limit: Vec<f64>,
    /// What `auto` makes short: the makespan, or the longest rank's own time (steps without a barrier between them).
    #[arg(long, value_enum, default_value_t = Short::Makespan)]
    pub(crate) goal: Short,
    #[command(flatten)]
    pub(crate) source: Source,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What an automatic schedule makes short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Short {
    /// From the first start to the last end of all ranks.
    Makespan,
    /// From a rank's own first start to its own last end.
    LongestRank,
}

impl From<Short> for Goal {
    fn from(short: Short) -> Self {
        match short {
            Short::Makespan => Self::Makespan,
            Short::LongestRank => Self::LongestRank,
        }
    }
}

/// As what a schedule is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For the terminal.
    Text,
    /// A picture.
    Svg,
    /// A trace for chrome://tracing or Perfetto.
    Chrome,
    /// A file that torch, and `parallelism.schedule`, read.
    Csv,
}

/// Whether to print colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Colour {
    /// Where the output is a terminal, and NO_COLOR is not set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Options of `show`.
#[derive(Debug, Args)]
pub(crate) struct Show {
    #[command(flatten)]
    pub(crate) which: Which,
    /// As what.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
    /// Write it to FILE.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// With communication as it is after lowering: sends and receives that hold both ranks.
    #[arg(long)]
    pub(crate) lowered: bool,
    /// Columns; the terminal's, or 100.
    #[arg(long, value_name = "COLUMNS")]
    pub(crate) width: Option<usize>,
    /// Whether to print colours.
    #[arg(long, value_enum, default_value_t = Colour::Auto)]
    pub(crate) color: Colour,
}

/// Options of `check`.
#[derive(Debug, Args)]
pub(crate) struct Check {
    #[command(flatten)]
    pub(crate) which: Which,
}

/// Options of `simulate`.
#[derive(Debug, Args)]
pub(crate) struct Simulate {
    #[command(flatten)]
    pub(crate) which: Which,
    /// Also run it as lowered, with blocking sends and receives.
    #[arg(long)]
    pub(crate) lowered: bool,
}

/// Options of `compare`.
#[derive(Debug, Args)]
pub(crate) struct Compare {
    /// Names; all, if none is given.
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) numbers: Numbers,
}
