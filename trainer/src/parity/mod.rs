//! Parity: what a run computes, told so that it can be compared with any other run of the same model and data, however either
//! is cut.
//!
//! ```text
//!  Job ─► evidence() ─► Evidence: losses, gradients by FQN, rows ─► Evidence::differs() ─► what is not the same, by name
//!  matrix: every schedule on many meshes, as Cases ─► settings of a Job
//! ```
//!
//! Invariants: a gradient is put together of the shards of all ranks, by their places in the whole tensor; shards that are held in
//! copies must be the same to the bit, and every element must be there; what is compared is bits, never text.

mod evidence;
mod matrix;
#[cfg(test)]
mod tests;
mod witness;

pub use evidence::Evidence;
pub use matrix::{Case, GLOBAL_BATCH, MODELS, Place, STRATEGIES, full, quick, schedules};
pub use witness::evidence;
