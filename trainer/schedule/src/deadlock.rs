//! [`Deadlock`]: the ranks that can't go on, and what each waits for.

use std::fmt;

use super::Action;

/// A rank that can't go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocked {
    /// The rank.
    pub rank: usize,
    /// Position in its row.
    pub step: usize,
    /// The cell there.
    pub cell: Action,
    /// What it waits for.
    pub waits_for: String,
}

/// Ranks that wait for each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deadlock {
    /// All that are not at the end of their row.
    pub blocked: Vec<Blocked>,
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("deadlock")?;
        for (index, it) in self.blocked.iter().enumerate() {
            let before = if index == 0 { ": " } else { "; " };
            write!(
                f,
                "{before}rank {}, step {}, cell {} waits for {}",
                it.rank, it.step, it.cell, it.waits_for
            )?;
        }
        Ok(())
    }
}
