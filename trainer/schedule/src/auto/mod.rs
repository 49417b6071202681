//! The automatic scheduler: an order of F, I, W (and B, where a stage can't be split) for one stage on each rank, made for
//! the times, the transfers and the memory of these very stages.
//!
//! ```text
//!  Problem ─► greedy: microbatch by microbatch, 3 knobs ─┐
//!          ├─► events: in the order of time, 3 rules ──────┼─► improve: moves on the critical path ─► Plan (a Table)
//!          └─► known orders that fit the memory ───────────┘
//! ```
//!
//! Invariants: a plan's table passes [`validate()`](crate::validate()); no rank ever holds more than its limit; an improved
//! plan is never worse than the greedy one by the goal that was asked for; the same problem gives the same plan.
//!
//! The greedy scheduler and its knobs are described by Qi et al., "Zero Bubble Pipeline Parallelism" (arXiv 2401.10241),
//! section 3; the improvement is a neighbourhood search on the critical path, as is usual for job shops.

mod events;
mod greedy;
mod improve;
mod known;
mod moves;
mod order;
mod problem;
#[cfg(test)]
mod tests;

pub use improve::{Effort, improve};
pub use problem::{Goal, Problem};

use crate::{ScheduleError, Table};
use order::{Order, Timed};

/// Where a plan comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The greedy scheduler, with these settings of its knobs.
    Greedy(Knobs),
    /// Made in the order of time.
    InTime,
    /// An order that is known by a name.
    Known(&'static str),
    /// The improvement, after so many moves that made it better.
    Improved {
        /// Moves that were made.
        moves: usize,
    },
}

/// The greedy scheduler's settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Knobs {
    /// Leave the last forward of the warm-up out if the first gradient would have to wait for its end.
    pub wait_for_gradient: bool,
    /// Leave a forward out where a stage is two ahead of the next one, and the gradient would wait for it.
    pub hurry_gradients: bool,
    /// Fill a gap that is too small for a weight gradient with one all the same.
    pub fill_small_gaps: bool,
}

/// An order that was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// It, valid, one stage on each rank.
    pub table: Table,
    /// What it takes by the goal.
    pub cost: f64,
    /// Where it comes from.
    pub origin: Origin,
    order: Order,
}

impl Plan {
    fn new(problem: &Problem, order: Order, origin: Origin) -> Result<Option<Self>, ScheduleError> {
        let Some(timed) = Timed::of(problem, &order) else { return Ok(None) };
        if !order.fits(problem) {
            return Ok(None);
        }
        let cost = timed.cost(problem.goal);
        Ok(Some(Self { table: order.table(problem)?, cost, origin, order }))
    }
}

/// The best that the greedy scheduler finds over all settings of its knobs.
///
/// # Errors
/// What [`Problem::check`] refuses.
pub fn greedy(problem: &Problem) -> Result<Plan, ScheduleError> {
    problem.check()?;
    let mut best: Option<Plan> = None;
    for knobs in Knobs::all() {
        let Some(order) = greedy::order(problem, knobs) else { continue };
        best = better(best, Plan::new(problem, order, Origin::Greedy(knobs))?);
    }
    // One microbatch at a time fits wherever the check passes.
    let alone = Plan::new(problem, known::one_at_a_time(problem), Origin::Known("one microbatch at a time"))?;
    best.or(alone).ok_or_else(|| ScheduleError::Shape("no order fits the memory limits".to_owned()))
}

/// The best order that is found for `problem`: the greedy scheduler's, known ones, and what can be made of them.
///
/// # Errors
/// What [`Problem::check`] refuses.
pub fn plan(problem: &Problem, effort: Effort) -> Result<Plan, ScheduleError> {
    let mut starts = vec![greedy(problem)?];
    for (name, order) in known::all(problem) {
        starts.extend(Plan::new(problem, order, Origin::Known(name))?);
    }
    for order in events::orders(problem) {
        starts.extend(Plan::new(problem, order, Origin::InTime)?);
    }
    for limited in problem.tightened() {
        for knobs in Knobs::all() {
            let Some(order) = greedy::order(&limited, knobs) else { continue };
            starts.extend(Plan::new(problem, order, Origin::Greedy(knobs))?);
        }
    }
    improve::best_of(problem, starts, effort)
}

fn better(best: Option<Plan>, found: Option<Plan>) -> Option<Plan> {
    match (best, found) {
        (Some(best), Some(found)) => Some(if found.cost < best.cost { found } else { best }),
        (best, found) => best.or(found),
    }
}

impl Knobs {
    /// All settings.
    pub fn all() -> impl Iterator<Item = Self> {
        let both = [true, false];
        both.into_iter().flat_map(move |wait_for_gradient| {
            both.into_iter().flat_map(move |hurry_gradients| {
                both.into_iter().map(move |fill_small_gaps| Self {
                    wait_for_gradient,
                    hurry_gradients,
                    fill_small_gaps,
                })
            })
        })
    }
}
