//! [`simulate`]: when each computation starts and ends if all take the times given and ranks never wait for anything but
//! what they need. The bubble and the peak of live activations follow.

use std::collections::HashMap;

use super::{Action, ScheduleError, Step, Table, progress::Fact, validate};

/// Durations of one microbatch's computations on one stage, and of a transfer between ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Times {
    /// Forward.
    pub forward: f64,
    /// Gradient of the inputs.
    pub input: f64,
    /// Gradient of the weights.
    pub weight: f64,
    /// A transfer to another rank.
    pub transfer: f64,
}

impl Times {
    /// All computations take the same time on a stage that is the whole of a rank's share; transfers take none.
    pub const UNIT: Self = Self { forward: 1.0, input: 1.0, weight: 1.0, transfer: 0.0 };

    const fn of(&self, action: Action) -> f64 {
        match action.step {
            Step::F(_) => self.forward,
            Step::I(_) => self.input,
            Step::W(_) => self.weight,
            Step::B(_) => self.input + self.weight,
            _ => 0.0,
        }
    }
}

/// What [`simulate`] found.
#[derive(Debug, Clone, PartialEq)]
pub struct Simulation {
    /// Start and end of every cell, row by row.
    pub spans: Vec<Vec<(f64, f64)>>,
    /// From the first start to the last end.
    pub makespan: f64,
    /// Time that each rank computes.
    pub busy: Vec<f64>,
    /// Most stages' microbatches alive at once on each rank: from F to B or W.
    pub peak_live: Vec<usize>,
}

impl Simulation {
    /// Idle share of all ranks' time from the first start to the last end.
    #[must_use]
    pub fn bubble(&self) -> f64 {
        let busy: f64 = self.busy.iter().sum();
        1.0 - busy / (self.makespan * self.busy.iter().map(|_| 1.0).sum::<f64>())
    }
}

/// Runs `table`, which is not lowered, in time.
///
/// # Errors
/// What [`validate()`] refuses.
pub fn simulate(table: &Table, times: &Times) -> Result<Simulation, ScheduleError> {
    validate(table)?;
    let mut clock = Clock { table, times, ends: HashMap::new(), spans: vec![Vec::new(); table.ranks.len()] };
    // A validated table has no deadlock, so each round moves at least one rank.
    while (0..table.ranks.len()).map(|rank| clock.advance(rank)).fold(false, |any, moved| any | moved) {}
    let spans = clock.spans;
    let length = |spans: &Vec<(f64, f64)>| spans.iter().map(|(start, end)| end - start).sum();
    Ok(Simulation {
        makespan: spans.iter().filter_map(|row| row.last()).fold(0.0, |latest, (_, end)| latest.max(*end)),
        busy: spans.iter().map(length).collect(),
        peak_live: table.ranks.iter().map(|row| peak_live(row)).collect(),
        spans,
    })
}

struct Clock<'a> {
    table: &'a Table,
    times: &'a Times,
    ends: HashMap<Fact, f64>,
    spans: Vec<Vec<(f64, f64)>>,
}

impl Clock<'_> {
    /// Runs `rank` as far as it can; whether it moved.
    fn advance(&mut self, rank: usize) -> bool {
        let mut moved = false;
        while let Some((action, start)) = self.next(rank) {
            let end = start + self.times.of(action);
            self.ends.extend(Fact::given_by(action).map(|fact| (fact, end)));
            self.spans.get_mut(rank).into_iter().for_each(|row| row.push((start, end)));
            moved = true;
        }
        moved
    }

    fn next(&self, rank: usize) -> Option<(Action, f64)> {
        let done = self.spans.get(rank)?;
        let action = *self.table.row(rank).get(done.len())?;
        let mut start = done.last().map_or(0.0, |(_, end)| *end);
        for fact in Fact::needed_by(action, self.table.stages()) {
            let local = self.table.placement.rank_of(fact.stage()) == Some(rank);
            let transfer = if local { 0.0 } else { self.times.transfer };
            start = f64::max(start, self.ends.get(&fact)? + transfer);
        }
        Some((action, start))
    }
}

/// Most microbatches alive at once in a row.
pub(crate) fn peak_live(row: &[Action]) -> usize {
    let mut live = 0_usize;
    let count = |action: &Action| {
        match action.step {
            Step::F(_) => live += 1,
            Step::B(_) | Step::W(_) => live = live.saturating_sub(1),
            _ => {}
        }
        live
    };
    row.iter().map(count).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Shape, generate, named},
        *,
    };

    fn run(name: &str, ranks: usize, microbatches: usize, times: &Times) -> Simulation {
        let shape = Shape { stages: ranks, ranks, microbatches };
        simulate(&generate(named(name).unwrap(), shape).unwrap(), times).unwrap()
    }

    #[test]
    fn gpipe_and_1f1b_take_the_ideal_time_and_one_fill() {
        for (ranks, microbatches) in [(1, 3), (2, 4), (4, 8), (4, 2), (8, 32)] {
            for name in ["GPipe", "1F1B"] {
                let took = run(name, ranks, microbatches, &Times::UNIT).makespan;
                let formula = 3 * microbatches + 3 * (ranks - 1);
                assert!((took - f64::from(u32::try_from(formula).unwrap())).abs() < 1e-9, "{name} {ranks}");
            }
        }
    }

    #[test]
    fn the_bubble_table_of_the_literature_comes_out() {
        for (ranks, microbatches, percent) in [(2, 4, 20.0), (4, 8, 27.3), (4, 32, 8.6), (8, 32, 17.9)] {
            for times in [Times::UNIT, Times { weight: 0.2, input: 1.7, ..Times::UNIT }] {
                for name in ["GPipe", "1F1B"] {
                    let bubble = 100.0 * run(name, ranks, microbatches, &times).bubble();
                    assert!((bubble - percent).abs() < 0.05, "{name} {ranks} {microbatches}: {bubble}");
                }
            }
        }
    }

    #[test]
    fn live_activations_peak_as_the_formulas_say() {
        for (ranks, microbatches) in [(1, 3), (2, 4), (4, 8), (4, 2), (8, 32)] {
            let gpipe = run("GPipe", ranks, microbatches, &Times::UNIT).peak_live;
            assert_eq!(gpipe, vec![microbatches; ranks]);
            let steady = run("1F1B", ranks, microbatches, &Times::UNIT).peak_live;
            let formula: Vec<_> = (0..ranks).map(|rank| microbatches.min(ranks - rank)).collect();
            assert_eq!(steady, formula);
        }
    }

    #[test]
    fn a_transfer_delays_the_other_rank_only() {
        let free = run("1F1B", 2, 1, &Times::UNIT).makespan;
        let dear = run("1F1B", 2, 1, &Times { transfer: 0.5, ..Times::UNIT }).makespan;
        assert!((dear - free - 1.0).abs() < 1e-9);
    }
}
