//! What a copy may follow in the target, and what was copied there before.
//!
//! A copy becomes the newest of its run, so it must be newer than what is the newest there: by their places in the source's log, where that one
//! is a copy from there as well (a run may have fallen back to an earlier step, and gone on from it); by their training steps otherwise.

use std::collections::BTreeSet;

use crate::{
    Error, ErrorKind, Place, Result,
    commit::{Action, Checkpoint, Commit, DirName, Label, Log, Seq, State},
    digest::Sha256Digest,
    formats::native::{NativeSource, is_attempt_of},
};

/// Names the copy of a manifest to a run.
pub(super) fn identity(manifest: &Sha256Digest, run: &Label) -> Sha256Digest {
    Sha256Digest::of(format!("native copy 1\0{manifest}\0{run}").as_bytes())
}

/// The newest checkpoint of the run in the target, which the copy may follow; nothing where the run has none.
///
/// # Errors
/// `Conflict` where the copy is older; the log's.
pub(super) fn follow(source: &NativeSource, state: &State, run: &Label, step: u64) -> Result<Option<Seq>> {
    let Some((seq, newest)) = state.newest(run) else { return Ok(None) };
    let own = source.commit().map(|commit| commit.seq);
    // What the steps would refuse is worth reading the source's whole log for. Of what they would not, only what came after the copy's own
    // record is looked for.
    let least = if newest.step > step { Some(Seq::FIRST) } else { own };
    let text = match (place_of(source, newest, run, least)?, own) {
        (Some(there), Some(own)) if there <= own => return Ok(Some(seq)),
        (Some(there), _) => format!(
            "the newest of run {run} (record {seq}) is a copy of record {there} of the source: a copy of an earlier one would become the newest"
        ),
        (None, _) if newest.step > step => format!(
            "run {run} is at step {} (record {seq}): a copy of step {step} would become its newest checkpoint",
            newest.step
        ),
        (None, _) => return Ok(Some(seq)),
    };
    Err(Error::new(ErrorKind::Conflict, text).hint("commit it to a run of its own: --run NAME"))
}

/// The record in the source's log of which a checkpoint of the target is a copy: of a checkpoint that is still there, or of one that was
/// forgotten since and has a record from `least` on.
fn place_of(
    source: &NativeSource,
    copy: &Checkpoint,
    run: &Label,
    least: Option<Seq>,
) -> Result<Option<Seq>> {
    let Some(log) = source.log() else { return Ok(None) };
    let is = |manifest: &Sha256Digest, step| is_attempt_of(&copy.attempt, step, &identity(manifest, run));
    let live = log.state().checkpoints.iter().rev().find(|(_, it)| is(&it.manifest.sha256, it.step));
    match (live, least) {
        (Some((seq, _)), _) => Ok(Some(*seq)),
        (None, Some(least)) => last_commit(log, least, |commit| is(&commit.manifest.sha256, commit.step)),
        (None, None) => Ok(None),
    }
}

/// The record that made such a copy, which was forgotten since.
///
/// # Errors
/// The log's.
pub(super) fn forgotten(log: &Log, step: u64, identity: &Sha256Digest) -> Result<Option<Seq>> {
    let (state, mine) = (log.state(), |dir: &&DirName| is_attempt_of(dir, step, identity));
    let retired = state.retired.iter().filter(|(dir, _)| mine(dir)).map(|(_, seq)| *seq).max();
    let condemned: BTreeSet<&DirName> = state.condemned.keys().filter(mine).collect();
    if retired.is_some() || condemned.is_empty() {
        return Ok(retired);
    }
    // A copy that was stopped and collected as garbage is condemned too: only one that was committed is meant.
    last_commit(log, Seq::FIRST, |commit| condemned.contains(&commit.attempt))
}

/// The last record, from `least` on, that commits what is looked for. Records are never deleted, so this knows of everything that ever was.
fn last_commit(log: &Log, least: Seq, is: impl Fn(&Commit) -> bool) -> Result<Option<Seq>> {
    let mut at = log.head();
    while let Some(seq) = at.filter(|seq| *seq >= least) {
        let entry = log.read(seq).place(log.root().display_name())?;
        if let Some(Action::Commit(commit)) = entry.map(|entry| entry.record.action)
            && is(&commit)
        {
            return Ok(Some(seq));
        }
        at = Seq::new(seq.get() - 1).ok();
    }
    Ok(None)
}
