//! [`Shape`]: how many stages, ranks and microbatches a schedule is for, and which of them can't be.

use std::ops::RangeInclusive;

use super::super::ScheduleError;

/// The numbers that a schedule is generated for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Stages that the model is cut into.
    pub stages: usize,
    /// Pipeline ranks.
    pub ranks: usize,
    /// Microbatches of a step, for one data-parallel replica.
    pub microbatches: usize,
}

impl Shape {
    /// Stages of each rank.
    #[must_use]
    pub fn per_rank(self) -> usize {
        self.stages.checked_div(self.ranks).unwrap_or(0)
    }

    /// What is wasteful about these numbers though they work.
    #[must_use]
    pub fn advice(self) -> Option<String> {
        let Self { ranks, microbatches, .. } = self;
        (ranks > 1 && microbatches < 2 * ranks).then(|| {
            let idle = 100 * (ranks - 1) / (microbatches + ranks - 1);
            format!(
                "{microbatches} microbatches on {ranks} pipeline ranks leave them idle about {idle} % of the time; \
                 take at least {} microbatches",
                2 * ranks
            )
        })
    }

    /// # Errors
    /// Zeros; stages that don't divide over the ranks, or not into numbers that the schedule `name` takes.
    pub(super) fn check(self, name: &str, takes: &RangeInclusive<usize>) -> Result<(), ScheduleError> {
        let Self { stages, ranks, microbatches } = self;
        if stages == 0 || ranks == 0 || microbatches == 0 {
            return Err(ScheduleError::Shape(format!(
                "schedule {name}: {stages} stages, {ranks} ranks and {microbatches} microbatches; none can be 0"
            )));
        }
        if stages % ranks == 0 && takes.contains(&self.per_rank()) {
            return Ok(());
        }
        let fits: Vec<_> = (1..=stages)
            .filter(|ranks| stages % ranks == 0 && takes.contains(&(stages / ranks)))
            .map(|ranks| ranks.to_string())
            .collect();
        let fits = if fits.is_empty() { "no number of".to_owned() } else { fits.join(" or ") };
        let least = takes.start();
        let takes = match (takes.start(), takes.end()) {
            (least, most) if least == most => format!("exactly {least}"),
            (least, &usize::MAX) => format!("at least {least}"),
            (least, most) => format!("{least} to {most}"),
        };
        Err(ScheduleError::Shape(format!(
            "schedule {name} needs {takes} stage{} on each rank, the same number on all: {stages} stages can be \
             scheduled so on {fits} ranks, not on {ranks}",
            if *least == 1 && takes.starts_with("exactly") { "" } else { "s" },
        )))
    }
}
