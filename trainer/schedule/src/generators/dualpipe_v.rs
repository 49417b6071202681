//! `DualPipeV`: two stages on each rank, in a V, and forwards that run together with full backwards of the rank's other
//! stage in one cell, so that what one of them waits for hides behind the other. Only the ends split backwards. It needs a
//! microbatch for each of the 2P stages. A stage that can't run both at once runs them one after the other; the schedule
//! is then about as good as InterleavedZeroBubble with two stages.
//!
//! The V-shaped half of DeepSeek's DualPipe (arXiv 2412.19437, section 3.2.1), in the eight phases of their description.

use std::ops::RangeInclusive;

use super::{
    Action, Generator, Shape,
    shape::refused,
    v_row::{VRow, Way},
};
use crate::{Placement, ScheduleError};

#[derive(Debug)]
pub(super) struct DualPipeV;

impl Generator for DualPipeV {
    fn name(&self) -> &'static str {
        "DualPipeV"
    }

    fn stages_per_rank(&self) -> RangeInclusive<usize> {
        2..=2
    }

    fn with_one_stage(&self) -> Option<&'static str> {
        Some("ZBH1")
    }

    fn check(&self, shape: Shape) -> Result<(), ScheduleError> {
        let fits = |microbatches: &usize| *microbatches >= shape.stages;
        if fits(&shape.microbatches) {
            return Ok(());
        }
        let why = format!(
            "needs a microbatch for each stage: there are {} stages and {} microbatches",
            shape.stages, shape.microbatches
        );
        Err(refused(self.name(), &why, shape, fits))
    }

    fn placement(&self, shape: Shape) -> Result<Placement, ScheduleError> {
        Placement::v(shape.stages, shape.ranks)
    }

    fn row(&self, shape: Shape, rank: usize) -> Vec<Action> {
        let following = shape.ranks.saturating_sub(rank + 1);
        let mut row = VRow::new(shape, rank);
        fill(&mut row, rank, following);
        steady(&mut row, (shape.microbatches + rank + 1).saturating_sub(shape.stages), following);
        drain(&mut row, rank, following);
        row.done()
    }
}

/// Phases 1 to 3: forwards down, forwards both ways, then the first backwards with their weights right behind.
fn fill(row: &mut VRow, rank: usize, following: usize) {
    for _ in 0..2 * following {
        row.f(Way::Down);
    }
    for _ in 0..=rank {
        row.f(Way::Down).f(Way::Back);
    }
    for _ in 0..following {
        row.i(Way::Back).w().f(Way::Back);
    }
}

/// Phases 4 and 5: both ways at once, then without anything new on the way down. On the last rank the first forward goes
/// alone: its partner would be ready only after it, and all others would wait for that.
fn steady(row: &mut VRow, turns: usize, following: usize) {
    for turn in 0..turns {
        match (turn, following) {
            (0, 0) => row.f(Way::Down).b(Way::Back),
            _ => row.overlap(Way::Down, Way::Back),
        };
        row.overlap(Way::Back, Way::Down);
    }
    for _ in 0..following {
        row.b(Way::Back).overlap(Way::Back, Way::Down);
    }
}

/// Phases 6 to 8: backwards both ways, the second half of them split; then weights in the places of what is waited for.
fn drain(row: &mut VRow, rank: usize, following: usize) {
    let ways = [Way::Back, Way::Down].into_iter().cycle();
    for (turn, way) in ways.take(2 * (rank + 1)).enumerate() {
        match turn <= rank {
            true => row.b(way),
            false => row.i(way),
        };
    }
    for _ in 0..following {
        row.w().i(Way::Down);
    }
    for _ in 0..=rank {
        row.w();
    }
}
