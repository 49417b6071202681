//! SIGINT and SIGTERM of the launcher: counted by a thread, looked at by the launcher's loop.

use std::{
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};
use trainer::{Error, Result};

/// Signals that asked to stop.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interrupt(Arc<Mutex<Option<(i32, usize)>>>);

impl Interrupt {
    /// Installs the handlers.
    pub(crate) fn install() -> Result<Self> {
        let failed = |error| Error::internal("cannot install signal handlers").caused_by(error);
        let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(failed)?;
        let seen = Self::default();
        let shared = seen.clone();
        thread::spawn(move || {
            for signal in signals.forever() {
                let mut seen = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
                *seen = Some((signal, seen.map_or(0, |(_, count)| count) + 1));
            }
        });
        Ok(seen)
    }

    /// The last signal, and how many came.
    pub(crate) fn seen(&self) -> Option<(i32, usize)> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
