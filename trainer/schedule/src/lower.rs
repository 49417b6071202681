//! [`lower`]: adds to a table of computations what a run needs besides, pass by pass.
//!
//! 1. UNSHARD and RESHARD, where the strategy keeps a stage's weights gathered from one action to another;
//! 2. REDUCE_GRAD right after the last W or B of each stage;
//! 3. SEND right after the computation that it sends, and the matching RECV appended to the receiver's row at that same
//!    moment of a common walk over all rows. That makes exchanges of any two ranks come in one order on both sides, and
//!    lets the program advance even if every send waits for its receiver; [`Program`] checks both again.
//!
//! A composite is taken apart: its forward, what that sends, its backward, what that sends. So the next rank does not wait for
//! the backward to have the activations, and the forward not for the gradient that the backward needs. Nobody here runs both at
//! once; programs of others keep their composites.

use std::collections::HashMap;

use super::{
    Action, Program, ScheduleError, Step, Table,
    progress::{Fact, Facts},
    validate,
};

/// How long a stage's weights stay gathered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Gather {
    /// For one part and one pass: the stage gathers and frees by itself, and the program says nothing of it.
    #[default]
    PerPart,
    /// While the stage is among the next so many distinct ones that the rank works on.
    Stages(usize),
}

/// The program of a table that is not lowered.
///
/// # Errors
/// What [`validate()`] refuses; communication that would not be safe.
pub fn lower(table: &Table, gather: Gather) -> Result<Program, ScheduleError> {
    validate(table)?;
    let mut ranks = table.ranks.clone();
    if let Gather::Stages(most) = gather {
        ranks = ranks.iter().map(|row| gathered(row, most.max(1))).collect();
    }
    let ranks = ranks.iter().map(|row| reduced(row, table.microbatches)).collect();
    Program::new(communicating(&Table { ranks, ..table.clone() }))
}

/// Gathers a stage before it is among the next `most`, frees it when it no longer is.
fn gathered(row: &[Action], most: usize) -> Vec<Action> {
    let mut held: Vec<usize> = Vec::new();
    let mut out = Vec::new();
    for (step, action) in row.iter().enumerate() {
        let next = upcoming(row.get(step..).unwrap_or_default(), most);
        let gone = held.iter().filter(|stage| !next.contains(stage));
        out.extend(gone.map(|stage| Action::new(*stage, Step::Reshard)));
        let new = next.iter().filter(|stage| !held.contains(stage));
        out.extend(new.map(|stage| Action::new(*stage, Step::Unshard)));
        held = next;
        out.push(*action);
    }
    out.extend(held.into_iter().map(|stage| Action::new(stage, Step::Reshard)));
    out
}

/// The first `most` distinct stages whose weights `row` needs; all of the first cell's. W needs none.
fn upcoming(row: &[Action], most: usize) -> Vec<usize> {
    let mut stages = Vec::new();
    for (ahead, action) in row.iter().enumerate() {
        for part in action.parts().filter(|part| !matches!(part.step, Step::W(_))) {
            if (stages.len() < most || ahead == 0) && !stages.contains(&part.stage) {
                stages.push(part.stage);
            }
        }
        if stages.len() >= most {
            break;
        }
    }
    stages
}

/// REDUCE_GRAD after the last W or B of each stage.
pub(crate) fn reduced(row: &[Action], microbatches: usize) -> Vec<Action> {
    let mut left = HashMap::new();
    let mut out = Vec::new();
    for action in row {
        out.push(*action);
        for part in action.parts().filter(|part| matches!(part.step, Step::B(_) | Step::W(_))) {
            let left = left.entry(part.stage).or_insert(microbatches);
            *left -= 1;
            out.extend((*left == 0).then_some(Action::new(part.stage, Step::ReduceGrad)));
        }
    }
    out
}

/// Sends and receives for a valid table, which runs to its end.
fn communicating(table: &Table) -> Table {
    let ranks = table.ranks.len();
    let mut walk = Walk { table, at: vec![0; ranks], done: Facts::none(table), out: vec![Vec::new(); ranks] };
    // One action of each rank a round: rows grow at the pace at which a run would.
    while (0..ranks).map(|rank| walk.advance(rank)).fold(false, |any, moved| any | moved) {}
    Table { ranks: walk.out, ..table.clone() }
}

/// A common walk over all rows.
struct Walk<'a> {
    table: &'a Table,
    at: Vec<usize>,
    /// What was computed, and received where it is needed.
    done: Facts,
    out: Vec<Vec<Action>>,
}

impl Walk<'_> {
    fn advance(&mut self, rank: usize) -> bool {
        let at = self.at.get(rank).copied().unwrap_or_default();
        let Some(action) = self.table.row(rank).get(at).copied().filter(|action| self.ready(*action)) else {
            return false;
        };
        self.at.get_mut(rank).into_iter().for_each(|at| *at += 1);
        for part in action.parts() {
            self.append(rank, part);
            Fact::given_by(part).for_each(|fact| self.done.insert(fact));
            self.transfer(rank, part);
        }
        true
    }

    fn ready(&self, action: Action) -> bool {
        Fact::needed_by(action, self.table.stages()).into_iter().all(|fact| self.done.contains(fact))
    }

    /// Sends what `action`, no composite, gave, and receives it.
    fn transfer(&mut self, rank: usize, action: Action) {
        let placement = &self.table.placement;
        let (peer, send) = match action.step {
            Step::F(m) => (placement.next_rank(action.stage), Step::SendF(m)),
            Step::I(m) | Step::B(m) => (placement.rank_before(action.stage), Step::SendB(m)),
            _ => return,
        };
        let send = Action::new(action.stage, send);
        if let (Some(peer), Some(receive)) = (peer, send.partner()) {
            self.append(rank, send);
            self.append(peer, receive);
        }
    }

    fn append(&mut self, rank: usize, action: Action) {
        self.out.get_mut(rank).into_iter().for_each(|row| row.push(action));
    }
}

#[cfg(test)]
mod tests;
