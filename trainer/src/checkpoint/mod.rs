//! Checkpoints of a training run: saved behind the training, resumed by a decision of the whole run.
//!
//! ```text
//!  optimizer step ─► save: lease on the shards ─► thread: copy ─► lease back ─► blobs, part ─┐
//!        ▲                                          (staging)                                ▼
//!        └── the next step waits for the lease only            rank 0: all parts there? ─► commit ─► retention
//!
//!  start ─► rank 0: newest good checkpoint ─► its record's bytes to all ─► each reads its own boxes ─► all prove them
//! ```
//!
//! Invariants:
//! - a save in flight never sees a half-updated shard: shards change only after the lease is back;
//! - one save is in flight at most; the next one waits for it, and the wait is measured;
//! - copies of a shard on several ranks are compared by fingerprint at every save: drift is found when it begins;
//! - a save that fails is known to the whole run at the next step's report, and policy decides: stop, or go on;
//! - what to resume from is decided once, by rank 0, and never silently from scratch when there is something damaged.

mod changed;
mod load;
mod resume;
mod saver;
mod spec;
mod staging;
mod state;
mod watch;

pub(crate) use changed::changed;
pub use load::{Loaded, Read};
pub use resume::{Choice, Resume, Resumed};
pub use saver::{Outcome, Saved, Saver, SaverOptions};
pub use spec::{CONFIG, Described};
pub use state::{Geometry, RunState};
pub use watch::SlowSave;
