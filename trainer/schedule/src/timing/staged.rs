//! [`Timing`]: durations of each stage and each edge.

use super::{Direction, Durations, Edge, Times};
use crate::{Action, ScheduleError, Step};

/// Durations of one stage: of one microbatch where nothing else is said.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StageTimes {
    /// Forward.
    pub forward: f64,
    /// Gradient of the inputs.
    pub input: f64,
    /// Gradient of the weights.
    pub weight: f64,
    /// Both at once, where that is not their sum: a full backward can be cheaper than its halves, or dearer.
    pub both: Option<f64>,
    /// Gathering the stage's weights (UNSHARD).
    pub gather: f64,
    /// Reducing its gradients, once a step (REDUCE_GRAD).
    pub reduce: f64,
}

impl StageTimes {
    /// Computations only.
    #[must_use]
    pub const fn new(forward: f64, input: f64, weight: f64) -> Self {
        Self { forward, input, weight, both: None, gather: 0.0, reduce: 0.0 }
    }

    /// A full backward.
    #[must_use]
    pub fn backward(&self) -> f64 {
        self.both.unwrap_or(self.input + self.weight)
    }

    fn numbers(&self) -> [f64; 6] {
        [self.forward, self.input, self.weight, self.backward(), self.gather, self.reduce]
    }
}

/// Durations of all stages and edges.
#[derive(Debug, Clone, PartialEq)]
pub struct Timing {
    /// Of each stage.
    pub stages: Vec<StageTimes>,
    /// Of a transfer of activations from each stage to the next, where they are on different ranks.
    pub forward: Vec<f64>,
    /// Of a transfer of gradients to each stage from the next.
    pub backward: Vec<f64>,
    /// Of the optimizer, after the last rank has ended.
    pub optimizer: f64,
    /// Which share of its shorter part a composite saves, from 0 (its parts run one after the other) to 1.
    pub overlap: f64,
}

impl Timing {
    /// `stages` stages alike; `times` are those of a whole rank's share, which `per_rank` stages divide evenly.
    #[must_use]
    pub fn even(stages: usize, per_rank: usize, times: Times) -> Self {
        let part = times.of_part(per_rank);
        let stage = StageTimes::new(part.forward, part.input, part.weight);
        Self::of_stages(vec![stage; stages], times.transfer)
    }

    /// Stages with times of their own, every transfer alike.
    #[must_use]
    pub fn of_stages(stages: Vec<StageTimes>, transfer: f64) -> Self {
        let edges = stages.len().saturating_sub(1);
        Self {
            stages,
            forward: vec![transfer; edges],
            backward: vec![transfer; edges],
            optimizer: 0.0,
            overlap: 0.0,
        }
    }

    /// That there are numbers for `stages` stages, and none of them is negative or no number.
    ///
    /// # Errors
    /// The first that is.
    pub fn check(&self, stages: usize) -> Result<(), ScheduleError> {
        let refused = |why| Err(ScheduleError::Shape(why));
        if self.stages.len() != stages {
            return refused(format!("there are times of {} stages, but {stages} stages", self.stages.len()));
        }
        let edges = stages.saturating_sub(1);
        if self.forward.len() != edges || self.backward.len() != edges {
            let (forward, backward) = (self.forward.len(), self.backward.len());
            return refused(format!(
                "there are times of {forward} transfers forward and {backward} backward, but {edges} edges between stages"
            ));
        }
        let wrong = |time: &f64| !time.is_finite() || *time < 0.0;
        if let Some(stage) = self.stages.iter().position(|it| it.numbers().iter().any(wrong)) {
            return refused(format!("stage {stage} has a time that is negative or no number"));
        }
        if self.forward.iter().chain(&self.backward).chain([&self.optimizer]).any(wrong) {
            return refused(
                "a transfer or the optimizer has a time that is negative or no number".to_owned(),
            );
        }
        if !(0.0..=1.0).contains(&self.overlap) {
            return refused(format!(
                "composites can't save {} of their shorter part; it is from 0 to 1",
                self.overlap
            ));
        }
        Ok(())
    }
}

impl Durations for Timing {
    fn action(&self, action: Action) -> f64 {
        let of = |time: fn(&StageTimes) -> f64| self.stages.get(action.stage).map_or(0.0, time);
        match action.step {
            Step::F(_) => of(|it| it.forward),
            Step::I(_) => of(|it| it.input),
            Step::W(_) => of(|it| it.weight),
            Step::B(_) => of(StageTimes::backward),
            Step::Unshard => of(|it| it.gather),
            Step::ReduceGrad => of(|it| it.reduce),
            _ => 0.0,
        }
    }

    fn transfer(&self, edge: Edge) -> f64 {
        let edges = match edge.direction {
            Direction::Forward => &self.forward,
            Direction::Backward => &self.backward,
        };
        edges.get(edge.below).copied().unwrap_or(0.0)
    }

    fn composite(&self, forward: f64, backward: f64) -> f64 {
        forward + backward - self.overlap * forward.min(backward)
    }

    fn optimizer(&self) -> f64 {
        self.optimizer
    }
}
