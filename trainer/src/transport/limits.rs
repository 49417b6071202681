//! How long a transport waits, how much it holds, and where it writes the scene of a failure.

use std::{path::PathBuf, time::Duration};

/// Limits of a transport; the same on all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// For start-up: that all ranks join and groups come to be. Longer than a step, as workers load at different speeds.
    pub start: Duration,
    /// For each wait of a step: a message, a collective, a flush.
    pub step: Duration,
    /// Messages that a rank may have in flight before [`super::Transport::send`] waits for the oldest one.
    pub sends_in_flight: usize,
    /// Whether large collectives compare purposes and lengths too, by a small round before the data (0.2 ms beside the 8 of
    /// 4 MiB, between two processes of one host). Small ones carry theirs along and always compare. Without it, members that
    /// have diverged may be ended by gloo in the middle of a large collective, with nothing said.
    pub check_purposes: bool,
    /// Actions that the scene of a rank remembers.
    pub scene_actions: usize,
    /// Folder for the scenes of a failure; none is written without it.
    pub dump: Option<PathBuf>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            start: Duration::from_secs(300),
            step: Duration::from_secs(300),
            sends_in_flight: 32,
            check_purposes: true,
            scene_actions: 64,
            dump: None,
        }
    }
}
