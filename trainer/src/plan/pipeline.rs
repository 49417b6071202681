//! [`Pipeline`]: a schedule's bubble and its peaks, by formula where there is one and by simulation always.

use serde::Serialize;

use schedule::{Generator, Shape, StageTimes, Timing};

use crate::{Place, Result};

/// The same idle time in the three ways that people quote it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Bubble {
    /// Idle share of all ranks' time, from the first start to the last end: 1 − busy / (P · makespan).
    pub of_total: f64,
    /// Idle time over the time that the work alone takes: makespan / ideal − 1 (Megatron's papers).
    pub of_ideal: f64,
    /// The longest span of one rank, from its first start to its last end: (span − ideal) / span (the zero-bubble paper's).
    pub of_span: f64,
    /// What the literature's formula gives for `of_total`, where the schedule has one: for 1F1B (P − 1)/(M + P − 1).
    pub formula: Option<f64>,
}

/// A schedule on so many ranks with so many microbatches, timed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Pipeline {
    /// Its name.
    pub schedule: String,
    /// Ranks.
    pub ranks: u64,
    /// Stages of each rank.
    pub per_rank: u64,
    /// Microbatches.
    pub microbatches: u64,
    /// Seconds (or units) of a step.
    pub makespan: f64,
    /// Idle time.
    pub bubble: Bubble,
    /// Most stage-microbatches alive at once, by rank.
    pub live: Vec<u64>,
}

/// The shape of a schedule on so many ranks, each with as few stages as it takes.
fn shape(schedule: &str, ranks: u64, microbatches: u64) -> Result<(&'static dyn Generator, Shape)> {
    let number = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
    let generator = schedule::named(schedule).place("the plan's schedule")?;
    let stages = number(ranks).saturating_mul(*generator.stages_per_rank().start());
    Ok((generator, Shape { stages, ranks: number(ranks), microbatches: number(microbatches) }))
}

/// Which stages each rank has.
///
/// # Errors
/// `Config` for a schedule or a number that can't be.
pub(super) fn stages_of_ranks(schedule: &str, ranks: u64, microbatches: u64) -> Result<Vec<Vec<usize>>> {
    let (generator, shape) = shape(schedule, ranks, microbatches)?;
    let placement = generator.placement(shape)?;
    Ok((0..shape.ranks).map(|rank| placement.stages_of(rank)).collect())
}

impl Pipeline {
    /// Generates and simulates `schedule`. Times are of one microbatch on one *rank's* whole share; `transfer` is of one
    /// boundary.
    ///
    /// # Errors
    /// `Config` for a schedule or a number that can't be.
    pub fn new(
        schedule: &str,
        (ranks, microbatches): (u64, u64),
        (forward, input, weight, transfer): (f64, f64, f64, f64),
    ) -> Result<Self> {
        let (generator, shape) = shape(schedule, ranks, microbatches)?;
        let per_rank = shape.per_rank();
        let table = schedule::generate(generator, shape)?;
        let v = per_rank as f64;
        let times = schedule::Times { forward: forward / v, input: input / v, weight: weight / v, transfer };
        let found = schedule::simulate(&table, &times)?;
        let ideal = microbatches as f64 * (forward + input + weight);
        let name = generator.name();
        let whole = schedule::Times { forward, input, weight, transfer: 0.0 };
        let known = schedule::formula(name, shape, whole).and_then(|formula| formula.makespan);
        let bubbles = found.bubbles();
        Ok(Self {
            schedule: name.to_owned(),
            ranks,
            per_rank: per_rank as u64,
            microbatches,
            makespan: found.makespan,
            bubble: Bubble {
                of_total: bubbles.makespan,
                of_ideal: bubbles.ideal,
                of_span: bubbles.longest_rank,
                formula: known.filter(|makespan| *makespan > 0.0).map(|makespan| 1.0 - ideal / makespan),
            },
            live: found.peak_live.iter().map(|live| *live as u64).collect(),
        })
    }

