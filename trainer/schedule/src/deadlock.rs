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
    /// What it waits for, and where that rank is.
    pub waits_for: String,
    /// The rank that it waits for; itself where what it needs comes later in its own row.
    pub on: usize,
}

/// Ranks that wait for each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deadlock {
    /// All that are not at the end of their row.
    pub blocked: Vec<Blocked>,
}

impl Deadlock {
    /// Ranks each of which waits for the next one, and the last one for the first: the others only wait for these. A single
    /// one waits for what comes later in its own row. Empty where a rank waits for one that is at its end.
    #[must_use]
    pub fn circle(&self) -> Vec<usize> {
        let on = |rank: usize| self.blocked.iter().find(|it| it.rank == rank).map(|it| it.on);
        let mut path: Vec<usize> = Vec::new();
        let mut next = self.blocked.first().map(|it| it.rank);
        while let Some(rank) = next {
            if let Some(start) = path.iter().position(|it| *it == rank) {
                return path.split_off(start);
            }
            path.push(rank);
            next = on(rank);
        }
        Vec::new()
    }
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("deadlock")?;
        for (index, it) in self.blocked.iter().enumerate() {
            let before = if index == 0 { ": " } else { "; " };
            let Blocked { rank, step, cell, waits_for, .. } = it;
            write!(f, "{before}rank {rank}, step {step}, cell {cell} waits for {waits_for}")?;
        }
        let circle = self.circle();
        if circle.len() > 1 {
            let ranks = circle.iter().chain(circle.first()).map(ToString::to_string);
            write!(f, "; in a circle: rank {}", ranks.collect::<Vec<_>>().join(" → "))?;
        }
        Ok(())
    }
}
