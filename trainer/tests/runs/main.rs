//! Whole runs through the real binary: processes that are killed, stopped, starved of disk and peers; and what a run is worth
//! after that. In exact mode that is told by bits: its losses are those of a run that nothing happened to.

#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod faults;
mod life;
mod place;
