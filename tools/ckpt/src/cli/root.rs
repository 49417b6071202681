//! Options of the verbs about a root's history: `ls`, `log`, `tag`, `pin`, `forget`, `gc`, `du`, `doctor`.

use std::num::{NonZeroU64, NonZeroUsize};
use std::time::Duration;

use clap::Args;

use crate::{output, target::Target};

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
