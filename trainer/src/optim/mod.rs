//! The optimizer: AdamW in ATen's single-tensor operation sequence, and the schedule of its learning rate.
//!
//! Invariants: state belongs to a parameter's FQN, never to an index or a group; a step is a pure function of weights,
//! moments, gradients, step number and learning rate, element by element, so that shards of any size get the same bits.

mod adamw;
mod schedule;

pub(crate) use adamw::ALIGNMENT;
pub use adamw::{AdamW, Slices};
pub use schedule::{Decline, Schedule};
