//! `1F1B`: warm-up of min(M, P − 1 − r) forwards, then forward and backward in turns, then the rest of the backwards.
//! One stage per rank.
//!
//! Fewer microbatches than ranks are accepted (torch refuses them): the warm-up is then all of them, the schedule is
//! still right and its peak is still min(M, P − r); [`advice`](super::advice()) says what it wastes.

use std::ops::RangeInclusive;

use super::{Action, Generator, Shape, paired::Paired};

#[derive(Debug)]
pub(super) struct OneFOneB;

impl Generator for OneFOneB {
    fn name(&self) -> &'static str {
        "1F1B"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["pipedream_flush"]
    }

    fn stages_per_rank(&self) -> RangeInclusive<usize> {
        1..=1
    }

    fn row(&self, shape: Shape, rank: usize) -> Vec<Action> {
        Paired::new(shape, rank, 1).row()
    }
}
