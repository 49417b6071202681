//! The engine: moves bytes from a source's chunks to a target's, in bounded memory, proving them on the way.
//!
//! ```text
//!  CopyPlan ─► jobs (dtypes, shapes, cover) ─► Sink::layout ─► queue of units (one block each)
//!                                                                │ any thread takes the next
//!   Source ◄── Reader ◄── Cache ◄── gather (boxes, strides) ◄────┤
//!                │ SHA-256 of blocks, CRC-32 of records          ├─► cast ─► fingerprint sums, SHA-256, CRC-32
//!                └─ damage named by file, FQN and box            └─► BlobWriter::write_at ─► Sink::file_done ─► commit
//! ```
//!
//! Invariants:
//! * memory is what [`RunOptions::max_memory`] says, whatever the sizes of tensors: a block or two for each thread, and
//!   a cache of at most half the bound;
//! * each source byte is read and proven once, also when several targets take columns of the same rows, as long as the
//!   rows that a block of each of them spans fit into the cache; as many tensors go on side by side as it keeps the rows of;
//! * threads write different files where there are some: two in one file wait for each other in the kernel;
//! * blocks of a compressed file are written in its order: threads hand them over as they are ready, and what waits for
//!   earlier ones is bounded;
//! * nothing of a target is visible before all of it is written and proven; a stopped run's finished files are not
//!   written again;
//! * several workers may write one plan: each its [`Share`] of the files, and whoever finds all of them finished proves and
//!   commits the whole.

pub(crate) mod blame;
mod cache;
mod cast;
pub(crate) mod checks;
mod copy;
pub(crate) mod cover;
mod cuts;
mod file;
mod forecast;
pub(crate) mod gather;
pub(crate) mod grid;
mod lane;
mod options;
mod origin;
mod plan;
mod proof;
mod queue;
mod read;
pub(crate) mod reader;
mod room;
mod rows;
mod run;
mod share;
pub(crate) mod tensors;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub(crate) use tests::testing;

pub use forecast::Forecast;
pub(crate) use options::threads_in;
pub use options::{LEAST_MEMORY, Report, RunOptions, Verify, threads};
pub use plan::{CopyPlan, SourceRef};
pub use read::{RegionReader, read_region};
pub use rows::{RowMap, RowRun};
pub use run::{Ending, run, run_share};
pub use share::{Share, ShareError};
