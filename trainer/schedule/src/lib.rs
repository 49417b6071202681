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
