//! Time as a value.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

/// What time it is.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Microseconds since 1970.
    fn now_us(&self) -> u64;
}

/// The machine's time.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_us(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }
}

/// A time that moves by itself by one step whenever it is asked for.
#[derive(Debug)]
pub struct FixedClock {
    now: AtomicU64,
    step: u64,
}

impl FixedClock {
    /// Begins at `now`, in microseconds, and moves by `step`.
    #[must_use]
    pub const fn new(now: u64, step: u64) -> Self {
        Self { now: AtomicU64::new(now), step }
    }
}

impl Clock for FixedClock {
    fn now_us(&self) -> u64 {
        self.now.fetch_add(self.step, Ordering::Relaxed)
    }
}
