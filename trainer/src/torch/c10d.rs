//! libtorch's c10d: `TCPStore`, `PrefixStore` and `ProcessGroupGloo`, over `cpp/c10d.cpp`.
//!
//! Invariants: every C++ object is owned by one value here and freed once; what throws comes back as a [`C10dError`],
//! freeing included; a [`Work`] holds the tensors that it reads or writes, so that none is freed under it. A value may
//! move to another thread; a store may also be used by several at once, as `TCPStore` locks within.
#![expect(unsafe_code, reason = "calls the C++ shim; see the module of that name in cpp/")]

mod group;
mod store;
mod sys;
mod words;

use std::{
    ffi::{CStr, CString, c_int, c_void},
    ptr,
    time::Duration,
};

pub use self::{
    group::{Device, ProcessGroup, Work},
    store::Store,
};

/// What libtorch refused, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}")]
pub struct C10dError {
    /// The call.
    pub what: &'static str,
    /// What kind of refusal.
    pub status: Status,
    /// Its first line, without places in the source and advice.
    pub why: String,
}

/// Kinds of refusals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Anything else.
    Failed,
    /// A time limit passed.
    Late,
    /// A connection broke or could not be made.
    Network,
}

/// Result of the calls of this module.
pub type Result<T> = std::result::Result<T, C10dError>;

/// A C++ box and the function that frees it.
#[derive(Debug)]
struct Owned {
    pointer: *mut c_void,
    free: unsafe extern "C" fn(*mut c_void, sys::ErrorOut) -> c_int,
}

// SAFETY: the boxes hold reference-counted C++ objects with atomic counts that belong to no thread.
unsafe impl Send for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the pointer came from the shim's constructor, and this is the only value that frees it. A failure of
        // freeing has no one to go to, and leaves nothing to be done.
        let _ = call("free", |error| unsafe { (self.free)(self.pointer, error) });
    }
}

/// Calls the shim and takes the text of a refusal.
fn call(what: &'static str, act: impl FnOnce(sys::ErrorOut) -> c_int) -> Result<()> {
    let mut error = ptr::null_mut();
    let status = match act(&raw mut error) {
        0 => return Ok(()),
        2 => Status::Late,
        3 => Status::Network,
        _ => Status::Failed,
    };
    if error.is_null() {
        return Err(C10dError { what, status, why: "out of memory".to_owned() });
    }
    // SAFETY: the shim puts a text that ends with zero there, which is freed once, after the copy.
    let whole = unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned();
    // SAFETY: as above.
    unsafe { sys::ckpt_text_free(error) };
    Err(C10dError { what, status, why: words::plain(&whole) })
}

/// Calls a constructor of the shim.
fn make(
    what: &'static str,
    free: unsafe extern "C" fn(*mut c_void, sys::ErrorOut) -> c_int,
    act: impl FnOnce(*mut *mut c_void, sys::ErrorOut) -> c_int,
) -> Result<Owned> {
    let mut pointer = ptr::null_mut();
    call(what, |error| act(&raw mut pointer, error))?;
    Ok(Owned { pointer, free })
}

fn text(what: &'static str, text: &str) -> Result<CString> {
    CString::new(text).map_err(|error| C10dError { what, status: Status::Failed, why: error.to_string() })
}

fn int(what: &'static str, value: usize) -> Result<c_int> {
    c_int::try_from(value).map_err(|error| C10dError { what, status: Status::Failed, why: error.to_string() })
}

/// At least one: c10d takes 0 for "no limit".
fn millis(limit: Duration) -> i64 {
    i64::try_from(limit.as_millis()).unwrap_or(i64::MAX).max(1)
}
