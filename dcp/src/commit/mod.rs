//! The commit log: which checkpoints exist, decided by tiny records that are created once and never changed or deleted.
//!
//! ```text
//!  Draft ──append──► commits/00000000000000000042.json ──read──► chain check ──fold──► State
//! ```
//!
//! A record is created with `PutMode::Create` at the sequence number after the last one. Whose record holds a number is settled by that
//! create alone, and by its nonce: after an answer that was lost, the record is read back, and one with our nonce is ours. A number is left
//! only when another's record holds it, so nothing is lost, nothing is written twice, and no conflict is reported that is none.
//!
//! What the records mean is one pure function, [`fold()`]. A record can be there and *void* (it commits to a condemned directory, or comes
//! from an epoch that has ended): every reader comes to the same verdict, because the verdict depends on earlier records only. The same
//! verdict is asked before a record is written, so only writers that break the rules, or other versions, write void ones.
//!
//! Every 64th record carries the state before it, so that a reader needs the last 64 records at most; a hint beside the records
//! (`commits/head`) spares it those too, and is never believed over the log. [`Log::audit`] reads all of them.
//! Times in records are informational; ages come from the store.

mod append;
mod audit;
mod chain;
mod clock;
mod error;
mod fold;
mod hint;
mod log;
mod metrics;
mod names;
mod record;
mod seq;
mod state;

pub use append::{Committed, Draft};
pub use audit::{Audit, Finding, HintCheck};
pub use clock::{Clock, Retry, SystemClock};
pub use error::{CommitError, Result};
pub use fold::{Fold, fold, fold_from};
#[cfg(any(test, feature = "testing"))]
pub(crate) use hint::is_hint;
pub use log::{Entry, Log, LogOptions};
pub use metrics::{Finite, MOST_METRICS, Metrics, NotFinite};
pub use names::{DirName, InvalidName, Label};
pub use record::{
    Action, Commit, Condemn, Epoch, FEATURES, FORMAT, ManifestRef, Pin, Record, Retire, RootId, Tag, Untag,
    Verified,
};
pub use seq::{NotASeq, Seq};
pub use state::{Checkpoint, RunLine, State, Void};
