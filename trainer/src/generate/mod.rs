//! Continuing text with a trained model, in one process: what a checkpoint is worth, told in words and in logits that
//! other software can be compared with.
//!
//! ```text
//!  root@revision ─► its configuration ─► model ─┐
//!                └► its parameters, whole ──────┴─► Trained ─► logits of a text ─► greedy continuation
//! ```
//!
//! Invariants: the model is the one that the checkpoint says, never one that the caller describes; in exact mode logits
//! are those of the training run, to the bit; every byte that is read is proven first.

mod greedy;
#[cfg(test)]
mod tests;
mod trained;

pub use greedy::Continuation;
pub use trained::Trained;
