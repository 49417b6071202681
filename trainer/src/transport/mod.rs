//! Transports: order, buffers, time limits and the dump of the scene. Two kinds of traffic: tensors from stage to stage
//! ([`Transport::send`]), and collectives among the ranks of a [`Group`].
//!
//! Invariants: messages between two ranks arrive in the order they were sent, whole, each with the header that it was sent
//! with and its number (one that is not what the receiver expects is an error that names both); no more messages of a rank
//! are under way than [`Limits`] allow; whatever waits, waits at most for the time limit, and then names who is missing; the
//! last actions of a rank are remembered and dumped when it, or any other rank, gives up.
//!
//! What the others say when a rank goes wrong, and when:
//!
//! | rank 1 | the others say | within |
//! |---|---|---|
//! | has a loss or gradient that is not finite | the step, the rank, the microbatch; nobody updates | the step |
//! | returns an error or panics | `rank 1 has failed`, and why | at once |
//! | dies (`kill -9`) | `rank 1 is gone` | at once: its connections close |
//! | is stopped (`SIGSTOP`), or its host is cut off | `missing: rank 1`, and that its process is silent | the step limit |
//! | is stuck, or slow | `missing: rank 1`, and what it does | the step limit |
//! | never came | `rank 1 (has not joined)` | the start limit |
//! | sends something else, or nothing | step, stage, microbatch, shapes of what was due and of what came, and its number | at once; nothing: the step limit |

mod check;
pub mod conformance;
mod failure;
pub mod fake;
mod gathering;
pub mod gloo;
mod limits;
pub mod local;
pub mod nccl;
mod processes;
mod scene;
mod tamper;
mod traffic;

use std::{fmt, rc::Rc};

use tch::{Device, Kind as Dtype, Tensor};

use crate::Result;

pub use gathering::Gathering;
pub use limits::{Limits, Mode};
pub use processes::{ProcessTransport, Ranks};
pub use tamper::{Fault, Tamper};
pub use traffic::{Count, Traffic};

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
    /// Shape of each tensor.
    pub shapes: Vec<Vec<i64>>,
    /// What all tensors consist of.
    pub dtype: Dtype,
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
        let Self { step, stage, microbatch, kind, shapes, dtype } = self;
        write!(f, "{kind} of microbatch {microbatch} for stage {stage} in step {step}, {dtype:?} {shapes:?}")
    }
}

/// What messages and collectives may consist of.
pub const DTYPES: [Dtype; 4] = [Dtype::Float, Dtype::Int64, Dtype::BFloat16, Dtype::Half];

/// One rank's access to all others. Not shared between threads: each rank has its own.
pub trait Transport {
    /// This rank.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn size(&self) -> usize;

    /// Where the tensors that it carries must lie: the device of this rank.
    fn device(&self) -> Device {
        Device::Cpu
    }

    /// A group of `members` (ascending, this rank among them). All members call it, for all their groups in the same order.
    ///
    /// # Errors
    /// `Peer` when a member does not arrive in time.
    fn group(&self, name: &str, members: &[usize]) -> Result<Rc<dyn Group>>;

    /// Says between which ranks messages will pass, before the first of them: every rank says the same pairs in the same order.
    /// A transport that needs a connection for each makes them now, as making them when they are first needed would make two
    /// ranks wait for each other; others need not be told.
    ///
    /// # Errors
    /// `Peer` when one of this rank's peers does not come in time.
    fn link(&self, pairs: &[(usize, usize)]) -> Result<()> {
        let _ = pairs;
        Ok(())
    }

    /// Hands tensors to rank `to`. Returns as [`Mode`] says; the tensors are not changed by anyone until
    /// [`Transport::flush`].
    ///
    /// # Errors
    /// `Peer` when the receiver is dead or too late.
    fn send(&self, to: usize, header: &Header, tensors: &[Tensor]) -> Result<()>;

    /// The next message from rank `from`.
    ///
    /// # Errors
    /// `Peer` when it does not come in time, `Corrupt` when it is not the expected one.
    fn recv(&self, from: usize, expect: &Header) -> Result<Vec<Tensor>>;

    /// Says that [`Transport::recv`] will be called for this message, after all that were announced before it: where the transport
    /// can, it comes meanwhile. Takes the memory of the message's tensors. Once one is announced, those of the same peer that follow
    /// are taken in the order of their announcements.
    ///
    /// # Errors
    /// `Peer` when this rank or its connections have failed.
    fn expect(&self, from: usize, header: &Header) -> Result<()> {
        let _ = (from, header);
        Ok(())
    }

    /// Waits until everything that was sent has been taken.
    ///
    /// # Errors
    /// `Peer` when the receiver is dead or too late.
    fn flush(&self) -> Result<()>;

    /// Whether this rank is starting, so that its waits may last as long as [`Limits::start`] allows, or as
    /// [`Limits::step`], as they do unless this is called. A run starts until its first step is over: ranks load checkpoints
    /// and warm up at different speeds. Means nothing to a transport without time limits.
    fn starting(&self, starting: bool) {
        let _ = starting;
    }

    /// What this rank has sent and received, and what is under way; a transport that does not count has room for nothing.
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }

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

    /// Whether the other members are imagined: what they answer is of the due shape and means nothing.
    fn imagined(&self) -> bool {
        false
    }

    /// Everyone's tensor (of a dtype of [`DTYPES`], contiguous), in order of position. `shapes` are those of all members; an empty one
    /// is fine.
    ///
    /// # Errors
    /// `Peer` when a member does not arrive in time.
    fn all_gather(&self, purpose: &Purpose, mine: &Tensor, shapes: &[Vec<i64>]) -> Result<Vec<Tensor>>;

    /// Begins [`Group::all_gather`]; other collectives of the group may be called before it is taken, by all members in the same order.
    /// A transport that can't do both at once gathers here.
    ///
    /// # Errors
    /// `Peer` when a member does not arrive in time.
    fn begin_all_gather(&self, purpose: &Purpose, mine: &Tensor, shapes: &[Vec<i64>]) -> Result<Gathering> {
        self.all_gather(purpose, mine, shapes).map(Gathering::done)
    }

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
