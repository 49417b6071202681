//! Bytes of tensors, by the thread that made them: what libtorch does not count on a processor; and what becomes of their memory when they
//! are freed.
//!
//! Invariants: nothing is counted, and nothing costs anything, before [`count`]; from then on every block of the processor's
//! allocator is counted, on the thread that asked for it, until it is freed on whichever thread.

#![expect(unsafe_code, reason = "the shim's functions are C++")]

use std::ffi::{OsStr, c_char, c_int};

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

/// Blocks up to this size are kept: the most that glibc takes from its heap. Larger ones go back to the system at once; what they
/// hold costs far more to compute than their pages cost to get.
const LARGEST: c_int = 32 << 20;
/// Bytes at the end of a heap that stay although they are free.
const MOST: c_int = 1 << 30;
/// Bytes by which a heap grows beyond what is asked for, of addresses alone: as many as a piece of a thread's heap has.
const AHEAD: c_int = 64 << 20;

/// Keeps the memory of freed tensors for the next ones, in the whole process: each step frees what the next one needs again, and pages
/// that went back to the system would come anew, filled with zeros, at every use. (Backward in two halves holds more at once, and frees it
/// in one go: without this it is 7 % slower than in one, at a width of 128.) Whoever has set how the C library allocates, by
/// `MALLOC_*_` or `GLIBC_TUNABLES`, keeps that. Says whether memory is kept: only glibc is asked to.
pub fn keep_freed() -> bool {
    if std::env::vars_os().any(|(name, _)| is_allocators(&name)) {
        return false;
    }
    // SAFETY: two numbers are passed, and the C library sets its own, which it does under its lock.
    unsafe { ckpt_memory_keep(LARGEST, MOST, AHEAD) == 1 }
}

/// Whether a variable says how glibc allocates.
fn is_allocators(name: &OsStr) -> bool {
    let set = |name: &str| name == "GLIBC_TUNABLES" || (name.starts_with("MALLOC_") && name.ends_with('_'));
    name.to_str().is_some_and(set)
}

unsafe extern "C" {
    fn ckpt_memory_keep(largest: c_int, most: c_int, ahead: c_int) -> c_int;
    fn ckpt_memory_count(text: *mut c_char, room: c_int) -> c_int;
    fn ckpt_memory_counted(now: *mut i64, most: *mut i64, text: *mut c_char, room: c_int) -> c_int;
    fn ckpt_memory_restart(text: *mut c_char, room: c_int) -> c_int;
}

#[cfg(test)]
mod tests {
    use tch::{Tensor, kind::FLOAT_CPU};

    use super::*;

    #[test]
    fn memory_that_was_freed_is_there_for_the_next_tensor() {
        if !keep_freed() {
            assert!(
                cfg!(not(target_env = "gnu")) || std::env::vars_os().any(|(name, _)| is_allocators(&name))
            );
            return;
        }
        // Of sizes that come from the heap, more at once than a piece of a thread's heap holds.
        let (bytes, held, rounds) = (16 << 20, 6, 4);
        let use_all = || {
            let all: Vec<_> = (0..held).map(|_| Tensor::ones([bytes / 4], FLOAT_CPU)).collect();
            drop(all);
        };
        // Aligned blocks find their places after some turns.
        (0..8).for_each(|_| use_all());
        let before = page_faults();
        (0..rounds).for_each(|_| use_all());
        let faults = page_faults() - before;
        let anew = rounds * held * bytes / 4096;
        assert!(faults < anew / 4, "{faults} page faults, and {anew} if all came anew");
    }

    /// Minor page faults of this thread so far.
    fn page_faults() -> i64 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        stat.rsplit_once(')').unwrap().1.split_whitespace().nth(7).unwrap().parse().unwrap()
    }

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
