//! Bytes of tensors, by the thread that made them: what libtorch does not count on a processor.
//!
//! Invariants: nothing is counted, and nothing costs anything, before [`count`]; from then on every block of the processor's
//! allocator is counted, on the thread that asked for it, until it is freed on whichever thread.

#![expect(unsafe_code, reason = "the shim's functions are C++")]

use std::ffi::{c_char, c_int};

use super::shim;
use crate::Result;

/// Bytes of a thread's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    /// Now.
    pub now: i64,
    /// At most, since counting began or [`restart`].
    pub most: i64,
}

/// Begins to count, for the whole process and to its end.
///
/// # Errors
/// What libtorch refuses.
pub fn count() -> Result<()> {
    // SAFETY: the text has as much room as is said.
    shim(|text, room| unsafe { ckpt_memory_count(text, room) })
}

/// What this thread's tensors take.
///
/// # Errors
/// What libtorch refuses.
pub fn counted() -> Result<Counted> {
    let (mut now, mut most) = (0, 0);
    let (to_now, to_most) = (&raw mut now, &raw mut most);
    // SAFETY: both pointers are to numbers that live, and the text has as much room as is said.
    shim(|text, room| unsafe { ckpt_memory_counted(to_now, to_most, text, room) })?;
    Ok(Counted { now, most })
}

/// Begins a new measurement of the most, on this thread.
///
/// # Errors
/// What libtorch refuses.
pub fn restart() -> Result<()> {
    // SAFETY: the text has as much room as is said.
    shim(|text, room| unsafe { ckpt_memory_restart(text, room) })
}

unsafe extern "C" {
    fn ckpt_memory_count(text: *mut c_char, room: c_int) -> c_int;
    fn ckpt_memory_counted(now: *mut i64, most: *mut i64, text: *mut c_char, room: c_int) -> c_int;
    fn ckpt_memory_restart(text: *mut c_char, room: c_int) -> c_int;
}

#[cfg(test)]
mod tests {
    use tch::{Tensor, kind::FLOAT_CPU};

    use super::*;

    #[test]
    fn a_threads_tensors_are_counted_until_they_are_freed_wherever_that_is() {
        count().unwrap();
        count().unwrap();
        std::thread::spawn(|| {
            let before = counted().unwrap();
            let held = Tensor::zeros([1024], FLOAT_CPU);
            let more = Tensor::zeros([4096], FLOAT_CPU);
            assert_eq!(counted().unwrap().now - before.now, 5 * 4096);
            std::thread::spawn(move || {
                let theirs = counted().unwrap().now;
                drop(more);
                assert_eq!(counted().unwrap().now, theirs, "another thread's");
            })
            .join()
            .unwrap();
            let now = counted().unwrap();
            assert_eq!((now.now - before.now, now.most - before.now), (4096, 5 * 4096));
            restart().unwrap();
            assert_eq!(counted().unwrap().most, now.now);
            drop(held);
            assert_eq!(counted().unwrap().now, before.now);
        })
        .join()
        .unwrap();
    }
}
