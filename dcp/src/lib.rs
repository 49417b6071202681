//! dcp.
#![deny(unsafe_code)]

pub mod digest;
pub mod fingerprint;
pub mod read_at;
pub mod store;
