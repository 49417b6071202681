//! Rehearsals: schedules on imagined devices, whose actions sleep. Real ranks, threads or processes, send real messages, and what a step
//! takes is held against its simulation.
//!
//! ```text
//!  plan     a program, its times, and the steps that are measured
//!  matrix   every schedule on several numbers of ranks, as plans
//! ```

mod matrix;
mod plan;

pub use matrix::{ALLOWED, Case, GAIN, Measured, Shares, full, gain, limits, quick};
pub use plan::{Plan, Rehearsal};
