//! [`Order`]: what each rank does, as a string of kinds; the n-th F of a rank is of microbatch n, and so for the others, since
//! gradients are to add up in the order of their microbatches. [`Timed`]: when it all happens.

use super::{Goal, Problem};
use crate::{Action, Placement, ScheduleError, StageTimes, Step, Table};

/// F, I, W, B of whatever microbatch is next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    F,
    I,
    W,
    B,
}

impl StageTimes {
    /// How long a cell takes.
    pub(super) fn of(&self, kind: Kind) -> f64 {
        match kind {
            Kind::F => self.forward,
            Kind::I => self.input,
            Kind::W => self.weight,
            Kind::B => self.backward(),
        }
    }
}

/// One row per rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) rows: Vec<Vec<Kind>>,
}

/// How many of each kind a rank has done; B counts as I and as W.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) forward: usize,
    pub(super) input: usize,
    pub(super) weight: usize,
}

impl Counts {
    /// Adds `kind`; `None` if what it needs on its own rank isn't done, or its gradient would be added before another's.
    pub(super) fn then(self, kind: Kind) -> Option<Self> {
        let Self { forward, input, weight } = self;
        match kind {
            Kind::F => Some(Self { forward: forward + 1, ..self }),
            Kind::I => (input < forward).then_some(Self { input: input + 1, ..self }),
            Kind::W => (weight < input).then_some(Self { weight: weight + 1, ..self }),
            Kind::B => (input < forward && weight == input).then_some(Self {
                input: input + 1,
                weight: weight + 1,
                ..self
            }),
        }
    }
}

impl Order {
    pub(super) fn row(&self, rank: usize) -> &[Kind] {
        self.rows.get(rank).map_or(&[], Vec::as_slice)
    }

    /// Whether every row is one by itself, and no rank ever holds more than it may.
    pub(super) fn fits(&self, problem: &Problem) -> bool {
        (0..problem.ranks()).all(|rank| row_fits(problem, rank, self.row(rank)))
    }

    /// As a table.
    pub(super) fn table(&self, problem: &Problem) -> Result<Table, ScheduleError> {
        let ranks = problem.ranks();
        let placement = Placement::looped(ranks, ranks)?;
        let rows = (0..ranks).map(|rank| actions(rank, self.row(rank))).collect();
        let table = Table { placement, microbatches: problem.microbatches, ranks: rows };
        crate::validate(&table)?;
        Ok(table)
    }
}

/// Whether `row` is an order that rank `rank` can work through within its memory.
pub(super) fn row_fits(problem: &Problem, rank: usize, row: &[Kind]) -> bool {
    let (memory, room) = (problem.stage_memory(rank), problem.room(rank));
    // Sums of fractions of bytes may end a hair above.
    let room = room + room.abs() * 1e-9;
    let mut counts = Counts::default();
    for kind in row {
        let Some(next) = counts.then(*kind) else { return false };
        counts = next;
        let (before, kept) = (counts.forward - counts.input, counts.input - counts.weight);
        if before as f64 * memory.activation + kept as f64 * memory.kept > room {
            return false;
        }
    }
    let all = problem.microbatches;
    (counts.forward, counts.input, counts.weight) == (all, all, all)
}

fn actions(rank: usize, row: &[Kind]) -> Vec<Action> {
    let mut counts = Counts::default();
    let action = |kind: &Kind| {
        let step = match kind {
            Kind::F => Step::F(counts.forward),
            Kind::I => Step::I(counts.input),
            Kind::W => Step::W(counts.weight),
            Kind::B => Step::B(counts.input),
        };
        counts = counts.then(*kind).unwrap_or(counts);
        Action::new(rank, step)
    };
    row.iter().map(action).collect()
}

/// Start and end of every cell of an order.
#[derive(Debug, Clone)]
pub(super) struct Timed {
    pub(super) spans: Vec<Vec<(f64, f64)>>,
    /// When each rank's forwards, and its input gradients, end.
    pub(super) forward: Vec<Vec<f64>>,
    pub(super) gradient: Vec<Vec<f64>>,
}

impl Timed {
    /// `None` if ranks wait for each other for ever.
    pub(super) fn of(problem: &Problem, order: &Order) -> Option<Self> {
        let ranks = problem.ranks();
        let mut timed = Self {
            spans: vec![Vec::new(); ranks],
            forward: vec![Vec::new(); ranks],
            gradient: vec![Vec::new(); ranks],
        };
        let mut free = vec![0.0; ranks];
        let mut left: usize = order.rows.iter().map(Vec::len).sum();
        while left > 0 {
            let before = left;
            // Forwards come down the pipeline and gradients come up: in each sweep one of them gets far.
            for rank in (0..ranks).chain((0..ranks).rev()) {
                left -= timed.advance(problem, rank, order.row(rank), free.get_mut(rank)?)?;
            }
            if left == before {
                return None;
            }
        }
        Some(timed)
    }

    /// Runs a rank as far as it can; how many cells that were.
    fn advance(&mut self, problem: &Problem, rank: usize, row: &[Kind], free: &mut f64) -> Option<usize> {
        let stage = problem.stage(rank);
        let from = self.spans.get(rank)?.len();
        for (moved, kind) in row.get(from..)?.iter().enumerate() {
            let Some(ready) = self.ready(problem, rank, *kind) else { return Some(moved) };
            let start = free.max(ready);
            let end = start + stage.of(*kind);
            match kind {
                Kind::F => self.forward.get_mut(rank)?.push(end),
                Kind::I | Kind::B => self.gradient.get_mut(rank)?.push(end),
                Kind::W => {}
            }
            self.spans.get_mut(rank)?.push((start, end));
            *free = end;
        }
        Some(row.len() - from)
    }

    /// From when on what the next cell of `kind` needs of other ranks is there.
    fn ready(&self, problem: &Problem, rank: usize, kind: Kind) -> Option<f64> {
        match kind {
            Kind::W => Some(0.0),
            Kind::F => {
                let Some(before) = rank.checked_sub(1) else { return Some(0.0) };
                let next = self.forward.get(rank)?.len();
                Some(problem.forward_arrival(rank, *self.forward.get(before)?.get(next)?))
            }
            Kind::I | Kind::B => {
                let Some(after) = self.gradient.get(rank + 1) else { return Some(0.0) };
                let next = self.gradient.get(rank)?.len();
                Some(problem.gradient_arrival(rank, *after.get(next)?))
            }
        }
    }

    /// What it takes by `goal`.
    pub(super) fn cost(&self, goal: Goal) -> f64 {
        match goal {
            Goal::Makespan => {
                self.spans.iter().filter_map(|row| row.last()).map(|(_, end)| *end).fold(0.0, f64::max)
            }
            Goal::LongestRank => (0..self.spans.len()).map(|rank| self.length(rank)).fold(0.0, f64::max),
        }
    }

    /// From the first start to the last end of `rank`.
    pub(super) fn length(&self, rank: usize) -> f64 {
        let row = self.spans.get(rank).map_or(&[][..], Vec::as_slice);
        row.first().zip(row.last()).map_or(0.0, |((start, _), (_, end))| end - start)
    }
}
