//! [`Action`]: one cell of a schedule.

use std::fmt;

/// What a rank does to one stage (and one microbatch). Microbatches are numbered within the data-parallel replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Action {
    /// The stage.
    pub stage: usize,
    /// What.
    pub step: Step,
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// Forward.
    F(usize),
    /// Gradient of the inputs.
    I(usize),
    /// Gradient of the weights.
    W(usize),
    /// Both.
    B(usize),
    /// Activations to the next stage's rank.
    SendF(usize),
    /// Activations from the stage before.
    RecvF(usize),
    /// Gradients to the stage before.
    SendB(usize),
    /// Gradients from the next stage.
    RecvB(usize),
    /// Gathers the stage's weights, to stay.
    Unshard,
    /// Frees them.
    Reshard,
    /// Sums the stage's gradients over the data-parallel group.
    ReduceGrad,
}

impl Step {
    /// The microbatch, of those that have one.
    #[must_use]
    pub const fn microbatch(self) -> Option<usize> {
        match self {
            Self::F(m) | Self::I(m) | Self::W(m) | Self::B(m) => Some(m),
            Self::SendF(m) | Self::RecvF(m) | Self::SendB(m) | Self::RecvB(m) => Some(m),
            Self::Unshard | Self::Reshard | Self::ReduceGrad => None,
        }
    }
}

/// As torch's IR writes it: `2F0`, `1UNSHARD`, `3SEND_F1`.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.step {
            Step::F(_) => "F",
            Step::I(_) => "I",
            Step::W(_) => "W",
            Step::B(_) => "B",
            Step::SendF(_) => "SEND_F",
            Step::RecvF(_) => "RECV_F",
            Step::SendB(_) => "SEND_B",
            Step::RecvB(_) => "RECV_B",
            Step::Unshard => "UNSHARD",
            Step::Reshard => "RESHARD",
            Step::ReduceGrad => "REDUCE_GRAD",
        };
        write!(f, "{}{name}", self.stage)?;
        self.step.microbatch().map_or(Ok(()), |microbatch| write!(f, "{microbatch}"))
    }
}
