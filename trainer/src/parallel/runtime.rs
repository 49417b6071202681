//! [`Runtime`]: what a stage needs of the operations besides the operations: whose microbatch they are for, and when the
//! weight gradients that backward queued are computed.

use std::ops::Range;

use super::Tape;
use crate::{Result, model::Ops};

/// The operations of one rank. Not shared between threads.
pub trait Runtime {
    /// The operations, from now on for `microbatch` (numbered within the replica). Backward needs no such call: its nodes
    /// remember the microbatch that they were made for.
    fn ops(&self, microbatch: usize) -> &dyn Ops;

    /// Of so many tokens of a microbatch, how many are kept here: rows of what a part gives the next. All, unless tokens are
    /// cut over ranks.
    fn kept(&self, tokens: i64) -> i64 {
        tokens
    }

    /// Computes what backward queued for `microbatch` in `parts`, and gives it to
    /// [`Params::gradient`](super::Params::gradient). Needs no weights, and no `begin` of a part. What queued nothing is
    /// fine. Collective over the ranks that tokens are cut over.
    ///
    /// # Errors
    /// What libtorch and the weights refuse.
    fn weight_gradients(&self, parts: Range<usize>, microbatch: usize) -> Result<()>;

    /// What backward queued for `microbatch` in `parts` will be computed at some later time: until then, no more is held for it
    /// than must be.
    fn postpone(&self, parts: Range<usize>, microbatch: usize) {
        let _ = (parts, microbatch);
    }

    /// From now on, remembers what products gave, until [`Runtime::recorded`]. A runtime that can't remembers nothing.
    fn record(&self) {}

    /// What was remembered, for [`Runtime::replay`].
    fn recorded(&self) -> Tape {
        Tape::default()
    }

    /// From now on, products give what `tape` says instead of being computed (and summed over ranks) again, until
    /// [`Runtime::replayed`]: for the same part, batch and weights, in the same order. Of an empty tape all are computed.
    fn replay(&self, tape: Tape) {
        drop(tape);
    }

    /// Ends it.
    ///
    /// # Errors
    /// `Internal` for what nobody took: the part did something else than when it was recorded.
    fn replayed(&self) -> Result<()> {
        Ok(())
    }
}