    /// The bubble of `schedule` where its stages take what is given, of one microbatch each, and transfers take no time: what is idle because
    /// of the order and of uneven stages, and not because somebody waits for the network.
    ///
    /// # Errors
    /// `Config` for a schedule or a number that can't be, and for times of another number of stages than the schedule has.
    pub fn of_stages(
        schedule: &str,
        (ranks, microbatches): (u64, u64),
        stages: &[StageTimes],
    ) -> Result<Bubble> {
        let (generator, shape) = shape(schedule, ranks, microbatches)?;
        let shape = Shape { stages: stages.len(), ..shape };
        let table = schedule::generate(generator, shape)?;
        let timing = Timing::of_stages(stages.to_vec(), 0.0);
        timing.check(table.placement.stages())?;
        let bubbles = schedule::simulate(&table, &timing)?.bubbles();
        Ok(Bubble {
            of_total: bubbles.makespan,
            of_ideal: bubbles.ideal,
            of_span: bubbles.longest_rank,
            formula: None,
        })
    }

    /// In units of one rank's forward, which input and weight gradients also take; transfers are free.
    ///
    /// # Errors
    /// As [`Pipeline::new`].
    pub fn unit(schedule: &str, ranks: u64, microbatches: u64) -> Result<Self> {
        Self::new(schedule, (ranks, microbatches), (1.0, 1.0, 1.0, 0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_articles_bubble_table_comes_out_by_formula_and_by_simulation() {
        for (ranks, microbatches, percent) in [(2, 4, 20.0), (4, 8, 27.3), (4, 32, 8.6), (8, 32, 17.9)] {
            let bubble = Pipeline::unit("1F1B", ranks, microbatches).unwrap().bubble;
            assert!((100.0 * bubble.of_total - percent).abs() < 0.05);
            assert!((bubble.formula.unwrap() - bubble.of_total).abs() < 1e-9);
            let ideal = (ranks - 1) as f64 / microbatches as f64;
            assert!((bubble.of_ideal - ideal).abs() < 1e-9);
        }
    }

    #[test]
    fn schedules_for_four_ranks_and_eight_microbatches_take_what_the_reference_measured() {
        for (name, total) in
            [("1F1B", 33.0), ("Interleaved1F1B", 28.5), ("ZBH1", 27.0), ("ZBVZeroBubble", 25.5)]
        {
            let found = Pipeline::unit(name, 4, 8).unwrap();
            assert!((found.makespan - total).abs() < 1e-9, "{name}: {}", found.makespan);
        }
        let h2 = Pipeline::unit("ZBH2", 4, 8).unwrap().bubble;
        assert!(
            (h2.of_total - 1.0 / 9.0).abs() < 1e-9 && h2.of_span.abs() < 1e-9,
            "the same schedule, two bubbles: {h2:?}"
        );
    }

    #[test]
    fn the_gain_of_zero_bubble_falls_with_more_microbatches() {
        for (microbatches, percent) in [(2, 36.4), (4, 40.0), (8, 22.2), (16, 11.8), (32, 6.1), (64, 3.1)] {
            let of = |schedule| Pipeline::unit(schedule, 4, microbatches).unwrap().makespan;
            let gain = 100.0 * (of("1F1B") / of("ZBH1") - 1.0);
            assert!((gain - percent).abs() < 0.05, "{microbatches} microbatches: {gain} %");
        }
    }

    #[test]
    fn stages_alike_have_the_bubble_of_units_and_a_slow_one_has_more() {
        let alike = vec![StageTimes::new(2.0, 2.0, 2.0); 4];
        let found = Pipeline::of_stages("1F1B", (4, 8), &alike).unwrap();
        assert!((found.of_total - Pipeline::unit("1F1B", 4, 8).unwrap().bubble.of_total).abs() < 1e-9);
        let mut uneven = alike.clone();
        uneven[2] = StageTimes::new(4.0, 4.0, 4.0);
        assert!(Pipeline::of_stages("1F1B", (4, 8), &uneven).unwrap().of_total > found.of_total + 0.15);
        let folded = Pipeline::of_stages("ZBVZeroBubble", (2, 4), &alike).unwrap();
        assert!(
            (folded.of_total - Pipeline::unit("ZBVZeroBubble", 2, 4).unwrap().bubble.of_total).abs() < 1e-9
        );
        assert!(Pipeline::of_stages("1F1B", (4, 8), &alike[..3]).is_err());
    }

    #[test]
    fn live_microbatches_are_those_of_the_schedule() {
        assert_eq!(Pipeline::unit("1F1B", 4, 8).unwrap().live, [4, 3, 2, 1]);
        assert_eq!(Pipeline::unit("GPipe", 4, 8).unwrap().live, [8; 4]);
        assert!(Pipeline::unit("1F2B", 4, 8).is_err());
        assert_eq!(Pipeline::unit("ZBH1", 4, 8).unwrap().live, [4; 4]);
    }
}
