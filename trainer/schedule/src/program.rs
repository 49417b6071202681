//! [`Program`]: a lowered table that is safe to run.
//!
//! Invariants, checked when it is made, each by a static walk:
//! - its computations are a valid table, and each stage reduces its gradients once, after the last of them;
//! - weights that are gathered for more than one action are there for every action that needs them, and freed at the end;
//! - *rule A*: the k-th exchange of a pair of ranks is the same on both sides, in both directions together, so that one
//!   ordered channel per pair is enough;
//! - *rule B*: it runs to its end even if every send waits until the receiver is at the matching receive.

mod gathers;
mod order;
mod rendezvous;

use std::collections::HashMap;

use super::{
    Action, CellFault, Placement, ScheduleError, Step, Table,
    validate::{in_range, of_parts, rows_match},
};

/// A lowered table that both communication rules hold for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    table: Table,
}

impl Program {
    /// Checks a lowered table.
    ///
    /// # Errors
    /// The first cell, pair of cells or group of ranks that breaks an invariant.
    pub fn new(table: Table) -> Result<Self, ScheduleError> {
        rows_match(&table)?;
        for rank in 0..table.ranks.len() {
            cells(&table, rank)?;
            gathers::check(&table, rank)?;
        }
        super::validate(&computations(&table))?;
        order::same(&table)?;
        rendezvous::run(&table)?;
        Ok(Self { table })
    }

    /// The table.
    #[must_use]
    pub const fn table(&self) -> &Table {
        &self.table
    }
}

/// The rank on the other side of a communicating cell.
pub(crate) fn peer(placement: &Placement, action: Action) -> Option<usize> {
    match action.step {
        Step::SendF(_) | Step::RecvB(_) => placement.next_rank(action.stage),
        Step::RecvF(_) | Step::SendB(_) => placement.rank_before(action.stage),
        _ => None,
    }
}

/// A lowered table without what lowering adds.
pub(crate) fn computations(table: &Table) -> Table {
    let only = |row: &Vec<Action>| row.iter().copied().filter(Action::computes).collect();
    Table { ranks: table.ranks.iter().map(only).collect(), ..table.clone() }
}

/// Ranges, duplicates, peers, and where gradients are reduced.
fn cells(table: &Table, rank: usize) -> Result<(), ScheduleError> {
    let row = table.row(rank);
    let mut seen = HashMap::new();
    for (step, cell) in row.iter().copied().enumerate() {
        let refused = |fault| ScheduleError::Cell { rank, step, cell, fault };
        of_parts(cell, |part| in_range(table, rank, part)).map_err(refused)?;
        let repeats = matches!(cell.step, Step::Unshard | Step::Reshard);
        if let Some(before) = seen.insert(cell, step).filter(|_| !repeats) {
            return Err(refused(CellFault::Duplicate(before)));
        }
        if cell.step.microbatch().is_some() && !cell.computes() && peer(&table.placement, cell).is_none() {
            return Err(refused(CellFault::NoPeer("there is no neighbouring stage on another rank")));
        }
        if cell.step == Step::ReduceGrad {
            let later = row.get(step..).unwrap_or_default().iter();
            let of_stage = |it: &Action| it.computes() && it.parts().any(|part| part.stage == cell.stage);
            let late = later.copied().find(of_stage);
            late.map_or(Ok(()), |late| Err(refused(CellFault::Before(late))))?;
        }
    }
    let lacks = |stage: &usize| !seen.contains_key(&Action::new(*stage, Step::ReduceGrad));
    match table.placement.stages_of(rank).into_iter().find(lacks) {
        Some(stage) => {
            Err(ScheduleError::Missing { rank, step: row.len(), cell: Action::new(stage, Step::ReduceGrad) })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
