//! `ZBVZeroBubble`, also ZB-V: two stages on each rank, in a V (stages r and 2P − 1 − r on rank r), and split backwards.
//! The turn of the V and the loss need no messages, every rank keeps the activations of at most P microbatches, and with
//! equal times no rank waits between its first and its last computation. Qi et al., 2023 (arXiv 2401.10241), section 6.
//!
//! The order is made for at least 2P − 1 microbatches, which is what fills the V; where there are fewer, it is that order
//! without the others, which is still right but no longer free of bubbles.

use std::ops::RangeInclusive;

use super::{
    Action, Advice, Generator, Shape, advice,
    v_row::{VRow, Way},
};
use crate::{Placement, ScheduleError};

#[derive(Debug)]
pub(super) struct Zbv;

impl Generator for Zbv {
    fn name(&self) -> &'static str {
        "ZBVZeroBubble"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["zbv"]
    }

    fn stages_per_rank(&self) -> RangeInclusive<usize> {
        2..=2
    }

    fn with_one_stage(&self) -> Option<&'static str> {
        Some("ZBH1")
    }

    fn advice(&self, shape: Shape) -> Vec<Advice> {
        advice::fill(self.name(), shape)
    }

    fn placement(&self, shape: Shape) -> Result<Placement, ScheduleError> {
        Placement::v(shape.stages, shape.ranks)
    }

    fn row(&self, shape: Shape, rank: usize) -> Vec<Action> {
        use Way::{Back, Down};
        let following = shape.ranks.saturating_sub(rank);
        let microbatches = shape.microbatches.max((2 * shape.ranks).saturating_sub(1));
        let mut row = VRow::new(shape, rank);
        for _ in 1..2 * following {
            row.f(Down);
        }
        for _ in 0..rank {
            row.f(Back).f(Down);
        }
        for _ in 0..following {
            row.f(Back).i(Back).w();
        }
        while row.forwards(Back) < microbatches {
            if row.forwards(Down) < microbatches {
                row.f(Down);
            }
            row.i(Down).w().f(Back).i(Back).w();
        }
        for _ in 0..rank {
            row.i(Down).i(Back);
        }
        for _ in 0..following {
            row.i(Down).w_of(Down);
        }
        let there = |action: &Action| action.step.microbatch() < Some(shape.microbatches);
        row.done().into_iter().filter(there).collect()
    }
}
