//! fqn.
#![forbid(unsafe_code)]
