//! Making a checkpoint exist: the manifest, durable, then the record that names it.

use std::collections::BTreeSet;

use crate::{
    Place, Result,
    commit::{Action, Commit, CommitError, Committed, DirName, Label, Log, ManifestRef, Metrics, Seq, Void},
    manifest::EncodedManifest,
    store::Root,
};

/// Times that another writer of the same run may be faster.
const ROUNDS: u32 = 1000;

/// What is to be published, and as what.
#[derive(Debug)]
pub(crate) struct Publication<'a> {
    /// The run.
    pub(crate) run: &'a Label,
    /// The incarnation of the run, for writers that may be fenced.
    pub(crate) epoch: Option<u64>,
    /// The checkpoint that it goes on from; none for whatever the run's newest is by then.
    pub(crate) parent: Option<Seq>,
    /// The training step.
    pub(crate) step: u64,
    /// The folder.
    pub(crate) attempt: &'a DirName,
    /// What its saver measured.
    pub(crate) metrics: &'a Metrics,
    /// Folders of others that it refers to.
    pub(crate) also: &'a BTreeSet<DirName>,
    /// The catalog.
    pub(crate) manifest: &'a EncodedManifest,
}

/// Puts the manifest and appends the record. An attempt that was committed before is success.
///
/// # Errors
/// The store's and the log's. Nothing exists then that did not before, unless the log says that it can't tell.
pub(crate) fn publish(log: &mut Log, what: &Publication<'_>) -> Result<Committed> {
    put_manifest(log.root(), what)?;
    append_record(log, what)
}

/// The first half: the manifest, durable.
///
/// # Errors
/// The store's.
pub(crate) fn put_manifest(root: &Root, what: &Publication<'_>) -> Result<()> {
    let path = what.manifest_ref().path(what.attempt);
    Ok(root.put_same(&path, what.manifest.bytes.clone())?)
}

/// The second half: the record that names the manifest, which is durable.
///
/// # Errors
/// As [`publish`].
pub(crate) fn append_record(log: &mut Log, what: &Publication<'_>) -> Result<Committed> {
    let root = log.root().display_name().to_owned();
    append(log, what, None).place(root)
}

/// As [`append_record`], as long as `newest` is the newest checkpoint of the run.
///
/// # Errors
/// [`CommitError::Passed`] when another is; what the log says.
pub(crate) fn append_record_while(
    log: &mut Log,
    what: &Publication<'_>,
    newest: Option<Seq>,
) -> Result<Committed, CommitError> {
    append(log, what, Some(newest))
}

impl Publication<'_> {
    fn manifest_ref(&self) -> ManifestRef {
        ManifestRef { sha256: self.manifest.digest, size: self.manifest.bytes.len() as u64 }
    }

    fn action(&self) -> Action {
        Action::Commit(Commit {
            step: self.step,
            attempt: self.attempt.clone(),
            manifest: self.manifest_ref(),
            directories: self.also.iter().chain([self.attempt]).cloned().collect(),
            metrics: self.metrics.clone(),
        })
    }
}

fn append(
    log: &mut Log,
    what: &Publication<'_>,
    newest: Option<Option<Seq>>,
) -> Result<Committed, CommitError> {
    for _ in 0..ROUNDS {
        let mut draft = log.draft(what.run, what.action())?.after(what.parent.or_else(|| tip(log, what.run)));
        if let Some(newest) = newest {
            draft = draft.while_newest(newest);
        }
        if let Some(epoch) = what.epoch {
            draft = draft.in_epoch(epoch);
        }
        match log.append(&draft) {
            Ok(committed) => return Ok(committed),
            // Another writer went on in between. Nothing was written, so going on from there is a new try.
            Err(CommitError::Rejected { void: Void::Forked { .. } }) if what.parent.is_none() => {}
            Err(error) => return Err(error),
        }
    }
    Err(CommitError::Contended { rounds: ROUNDS })
}

/// What the run goes on from: what its incarnation committed last, else its newest checkpoint.
fn tip(log: &Log, run: &Label) -> Option<Seq> {
    let state = log.state();
    let tip = state.runs.get(run).and_then(|line| line.tip);
    tip.or_else(|| state.newest(run).map(|(seq, _)| seq))
}
