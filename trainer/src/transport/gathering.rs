//! [`Gathering`]: a gather that was begun and is taken later, so that something can be computed in between.
//!
//! Invariants: all members begin their gathers and call their other collectives in one order; what is given is not changed by
//! anyone until the gather is taken or dropped; who drops one has not spared the others their wait: it is under way.

use std::fmt;

use tch::Tensor;

use crate::Result;

/// A gather under way.
pub struct Gathering(Box<dyn FnOnce() -> Result<Vec<Tensor>>>);

impl Gathering {
    /// One that is over.
    #[must_use]
    pub fn done(parts: Vec<Tensor>) -> Self {
        Self(Box::new(|| Ok(parts)))
    }

    /// One that `wait` waits for.
    pub fn later(wait: impl FnOnce() -> Result<Vec<Tensor>> + 'static) -> Self {
        Self(Box::new(wait))
    }

    /// Waits for everyone's tensors, in order of position.
    ///
    /// # Errors
    /// `Peer` when a member does not arrive in time.
    pub fn take(self) -> Result<Vec<Tensor>> {
        (self.0)()
    }
}

impl fmt::Debug for Gathering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gathering")
    }
}
