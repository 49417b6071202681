//! What `tch` does not offer: of libtorch by a small C++ shim (`cpp/`), safe functions over it, one module per shim file;
//! and attention by the processor's own instructions.
//!
//! Invariants: these modules, and the NCCL transport's calls of its library, alone contain unsafe code; every function of the shim catches what C++ throws and returns a
//! status and a text; nothing unwinds from Rust into C++; a tensor that C++ works on is held until the work is done.

pub mod attention;
pub mod c10d;
pub mod memory;
pub mod node;
pub mod optim;

use std::ffi::{CStr, c_char, c_int};

use crate::{Error, Result};

/// Calls a function of the shim, and reads what it threw.
fn shim(call: impl FnOnce(*mut c_char, c_int) -> c_int) -> Result<()> {
    let mut text = [0_u8; 2048];
    if call(text.as_mut_ptr().cast(), 2048) == 0 {
        return Ok(());
    }
    let said = CStr::from_bytes_until_nul(&text).unwrap_or_default().to_string_lossy();
    let first = said.lines().next().unwrap_or_default();
    Err(Error::internal(format!("libtorch refused: {first}")))
}
