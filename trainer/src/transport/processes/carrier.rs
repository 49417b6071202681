//! [`Carrier`]: what moves the elements of tensors between processes, once the members have agreed over their control
//! connections on what comes.
//!
//! Control and data are apart so that one thing is written once: who is there, labels and frames that are compared before any
//! data flows, time limits, marks of failures and goodbyes go over gloo whatever carries the data; a carrier only ever
//! gets calls that all members make alike.
//!
//! Invariants: what was begun holds its tensors until it is over or the carrier is closed; after [`Carrier::close`] nothing
//! reads or writes a tensor any more.

use std::{
    rc::Rc,
    time::{Duration, Instant},
};

use tch::{Device, Tensor};

use super::core::{Core, Slot};
use crate::{torch::c10d::C10dError, transport::failure::Outcome};

/// What a carrier's calls end with. Of its own errors, what marks explain is the status.
pub(in crate::transport) type Carried<T> = Result<T, C10dError>;

/// An operation in progress.
pub(in crate::transport) trait Pending {
    /// Waits until it is done, for `limit` at most.
    ///
    /// # Errors
    /// `Late`, or the connection broke.
    fn wait(&self, limit: Duration) -> Carried<()>;
}

/// A group that connects: what its members share, and which one this is.
pub(in crate::transport) struct Meeting<'a> {
    /// The same on all members, and no other group's of this start of the run.
    pub(in crate::transport) key: &'a str,
    /// Ranks, ascending.
    pub(in crate::transport) members: &'a [usize],
    /// This rank's position.
    pub(in crate::transport) index: usize,
    /// Their control connections.
    pub(in crate::transport) control: &'a Slot,
    /// Until when.
    pub(in crate::transport) deadline: Instant,
}

/// Moves data among the members of a group. Tensors are flat and contiguous.
pub(in crate::transport) trait Lane {
    /// Gathers equal parts of all members into `into`.
    ///
    /// # Errors
    /// What is refused at once.
    fn all_gather(&self, into: Tensor, from: Tensor, limit: Duration) -> Carried<Box<dyn Pending>>;

    /// Gives `from`, cut into pieces of so many elements, one piece to each member, and takes theirs.
    ///
    /// # Errors
    /// What is refused at once.
    fn all_to_all(
        &self,
        into: (Tensor, &[i64]),
        from: (Tensor, &[i64]),
        limit: Duration,
    ) -> Carried<Box<dyn Pending>>;

    /// Sums `tensor` over all members, in place.
    ///
    /// # Errors
    /// What is refused at once.
    fn all_reduce(&self, tensor: Tensor, limit: Duration) -> Carried<Box<dyn Pending>>;
}

/// Moves the tensors of messages. Both sides call in the same order, with tensors of the same size.
pub(in crate::transport) trait Post {
    /// Begins to send.
    ///
    /// # Errors
    /// What is refused at once.
    fn send(&self, tensor: Tensor, to: usize) -> Carried<Box<dyn Pending>>;

    /// Begins to receive.
    ///
    /// # Errors
    /// What is refused at once.
    fn recv(&self, into: Tensor, from: usize) -> Carried<Box<dyn Pending>>;

    /// Whether so many bytes may be received into before it is known what comes: a message of any other size must not go there,
    /// and what never came must do no harm when all ends.
    fn ahead(&self, bytes: usize) -> bool {
        let _ = bytes;
        false
    }
}

/// What moves data.
pub(in crate::transport) trait Carrier {
    /// For messages: `gloo`, `nccl`.
    fn name(&self) -> &'static str;

    /// Where tensors must lie.
    fn device(&self) -> Device;

    /// Connects the members of a group, which all call this.
    ///
    /// # Errors
    /// A member that does not come in time, and what is refused.
    fn lane(&self, core: &Core, meeting: &Meeting<'_>) -> Outcome<Rc<dyn Lane>>;

    /// What messages go through, in a world whose control connections are `control`.
    fn post(&self, control: &Slot) -> Rc<dyn Post>;

    /// Connects the pairs of ranks that this one is in, for messages: all ranks are told the same pairs in the same order.
    ///
    /// # Errors
    /// As [`Carrier::lane`].
    fn link(&self, core: &Core, pairs: &[(usize, usize)]) -> Outcome<()> {
        let _ = (core, pairs);
        Ok(())
    }

    /// Ends all that is under way: at once where this rank or another has failed.
    fn close(&self, broken: bool) {
        let _ = broken;
    }
}
