//! Retention: which checkpoints of a run stay, and how the bytes of the others go, in two steps on the one log.
//!
//! ```text
//!  retire (keep the newest N of the line) ─► condemn (directories that no live checkpoint needs) ─ grace ─► delete
//! ```
//!
//! # Invariants
//!
//! * What is tagged, pinned, or the newest of its run that was verified, stays: the log itself refuses to retire it.
//! * Nothing is deleted that is not condemned, and nothing is condemned that a live checkpoint needs. A commit that comes after
//!   and needs a condemned directory is void, by the fold rule; so who deletes need not ask who writes.
//! * Ages come from the times that the store gave to records: a directory is deleted when the last record of the log is younger
//!   than the one that condemned it by the grace period at least. The local clock is never asked.
//! * Every step can be stopped anywhere and be done again.

use std::{collections::BTreeSet, num::NonZeroUsize, time::Duration};

use serde::Serialize;

use crate::{
    Place, Result,
    commit::{
        Action, CommitError, Condemn, DirName, Label, Log, LogOptions, Retire, Seq, State, Verified, Void,
    },
    store::{ObjectPath, Root},
};

/// What retiring did.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Retention {
    /// Checkpoints that are no longer there, oldest first: number and training step.
    pub retired: Vec<(Seq, u64)>,
    /// Checkpoints that would have gone, but are tagged, pinned, or the newest that was verified.
    pub held: Vec<(Seq, u64)>,
}

/// What a collection did.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Collection {
    /// Directories that were condemned now.
    pub condemned: Vec<DirName>,
    /// Directories that were condemned before, whose grace period is not over as far as the log tells.
    pub waiting: Vec<DirName>,
    /// Directories that were deleted.
    pub deleted: Vec<DirName>,
    /// Bytes of the objects that were deleted.
    pub bytes: u64,
}

/// Retires all checkpoints of a run but the newest `keep` of its line. Those beside the line, which the run has not gone on from,
/// go once they are older than the oldest that is kept. With an `epoch`, only while that incarnation is the run's.
///
/// # Errors
/// `Conflict` when another incarnation has taken over; the store's and the log's. What was retired until then stays so.
pub fn retire(
    root: &Root,
    run: &Label,
    epoch: Option<u64>,
    keep: NonZeroUsize,
    options: LogOptions,
) -> Result<Retention> {
    let place = root.display_name();
    let mut log = Log::open_with(root, options).place(place)?;
    let mut done = Retention::default();
    for (seq, step) in unwanted(log.state(), run, keep) {
        match append(&mut log, run, epoch, Action::Retire(Retire { checkpoint: seq })) {
            Ok(()) => done.retired.push((seq, step)),
            Err(CommitError::Rejected { void: Void::Held(_) | Void::NewestVerified(_) }) => {
                done.held.push((seq, step));
            }
            // Somebody else retired it in the meantime.
            Err(CommitError::Rejected { void: Void::NoCheckpoint(_) }) => {}
            Err(error) => return Err(error).place(place),
        }
    }
    Ok(done)
}

/// Notes in the log that a checkpoint was read in full, and whether it was whole: the newest whole one of a run is never retired.
///
/// # Errors
/// `Conflict` when it is not there (any more); the store's and the log's.
pub fn verified(
    root: &Root,
    run: &Label,
    epoch: Option<u64>,
    checkpoint: Seq,
    whole: bool,
    options: LogOptions,
) -> Result<()> {
    let mut log = Log::open_with(root, options).place(root.display_name())?;
    let action = Action::Verified(Verified { checkpoint, whole });
    append(&mut log, run, epoch, action).place(root.display_name())
}

/// Condemns the directories of retired checkpoints that nothing needs, and deletes those that were condemned at least `grace` ago:
/// readers that opened a checkpoint before it went have that long to finish.
///
/// # Errors
/// `Conflict` when the incarnation of `run` has ended; the store's and the log's. What was condemned or deleted until then stays so.
pub fn collect(
    root: &Root,
    run: &Label,
    epoch: Option<u64>,
    grace: Duration,
    options: LogOptions,
) -> Result<Collection> {
    let place = root.display_name();
    let mut log = Log::open_with(root, options).place(place)?;
    let mut done = Collection::default();
    let directories = garbage(log.state());
    if !directories.is_empty() {
        done.condemned = directories.iter().cloned().collect();
        append(&mut log, run, epoch, Action::Condemn(Condemn { directories })).place(place)?;
    }
    let there: BTreeSet<String> =
        root.list_dir(None)?.dirs.iter().map(|dir| dir.as_ref().to_owned()).collect();
    let condemned = log.state().condemned.clone();
    for (dir, seq) in condemned.into_iter().filter(|(dir, _)| there.contains(dir.as_str())) {
        if age(&log, seq).place(place)?.is_some_and(|age| age >= grace) {
            done.bytes += root.delete_all(&ObjectPath::from(dir.as_str()))?;
            done.deleted.push(dir);
        } else if !done.condemned.contains(&dir) {
            done.waiting.push(dir);
        }
    }
    Ok(done)
}

/// What is to go, oldest first.
fn unwanted(state: &State, run: &Label, keep: NonZeroUsize) -> Vec<(Seq, u64)> {
    let kept: BTreeSet<Seq> = state.line(run).take(keep.get()).map(|(seq, _)| seq).collect();
    let Some(oldest) = kept.first().copied() else { return Vec::new() };
    let of_run = state.checkpoints.iter().filter(|(_, checkpoint)| checkpoint.run == *run);
    of_run.filter(|(seq, _)| **seq < oldest).map(|(seq, checkpoint)| (*seq, checkpoint.step)).collect()
}

/// Directories of retired checkpoints that no live one needs.
fn garbage(state: &State) -> BTreeSet<DirName> {
    state.retired.keys().filter(|dir| state.user_of(dir).is_none()).cloned().collect()
}

/// How long ago a record was written, as of the last record.
fn age(log: &Log, seq: Seq) -> Result<Option<Duration>, CommitError> {
    let stored = |seq: Seq| Ok::<_, CommitError>(log.read(seq)?.map(|entry| entry.stored));
    let (Some(then), Some(head)) = (stored(seq)?, log.head()) else { return Ok(None) };
    Ok(stored(head)?.and_then(|now| now.duration_since(then).ok()))
}

fn append(log: &mut Log, run: &Label, epoch: Option<u64>, action: Action) -> Result<(), CommitError> {
    let mut draft = log.draft(run, action)?;
    if let Some(epoch) = epoch {
        draft = draft.in_epoch(epoch);
    }
    log.append(&draft).map(drop)
}

#[cfg(test)]
mod tests;
