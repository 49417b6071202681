//! `GPipe`: all forwards, then all backwards. With several stages on a rank: all microbatches through one stage, then
//! through the next one; backward the other way round. Microbatches go back in their order, so that gradients add up as
//! in every other schedule.

use std::ops::RangeInclusive;

use super::{super::Step, Action, Generator, Shape};

#[derive(Debug)]
pub(super) struct GPipe;

impl Generator for GPipe {
    fn name(&self) -> &'static str {
        "GPipe"
    }

    fn stages_per_rank(&self) -> RangeInclusive<usize> {
        1..=usize::MAX
    }

    fn row(&self, shape: Shape, rank: usize) -> Vec<Action> {
        let stages = (rank..shape.stages).step_by(shape.ranks.max(1));
        let all = |stage, step: fn(usize) -> Step| {
            (0..shape.microbatches).map(move |microbatch| Action::new(stage, step(microbatch)))
        };
        let forward = stages.clone().flat_map(|stage| all(stage, Step::F));
        let backward = stages.rev().flat_map(|stage| all(stage, Step::B));
        forward.chain(backward).collect()
    }
}
