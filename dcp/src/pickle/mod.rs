//! Pickles as inert data: read by an allow-list machine that never runs anything, written back faithfully.
//!
//! Torch's formats keep their structure in pickles, which are programs for Python's own machine. This module is
//! another machine for the same programs, one whose calls only leave a note of what was to be called.
//!
//! ```text
//!  bytes ─► machine (opcodes, limits, policy) ─► Tree (arena of inert values) ─► Ref / Value, for readers
//!                                                      ▲                    └──► write, for torch
//!                                        Arena, for those who make values ┘
//! ```
//!
//! Invariants: nothing is imported, called or executed; memory stays within [`Limits`]; a [`Tree`] is acyclic,
//! of bounded depth, and its walk is bounded by its input; every refusal says what, at which byte, and why.

mod arena;
mod error;
mod globals;
mod graft;
mod limits;
mod machine;
mod names;
mod node;
mod opcode;
mod operand;
mod render;
mod shape;
mod text;
mod tree;
mod write;

pub use arena::Arena;
pub use error::{PickleError, PickleErrorKind};
pub use globals::{Context, Policy, Standing, Unknown};
pub use limits::Limits;
pub use machine::{read, read_prefix};
pub use node::{Construction, Global, NodeId};
pub use tree::{Items, Object, Pairs, Ref, Tree, Value};
pub use write::{Protocol, write};

#[cfg(test)]
mod tests;
