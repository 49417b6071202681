//! Metrics: one JSON record a line per rank, a console line on rank 0, a summary at the end.
//!
//! ```text
//!  Step (what a step measured) ─► Journal: metrics/rank_00003.jsonl, appended, flushed once per step
//!                              ├► console line, every log_freq steps, rank 0
//!                              └► Summary, printed at exit
//!  curve (reads journals back): the effective values by step, over resumes, to the bit
//! ```
//!
//! Invariants: records are only ever appended; a loss is written so that its bits can be compared; time comes from a
//! [`Clock`]; a step that was done again after a resume replaces what was recorded of it before.

mod clock;
mod console;
mod curve;
mod journal;
mod memory;
mod recorder;

pub use clock::{Clock, FixedClock, SystemClock};
pub use console::{Summary, line};
pub use curve::{Apart, curve, first_difference};
pub use journal::{Journal, Record, Value};
pub use memory::resident;
pub use recorder::{Recorder, Save, Start, Step};
