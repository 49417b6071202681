//! Adapters: each format yields a [`Catalog`](crate::Catalog) through [`Source`](crate::Source) and is written
//! through [`Sink`](crate::Sink). What a format is called, and how it is recognised, is in [`detect()`].
//!
//! Invariants: everything read here is hostile until checked: names by `fqn`'s rules, paths by [`path`]'s, sizes
//! before anything is allocated for them; no adapter reads payloads when it opens.

mod blobs;
mod detect;
mod fit;
pub mod hf;
pub mod native;
mod open;
mod options;
pub(crate) mod parallel;
pub mod path;
pub mod safetensors;
mod staged;
pub mod torch_dcp;
pub mod torch_pt;

pub use detect::{Detected, detect};
pub use fit::{LeftOut, fit};
pub use open::{open, open_detected};
pub use options::{Depth, OpenOptions, Strictness};

#[cfg(test)]
mod tests;
