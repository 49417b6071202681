//! dcp.
#![deny(unsafe_code)]
