//! Starting a run: who am I (in a rank), and a launcher that starts ranks, notices deaths and starts all again.
//!
//! ```text
//!  Ranks::from_env ◄── torchrun, SLURM, Open MPI, our launcher, or nothing (one process)
//!
//!  launch: store ─► workers (guard ─► exec) ─► watch ─► a death ─► stop the rest ─► verdict ─► start all again, or end
//!              ▲       └─ output: console with the rank before each line, logs/rank_00003.log
//!              └─ accord: when all machines are ready, and what all of them do next: alone, or machines (several launchers)
//! ```
//!
//! Invariants: only children that this launcher started and has not reaped are ever signalled; no worker outlives the
//! launcher (a guard asks the kernel to end it); what a failure of the configuration or the data caused is not started
//! again, since it would fail again; all ranks start again together, under the next restart number, on however
//! many machines they are.

mod accord;
mod alone;
mod guard;
mod machines;
mod nodes;
mod output;
mod plan;
mod ranks;
mod store;
mod supervise;
mod verdict;
mod worker;

pub use guard::guarded;
pub use machines::{Machines, Meeting, Task};
pub use nodes::{NODE, NodeMap};
pub use plan::{Plan, Shown};
pub use ranks::{Launcher, Ranks};
pub use store::{Hosted, RankZero, Served, StoreHost};
pub use supervise::{Outcome, launch};
pub use verdict::{Ending, Meaning, Reaction};
