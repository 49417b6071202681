//! [`memory`]: what each rank holds over a simulated step, in units of the caller (bytes, or activations of one microbatch).
//!
//! F takes the activations of its microbatch when it starts; I swaps them, when it ends, for what W still needs (inputs and
//! output gradients of the weights' products); W or B gives back what is left when it ends. Weights are there all the time,
//! gathered ones from UNSHARD to RESHARD.

use super::Simulation;
use crate::{Action, Placement, ScheduleError, Step, Table};

/// What one stage holds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StageMemory {
    /// Activations of one microbatch, from F to I or B: M_B in the zero-bubble paper.
    pub activation: f64,
    /// What is left of them between I and W: M_W in the paper.
    pub kept: f64,
    /// Weights, gradients and optimizer state, all the time.
    pub weights: f64,
    /// Weights that UNSHARD gathers and RESHARD frees.
    pub gathered: f64,
}

/// What all stages hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Memory {
    /// Of each stage.
    pub stages: Vec<StageMemory>,
}

impl Memory {
    /// Microbatches alive, from F to W or B, in activations of one whole rank: the unit of the literature's formulas.
    #[must_use]
    pub fn live(placement: &Placement) -> Self {
        Self::share(placement, 1.0, 1.0)
    }

    /// `activation` and `kept` of one microbatch on a whole rank, divided evenly over its stages.
    #[must_use]
    pub fn share(placement: &Placement, activation: f64, kept: f64) -> Self {
        let of = |stage| {
            let here = placement.rank_of(stage).map_or(1, |rank| placement.stages_of(rank).len());
            let parts = here.max(1) as f64;
            StageMemory { activation: activation / parts, kept: kept / parts, ..StageMemory::default() }
        };
        Self { stages: (0..placement.stages()).map(of).collect() }
    }

    /// That there are numbers for `stages` stages, none negative or no number.
    ///
    /// # Errors
    /// The first that is.
    pub fn check(&self, stages: usize) -> Result<(), ScheduleError> {
        if self.stages.len() != stages {
            let said = format!("there is memory of {} stages, but {stages} stages", self.stages.len());
            return Err(ScheduleError::Shape(said));
        }
        let wrong = |it: &StageMemory| {
            [it.activation, it.kept, it.weights, it.gathered].iter().any(|it| !it.is_finite() || *it < 0.0)
        };
        match self.stages.iter().position(wrong) {
            Some(stage) => Err(ScheduleError::Shape(format!(
                "stage {stage} has an amount of memory that is negative or no number"
            ))),
            None => Ok(()),
        }
    }

    /// What a cell changes, at its start and at its end.
    fn change(&self, cell: Action) -> (f64, f64) {
        let parts = cell.parts().map(|part| self.change_of_part(part));
        parts.fold((0.0, 0.0), |(before, after), (b, a)| (before + b, after + a))
    }

    fn change_of_part(&self, action: Action) -> (f64, f64) {
        let stage = self.stages.get(action.stage).copied().unwrap_or_default();
        match action.step {
            Step::F(_) => (stage.activation, 0.0),
            Step::I(_) => (0.0, stage.kept - stage.activation),
            Step::W(_) => (0.0, -stage.kept),
            Step::B(_) => (0.0, -stage.activation),
            Step::Unshard => (stage.gathered, 0.0),
            Step::Reshard => (0.0, -stage.gathered),
            _ => (0.0, 0.0),
        }
    }
}

/// What one rank holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Usage {
    /// Moments at which it changes, ascending, and what is held from then on.
    pub timeline: Vec<(f64, f64)>,
    /// The most.
    pub peak: f64,
    /// Since when first.
    pub peak_at: f64,
}

/// What each rank of `table` holds, when it runs as `simulation` says.
#[must_use]
pub fn memory(table: &Table, simulation: &Simulation, memory: &Memory) -> Vec<Usage> {
    let empty = Vec::new();
    let of = |rank| usage(table, rank, simulation.spans.get(rank).unwrap_or(&empty), memory);
    (0..table.ranks.len()).map(of).collect()
}

fn usage(table: &Table, rank: usize, spans: &[(f64, f64)], memory: &Memory) -> Usage {
    let weights = table.placement.stages_of(rank).into_iter();
    let weights: f64 = weights.filter_map(|stage| memory.stages.get(stage)).map(|it| it.weights).sum();
    let changes = table.row(rank).iter().zip(spans).flat_map(|(action, (start, end))| {
        let (before, after) = memory.change(*action);
        [(*start, before), (*end, after)]
    });
    // What posted communication frees late is out of order in its row.
    let mut changes: Vec<_> = changes.filter(|(_, change)| *change != 0.0).collect();
    changes.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let mut usage = Usage { timeline: vec![(0.0, weights)], peak: weights, peak_at: 0.0 };
    let mut held = weights;
    for (at, change) in changes {
        held += change;
        match usage.timeline.last_mut() {
            Some(last) if last.0 >= at => last.1 = held,
            _ => usage.timeline.push((at, held)),
        }
        if held > usage.peak {
            (usage.peak, usage.peak_at) = (held, at);
        }
    }
    usage
}
