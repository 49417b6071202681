//! Faults on purpose, as `debug.*` asks for them: so that what follows from a fault can be seen, and tested.
//!
//! Invariant: a rank dies or hangs in the run's first incarnation only, or it would do so again and again.

use std::{thread, time::Duration};

use rustix::process::{Signal, getpid, kill_process};

use crate::{Error, Result, config::Debug};

/// The faults of one rank.
#[derive(Debug)]
pub(super) struct Faults<'a> {
    pub(super) wanted: &'a Debug,
    pub(super) rank: usize,
    pub(super) restart: u64,
}

impl Faults<'_> {
    /// This rank's process dies, or this rank stops answering, if it is to do so at `step`.
    ///
    /// # Errors
    /// `Internal` for a process that can't be killed.
    pub(super) fn before(&self, step: u64) -> Result<()> {
        let due = |at: u64, rank: u64| self.restart == 0 && at == step && rank == self.rank as u64;
        if due(self.wanted.die_step, self.wanted.die_rank) {
            kill_process(getpid(), Signal::KILL)
                .map_err(|error| Error::internal(format!("debug.die_step: {error}")))?;
        }
        while due(self.wanted.hang_step, self.wanted.hang_rank) {
            thread::sleep(Duration::from_secs(60));
        }
        Ok(())
    }

    /// The losses of this rank are not numbers in this step.
    pub(super) fn poison(&self, step: u64) -> Option<u32> {
        let here = self.wanted.nan_step == step && self.wanted.nan_rank == self.rank as u64;
        here.then(|| f32::NAN.to_bits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_comes_at_its_step_on_its_rank_only() {
        let wanted = Debug { nan_step: 4, nan_rank: 1, die_step: 2, die_rank: 1, ..Debug::default() };
        let of = |rank, restart| Faults { wanted: &wanted, rank, restart };
        assert_eq!([3, 4, 5].map(|step| of(1, 0).poison(step).is_some()), [false, true, false]);
        assert_eq!(of(0, 0).poison(4), None);
        // Neither the other rank nor the next incarnation dies; nor does one that is to die at no step.
        of(0, 0).before(2).unwrap();
        of(1, 1).before(2).unwrap();
        of(1, 0).before(0).unwrap();
    }
}
