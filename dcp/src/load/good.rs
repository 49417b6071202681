//! [`newest_good`]: the newest checkpoint of a run that is whole, and what is wrong with those before it.
//!
//! Invariants: it walks the run's line from the newest back, as far as the first good one; a damaged one is never passed over in
//! silence; a store that can't be asked is an error, not damage.

use bytes::Bytes;

use crate::{
    Cancel, Error, ErrorKind, Finding, FindingCode, Place, Result, Severity, Silent,
    commit::{Action, Checkpoint, CommitError, Label, Log, Record, Seq},
    formats::{
        OpenOptions, Strictness,
        native::{NativeSource, open_record},
    },
    ops::verify::{Subset, VerifyOptions, verify},
    store::{Root, Stores},
};

/// How much is read to believe a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Level {
    /// Record, manifest, block tables, the objects, and that every file is there with its size; no tensor's bytes.
    #[default]
    Quick,
    /// Every byte, against its SHA-256.
    Full,
}

/// What was found on a run's line.
#[derive(Debug, Clone, PartialEq)]
pub struct NewestGood {
    /// The newest that is whole.
    pub found: Option<Found>,
    /// Those that are newer, newest first, each with what is wrong with it.
    pub skipped: Vec<Skipped>,
}

/// A checkpoint that is whole.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// Its number.
    pub seq: Seq,
    /// Its training step.
    pub step: u64,
    /// Its record's bytes, for [`super::Loader::open_record`].
    pub record: Bytes,
}

/// A checkpoint that is damaged.
#[derive(Debug, Clone, PartialEq)]
pub struct Skipped {
    /// Its number.
    pub seq: Seq,
    /// Its training step.
    pub step: u64,
    /// What is wrong with it, worst first.
    pub findings: Vec<Finding>,
}

/// Looks for the newest checkpoint of a run that is whole.
///
/// # Errors
/// The log's, and the store's where it could not be asked.
pub fn newest_good(root: &Root, run: &Label, level: Level) -> Result<NewestGood> {
    newest_good_before(root, run, level, None)
}

/// The same among those that are older than `before`: one that [`newest_good`] found whole at [`Level::Quick`], and whose bytes turned out
/// to be damaged when they were read.
///
/// # Errors
/// As [`newest_good`].
pub fn newest_good_before(root: &Root, run: &Label, level: Level, before: Option<Seq>) -> Result<NewestGood> {
    let mut log = Log::open(root).place(root.display_name())?;
    // Whether one is passed over for good must not depend on what a hint remembers.
    log.prove().place(root.display_name())?;
    let mut skipped = Vec::new();
    let line = log.state().line(run);
    for (seq, checkpoint) in line.into_iter().filter(|(seq, _)| before.is_none_or(|before| *seq < before)) {
        let step = checkpoint.step;
        let (record, findings) = match record_of(&log, seq, checkpoint) {
            Ok(record) => {
                let found = findings(root, &record, level).place(format!("checkpoint seq:{seq}"))?;
                (record, found)
            }
            Err(error) if is_damage(&error) => (Bytes::new(), vec![damage(&error).file(seq.path())]),
            Err(error) => return Err(error),
        };
        if findings.iter().all(|finding| finding.severity < Severity::Error) {
            return Ok(NewestGood { found: Some(Found { seq, step, record }), skipped });
        }
        skipped.push(Skipped { seq, step, findings });
    }
    Ok(NewestGood { found: None, skipped })
}

/// What is wrong with the checkpoint of a record.
fn findings(root: &Root, record: &[u8], level: Level) -> Result<Vec<Finding>> {
    let lenient = OpenOptions::new().strictness(Strictness::Lenient);
    match open_record(&Stores::new(), root, record, lenient) {
        Ok(source) => check(&source, level),
        Err(error) if is_damage(&error) => Ok(vec![damage(&error)]),
        Err(error) => Err(error),
    }
}

fn damage(error: &Error) -> Finding {
    let code = FindingCode::of_error(error, FindingCode::DigestMismatch);
    Finding::new(Severity::Error, code, error.to_string())
}

/// The bytes of the record of a checkpoint that the log holds. A log is read from its last folded state on, so a record before
/// that may be any by now: it must say what the state says.
///
/// # Errors
/// `Corrupt` for another record, or one that is damaged or gone; the store's.
pub(super) fn record_of(log: &Log, seq: Seq, checkpoint: &Checkpoint) -> Result<Bytes> {
    let name = log.root().full_name(&seq.path());
    let bytes = log.record(seq).place(log.root().display_name())?;
    let record = Record::decode(&name, &bytes)?;
    let same = matches!(&record.action, Action::Commit(commit)
        if commit.manifest == checkpoint.manifest && commit.attempt == checkpoint.attempt);
    if same && record.seq == seq {
        return Ok(bytes);
    }
    let reason =
        format!("the log has folded it as the commit of {}, and it is another record", checkpoint.attempt);
    Err(CommitError::Mixed { path: name, reason }.into())
}

/// What is wrong with an opened checkpoint.
pub(super) fn check(source: &NativeSource, level: Level) -> Result<Vec<Finding>> {
    let subset = if level == Level::Full { Subset::All } else { Subset::Nothing };
    let options = VerifyOptions { subset, ..VerifyOptions::default() };
    Ok(verify(source, &options, &Silent, &Cancel::new())?.findings)
}

fn is_damage(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound | ErrorKind::Unsupported)
}
