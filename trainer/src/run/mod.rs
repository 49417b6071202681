//! A training run: from a resolved configuration to checkpoints, on whatever ranks there are.
//!
//! ```text
//!  Job (the same on every rank, pure): model, placements, stages, program, batches, data
//!    └─ train_rank, once per rank ─► groups ─► shards ─► resume ─┬─► step ─► report ─► update ─► save … ─► close
//!                                                                └── again
//!  launch (processes: gloo, nccl) or threads (local) give each rank its transport
//! ```
//!
//! Invariants: ranks compare their configuration before they do anything; everything that decides how a run goes on
//! (a loss that is not finite, a failed save, a request to stop) is told to all ranks before anybody acts on it, so that
//! all stop at the same step; nothing is updated in a step that failed.

mod batches;
mod begin;
mod check;
mod device;
mod faults;
mod job;
mod observe;
mod outline;
mod program;
mod rank;
mod recorded;
mod recording;
mod rehearsal;
mod report;
mod saves;
mod start;
mod tensors;
#[cfg(test)]
mod tests;
mod world;

pub use check::{Alone, Checked, Line, check, check_alone, check_in_threads, one_store, shrunk, unshrunk};
pub use job::Job;
pub use observe::{Begun, NamedGradients, Observer, Row, StepDone};
pub use outline::Outline;
pub(crate) use program::AUTO;
pub use rank::{Ended, Summary};
pub use recording::{Recording, SAMPLES};
pub use start::{rehearse, train, train_observed};
pub use world::{Terms, run_rank, run_threads};
