//! [`Lease`]: a saver's right to read the shards, and the gate at which the next update waits for it.
//!
//! Invariants: while a lease lives, no shard is written to; however its owner ends (done, failed, panicked), the gate opens.

use std::{
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::StateTensor;

/// The state of a rank, unchanged as long as this lives. For another thread.
#[derive(Debug)]
pub struct Lease {
    // Dropped before the hold, so that nobody looks when writing begins.
    tensors: Vec<StateTensor>,
    step: u64,
    _hold: Hold,
}

/// Counts leases.
#[derive(Debug, Default)]
pub(super) struct Gate {
    leases: Mutex<usize>,
    returned: Condvar,
}

#[derive(Debug)]
struct Hold(Arc<Gate>);

impl Lease {
    pub(super) fn new(gate: &Arc<Gate>, tensors: Vec<StateTensor>, step: u64) -> Self {
        *gate.leases.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Self { tensors, step, _hold: Hold(Arc::clone(gate)) }
    }

    /// Every state tensor of the rank.
    #[must_use]
    pub fn tensors(&self) -> &[StateTensor] {
        &self.tensors
    }

    /// Updates that were made so far.
    #[must_use]
    pub const fn step(&self) -> u64 {
        self.step
    }
}

impl Gate {
    /// Waits until no lease lives: how long it took. Leases are only given out by the thread that waits here.
    pub(super) fn wait(&self) -> Duration {
        let begun = Instant::now();
        let leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        if *leases == 0 {
            return Duration::ZERO;
        }
        let waited = self.returned.wait_while(leases, |leases| *leases > 0);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        begun.elapsed()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        *self.0.leases.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.returned.notify_all();
    }
}
