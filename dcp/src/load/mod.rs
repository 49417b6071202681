//! Loading into a training run: any process reads the boxes that it holds on its own mesh, whatever mesh wrote them.
//!
//! ```text
//!  one rank: newest_good ─ record's bytes ─► broadcast ─► every process: Loader::open_record ─ BoxReader ─► read(box) …
//! ```
//!
//! Which checkpoint a group resumes from is one decision: one rank makes it and hands the record's exact bytes to the others;
//! so nobody loads another one, whatever is committed in the meantime. What to do about a damaged newest one (fall back, or
//! stop) is the caller's policy: [`newest_good`] only tells what it found.
//!
//! Invariants: no byte that a block table covers is handed out unproven; the manifest is the one that the record names.

mod good;
mod loader;
#[cfg(test)]
mod tests;

pub use good::{Found, Level, NewestGood, Skipped, newest_good};
pub use loader::{BoxReader, Loader};
