//! dcp.
#![deny(unsafe_code)]

pub mod read_at;
