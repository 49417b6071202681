//! [`Params`]: what the operations need of the weights. `fsdp` implements it over shards; tests, over whole tensors.
//!
//! Invariants: a weight is only asked for between `begin` and `end` of its part; whoever asks drops it when its
//! operation is done, so that `end` frees it; a gradient is given once for each use and microbatch.

use tch::Tensor;

use super::Precision;
use crate::{Result, model::Param};

/// How tensor parallelism cuts a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cut {
    /// Not at all: every tensor-parallel rank holds it.
    Whole,
    /// Along this dimension.
    Dim(usize),
}

/// Why a part's weights are needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pass {
    /// For the forward computation.
    Forward,
    /// For the backward computation.
    Backward,
}

/// The weights of a stage, and where their gradients go.
pub trait Params {
    /// How many updates the weights have behind them.
    fn version(&self) -> u64 {
        0
    }

    /// How tensor parallelism cuts `param`.
    fn cut(&self, param: Param) -> Cut;

    /// What weights come in, and what products are to be computed on.
    fn precision(&self) -> Precision {
        Precision::Float32
    }

    /// The weight: one contiguous tensor for each virtual tensor-parallel rank that this rank plays, in order; one for a
    /// parameter that is not cut. No gradient is tracked.
    ///
    /// # Errors
    /// `Internal` outside `begin` and `end` of its part.
    fn weight(&self, param: Param) -> Result<Vec<Tensor>>;

    /// Takes one microbatch's gradient of one use: shaped like [`Params::weight`]'s pieces.
    ///
    /// # Errors
    /// `Internal` for one that was given already.
    fn gradient(&self, param: Param, microbatch: usize, pieces: Vec<Tensor>) -> Result<()>;

    /// The part's weights are about to be used. Collective over the data-parallel group.
    ///
    /// # Errors
    /// The transport's.
    fn begin(&self, part: usize, pass: Pass) -> Result<()>;

    /// They are not needed any more for this pass and microbatch.
    ///
    /// # Errors
    /// The transport's.
    fn end(&self, part: usize, pass: Pass) -> Result<()>;
}
