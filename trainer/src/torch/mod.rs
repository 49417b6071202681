//! What `tch` does not offer: of libtorch by a small C++ shim (`cpp/`), safe functions over it, one module per shim file;
//! and attention by the processor's own instructions.
//!
//! Invariants: these modules alone contain unsafe code; every function of the shim catches what C++ throws and returns a
//! status and a text; nothing unwinds from Rust into C++; a tensor that C++ works on is held until the work is done.

pub mod attention;
pub mod c10d;
pub mod node;
