//! [`Times`]: the same durations on every stage.

use super::{Durations, Edge};
use crate::{Action, Step};

/// Durations of one microbatch's computations on one stage, and of a transfer between ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Times {
    /// Forward.
    pub forward: f64,
    /// Gradient of the inputs.
    pub input: f64,
    /// Gradient of the weights.
    pub weight: f64,
    /// A transfer to another rank.
    pub transfer: f64,
}

impl Times {
    /// All computations take the same time on a stage that is the whole of a rank's share; transfers take none.
    pub const UNIT: Self = Self { forward: 1.0, input: 1.0, weight: 1.0, transfer: 0.0 };

    /// Those of one of `parts` equal parts of a rank's share; transfers stay as they are.
    #[must_use]
    pub fn of_part(self, parts: usize) -> Self {
        let parts = parts.max(1) as f64;
        Self {
            forward: self.forward / parts,
            input: self.input / parts,
            weight: self.weight / parts,
            transfer: self.transfer,
        }
    }

    /// All of one microbatch.
    #[must_use]
    pub fn microbatch(self) -> f64 {
        self.forward + self.input + self.weight
    }
}

impl Durations for Times {
    fn action(&self, action: Action) -> f64 {
        match action.step {
            Step::F(_) => self.forward,
            Step::I(_) => self.input,
            Step::W(_) => self.weight,
            Step::B(_) => self.input + self.weight,
            _ => 0.0,
        }
    }

    fn transfer(&self, _: Edge) -> f64 {
        self.transfer
    }
}
