//! Copying a box between buffers.
//!
//! `strided` reduces a copy to a unit of bytes and at most a few steps, `kernel` runs it.
mod kernel;
mod strided;
#[cfg(test)]
mod tests;

pub use strided::{CopyError, Strided, copy_region};
