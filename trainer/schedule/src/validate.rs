//! [`validate()`]: refuses every table that can't run, or whose step would not be exactly all microbatches once on every
//! stage. Strict where torch is lenient: duplicates, microbatches out of range, B beside I or W, and ranks that wait for
//! each other are found here, before anything is lowered or run.

use std::collections::HashMap;

use super::{Action, CellFault, ScheduleError, Step, Table, progress};

/// Checks a table that is not lowered: F, I, W and B only.
///
/// # Errors
/// The first cell that can't be there, the first that is missing, or the ranks that wait for each other.
pub fn validate(table: &Table) -> Result<(), ScheduleError> {
    rows_match(table)?;
    for rank in 0..table.ranks.len() {
        Row::read(table, rank)?.complete(table)?;
    }
    progress::deadlock(table).map_or(Ok(()), |found| Err(ScheduleError::Deadlock(found)))
}

pub(super) fn rows_match(table: &Table) -> Result<(), ScheduleError> {
    let (rows, ranks) = (table.ranks.len(), table.placement.ranks());
    if rows == ranks { Ok(()) } else { Err(ScheduleError::Rows { rows, ranks }) }
}

/// That the cell's stage lies on `rank` and its microbatch is there.
pub(super) fn in_range(table: &Table, rank: usize, cell: Action) -> Result<(), CellFault> {
    let lies = table.placement.rank_of(cell.stage).ok_or(CellFault::Stage(table.stages()))?;
    if lies != rank {
        return Err(CellFault::Elsewhere { stage: cell.stage, rank: lies });
    }
    match cell.step.microbatch() {
        Some(microbatch) if microbatch >= table.microbatches => {
            Err(CellFault::Microbatch(table.microbatches))
        }
        _ => Ok(()),
    }
}

/// Checks each part of a cell; a fault of a composite says which part it is of.
pub(super) fn of_parts(
    cell: Action,
    check: impl Fn(Action) -> Result<(), CellFault>,
) -> Result<(), CellFault> {
    let named = |part, fault| match cell == part {
        true => fault,
        false => CellFault::Part { part, fault: Box::new(fault) },
    };
    cell.parts().try_for_each(|part| check(part).map_err(|fault| named(part, fault)))
}

/// The cells of one rank so far, with their positions.
struct Row {
    rank: usize,
    seen: HashMap<Action, usize>,
}

impl Row {
    fn read(table: &Table, rank: usize) -> Result<Self, ScheduleError> {
        let mut row = Self { rank, seen: HashMap::new() };
        for (step, cell) in table.row(rank).iter().copied().enumerate() {
            row.check(table, cell).map_err(|fault| ScheduleError::Cell { rank, step, cell, fault })?;
            row.seen.extend(cell.parts().map(|part| (part, step)));
        }
        Ok(row)
    }

    /// All parts are held to what was before the cell: none may need another one.
    fn check(&self, table: &Table, cell: Action) -> Result<(), CellFault> {
        if !cell.computes() {
            return Err(CellFault::NotCompute);
        }
        of_parts(cell, |part| self.check_part(table, part))
    }

    fn check_part(&self, table: &Table, cell: Action) -> Result<(), CellFault> {
        in_range(table, self.rank, cell)?;
        if let Some(step) = self.seen.get(&cell) {
            return Err(CellFault::Duplicate(*step));
        }
        self.not_mixed(cell)?;
        self.in_order(cell)
    }

    fn not_mixed(&self, cell: Action) -> Result<(), CellFault> {
        let others: &[fn(usize) -> Step] = match cell.step {
            Step::B(_) => &[Step::I, Step::W],
            Step::I(_) | Step::W(_) => &[Step::B],
            _ => &[],
        };
        let there = |step: &fn(usize) -> Step| {
            let other = Action::new(cell.stage, step(cell.step.microbatch()?));
            self.seen.get(&other).map(|step| CellFault::Mixed { other, step: *step })
        };
        others.iter().find_map(there).map_or(Ok(()), Err)
    }

    fn in_order(&self, cell: Action) -> Result<(), CellFault> {
        let needed = match cell.step {
            Step::I(m) | Step::B(m) => Action::new(cell.stage, Step::F(m)),
            Step::W(m) => Action::new(cell.stage, Step::I(m)),
            _ => return Ok(()),
        };
        if self.seen.contains_key(&needed) { Ok(()) } else { Err(CellFault::Before(needed)) }
    }

    fn complete(&self, table: &Table) -> Result<(), ScheduleError> {
        for stage in table.placement.stages_of(self.rank) {
            if let Some(cell) = (0..table.microbatches).find_map(|m| self.missing(stage, m)) {
                return Err(ScheduleError::Missing {
                    rank: self.rank,
                    step: table.row(self.rank).len(),
                    cell,
                });
            }
        }
        Ok(())
    }

    fn missing(&self, stage: usize, microbatch: usize) -> Option<Action> {
        let cell = |step: fn(usize) -> Step| Action::new(stage, step(microbatch));
        let has = |step| self.seen.contains_key(&cell(step));
        let wanted: &[fn(usize) -> Step] =
            if has(Step::I) { &[Step::F, Step::W] } else { &[Step::F, Step::B] };
        wanted.iter().copied().find(|step| !has(*step)).map(cell)
    }
}

#[cfg(test)]
mod tests;
