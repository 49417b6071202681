//! What `cargo xtask virtual` measures: every schedule on several numbers of ranks, each with times that are all alike or with times of
//! its own for each stage.
//!
//! Invariant: no action takes less than ten milliseconds, so that what a rank and its messages cost beside it stays below three percent on
//! a machine that has nothing else to do: also of eight processes over gloo on two cores, if the program is built optimised.

use std::{fmt, time::Duration};

use schedule::{Gather, Shape, StageTimes, Timing, generate, known, lower, named};
use serde::{Deserialize, Serialize};

use super::{Plan, Rehearsal};
use crate::{Result, mesh::MeshShape, transport::Limits};

/// How much longer than simulated the best step may take, as a share.
pub const ALLOWED: f64 = 0.03;

/// How much faster ZB-H1 must be than 1F1B on 4 ranks with 8 microbatches; in theory 33/27.
pub const GAIN: f64 = 1.20;

/// A step that close to its simulation needs no further one.
const ENOUGH: f64 = 0.015;

/// Steps, at most: other work on the machine only makes them longer.
const STEPS: u64 = 6;

/// Limits with room for all messages of a step, as in the simulation nobody waits for one before it is needed.
#[must_use]
pub fn limits() -> Limits {
    Limits { start: Duration::from_secs(120), buffers: 1 << 12, ..Limits::default() }
}

/// How a rank's time for a microbatch is shared out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Shares {
    /// F, I and W of every stage alike.
    Even,
    /// I longer than F and W shorter, and every third stage half as long again.
    Uneven,
}

/// One schedule on so many ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// The schedule, by its canonical name.
    pub schedule: String,
    /// Pipeline ranks.
    pub ranks: usize,
    /// Microbatches.
    pub microbatches: usize,
    /// How time is shared out.
    pub shares: Shares,
}

/// What came of one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// What was measured.
    #[serde(flatten)]
    pub case: Case,
    /// Over which transport.
    pub transport: String,
    /// Milliseconds of the best step.
    pub measured_ms: f64,
    /// Milliseconds that the simulation says.
    pub simulated_ms: f64,
    /// How much longer the best step took, as a share.
    pub deviation: f64,
    /// Steps that it took to find out.
    pub steps: usize,
}

impl Case {
    /// Its steps.
    ///
    /// # Errors
    /// `Config` for numbers that the schedule can't be made for.
    pub fn plan(&self) -> Result<Plan> {
        let generator = named(&self.schedule)?;
        let each = *generator.stages_per_rank().start();
        let shape = Shape { stages: each * self.ranks, ranks: self.ranks, microbatches: self.microbatches };
        let program = lower(&generate(generator, shape)?, Gather::PerPart)?;
        Ok(Plan {
            schedule: self.schedule.clone(),
            program,
            mesh: MeshShape { dp: 1, pp: self.ranks, tp: 1 },
            timing: Timing::of_stages((0..shape.stages).map(|stage| self.times(stage, each)).collect(), 1.0),
            shapes: vec![vec![vec![2, 8]]; shape.stages],
            steps: STEPS,
            enough: Some(ENOUGH),
        })
    }

    /// Of one of `each` stages of a rank: in milliseconds.
    fn times(&self, stage: usize, each: usize) -> StageTimes {
        let share = if each == 1 { 20.0 } else { 10.0 };
        match self.shares {
            Shares::Even => StageTimes::new(share, share, share),
            Shares::Uneven => {
                let share = share * if stage % 3 == 1 { 1.8 } else { 1.2 };
                StageTimes::new(share, share * 1.25, share / 1.2)
            }
        }
    }

    /// What a rehearsal of its plan came to.
    #[must_use]
    pub fn measured(&self, transport: &str, found: &Rehearsal) -> Measured {
        Measured {
            case: self.clone(),
            transport: transport.to_owned(),
            measured_ms: found.best(),
            simulated_ms: found.simulated.makespan,
            deviation: found.excess(),
            steps: found.measured.len(),
        }
    }
}

