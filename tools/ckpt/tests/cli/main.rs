//! The command as its users run it: the real binary, on checkpoints that real libraries wrote, in an environment that
//! holds nothing but what a test gives.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod bad_input;
mod copy;
mod full_disk;
mod inspect;
mod interrupt;
#[cfg(target_os = "linux")]
mod memory;
mod meshes;
mod names;
mod output;
mod place;
mod rank_state;
mod root;
mod schemas;
mod stacking;
mod verify;
mod workers;
mod write;
