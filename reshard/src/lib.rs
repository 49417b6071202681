//! reshard.
#![forbid(unsafe_code)]
