//! Metrics: one JSON record a line per rank, a console line on rank 0, a summary at the end; TensorBoard's files and
//! traces on demand.
//!
//! ```text
//!  watch (a transport that remembers) ─► Pace: actions, messages, collectives of a step
//!                                          │
//!  Step (what a step measured) ────────────┴─► Journal: metrics/rank_00003.jsonl, appended, flushed once per step
//!                              ├► tensorboard/events.out.tfevents.*, rank 0
//!                              ├► trace/rank_00003.json, of the steps asked for; `merge` makes one file of all
//!                              ├► console line, every log_freq steps, rank 0; a warning where steps vary
//!                              └► Summary, printed at exit
//!  replay (reads journals back) ─► curve: the effective values by step, over resumes, to the bit
//!                               └► History: all ranks of a run, for `compare`, `doctor` and `plan --measured`
//! ```
//!
//! Invariants: records are only ever appended; a loss is written so that its bits can be compared; time comes from a
//! [`Clock`]; a step that was done again after a resume replaces what was recorded of it before.

mod clock;
mod console;
mod contrast;
mod curve;
mod flops;
mod history;
mod journal;
mod memory;
mod pace;
mod recorder;
mod replay;
mod spread;
mod tensorboard;
mod trace;
mod watch;

pub use clock::{Clock, FixedClock, SystemClock};
pub use console::{Speed, Summary, line};
pub use contrast::{Contrast, Figures};
pub use curve::{Apart, curve, first_difference};
pub use flops::{Counted, Flops, Formula};
pub use history::{History, RankHistory, STEP_TIME};
pub use journal::{Journal, Record, Value};
pub use memory::resident;
pub use pace::{Pace, Span, StagePace};
pub use recorder::{Recorder, Save, Setting, Start, Step};
pub use replay::replay;
pub use spread::{MOST as MOST_SPREAD, Spread, percentile, spread};
pub use tensorboard::Events;
pub use trace::{MERGED, Merged, TRACES, Trace, merge};
pub use watch::{Watch, Watched};
