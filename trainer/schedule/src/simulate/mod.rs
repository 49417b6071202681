//! When every action of a schedule starts and ends, if all take the times given: [`simulate`] for tables of computations,
//! [`simulate_program`] for lowered ones, in which communication consists of actions. What follows from it: bubbles
//! ([`Bubbles`]), memory over time ([`memory()`]), the closed forms of the literature ([`formula()`]).
//!
//! Deterministic: the same table and times give the same numbers to the bit. Times are of the caller's unit.

mod bubble;
mod clock;
mod formula;
mod memory;
#[cfg(test)]
mod tests;

pub use bubble::Bubbles;
pub use formula::{Formula, formula};
pub use memory::{Memory, StageMemory, Usage, memory};

use crate::{Action, Durations, Program, ScheduleError, Step, Table, validate};

/// How actions that communicate take part in a simulated run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Communication {
    /// Sends and receives are posted: a rank goes on, and what needs a value waits until it has arrived. UNSHARD and
    /// REDUCE_GRAD run beside computations, one after another on each rank.
    #[default]
    Posted,
    /// A send and its receive start when both ranks are there, and hold both until the end. UNSHARD and REDUCE_GRAD hold
    /// their rank.
    Rendezvous,
}

/// What a simulation found.
#[derive(Debug, Clone, PartialEq)]
pub struct Simulation {
    /// Start and end of every cell, row by row. A posted send ends when its value arrives; a posted receive takes no time.
    pub spans: Vec<Vec<(f64, f64)>>,
    /// From the first start to the last end, optimizer not included.
    pub makespan: f64,
    /// Time that each rank computes (F, I, W, B).
    pub busy: Vec<f64>,
    /// First start and last end of each rank.
    pub ranks: Vec<(f64, f64)>,
    /// Most stages' microbatches alive at once on each rank: from F to B or W. Divided by the stages of a rank it is in
    /// activations of a whole rank.
    pub peak_live: Vec<usize>,
    /// The optimizer's time, after the makespan.
    pub optimizer: f64,
}

impl Simulation {
    /// Idle share of all ranks' time from the first start to the last end: [`Bubbles::makespan`].
    #[must_use]
    pub fn bubble(&self) -> f64 {
        self.bubbles().makespan
    }

    /// The bubble by each of its definitions.
    #[must_use]
    pub fn bubbles(&self) -> Bubbles {
        Bubbles::of(self)
    }

    /// The longest time that a rank takes, from its own first start to its own last end.
    #[must_use]
    pub fn longest_rank(&self) -> f64 {
        self.ranks.iter().map(|(start, end)| end - start).fold(0.0, f64::max)
    }

    /// A whole step: the makespan and the optimizer.
    #[must_use]
    pub fn step(&self) -> f64 {
        self.makespan + self.optimizer
    }
}

/// Runs `table`, which is not lowered, in time: a value is on another rank a transfer after it was computed.
///
/// # Errors
/// What [`validate()`] refuses.
pub fn simulate(table: &Table, times: &dyn Durations) -> Result<Simulation, ScheduleError> {
    validate(table)?;
    Ok(found(table, times, clock::run(table, times, clock::Carried::Edges)))
}

/// Runs a lowered table in time. With [`Communication::Posted`] and no time for weights and reduction it is the simulation
/// of its computations.
#[must_use]
pub fn simulate_program(program: &Program, times: &dyn Durations, how: Communication) -> Simulation {
    let table = program.table();
    found(table, times, clock::run(table, times, clock::Carried::Actions(how)))
}

fn found(table: &Table, times: &dyn Durations, spans: Vec<Vec<(f64, f64)>>) -> Simulation {
    // Not the length of a cell: within a composite its second part may wait.
    let busy = |row: &Vec<Action>| {
        row.iter().filter(|action| action.computes()).map(|action| times.cell(*action)).sum()
    };
    let ranks: Vec<(f64, f64)> = spans.iter().map(|row| extent(row)).collect();
    let first = ranks.iter().map(|(start, _)| *start).fold(f64::INFINITY, f64::min);
    let last = ranks.iter().map(|(_, end)| *end).fold(0.0, f64::max);
    Simulation {
        makespan: if first.is_finite() { last - first } else { 0.0 },
        busy: table.ranks.iter().map(busy).collect(),
        ranks,
        peak_live: table.ranks.iter().map(|row| peak_live(row)).collect(),
        optimizer: times.optimizer(),
        spans,
    }
}

fn extent(row: &[(f64, f64)]) -> (f64, f64) {
    let first = row.iter().map(|(start, _)| *start).fold(f64::INFINITY, f64::min);
    let last = row.iter().map(|(_, end)| *end).fold(0.0, f64::max);
    if first.is_finite() { (first, last) } else { (0.0, 0.0) }
}

/// Most microbatches alive at once in a row.
pub(crate) fn peak_live(row: &[Action]) -> usize {
    let mut live = 0_usize;
    let count = |part: Action| {
        match part.step {
            Step::F(_) => live += 1,
            Step::B(_) | Step::W(_) => live = live.saturating_sub(1),
            _ => {}
        }
        live
    };
    row.iter().flat_map(|action| action.parts()).map(count).max().unwrap_or(0)
}
