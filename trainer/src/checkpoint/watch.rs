//! What is told of a save while it runs, and the fault switches that slow one down or let it fail.

use std::{
    collections::HashSet,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use dcp::save::{Moment, Watch};

/// Slows the save of one step, so that something can happen in the middle of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlowSave {
    /// The step.
    pub step: u64,
    /// How long each rank waits when its first blob is written.
    pub wait: Duration,
}

/// Tells when a rank's first blob is written, once for each save that is slowed down, then waits or fails, as it is told to.
pub(super) struct FirstBlob {
    pub(super) step: u64,
    pub(super) slow: Option<SlowSave>,
    /// Whether this save is to fail.
    pub(super) fails: bool,
    pub(super) say: Arc<dyn Fn(&str) + Send + Sync>,
    pub(super) told: Mutex<HashSet<u32>>,
}

impl fmt::Debug for FirstBlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FirstBlob")
            .field("step", &self.step)
            .field("slow", &self.slow)
            .finish_non_exhaustive()
    }
}

impl Watch for FirstBlob {
    fn at(&self, moment: Moment<'_>) -> dcp::Result<()> {
        if let Moment::Suspect { rank, why } = moment {
            (self.say)(&format!("warn  save of step {}, rank {rank}: {why}", self.step));
        }
        let Moment::FileDone { rank, path } = moment else { return Ok(()) };
        let first = self.told.lock().unwrap_or_else(PoisonError::into_inner).insert(rank);
        if let (true, Some(slow)) = (first, self.slow) {
            let pid = std::process::id();
            (self.say)(&format!(
                "save  step {}: rank {rank} (pid {pid}) wrote its first blob {path}",
                self.step
            ));
            thread::sleep(slow.wait);
        }
        if self.fails {
            return Err(dcp::Error::new(dcp::ErrorKind::Io, "debug.fail_save_step asks for it"));
        }
        Ok(())
    }
}
