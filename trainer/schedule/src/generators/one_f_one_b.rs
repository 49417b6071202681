//! `1F1B`: warm-up of min(M, P − 1 − r) forwards, then forward and backward in turns, then the rest of the backwards.
//! One stage per rank.
//!
//! Fewer microbatches than ranks are accepted (torch refuses them): the warm-up is then all of them, the schedule is
//! still right and its peak is still min(M, P − r); [`Shape::advice`] says what it wastes.

use std::ops::RangeInclusive;

use super::{super::Step, Action, Generator, Shape};

#[derive(Debug)]
pub(super) struct OneFOneB;

impl Generator for OneFOneB {
    fn name(&self) -> &'static str {
        "1F1B"
    }

    fn stages_per_rank(&self) -> RangeInclusive<usize> {
        1..=1
    }

    fn row(&self, shape: Shape, rank: usize) -> Vec<Action> {
        let warm = shape.microbatches.min(shape.ranks.saturating_sub(rank + 1));
        let forward = |microbatch| Action::new(rank, Step::F(microbatch));
        let backward = |microbatch| Action::new(rank, Step::B(microbatch));
        let steady = (warm..shape.microbatches).flat_map(|next| [forward(next), backward(next - warm)]);
        let drain = (shape.microbatches - warm..shape.microbatches).map(backward);
        (0..warm).map(forward).chain(steady).chain(drain).collect()
    }
}
