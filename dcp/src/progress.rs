//! The seam to whoever watches: progress of long work, and the wish to stop. The library never prints.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use crate::{Error, ErrorKind, Result};

/// Receives progress in bytes. Called from several threads.
pub trait Progress: Send + Sync {
    /// A phase begins; its total comes from the plan, so an estimate made from it is honest.
    fn begin(&self, phase: &str, total_bytes: u64);
    /// So many more bytes are done.
    fn advance(&self, bytes: u64);
    /// The phase is over.
    fn end(&self);
}

/// Nobody watches.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
    fn end(&self) {}
}

/// The wish to stop, shared by whoever wishes (a signal handler) and whoever works.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Nobody wishes to stop yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Wishes to stop.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// The flag itself, for signal handlers.
    #[must_use]
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }

    /// Fails once somebody wishes to stop.
    ///
    /// # Errors
    /// [`ErrorKind::Cancelled`].
    pub fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) {
            return Err(Error::new(
                ErrorKind::Cancelled,
                "stopped on request; nothing is visible under the target's name",
            ));
        }
        Ok(())
    }
}
