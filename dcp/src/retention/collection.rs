//! How garbage is collected, and what a collection did.

use std::time::Duration;

use serde::Serialize;

use super::survey::Bulk;
use crate::commit::{DirName, Label, Seq};

/// How garbage is collected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GcOptions {
    /// How long readers of what was retired have to finish, from the condemnation on.
    pub grace: Duration,
    /// For how long nothing was written to what no record names, before it is taken for a stopped save.
    pub orphans_after: Duration,
    /// Whether a folder with a manifest that no record names counts as a stopped save too. It may be a whole checkpoint whose record was lost, or
    /// one that is being copied here, so this is for people to decide.
    pub sealed: bool,
    /// Whether single unfinished files and left probes that are as old are removed: right in the root, beside the log, and in folders that
    /// checkpoints need. It takes a walk over these.
    pub sweep: bool,
    /// Whether nothing is done. Where ages matter, the store is asked for the time all the same, by an empty object that is put and removed.
    pub dry_run: bool,
}

impl GcOptions {
    /// A day: longer than any save takes, and any writer sleeps that shall go on.
    pub const ORPHANS_AFTER: Duration = Duration::from_secs(86_400);

    /// Everything, with this grace period.
    #[must_use]
    pub const fn after(grace: Duration) -> Self {
        Self { grace, orphans_after: Self::ORPHANS_AFTER, sealed: false, sweep: true, dry_run: false }
    }

    /// Directories only, as a trainer collects between its steps.
    #[must_use]
    pub const fn without_sweep(mut self) -> Self {
        self.sweep = false;
        self
    }
}

/// Why a directory is garbage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Its checkpoint was retired, and nothing else needs it.
    Retired,
    /// A save was stopped before its commit.
    Orphan,
    /// It was condemned before.
    Condemned,
}

/// A directory that was condemned or deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Collected {
    /// The directory.
    pub directory: DirName,
    /// Why.
    pub kind: Kind,
    /// Bytes in it.
    pub bytes: u64,
}

/// A condemned directory that is not deleted yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Waiting {
    /// The directory.
    pub directory: DirName,
    /// The record that condemned it.
    pub condemned: Seq,
    /// Bytes in it.
    pub bytes: u64,
    /// Seconds until it may be deleted; 0 where that was tried, and somebody wrote into it at that moment: it goes the next time.
    pub seconds_left: u64,
}

/// A folder that no record names and that is left alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Spared {
    /// The folder.
    pub folder: String,
    /// Bytes in it; none for one that is not named as attempts are: nobody looks into it.
    pub bytes: Option<u64>,
    /// Seconds until it would be taken for a stopped save; none for what never is.
    pub seconds_left: Option<u64>,
    /// Whether it has a manifest: it may be a whole checkpoint.
    pub sealed: bool,
    /// The run that may still commit it: its present incarnation began it, and has not gone on beyond it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<Label>,
}

/// What a collection did, or would do.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Collection {
    /// Directories that were condemned now.
    pub condemned: Vec<Collected>,
    /// Condemned directories that are not deleted yet.
    pub waiting: Vec<Waiting>,
    /// Directories that were deleted.
    pub deleted: Vec<Collected>,
    /// Folders that no record names and that stay.
    pub spared: Vec<Spared>,
    /// Unfinished files and probes that were removed.
    pub swept: Bulk,
    /// Bytes of all that was deleted.
    pub bytes: u64,
    /// Whether ages are as of the last record only, because the store can't be written or is full.
    pub as_of_last_record: bool,
}
