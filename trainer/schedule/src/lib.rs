//! Schedules as data: a table of actions per rank, generated, validated, lowered to communication, simulated. The
//! trainer's interpreter runs a [`Program`]; nothing here needs the trainer or libtorch, so that a schedule can be made,
//! checked and drawn anywhere.
//!
//! ```text
//!  generate (by name) ─┬► Table: F, I, W, B ─► validate ─► lower ─► Program: + SEND/RECV, REDUCE_GRAD ─► (the trainer)
//!  plan (auto: by times ┘  │                                │
//!        and memory)       │                                └─► pair order (rule A), rendezvous progress (rule B)
//!                          └─► simulate either: time, bubbles, memory ─► draw: terminal, SVG, trace
//! ```
//!
//! Invariants: a [`Table`] that [`validate()`] accepted runs to its end, each microbatch once forward and once backward on
//! every stage; a [`Program`] exists only after both communication rules held, so that it can't hang for its order.
//! Adding a schedule is one file in `generators` and one line in its registry. Nothing here knows tensors.
//!
//! Schedules, for P ranks with v stages each and M microbatches. Peaks are activations of one microbatch of a whole rank; F,
//! I and W are the times of a whole rank's share of a microbatch. The last three columns are for P = 4, M = 8 and
//! F = I = W = 1; a test holds them, and the formulas of peaks, to the tables that are made.
//!
//! | schedule | stages on a rank | microbatches | peak on rank r | time beyond M(F + I + W) | v | peaks | makespan |
//! |---|---|---|---|---|---|---|---|
//! | `GPipe` | any number | any number | M | (P − 1)(F + I + W)/v | 1 | 8 8 8 8 | 33 |
//! | `1F1B` | 1 | any number | min(M, P − r) | (P − 1)(F + I + W) | 1 | 4 3 2 1 | 33 |
//! | `LoopedBFS` | 2 or more | any number | M | (P − 1)(F + I + W)/v | 2 | 8 8 8 8 | 28.5 |
//! | `LoopedBFSReversed` | 2 or more | any number | M | (P − 1)(F + I + W)/v | 2 | 8 8 8 8 | 28.5 |
//! | `Interleaved1F1B` | 2 or more | a multiple of max(1, M div P) | ((v − 1)P + 2(P − 1 − r) + 1)/v | (P − 1)(F + I + W)/v | 2 | 5.5 4.5 3.5 2.5 | 28.5 |
//! | `ZBH1` | 1 | any number | min(M, P) | (P − 1)(F + I − W) | 1 | 4 4 4 4 | 27 |
//! | `ZBH2` | 1 | any number | min(M, 2P − 1) | (P − 1) max(F, F + I − 2W) | 1 | 7 7 7 7 | 27 |
//! | `InterleavedZeroBubble` | 2 or more | a multiple of max(1, M div P) | P | (P − 1)(F + I − W)/v | 2 | 4 4 4 4 | 25.5 |
//! | `ZBVZeroBubble` | 2 | any number | P | (P − 1)F/2 | 2 | 4 4 4 4 | 25.5 |
//! | `VMin` | 2 | any number | (P + 4) div 3 at most | (2P − 5/2)F, F more where 3 divides P | 2 | 2 2 2 2 | 29.5 |
//! | `VHalf` | 2 | any number | (P + 2) div 2 | 3(P − 1)F/2, F/2 less where P is odd | 2 | 3 3 3 3 | 28.5 |
//! | `DualPipeV` | 2 | 2P or more | P + ½ | (P − 1)F/2 | 2 | 4.5 4.5 4.5 4.5 | 25.5 |
//!
//! Peaks of the interleaved ones hold where P divides M, those of the V-shaped ones from 2P microbatches on; the times of these are for
//! F = I = W. What is idle is that time,
//! by the definition of [`Bubbles`] that is meant.

#![forbid(unsafe_code)]

mod action;
mod auto;
pub mod csv;
mod deadlock;
mod error;
mod generators;
#[cfg(test)]
mod grid;
mod lower;
mod placement;
mod program;
mod progress;
mod render;
mod simulate;
mod slots;
mod table;
mod timing;
mod validate;

pub use action::{Action, Step};
pub use auto::{Effort, Goal, Knobs, Origin, Plan, Problem, greedy, improve, plan};
pub use deadlock::{Blocked, Deadlock};
pub use error::{CellFault, ScheduleError};
pub use generators::{Advice, Generator, Shape, advice, generate, known, named};
pub use lower::{Gather, lower};
pub use placement::Placement;
pub use program::Program;
pub use render::{Picture, Terminal, chrome, svg, terminal};
pub use simulate::{
    Bubbles, Communication, Formula, Memory, Simulation, StageMemory, Usage, formula, memory, simulate,
    simulate_program,
};
pub use slots::{SlotFault, SlotTable};
pub use table::Table;
pub use timing::{Direction, Durations, Edge, StageTimes, Times, Timing};
pub use validate::validate;
