//! `ZBH1`, also `ZB1P`: 1F1B with the backward split. The gradient of the inputs goes on along the pipeline at once; that
//! of the weights stays r microbatches behind on rank r, so that every rank keeps the activations of at most P
//! microbatches, as 1F1B's first rank does. One stage per rank. Qi et al., "Zero Bubble Pipeline Parallelism", 2023
//! (arXiv 2401.10241), section 2.2.

use std::ops::RangeInclusive;

use super::{Action, Generator, Shape, paired::Paired};

#[derive(Debug)]
pub(super) struct ZbH1;

impl Generator for ZbH1 {
    fn name(&self) -> &'static str {
        "ZBH1"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["zero_bubble", "zb1p"]
    }

    fn stages_per_rank(&self) -> RangeInclusive<usize> {
        1..=1
    }

    fn row(&self, shape: Shape, rank: usize) -> Vec<Action> {
        Paired::new(shape, rank, 1).split(rank).row()
    }
}
