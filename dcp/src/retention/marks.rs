//! What people and programs say of checkpoints: names, pins, and that one was verified.

use crate::{
    Place, Result,
    commit::{Action, CommitError, Label, Log, LogOptions, Pin, Seq, Tag, Untag, Verified},
    store::Root,
};

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

/// Gives a checkpoint a name; one that another had moves. Returns the checkpoint that had it.
///
/// # Errors
/// `Conflict` when the checkpoint is not there (any more); the store's and the log's.
pub fn tag(log: &mut Log, name: &Label, checkpoint: Seq) -> Result<Option<Seq>> {
    prove(log)?;
    let before = log.state().tags.get(name).copied();
    if before != Some(checkpoint) {
        mark(log, checkpoint, Action::Tag(Tag { name: name.clone(), checkpoint }))?;
    }
    Ok(before)
}

/// Takes a name away. Returns the checkpoint that had it, if there was one.
///
/// # Errors
/// `Conflict` when another took it away in the meantime; the store's and the log's.
pub fn untag(log: &mut Log, name: &Label) -> Result<Option<Seq>> {
    prove(log)?;
    let before = log.state().tags.get(name).copied();
    if let Some(checkpoint) = before {
        mark(log, checkpoint, Action::Untag(Untag { name: name.clone() }))?;
    }
    Ok(before)
}

/// Protects a checkpoint from being retired, or no longer. Returns whether that is new.
///
/// # Errors
/// `Conflict` when it is not there (any more); the store's and the log's.
pub fn pin(log: &mut Log, checkpoint: Seq, held: bool) -> Result<bool> {
    prove(log)?;
    let before = log.state().checkpoints.get(&checkpoint).map(|it| it.pinned);
    let news = before != Some(held);
    if news {
        mark(log, checkpoint, Action::Pin(Pin { checkpoint, held }))?;
    }
    Ok(news)
}

/// Whether a mark is new is decided by the log, not by a hint.
fn prove(log: &mut Log) -> Result<()> {
    let place = log.root().display_name().to_owned();
    log.prove().place(place)
}

/// Appends a record about a checkpoint in the name of its run.
fn mark(log: &mut Log, checkpoint: Seq, action: Action) -> Result<()> {
    let place = log.root().display_name().to_owned();
    let gone = CommitError::Rejected { void: crate::commit::Void::NoCheckpoint(checkpoint) };
    let run = log.state().checkpoints.get(&checkpoint).map(|it| it.run.clone()).ok_or(gone).place(&place)?;
    append(log, &run, None, action).place(place)
}

pub(super) fn append(
    log: &mut Log,
    run: &Label,
    epoch: Option<u64>,
    action: Action,
) -> Result<(), CommitError> {
    let mut draft = log.draft(run, action)?;
    if let Some(epoch) = epoch {
        draft = draft.in_epoch(epoch);
    }
    log.append(&draft).map(drop)
}
