//! [`Step`]: one way to go with one pair of names, and what to say where it can't be gone.

use fqn::{
    Registry,
    stacking::{Origin, StackError, Stacking, Way},
};

use crate::{Error, Result};

/// One way to go with one pair of names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Which way.
    pub way: Way,
    /// The names.
    pub pair: Stacking,
}

impl Step {
    /// The registry after the step, and what each of its tensors is made of.
    ///
    /// # Errors
    /// `Incompatible`, as [`crate::Restacked::new`], but for scalars, which are not read.
    pub fn take(&self, registry: &Registry) -> Result<(Registry, Vec<Origin>)> {
        if !self.changes(registry) {
            return Err(self.changes_nothing(registry));
        }
        self.pair.apply(self.way, registry).map_err(|error| self.refused(error))
    }

    /// Whether a tensor of the registry is concerned.
    #[must_use]
    pub fn changes(&self, registry: &Registry) -> bool {
        registry.entries().iter().any(|entry| self.pair.concerns(self.way, entry.fqn.as_str()))
    }

    pub(super) fn word(&self) -> &'static str {
        if self.way == Way::Stack { "--stack" } else { "--unstack" }
    }

    fn changes_nothing(&self, registry: &Registry) -> Error {
        let (names, other, back) = match self.way {
            Way::Stack => (
                self.pair.member_names(),
                Way::Unstack,
                "they are stacked already; --unstack takes them apart",
            ),
            Way::Unstack => (
                self.pair.stack_names(),
                Way::Stack,
                "they have tensors of their own already; --stack makes them one",
            ),
        };
        let error =
            Error::incompatible(format!("{} {}: no tensor is called {names}", self.word(), self.pair));
        let other = Self { way: other, pair: self.pair.clone() };
        error.hint(if other.changes(registry) { back } else { "`ckpt inspect --tensors` lists all names" })
    }

    pub(super) fn refused(&self, error: StackError) -> Error {
        let hint = match &error {
            StackError::Taken(_) => {
                "members and their stack are both there: select one of them with #GLOB, or give another name"
            }
            StackError::Members { .. } => {
                "a stack has all members from 0 on, each once; #GLOB selects what is stacked"
            }
            StackError::Axis { .. } => {
                "the number behind @ is the stack's dimension that its members lie along, counted from 0"
            }
            _ => "`ckpt help stacking` says how names are paired, and what makes a stack",
        };
        Error::incompatible(format!("{} {}: {error}", self.word(), self.pair)).caused_by(error).hint(hint)
    }
}
