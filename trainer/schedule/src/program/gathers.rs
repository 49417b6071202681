//! UNSHARD and RESHARD of a row: in turns, before what needs the weights, and freed at the end. A stage without any gathers
//! by itself.

use std::collections::HashMap;

use super::super::{Action, CellFault, ScheduleError, Step, Table};

/// # Errors
/// A gather of what is gathered, a release of what is not, a computation between the two, weights that are never freed.
pub(super) fn check(table: &Table, rank: usize) -> Result<(), ScheduleError> {
    let row = table.row(rank);
    let gathers = |action: &&Action| matches!(action.step, Step::Unshard | Step::Reshard);
    // Where the weights of each stage are gathered, of those that are gathered at all.
    let mut held: HashMap<usize, Option<usize>> =
        row.iter().filter(gathers).map(|action| (action.stage, None)).collect();
    for (step, cell) in row.iter().copied().enumerate() {
        let refused = |fault| ScheduleError::Cell { rank, step, cell, fault };
        let before = held.get(&cell.stage).copied();
        match (cell.step, before) {
            (Step::Unshard, Some(Some(at))) => return Err(refused(CellFault::Gathered(at))),
            (Step::Unshard, _) => drop(held.insert(cell.stage, Some(step))),
            (Step::Reshard, Some(None)) => return Err(refused(CellFault::NotGathered(cell.stage))),
            (Step::Reshard, _) => drop(held.insert(cell.stage, None)),
            _ => {
                let lacks = |part: &Action| needs(*part) && held.get(&part.stage) == Some(&None);
                if let Some(part) = cell.parts().find(lacks) {
                    return Err(refused(CellFault::NotGathered(part.stage)));
                }
            }
        }
    }
    match held.iter().filter(|(_, at)| at.is_some()).map(|(stage, _)| *stage).min() {
        Some(stage) => {
            Err(ScheduleError::Missing { rank, step: row.len(), cell: Action::new(stage, Step::Reshard) })
        }
        None => Ok(()),
    }
}

/// Whether an action needs weights. W does not: it multiplies what was kept of the forward and the backward.
const fn needs(action: Action) -> bool {
    matches!(action.step, Step::F(_) | Step::I(_) | Step::B(_))
}
