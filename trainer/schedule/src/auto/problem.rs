//! [`Problem`]: what a schedule is wanted for.

use crate::{Memory, ScheduleError, StageMemory, StageTimes, Timing};

/// What is to be short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Goal {
    /// The time from the first start to the last end of all ranks: a step that ends with a barrier, as every step does that
    /// clips gradients by their common norm.
    #[default]
    Makespan,
    /// The longest time that a rank takes from its own first start to its own last end: steps that follow each other
    /// without a barrier. The zero-bubble paper's goal.
    LongestRank,
}

/// One stage on each rank, what each takes and may hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// Durations; as many stages as ranks.
    pub timing: Timing,
    /// Memory of each stage.
    pub memory: Memory,
    /// The most that each rank may hold, weights included.
    pub limits: Vec<f64>,
    /// Whether each stage's backward can be split into I and W.
    pub splittable: Vec<bool>,
    /// Microbatches of a step.
    pub microbatches: usize,
    /// What is to be short.
    pub goal: Goal,
}

impl Problem {
    /// `ranks` stages alike, all splittable. The limit is in activations of one microbatch, of which I leaves `kept`.
    #[must_use]
    pub fn even(ranks: usize, microbatches: usize, times: crate::Times, (kept, limit): (f64, f64)) -> Self {
        let stage = StageMemory { activation: 1.0, kept, ..StageMemory::default() };
        Self {
            timing: Timing::even(ranks, 1, times),
            memory: Memory { stages: vec![stage; ranks] },
            limits: vec![limit; ranks],
            splittable: vec![true; ranks],
            microbatches,
            goal: Goal::default(),
        }
    }

    /// Stages, and ranks.
    #[must_use]
    pub const fn ranks(&self) -> usize {
        self.timing.stages.len()
    }

    /// That the numbers belong together, and every rank can hold one microbatch.
    ///
    /// # Errors
    /// What does not; a limit that is too low, with the least that would do.
    pub fn check(&self) -> Result<(), ScheduleError> {
        let refused = |why| Err(ScheduleError::Shape(why));
        let ranks = self.ranks();
        if ranks == 0 || self.microbatches == 0 {
            let said = format!(
                "automatic schedule: {ranks} ranks and {} microbatches; none can be 0",
                self.microbatches
            );
            return refused(said);
        }
        self.timing.check(ranks)?;
        self.memory.check(ranks)?;
        if self.limits.len() != ranks || self.splittable.len() != ranks {
            let (limits, splittable) = (self.limits.len(), self.splittable.len());
            return refused(format!(
                "automatic schedule: {limits} memory limits and {splittable} choices of what is split, for {ranks} ranks"
            ));
        }
        for (rank, limit) in self.limits.iter().enumerate() {
            let stage = self.stage_memory(rank);
            let least = stage.weights + stage.activation.max(if self.split(rank) { stage.kept } else { 0.0 });
            // NaN is no limit either.
            if least.partial_cmp(limit).is_none_or(std::cmp::Ordering::is_gt) {
                return refused(format!(
                    "automatic schedule: rank {rank} may hold {limit}, but its weights and one microbatch take {least}; \
                     raise its limit to at least that, or give it fewer layers"
                ));
            }
        }
        Ok(())
    }

    /// What no order can be shorter than, by the goal: the busiest rank's work, and for the makespan the time before its first
    /// forward can start.
    #[must_use]
    pub fn floor(&self) -> f64 {
        let mut fill = 0.0;
        let mut floor: f64 = 0.0;
        for rank in 0..self.ranks() {
            let stage = self.stage(rank);
            let backward = stage.input + stage.weight;
            let backward = if self.split(rank) { backward.min(stage.backward()) } else { stage.backward() };
            let work = self.microbatches as f64 * (stage.forward + backward);
            floor = floor.max(if self.goal == Goal::Makespan { fill + work } else { work });
            fill = self.forward_arrival(rank + 1, fill + stage.forward);
        }
        floor
    }

    pub(super) fn stage(&self, rank: usize) -> StageTimes {
        self.timing.stages.get(rank).copied().unwrap_or(StageTimes::new(0.0, 0.0, 0.0))
    }

    pub(super) fn stage_memory(&self, rank: usize) -> StageMemory {
        self.memory.stages.get(rank).copied().unwrap_or_default()
    }

    pub(super) fn split(&self, rank: usize) -> bool {
        self.splittable.get(rank).copied().unwrap_or(false)
    }

    /// What `rank` may hold besides its weights.
    pub(super) fn room(&self, rank: usize) -> f64 {
        self.limits.get(rank).copied().unwrap_or(0.0) - self.stage_memory(rank).weights
    }

    /// From when on a value computed on the rank before at `end` is on `rank`.
    pub(super) fn forward_arrival(&self, rank: usize, end: f64) -> f64 {
        let edge = rank.checked_sub(1).and_then(|below| self.timing.forward.get(below));
        end + edge.copied().unwrap_or(0.0)
    }

    /// From when on a gradient computed on the rank after at `end` is on `rank`.
    pub(super) fn gradient_arrival(&self, rank: usize, end: f64) -> f64 {
        end + self.timing.backward.get(rank).copied().unwrap_or(0.0)
    }

    /// The same with less room on all ranks, or on the first ones only: orders that warm up with fewer forwards.
    pub(super) fn tightened(&self) -> Vec<Self> {
        let most = self.microbatches.min(4 * self.ranks());
        // Room for so many microbatches on the first rank, and fewer by a slope on each that follows.
        let with = |first: usize, slope: usize| {
            let cap = |rank: usize| {
                let count = first.saturating_sub(slope * rank).max(1) as f64;
                let stage = self.stage_memory(rank);
                let own = stage.weights + (stage.activation * count).max(stage.kept);
                self.limits.get(rank).copied().unwrap_or(0.0).min(own)
            };
            Self { limits: (0..self.ranks()).map(cap).collect(), ..self.clone() }
        };
        let firsts = (self.ranks()..=most).step_by((most / 12).max(1));
        firsts.flat_map(|first| [with(first, 0), with(first, 1)]).collect()
    }
}
