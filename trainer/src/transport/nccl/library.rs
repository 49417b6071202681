//! [`Library`]: what of NCCL is used, so that it can be the real one or an emulation.
//!
//! What an implementation promises, as NCCL does: calls on one communicator run in the order in which they were made, on the stream
//! that it was made for; nothing blocks the caller; a call ends when all members have made it. What it does not promise: members
//! whose calls differ wait for ever, or get wrong elements without a word, and one that is dead never answers. Who uses it
//! agrees before, and stops waiting by itself.

use std::rc::Rc;

use tch::{Device, Tensor};

use crate::transport::processes::Carried;

/// What members of a communicator that comes to be are told, so that they find each other.
pub(super) type Unique = [u8; 128];

/// In which order a communicator's calls run on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    /// With all that is computed: after what was begun before, and before what is begun after.
    Compute,
    /// By themselves, after what was computed before the call: for calls that may have to wait long for their peer, which
    /// must not hold up what is computed meanwhile.
    Own,
}

/// One of the sends and receives of [`Call::Exchange`]. Ranks are those of the communicator.
#[derive(Debug)]
pub(super) enum Half {
    /// To this rank.
    Send(Tensor, usize),
    /// From this rank.
    Receive(Tensor, usize),
}

/// What a communicator can do. Tensors are contiguous, of a dtype of [`DTYPES`](crate::transport::DTYPES), and on the library's
/// device.
#[derive(Debug)]
pub(super) enum Call {
    /// The parts of all members, of one size, into one tensor.
    AllGather { into: Tensor, from: Tensor },
    /// The sum over all members, in place.
    AllReduce(Tensor),
    /// Sends and receives that pass together, whatever their order.
    Exchange(Vec<Half>),
}

/// Communicators of one rank.
pub(super) trait Library {
    /// Where its tensors are.
    fn device(&self) -> Device;

    /// A name for a communicator; one member makes it and tells the others.
    ///
    /// # Errors
    /// What the library refuses.
    fn unique(&self) -> Carried<Unique>;

    /// Begins to join the communicator of that name as member `rank` of `size`.
    ///
    /// # Errors
    /// What is refused at once.
    fn join(&self, name: &Unique, rank: usize, size: usize, stream: Stream) -> Carried<Rc<dyn Communicator>>;
}

/// A member's end of a communicator.
pub(super) trait Communicator {
    /// Whether it has joined, and taken in what was called last, so that it can be called again.
    ///
    /// # Errors
    /// What went wrong since, as far as the library knows.
    fn settled(&self) -> Carried<bool>;

    /// Makes a call. Only when it is settled.
    ///
    /// # Errors
    /// What is refused at once.
    fn call(&self, call: Call) -> Carried<Rc<dyn Ticket>>;

    /// Leaves: at once where `broken`, with all that is under way; else when what was called has run, for a short time.
    fn leave(&self, broken: bool);
}

/// A call that was made; holds its tensors.
pub(super) trait Ticket {
    /// Whether it has run.
    ///
    /// # Errors
    /// What went wrong.
    fn done(&self) -> Carried<bool>;
}
