//! Stages: contiguous runs of a model's parts, their microbatches, and the runner that ties a program's row to them.
//!
//! ```text
//!  split      which parts a stage has; every stage's FQNs, and that together they are all
//!  Stage      forward, backward and weight gradients of one microbatch on those parts
//!  recompute  what of a forward stays for its backward, and what is computed again
//!  account    what a stage did: live microbatches, times, the share of weight gradients that can be put off
//!  interpret  runs a row of a program; all that it means is in its executor
//!  runner     the executor of a row: stages, mail from stage to stage, transport, the reduction of gradients
//!  posted     messages between stages, and receives that wait until somebody needs what they bring
//!  virtual_device   the executor of a row whose actions sleep
//! ```
//!
//! Invariants:
//! - a stage knows its index, its parts, and whether they include the first and the last; no rank and no neighbour;
//! - each part's graph is cut from the next: parts go back one by one from explicit gradients, so that the bits do not
//!   depend on where stages are cut;
//! - what arrives becomes a leaf, what is sent is detached, in what products are computed on (bf16 halves the bytes); a
//!   microbatch's state lives from its F to its B or W;
//! - where tokens are cut over ranks (sequence parallelism), a boundary carries those that this rank keeps.

mod account;
mod compute;
mod interpret;
mod part;
mod posted;
mod recompute;
mod runner;
mod split;
mod virtual_device;

pub use account::{Account, Live};
pub use compute::{Stage, StageInputs};
pub use interpret::{Executor, interpret};
pub(crate) use part::carried;
pub use recompute::{Keep, Recompute, Which};
pub use runner::{GradReduce, Links, LossSum, PipelineRunner, RowOutcome};
pub use split::{Inventory, inventory, parts_of_stage};
pub use virtual_device::{Span, VirtualLinks, VirtualRank, times};

#[cfg(test)]
mod tests;
