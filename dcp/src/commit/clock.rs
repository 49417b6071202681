//! Time as a value: what time a writer says it is, and how it waits.

use std::fmt;
use std::time::{Duration, SystemTime};

/// A clock, which is also the only way to wait.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// What time it is.
    fn now(&self) -> SystemTime;

    /// Waits.
    fn pause(&self, time: Duration);
}

/// The clock of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// How often, and how patiently, what may succeed later is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// Tries in all, the first included.
    pub tries: u32,
    /// The pause after the first try; each later one is twice as long.
    pub first: Duration,
    /// The longest pause.
    pub longest: Duration,
}

impl Default for Retry {
    /// Eight tries within some seven seconds.
    fn default() -> Self {
        Self { tries: 8, first: Duration::from_millis(50), longest: Duration::from_secs(4) }
    }
}

impl Retry {
    /// The pause after try number `done` (from 0), or nothing when that was the last.
    #[must_use]
    pub fn pause_after(&self, done: u32) -> Option<Duration> {
        let longer = self.first.saturating_mul(1_u32.checked_shl(done).unwrap_or(u32::MAX));
        (done.saturating_add(1) < self.tries).then(|| longer.min(self.longest))
    }
}
