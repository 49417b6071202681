//! How long actions and transfers take: [`Durations`] is what the simulator asks. [`Times`] is one set of numbers for every
//! stage; [`Timing`] has numbers of each stage and of each edge in each direction.
//!
//! Units are the caller's (milliseconds, or the forward of one stage); all must be finite and not negative, which
//! [`Timing::check`] holds and simulations rely on.

mod staged;
mod uniform;

pub use staged::{StageTimes, Timing};
pub use uniform::Times;

use super::{Action, Step};

/// Which way a transfer goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Activations, to the next stage.
    Forward,
    /// Gradients, to the stage before.
    Backward,
}

/// What lies between a stage and the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Edge {
    /// The lower of the two stages.
    pub below: usize,
    /// Which way.
    pub direction: Direction,
}

impl Edge {
    /// The edge over which `action` is sent, or on which its result goes out if it computes.
    #[must_use]
    pub const fn of(action: Action) -> Option<Self> {
        match (action.step, action.stage.checked_sub(1)) {
            (Step::F(_) | Step::SendF(_), _) => {
                Some(Self { below: action.stage, direction: Direction::Forward })
            }
            (Step::RecvB(_), _) => Some(Self { below: action.stage, direction: Direction::Backward }),
            (Step::RecvF(_), Some(below)) => Some(Self { below, direction: Direction::Forward }),
            (Step::I(_) | Step::B(_) | Step::SendB(_), Some(below)) => {
                Some(Self { below, direction: Direction::Backward })
            }
            _ => None,
        }
    }
}

/// What a simulation asks for.
pub trait Durations {
    /// How long `action` takes: F, I, W, B, UNSHARD, REDUCE_GRAD. Sends and receives, and composites, are not asked for.
    fn action(&self, action: Action) -> f64;

    /// How long a composite takes whose parts take `forward` and `backward` alone: both, where nothing is gained by running
    /// them at once.
    fn composite(&self, forward: f64, backward: f64) -> f64 {
        forward + backward
    }

    /// How long a cell takes.
    fn cell(&self, cell: Action) -> f64 {
        match cell.step {
            Step::Overlap { forward, backward_stage, backward } => self.composite(
                self.action(Action::new(cell.stage, Step::F(forward))),
                self.action(Action::new(backward_stage, Step::B(backward))),
            ),
            _ => self.action(cell),
        }
    }

    /// How long a transfer to another rank takes.
    fn transfer(&self, edge: Edge) -> f64;

    /// How long the optimizer takes, after the last rank has ended (the norm of the gradients needs them all).
    fn optimizer(&self) -> f64 {
        0.0
    }
}
