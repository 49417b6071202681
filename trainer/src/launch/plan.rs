//! What to launch, and how.

use std::{ffi::OsString, path::PathBuf, str::FromStr, time::Duration};

use super::{Machines, Meaning};

/// What to launch, and how.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The guard's command, to which the launcher's process id, `--`, the program and its arguments are added.
    pub guard: Vec<OsString>,
    /// The worker's program and its arguments.
    pub command: Vec<OsString>,
    /// Workers of this machine.
    pub workers: usize,
    /// How often all are started again.
    pub max_restarts: u32,
    /// How long workers have to end by themselves before they are killed.
    pub grace: Duration,
    /// Port of the store; any free one, if not given.
    pub port: Option<u16>,
    /// Where `rank_00000.log` and its like are written.
    pub logs: PathBuf,
    /// Whose output also goes to the console.
    pub shown: Shown,
    /// Name of this run in its ranks' environment.
    pub run_id: String,
    /// What the exit codes of the program mean; `None` for one that it does not define.
    pub meaning: fn(u8) -> Option<Meaning>,
    /// Where there are several machines: which one this is.
    pub machines: Option<Machines>,
}

/// Whose output goes to the console.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shown {
    /// Everyone's.
    All,
    /// These ranks'.
    Ranks(Vec<usize>),
}

impl Shown {
    /// Whether that of `rank` does.
    #[must_use]
    pub fn shows(&self, rank: usize) -> bool {
        match self {
            Self::All => true,
            Self::Ranks(ranks) => ranks.contains(&rank),
        }
    }
}

impl FromStr for Shown {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::All);
        }
        let ranks: Result<Vec<usize>, _> = text.split(',').map(|rank| rank.trim().parse()).collect();
        ranks.map(Self::Ranks).map_err(|_| format!("{text:?} is neither \"all\" nor ranks such as 0,3"))
    }
}