impl Measured {
    /// Whether it is as simulated: at most [`ALLOWED`] longer, and not shorter than sleepers can be.
    #[must_use]
    pub fn holds(&self) -> bool {
        (-0.001..=ALLOWED).contains(&self.deviation)
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { case: Case { schedule, ranks, microbatches, shares }, transport, .. } = self;
        let shares = if *shares == Shares::Even { "" } else { " uneven" };
        write!(
            f,
            "{schedule:<22} {transport:<6} {ranks} ranks {microbatches:>3} microbatches{shares:<7} measured {:8.1} ms, simulated \
             {:8.1} ms, {:+.2} %",
            self.measured_ms,
            self.simulated_ms,
            100.0 * self.deviation
        )
    }
}

/// Every schedule on 2 and 4 ranks, with twice as many microbatches and times alike: some twenty seconds for each transport.
#[must_use]
pub fn quick() -> Vec<Case> {
    cases(&[2, 4], &[2], &[Shares::Even])
}

/// Also on 8 ranks, with four times as many microbatches, and with uneven times.
#[must_use]
pub fn full() -> Vec<Case> {
    cases(&[2, 4, 8], &[2, 4], &[Shares::Even, Shares::Uneven])
}

/// For each number of ranks, what is measured on them.
fn cases(ranks: &[usize], rounds: &[usize], shares: &[Shares]) -> Vec<Case> {
    let mut cases = Vec::new();
    for ranks in ranks.iter().copied() {
        for (shares, rounds) in shares.iter().flat_map(|it| rounds.iter().map(move |rounds| (*it, rounds))) {
            let case =
                |name: &str| Case { schedule: name.to_owned(), ranks, microbatches: rounds * ranks, shares };
            cases.extend(known().into_iter().map(case));
        }
    }
    cases
}

/// By how much ZB-H1 beat 1F1B on 4 ranks with 8 microbatches and times alike, over that transport; none where both were not measured.
#[must_use]
pub fn gain(all: &[Measured], transport: &str) -> Option<f64> {
    let of = |name: &str| {
        let case = Case { schedule: name.to_owned(), ranks: 4, microbatches: 8, shares: Shares::Even };
        all.iter().find(|it| it.transport == transport && it.case == case).map(|it| it.measured_ms)
    };
    Some(of("1F1B")? / of("ZBH1")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_a_plan_whose_actions_take_ten_milliseconds_or_more() {
        for case in quick().into_iter().chain(full()) {
            let plan = case.plan().unwrap();
            let shortest = plan.timing.stages.iter().map(|it| it.forward.min(it.input).min(it.weight));
            assert!(shortest.fold(f64::INFINITY, f64::min) >= 10.0, "{case:?}");
            assert_eq!(plan.program.table().ranks.len(), case.ranks);
        }
        let of = |ranks| quick().iter().filter(|case| case.ranks == ranks).count();
        assert_eq!((of(2), of(4)), (known().len(), known().len()));
    }

    #[test]
    fn what_takes_longer_than_allowed_or_too_short_does_not_hold_and_gains_are_of_one_transport() {
        let of = |schedule: &str, transport: &str, measured_ms: f64| Measured {
            case: Case { schedule: schedule.to_owned(), ranks: 4, microbatches: 8, shares: Shares::Even },
            transport: transport.to_owned(),
            measured_ms,
            simulated_ms: 100.0,
            deviation: measured_ms / 100.0 - 1.0,
            steps: 1,
        };
        let holds = |measured| of("1F1B", "local", measured).holds();
        assert!(holds(102.9) && holds(100.0) && !holds(103.1) && !holds(99.0));
        let all = [of("1F1B", "local", 122.0), of("ZBH1", "local", 100.0), of("ZBH1", "gloo", 90.0)];
        assert_eq!((gain(&all, "local"), gain(&all, "gloo")), (Some(1.22), None));
    }
}
