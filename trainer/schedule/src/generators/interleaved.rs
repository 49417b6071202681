//! `Interleaved1F1B` and `InterleavedZeroBubble`: several stages on each rank, in a loop (stage s on rank s mod P), and
//! microbatches in rounds, so that the fill costs only a part of a rank's work. The warm-up is (v − 1) rounds, and two
//! forwards more for each rank that follows; the zero-bubble form needs one, splits the backward, and keeps weight
//! gradients r behind on rank r.
//!
//! Narayanan et al., 2021 (arXiv 2104.04473), section 2.2, and Qi et al., 2023 (arXiv 2401.10241). Those want a multiple
//! of P microbatches; torch relaxed that to whole rounds, as here: M must be a multiple of max(1, M div P).

use std::ops::RangeInclusive;

use super::{
    Action, Advice, Generator, Shape, advice,
    paired::{Paired, round, rounds},
    shape::refused,
};
use crate::ScheduleError;

#[derive(Debug)]
pub(super) struct Interleaved1F1B;

#[derive(Debug)]
pub(super) struct InterleavedZeroBubble;

impl Generator for Interleaved1F1B {
    fn name(&self) -> &'static str {
        "Interleaved1F1B"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["interleaved"]
    }

    fn stages_per_rank(&self) -> RangeInclusive<usize> {
        2..=usize::MAX
    }

    fn with_one_stage(&self) -> Option<&'static str> {
        Some("1F1B")
    }

    fn check(&self, shape: Shape) -> Result<(), ScheduleError> {
        whole_rounds(self.name(), shape)
    }

    fn advice(&self, shape: Shape) -> Vec<Advice> {
        advice::rounds(round(shape), shape)
    }

    fn row(&self, shape: Shape, rank: usize) -> Vec<Action> {
        Paired::new(shape, rank, 2).row()
    }
}

impl Generator for InterleavedZeroBubble {
    fn name(&self) -> &'static str {
        "InterleavedZeroBubble"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["interleaved_zb", "zb_interleaved"]
    }

    fn stages_per_rank(&self) -> RangeInclusive<usize> {
        2..=usize::MAX
    }

    fn with_one_stage(&self) -> Option<&'static str> {
        Some("ZBH1")
    }

    fn check(&self, shape: Shape) -> Result<(), ScheduleError> {
        whole_rounds(self.name(), shape)
    }

    fn advice(&self, shape: Shape) -> Vec<Advice> {
        advice::rounds(round(shape), shape)
    }

    fn row(&self, shape: Shape, rank: usize) -> Vec<Action> {
        Paired::new(shape, rank, 1).split(rank).row()
    }
}

/// A round that is not full would leave stages of the same rank at different microbatches.
fn whole_rounds(name: &str, shape: Shape) -> Result<(), ScheduleError> {
    let fits = |microbatches: &usize| {
        let shape = Shape { microbatches: *microbatches, ..shape };
        shape.microbatches.is_multiple_of(rounds(shape))
    };
    if fits(&shape.microbatches) {
        return Ok(());
    }
    let rounds = rounds(shape);
    let why = format!(
        "takes microbatches in rounds: {} on {} ranks make {rounds} rounds, and {0} is no multiple of {rounds}",
        shape.microbatches, shape.ranks
    );
    Err(refused(name, &why, shape, fits))
}
