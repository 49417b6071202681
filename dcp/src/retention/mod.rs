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
//!   Anything else in a root is somebody's, and is only told about, without looking into it; so is a folder with a manifest, which may be a whole
//!   checkpoint whose record was lost, unless the caller says otherwise.
//! * Ages are differences of times that the store gave: of records, of objects, and, for the present, of an empty object that is put for that
//!   purpose and removed (by a dry run too, where an age matters: there is no other way to ask a store for the time). The clock of the machine
//!   that runs this decides nothing, so it may be off by any amount; it is only asked for people: for the ages that `ckpt ls` shows, and by
//!   `ckpt doctor`, to tell how far it is off. What has no time is young.
//! * What frees space comes before what takes some: deletions that are due, then unfinished files, then the record that condemns more.
//! * What can't be deleted stops nothing else, and is told when all else is done.
//! * Every step can be stopped anywhere and be done again. What is left of a directory never looks like a checkpoint: manifests go first.
//!
//! # What happens at the same time
//!
//! * *A save is under way.* Its directory has no record, but is written to. Were it condemned all the same (its writer slept for longer than
//!   the period), the commit is void and the writer is told why; what it wrote after the deletion is a directory that is condemned and is
//!   there again, and the next collection deletes it. A save of a trainer says whose it is: while its incarnation is the run's and has not gone
//!   on beyond it, it is left alone for seven times the period.
//! * *A save is gone on with, or a checkpoint is committed, during a long deletion.* What is condemned after it is decided by a second look.
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

//! # What stays longer than it is needed
//!
//! * *Blobs in a needed folder that no checkpoint refers to* (`unreferenced` in [`usage()`]): of a writer that lost a race for one file, or what
//!   only a retired checkpoint referred to while a later one shares another blob of that folder. They go with their folder. The log protects
//!   folders, not blobs: a save that is under way may have found its bytes in such a blob by the manifest of a checkpoint that was retired since,
//!   and its commit stands, since the folder is not condemned. To delete single blobs safely takes a record that names them, and so a format that
//!   today's readers do not know.
//! * *Names of condemned directories* in the folded state: see [`State::condemned`](crate::commit::State::condemned).

mod collect;
mod collection;
mod delete;
mod forget;
mod found;
mod history;
mod marks;
mod plan;
mod policy;
mod survey;
mod sweep;
mod times;
mod usage;

pub use collect::collect;
pub use collection::{Collected, Collection, GcOptions, Kind, Spared, Waiting};
pub use forget::{Considered, Retention, RunPlan, consider, forget, retire};
pub use history::{Event, history};
pub use marks::{pin, tag, untag, verified};
pub use plan::{Decision, Go, Stay, plan};
pub use policy::{Best, Order, Policy, PolicyError};
pub use survey::{Bulk, Folder, Foreign, ForeignFolder, Standing, Survey, Unfinished, has_attempts};
pub use times::Times;
pub use usage::{CheckpointUsage, FolderUsage, Usage, usage};

#[cfg(test)]
pub(crate) mod tests;
