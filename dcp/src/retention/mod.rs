//! Retention: which checkpoints of a run stay, and how the bytes of the others go, in two steps on the one log.
//!
//! ```text
//!  Policy ─ plan (pure, with reasons) ─► retire ─► condemn (directories that nothing needs) ─ grace ─► delete
//!    ▲                                                ▲ stopped saves: long unwritten
//!  state of the log + times of the store            survey of the root
//! ```
//!
//! # Invariants
//!
//! * The newest checkpoint of a run, the newest that was verified, and what is tagged or pinned stay under any policy; the log itself refuses
//!   to retire the last three, so a tag that is set between a plan and its execution holds.
//! * Nothing is deleted that is not condemned, and nothing is condemned that a live checkpoint needs, whosever attempt it was. A commit that
//!   comes after and needs a condemned directory is void, by the fold rule; so who deletes need not ask who writes.
//! * A directory that no record names is condemned only if it is named and built as attempts are, and nothing was written to it for a period.
//!   Anything else in a root is somebody's, and is only told about; so is a folder with a manifest, which may be a whole checkpoint whose record
//!   was lost, unless the caller says otherwise.
//! * Ages are differences of times that the store gave: of records, of objects, and, for the present, of a probe that is put for that purpose.
//!   The clock of the machine that runs this is never asked, so it may be off by any amount. What has no time is young.
//! * Every step can be stopped anywhere and be done again. What is left of a directory never looks like a checkpoint: manifests go first.
//!
//! # What happens at the same time
//!
//! * *A save is under way.* Its directory has no record, but is written to. Were it condemned all the same (its writer slept for longer than
//!   the period), the commit is void and the writer is told why; what it wrote after the deletion is a directory that is condemned and is
//!   there again, and the next collection deletes it. A save of a trainer says whose it is: while its incarnation is the run's and has not gone
//!   on beyond it, it is left alone for seven times the period.
//! * *A commit lands between survey and condemnation.* The condemnation would be void, is not written, and is made again without that
//!   directory. The other way round the commit would be void. One of both, never neither: they contend for one number of the log.
//! * *A checkpoint refers to files of one that is retired.* It needs that directory by its record, so it is never condemned; and if the
//!   condemnation came first, the reference is refused.
//! * *A load or a reshard reads what is retired.* It has the grace period, from the condemnation on. One that is slower loses its files, and
//!   fails by name: nothing is ever put in their place.
//! * *Someone forgets, tags, pins or verifies meanwhile.* Each record is judged where it lands; what was retired by another is passed over.
//! * *A second collection runs.* Both condemn the same (the second has no effect), and what is gone already is no error.
//! * *A copy of the root is being made.* Folders come before `commits/`, so a folder that was caught in the middle of its deletion comes with
//!   a log that condemns it.

mod collect;
mod delete;
mod forget;
mod history;
mod marks;
mod plan;
mod policy;
mod survey;
mod times;
mod usage;

pub use collect::{Collected, Collection, GcOptions, Kind, Spared, Waiting, collect};
pub use forget::{Considered, Retention, RunPlan, consider, forget, retire};
pub use history::{Event, history};
pub use marks::{pin, tag, untag, verified};
pub use plan::{Decision, Go, Stay, plan};
pub use policy::{Best, Order, Policy, PolicyError};
pub use survey::{Bulk, Folder, Standing, Survey};
pub use times::Times;
pub use usage::{CheckpointUsage, FolderUsage, Usage, usage};

#[cfg(test)]
pub(crate) mod tests;
