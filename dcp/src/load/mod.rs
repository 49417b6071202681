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
//! A group of ranks that cut columns may read its own bytes alone and prove them together, by fingerprints: [`GroupReader`].
//!
//! Invariants: a [`BoxReader`] hands out no byte unproven that a block table covers; the manifest is the one that the record names.

mod good;
mod group;
mod loader;
#[cfg(test)]
mod tests;

pub use good::{Found, Level, NewestGood, Skipped, newest_good, newest_good_before};
pub use group::GroupReader;
pub use loader::{BoxReader, Loader};
