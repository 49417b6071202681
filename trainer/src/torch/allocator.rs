//! Memory of CPU tensors: [`keep_freed_memory`] has the C library keep what a step frees for the next one.
//!
//! A step frees all its activations. glibc gives large blocks, and the end of a heap, back to the system at once, and the
//! next step gets them back page by page, each zeroed first: about 3 % of the time of a small model's step. What is kept is
//! never more than was in use at once, up to a gigabyte.

#![expect(unsafe_code, reason = "the shim's functions are C++")]

use std::{ffi::c_int, sync::OnceLock};

/// From now on, memory that is freed stays with this process, for its next step. Whether the C library can be told so:
/// glibc can; with another, nothing changes.
pub fn keep_freed_memory() -> bool {
    static KEPT: OnceLock<bool> = OnceLock::new();
    // SAFETY: the function takes nothing and only sets parameters of the allocator, which takes its own lock.
    *KEPT.get_or_init(|| unsafe { ckpt_keep_freed_memory() } == 1)
}

unsafe extern "C" {
    fn ckpt_keep_freed_memory() -> c_int;
}
