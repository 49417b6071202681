//! What computations give and need: the dependency rules that validation, lowering and simulation share.
//!
//! - F of a stage needs F of the stage before;
//! - I or B needs F of its stage, and I or B of the next stage;
//! - W needs I of its stage.

use std::fmt;

use super::{Action, Blocked, Deadlock, Step, Table};

/// Something computed, for a stage and a microbatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Fact {
    /// Its activations.
    Forward(usize, usize),
    /// The gradient of its inputs.
    Gradient(usize, usize),
}

impl Fact {
    /// What `action` gives: of a composite, what each of its parts does.
    pub(super) fn given_by(action: Action) -> impl Iterator<Item = Self> + Clone {
        action.parts().filter_map(|part| match part.step {
            Step::F(m) => Some(Self::Forward(part.stage, m)),
            Step::I(m) | Step::B(m) => Some(Self::Gradient(part.stage, m)),
            _ => None,
        })
    }

    /// What `action` needs, of `stages` stages: of a composite, what both of its parts do.
    pub(super) fn needed_by(action: Action, stages: usize) -> Vec<Self> {
        action.parts().flat_map(|part| Self::needed_by_part(part, stages)).flatten().collect()
    }

    fn needed_by_part(action: Action, stages: usize) -> [Option<Self>; 2] {
        let stage = action.stage;
        match action.step {
            Step::F(m) => [stage.checked_sub(1).map(|before| Self::Forward(before, m)), None],
            Step::I(m) | Step::B(m) => {
                let next = (stage + 1 < stages).then_some(Self::Gradient(stage + 1, m));
                [next, Some(Self::Forward(stage, m))]
            }
            Step::W(m) => [Some(Self::Gradient(stage, m)), None],
            _ => [None, None],
        }
    }

    /// The stage that gives it.
    pub(super) const fn stage(self) -> usize {
        match self {
            Self::Forward(stage, _) | Self::Gradient(stage, _) => stage,
        }
    }
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forward(stage, m) => write!(f, "{stage}F{m}"),
            Self::Gradient(stage, m) => write!(f, "{stage}B{m} or {stage}I{m}"),
        }
    }
}

/// Facts that hold, of a table whose every row is complete: it has no more places than the table has cells.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    microbatches: usize,
    forwards: Vec<bool>,
    gradients: Vec<bool>,
}

impl Facts {
    /// None holds.
    pub(super) fn none(table: &Table) -> Self {
        Self::of(table.stages(), table.microbatches)
    }

    /// None holds, of so many stages and microbatches.
    pub(super) fn of(stages: usize, microbatches: usize) -> Self {
        let places = vec![false; stages * microbatches];
        Self { microbatches, forwards: places.clone(), gradients: places }
    }

    /// Whether `fact` holds.
    pub(super) fn contains(&self, fact: Fact) -> bool {
        let (kind, at) = match fact {
            Fact::Forward(stage, m) => (&self.forwards, stage * self.microbatches + m),
            Fact::Gradient(stage, m) => (&self.gradients, stage * self.microbatches + m),
        };
        kind.get(at).is_some_and(|holds| *holds)
    }

    /// Now `fact` holds.
    pub(super) fn insert(&mut self, fact: Fact) {
        let (kind, at) = match fact {
            Fact::Forward(stage, m) => (&mut self.forwards, stage * self.microbatches + m),
            Fact::Gradient(stage, m) => (&mut self.gradients, stage * self.microbatches + m),
        };
        kind.get_mut(at).into_iter().for_each(|holds| *holds = true);
    }
}

/// Runs every row of a complete table in its order as far as dependencies allow, and says where it stops.
pub(super) fn deadlock(table: &Table) -> Option<Deadlock> {
    let mut done = Facts::none(table);
    let mut at = vec![0; table.ranks.len()];
    let missing = |action: Action, done: &Facts| {
        Fact::needed_by(action, table.stages()).into_iter().find(|fact| !done.contains(*fact))
    };
    loop {
        let mut moved = false;
        for (row, at) in table.ranks.iter().zip(&mut at) {
            while let Some(action) = row.get(*at).filter(|action| missing(**action, &done).is_none()) {
                Fact::given_by(*action).for_each(|fact| done.insert(fact));
                (*at, moved) = (*at + 1, true);
            }
        }
        if !moved {
            break;
        }
    }
    let stuck = table.ranks.iter().zip(&at).enumerate().filter_map(|(rank, (row, step))| {
        let cell = *row.get(*step)?;
        let fact = missing(cell, &done)?;
        let on = table.placement.rank_of(fact.stage()).unwrap_or(rank);
        let there = table.row(on).get(*at.get(on)?);
        let waits_for = match there {
            Some(_) if on == rank => format!("{fact}, which comes later on this rank"),
            Some(there) => format!("{fact} of rank {on}, which is at {there}"),
            None => format!("{fact} of rank {on}, which is at its end"),
        };
        Some(Blocked { rank, step: *step, cell, waits_for, on })
    });
    let blocked: Vec<_> = stuck.collect();
    (!blocked.is_empty()).then_some(Deadlock { blocked })
}
