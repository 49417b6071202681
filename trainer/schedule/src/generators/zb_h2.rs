//! `ZBH2`: like ZBH1 with a warm-up of 2(P − 1 − r) forwards, and weight gradients 2r microbatches behind: no
//! rank waits between its first forward and its last weight gradient if forward, input and weight gradient take the same
//! time and there are at least 2P − 1 microbatches; the price is 2P − 1 live microbatches. One stage per rank.
//! Qi et al., 2023 (arXiv 2401.10241), section 2.3.

use std::ops::RangeInclusive;

use super::{Action, Advice, Generator, Shape, advice, paired::Paired};

#[derive(Debug)]
pub(super) struct ZbH2;

impl Generator for ZbH2 {
    fn name(&self) -> &'static str {
        "ZBH2"
    }

    fn stages_per_rank(&self) -> RangeInclusive<usize> {
        1..=1
    }

    fn advice(&self, shape: Shape) -> Vec<Advice> {
        advice::fill(self.name(), shape)
    }

    fn row(&self, shape: Shape, rank: usize) -> Vec<Action> {
        Paired::new(shape, rank, 2).split(2 * rank).row()
    }
}
