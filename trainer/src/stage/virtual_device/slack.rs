//! How late the system may wake this thread: Linux adds 50 microseconds unless it is told, to wake several sleepers at once. That is half a
//! percent of an action of ten milliseconds, of every one.

use std::marker::PhantomData;

/// This thread is woken as soon as its time has come, until this is dropped; where the system does not offer that, nothing changes.
pub(super) struct Punctual {
    before: Option<u64>,
    /// It is the slack of the thread that began.
    _thread: PhantomData<*const ()>,
}

impl Punctual {
    pub(super) fn begin() -> Self {
        Self { before: exchange(1), _thread: PhantomData }
    }
}

impl Drop for Punctual {
    fn drop(&mut self) {
        self.before.and_then(exchange);
    }
}

/// Sets so many nanoseconds, and gives what was set before.
#[cfg(target_os = "linux")]
fn exchange(nanoseconds: u64) -> Option<u64> {
    let before = rustix::thread::current_timer_slack().ok()?;
    rustix::thread::set_current_timer_slack(std::num::NonZero::new(nanoseconds)).ok()?;
    Some(before)
}

#[cfg(not(target_os = "linux"))]
const fn exchange(_: u64) -> Option<u64> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_punctual_for_a_while_and_then_as_before() {
        let now = || rustix::thread::current_timer_slack().unwrap();
        let before = now();
        assert_ne!(before, 1);
        let punctual = Punctual::begin();
        assert_eq!(now(), 1);
        drop(punctual);
        assert_eq!(now(), before);
    }
}
