//! `LoopedBFS`: several stages on each rank, in a loop; all microbatches through a rank's first stage, then through its
//! second one, and so on; then all backwards, from the last stage to the first. Lamy-Poirier, "Breadth-First Pipeline
//! Parallelism", 2022 (arXiv 2211.05953).
//!
//! Microbatches go back in their order, 0 to M − 1, as in every other schedule here. torch's go back in the opposite order,
//! which is `LoopedBFSReversed`: the same in time and memory. In exact mode both give the same bits, since sums there do
//! not depend on the order in which summands come; in fast mode a gradient is summed as its parts come, and only the
//! first one agrees bit for bit with other schedules on the same mesh. That is why it has the plain name.

use std::ops::RangeInclusive;

use super::{super::Step, Action, Generator, Shape};

#[derive(Debug)]
pub(super) struct LoopedBfs {
    /// Whether microbatches go back in the opposite order.
    pub(super) reversed: bool,
}

impl Generator for LoopedBfs {
    fn name(&self) -> &'static str {
        if self.reversed { "LoopedBFSReversed" } else { "LoopedBFS" }
    }

    fn aliases(&self) -> &'static [&'static str] {
        if self.reversed { &[] } else { &["breadth_first"] }
    }

    fn stages_per_rank(&self) -> RangeInclusive<usize> {
        2..=usize::MAX
    }

    fn with_one_stage(&self) -> Option<&'static str> {
        Some("GPipe")
    }

    fn row(&self, shape: Shape, rank: usize) -> Vec<Action> {
        let stages = (rank..shape.stages).step_by(shape.ranks.max(1));
        let count = shape.microbatches;
        let back = |turn| if self.reversed { count - 1 - turn } else { turn };
        let cells = |stage, step: fn(usize) -> Step, order: &dyn Fn(usize) -> usize| {
            (0..count).map(|turn| Action::new(stage, step(order(turn)))).collect::<Vec<_>>()
        };
        let forward = stages.clone().flat_map(|stage| cells(stage, Step::F, &|turn| turn));
        let backward = stages.rev().flat_map(|stage| cells(stage, Step::B, &back));
        forward.chain(backward).collect()
    }
}
