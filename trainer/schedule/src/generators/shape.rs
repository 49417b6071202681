//! [`Shape`]: how many stages, ranks and microbatches a schedule is for, and which of them can't be.

use super::{super::ScheduleError, Generator};

/// Most microbatches of all stages together that a table is made for: more is a slip of the pen, and would only fill memory.
const MOST: usize = 1 << 24;

/// The numbers that a schedule is generated for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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

    /// # Errors
    /// Zeros; more than can be meant; stages that don't divide over the ranks, or not into numbers that the generator takes.
    pub(super) fn check(self, generator: &dyn Generator) -> Result<(), ScheduleError> {
        let Self { stages, ranks, microbatches } = self;
        let (name, takes) = (generator.name(), generator.stages_per_rank());
        if stages == 0 || ranks == 0 || microbatches == 0 {
            return Err(ScheduleError::Shape(format!(
                "schedule {name}: {stages} stages, {ranks} ranks and {microbatches} microbatches; none can be 0"
            )));
        }
        if stages.checked_mul(microbatches).is_none_or(|all| all > MOST) {
            return Err(ScheduleError::Shape(format!(
                "schedule {name}: {stages} stages of {microbatches} microbatches are more than {MOST} together"
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
        let plural = if (takes.start(), takes.end()) == (&1, &1) { "" } else { "s" };
        let takes = match (takes.start(), takes.end()) {
            (least, most) if least == most => format!("exactly {least}"),
            (least, &usize::MAX) => format!("at least {least}"),
            (least, most) => format!("{least} to {most}"),
        };
        let instead = generator.with_one_stage().filter(|_| stages == ranks);
        let instead =
            instead.map(|name| format!("; for 1 stage on each rank take {name}")).unwrap_or_default();
        Err(ScheduleError::Shape(format!(
            "schedule {name} needs {takes} stage{plural} on each rank, the same number on all: {stages} stages can be \
             scheduled so on {fits} ranks, not on {ranks}{instead}"
        )))
    }
}

/// A refusal of a number of microbatches, with the nearest numbers that fit.
pub(super) fn refused(name: &str, why: &str, shape: Shape, fits: impl Fn(&usize) -> bool) -> ScheduleError {
    let less = (1..shape.microbatches).rev().find(&fits);
    let more = (shape.microbatches + 1..=shape.microbatches + 2 * shape.stages).find(&fits);
    let nearest: Vec<_> = less.into_iter().chain(more).map(|it| it.to_string()).collect();
    let nearest = match nearest.is_empty() {
        true => "no number of microbatches near it fits".to_owned(),
        false => format!("the nearest that fit: {} microbatches", nearest.join(" or ")),
    };
    ScheduleError::Shape(format!("schedule {name} {why}; {nearest}"))
}
