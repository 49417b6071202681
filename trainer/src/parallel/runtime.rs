//! [`Runtime`]: what a stage needs of the operations besides the operations: whose microbatch they are for, and when the
//! weight gradients that backward queued are computed.

use std::ops::Range;

use crate::{Result, model::Ops};

/// The operations of one rank. Not shared between threads.
pub trait Runtime {
    /// The operations, from now on for `microbatch` (numbered within the replica). Backward needs no such call: its nodes
    /// remember the microbatch that they were made for.
    fn ops(&self, microbatch: usize) -> &dyn Ops;

    /// Computes what backward queued for `microbatch` in `parts`, and gives it to
    /// [`Params::gradient`](super::Params::gradient). Needs no weights, and no `begin` of a part. What queued nothing is
    /// fine.
    ///
    /// # Errors
    /// What libtorch and the weights refuse.
    fn weight_gradients(&self, parts: Range<usize>, microbatch: usize) -> Result<()>;
}
