//! How much memory the program has asked for, by an allocator that counts. SQLite's own allocations go to the C library and are not
//! counted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

static HELD: AtomicU64 = AtomicU64::new(0);
static MOST: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, counted.
#[derive(Debug)]
pub(crate) struct Counting;

// SAFETY: every call is the system allocator's own, with the same arguments; the counters touch no memory of callers.
#[expect(unsafe_code, reason = "an allocator can't be written without")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: the caller keeps this method's contract, which is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) };
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        HELD.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        taken(size);
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, size) }
    }
}

fn taken(bytes: usize) {
    let held = HELD.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
    MOST.fetch_max(held, Ordering::Relaxed);
}

/// The most that was held at a time while `work` ran, beyond what was held before.
pub(super) fn most<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = HELD.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    let done = work();
    (done, MOST.load(Ordering::Relaxed).saturating_sub(before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_held_and_given_back_is_counted() {
        let (len, most) = most(|| vec![7_u8; 40 << 20].len());
        assert!(len == 40 << 20 && most >= 40 << 20, "{most}");
    }
}
