//! Transports: order, buffers, time limits and the dump of the scene. Two kinds of traffic: tensors from stage to stage
//! ([`Transport::send`]), and collectives among the ranks of a [`Group`].
//!
//! Invariants: messages between two ranks arrive in the order they were sent, each with the header that it was sent with
//! (one that does not match what the receiver expects is an error that names both); whatever waits, waits at most for the
//! time limit, and then names who is missing; the last actions of a rank are remembered and dumped when it gives up.

mod check;
pub mod conformance;
mod failure;
pub mod gloo;
mod limits;
pub mod local;
mod scene;

use std::{fmt, rc::Rc};

use tch::Tensor;

use crate::Result;

pub use limits::Limits;

/// What a message between stages is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Activations, to the next stage.
    Forward,
    /// Gradients of them, to the stage before.
    Backward,
}

/// What a message carries, and for whom: goes before the payload, and is checked on receipt.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Header {
    /// Training step.
    pub step: u64,
    /// Stage that it is for.
    pub stage: usize,
    /// Microbatch.
    pub microbatch: usize,
    /// What it is.
    pub kind: Kind,
    /// Shape of each tensor; all f32.
    pub shapes: Vec<Vec<i64>>,
}

/// What a collective is for; the same on all members, or it is an error that names both.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Purpose(pub String);

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Forward => "activations",
            Self::Backward => "gradients",
        })
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, stage, microbatch, kind, shapes } = self;
        write!(f, "{kind} of microbatch {microbatch} for stage {stage} in step {step}, shapes {shapes:?}")
    }
}

/// One rank's access to all others. Not shared between threads: each rank has its own.
pub trait Transport {
    /// This rank.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn size(&self) -> usize;

    /// A group of `members` (ascending, this rank among them). All members call it, for all their groups in the same order.
    ///
    /// # Errors
    /// `Peer` when a member does not arrive in time.
    fn group(&self, name: &str, members: &[usize]) -> Result<Rc<dyn Group>>;

    /// Hands tensors to rank `to`. Returns at once where the transport can buffer; the tensors are not changed by anyone
    /// until [`Transport::flush`].
    ///
    /// # Errors
    /// `Peer` when the receiver is dead or too late.
    fn send(&self, to: usize, header: &Header, tensors: &[Tensor]) -> Result<()>;

    /// The next message from rank `from`.
    ///
    /// # Errors
    /// `Peer` when it does not come in time, `Corrupt` when it is not the expected one.
    fn recv(&self, from: usize, expect: &Header) -> Result<Vec<Tensor>>;

    /// Waits until everything that was sent has been taken.
    ///
    /// # Errors
    /// `Peer` when the receiver is dead or too late.
    fn flush(&self) -> Result<()>;

    /// Remembers what this rank does now, for the dump of the scene.
    fn note(&self, action: &dyn fmt::Display);

    /// The last actions of this rank, what it waits for and on whom: written where the configuration says, and returned.
    fn scene(&self) -> String;

    /// Tells all other ranks that this one has failed, so that none of them waits for it. The run calls it with the
    /// error that it is about to return; failures of the transport itself tell the others by themselves.
    fn abort(&self, why: &dyn fmt::Display) {
        self.note(&format_args!("failed: {why}"));
    }
}

/// Collectives among some ranks. Every member calls each, in the same order.
pub trait Group {
    /// This rank's position among the members.
    fn index(&self) -> usize;

    /// Number of members.
    fn size(&self) -> usize;

    /// Everyone's tensor (f32 or i64, contiguous), in order of position. `shapes` are those of all members; an empty one
    /// is fine.
    ///
    /// # Errors
    /// `Peer` when a member does not arrive in time.
    fn all_gather(&self, purpose: &Purpose, mine: &Tensor, shapes: &[Vec<i64>]) -> Result<Vec<Tensor>>;

    /// Gives `parts[i]` to member `i` and returns what they gave to this one, in order of position; `shapes[i]` is the
    /// shape of what member `i` gives to this one.
    ///
    /// # Errors
    /// `Peer` when a member does not arrive in time.
    fn exchange(&self, purpose: &Purpose, parts: Vec<Tensor>, shapes: &[Vec<i64>]) -> Result<Vec<Tensor>>;

    /// The sum, in whatever order is fastest: for fast mode.
    ///
    /// # Errors
    /// `Peer` when a member does not arrive in time.
    fn all_reduce(&self, purpose: &Purpose, mine: Tensor) -> Result<Tensor>;

    /// Everyone's bytes (lengths may differ), in order of position.
    ///
    /// # Errors
    /// `Peer` when a member does not arrive in time.
    fn all_gather_bytes(&self, purpose: &Purpose, mine: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// Waits for all members.
    ///
    /// # Errors
    /// `Peer` when a member does not arrive in time.
    fn barrier(&self, purpose: &Purpose) -> Result<()> {
        self.all_gather_bytes(purpose, &[]).map(|_| ())
    }
}
