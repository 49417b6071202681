//! How long a transport waits, how much it holds, and where it writes the scene of a failure.

use std::{path::PathBuf, time::Duration};

use super::Tamper;

/// Limits of a transport; the same on all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// For start-up: that all ranks join, that groups come to be, and each wait of a rank that says that it is
    /// [starting](super::Transport::starting). Longer than a step, as workers load at different speeds.
    pub start: Duration,
    /// For each wait of a step: a message, a collective, a flush.
    pub step: Duration,
    /// Whether a send waits for its receiver.
    pub mode: Mode,
    /// Messages that a rank may have under way in [`Mode::Async`] before [`super::Transport::send`] waits for one of them
    /// to be taken; at least 1 counts.
    pub buffers: usize,
    /// Whether large collectives compare purposes and lengths too, by a small round before the data (0.2 ms beside the 8 of
    /// 4 MiB, between two processes of one host). Small ones carry theirs along and always compare. Without it, members that
    /// have diverged may be ended by gloo in the middle of a large collective, with nothing said.
    pub check_purposes: bool,
    /// Actions that the scene of a rank remembers.
    pub scene_actions: usize,
    /// Folder for the scenes of a failure; none is written without it.
    pub dump: Option<PathBuf>,
    /// A message that goes wrong on purpose.
    pub tamper: Option<Tamper>,
}

/// When [`super::Transport::send`] returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// When the receiver has taken the message. A program runs to its end this way if it follows rule B of
    /// `schedule::Program`; two ranks that both send before they receive wait for each other until their time limit.
    Sync,
    /// At once, as long as fewer than [`Limits::buffers`] messages of this rank are under way; else when one of them has been
    /// taken. So memory is bounded, and a slow receiver slows its sender down.
    Async,
}

impl Limits {
    /// Messages that may be under way when a send returns.
    pub(crate) fn room(&self) -> usize {
        match self.mode {
            Mode::Sync => 0,
            Mode::Async => self.buffers.max(1),
        }
    }

    /// How long a wait may last, of a rank that is starting or has started.
    pub(crate) fn wait(&self, starting: bool) -> Duration {
        if starting { self.start.max(self.step) } else { self.step }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            start: Duration::from_secs(300),
            step: Duration::from_secs(100),
            mode: Mode::Async,
            buffers: 32,
            check_purposes: true,
            scene_actions: 64,
            dump: None,
            tamper: None,
        }
    }
}
