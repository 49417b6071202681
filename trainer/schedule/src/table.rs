//! [`Table`]: what each rank does, in order. Plain data; whether it makes sense is [`super::validate()`]'s to say.

use std::fmt;

use super::{Action, Placement};

/// Actions of every pipeline rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Where stages lie.
    pub placement: Placement,
    /// Microbatches of a step, for one data-parallel replica.
    pub microbatches: usize,
    /// One row per rank.
    pub ranks: Vec<Vec<Action>>,
}

impl Table {
    /// Number of stages.
    #[must_use]
    pub const fn stages(&self) -> usize {
        self.placement.stages()
    }

    /// The row of `rank`; empty for one that isn't there.
    pub fn row(&self, rank: usize) -> &[Action] {
        self.ranks.get(rank).map_or(&[], Vec::as_slice)
    }
}

/// One line per rank: the rank, then its actions.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (rank, row) in self.ranks.iter().enumerate() {
            write!(f, "{rank}")?;
            row.iter().try_for_each(|action| write!(f, " {action}"))?;
            writeln!(f)?;
        }
        Ok(())
    }
}
