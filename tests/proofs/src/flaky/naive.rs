//! Commit protocols that are wrong, one step each, as published ones were: the proof has to find every one of them.

use dcp::commit::{Action, Clock, CommitError, Committed, FORMAT, Label, Log, Record, Seq};
use dcp::store::{Nonce, ObjectPath, Put, StoreError};
use serde::Serialize;
use std::time::Duration;

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Mutation {
    /// Nothing: the protocol of `dcp`.
    None,
    /// Nothing either, in the code of this page: what the others differ from.
    ByHand,
    /// "Already exists" is believed: it must be another's.
    BelieveExists,
    /// After an error the writer goes on with the next number that is free by then, though the first may land yet.
    LeaveNumber,
    /// An error is taken for a failure, and what the checkpoint had is deleted.
    DeleteOnUnknown,
    /// Nobody asks whether the record would be void.
    SkipJudgement,
    /// What an error left open is reported as not written.
    ErrorIsFailure,
}

impl Mutation {
    /// All that are wrong.
    pub(super) const ALL: [Self; 5] = [
        Self::BelieveExists,
        Self::LeaveNumber,
        Self::DeleteOnUnknown,
        Self::SkipJudgement,
        Self::ErrorIsFailure,
    ];
}

/// A draft of a wrong protocol.
#[derive(Debug)]
pub(super) struct Draft {
    nonce: Nonce,
    run: Label,
    epoch: Option<u64>,
    parent: Option<Seq>,
    action: Action,
    /// Where it was left.
    at: Option<Seq>,
}

impl Draft {
    pub(super) const fn new(
        nonce: Nonce,
        run: Label,
        epoch: Option<u64>,
        parent: Option<Seq>,
        action: Action,
    ) -> Self {
        Self { nonce, run, epoch, parent, action, at: None }
    }

    /// One call; right but for the mutation.
    pub(super) fn append(
        &mut self,
        log: &mut Log,
        mutation: Mutation,
        clock: &dyn Clock,
    ) -> Result<Committed, CommitError> {
        let mut done = self.tried(log, mutation, clock);
        if let Ok(committed) = &done {
            // What was written is known to its writer.
            for _ in 0..100 {
                drop(log.refresh());
                if log.head() >= Some(committed.seq) {
                    break;
                }
                clock.pause(Duration::from_millis(20));
            }
        }
        if let Err(CommitError::Rejected { .. }) = &done {
            // By more than one look.
            for _ in 0..3 {
                drop(log.refresh());
            }
            done = self.tried(log, mutation, clock);
        }
        match done {
            // What is in doubt stays so, whatever fails next.
            Err(CommitError::Store(source)) if self.at.is_some() => {
                Err(CommitError::Unknown { path: "a record".to_owned(), source })
            }
            done => done,
        }
    }

    fn tried(
        &mut self,
        log: &mut Log,
        mutation: Mutation,
        clock: &dyn Clock,
    ) -> Result<Committed, CommitError> {
        loop {
            log.refresh()?;
            // Stays at its number until a record is seen there.
            if let Some(at) = self.at {
                if let Some(entry) = log.read(at)? {
                    self.at = None;
                    if entry.record.nonce == self.nonce {
                        return Ok(Committed { seq: at, before: false });
                    }
                    continue;
                }
                if log.head() >= Some(at) {
                    // It was shown a moment ago.
                    return Err(CommitError::Unknown {
                        path: at.path().to_string(),
                        source: StoreError::NotFound { path: at.path().to_string() },
                    });
                }
            }
            let record = self.record(log)?;
            if mutation != Mutation::SkipJudgement {
                log.state().judge(&record).map_err(|void| CommitError::Rejected { void })?;
            }
            let seq = record.seq;
            match log.root().put_create(&seq.path(), record.encode()?.into()) {
                Ok(Put::Created) => return Ok(Committed { seq, before: false }),
                Ok(Put::Exists) if mutation == Mutation::BelieveExists => {}
                Ok(Put::Exists) => self.at = Some(seq),
                Err(error) if mutation == Mutation::DeleteOnUnknown => {
                    if let Action::Commit(commit) = &self.action {
                        drop(log.root().delete_all(&ObjectPath::from(commit.attempt.as_str())));
                    }
                    return Err(error.into());
                }
                Err(error) if mutation == Mutation::ErrorIsFailure => return Err(error.into()),
                Err(source) => {
                    self.at = (mutation != Mutation::LeaveNumber).then_some(seq);
                    return Err(CommitError::Unknown { path: seq.path().to_string(), source });
                }
            }
            clock.pause(Duration::from_millis(20));
        }
    }

    fn record(&self, log: &Log) -> Result<Record, CommitError> {
        let missing = |seq: Seq| CommitError::Store(StoreError::NotFound { path: seq.path().to_string() });
        let (seq, prev) = match log.head() {
            None => (Seq::FIRST, None),
            Some(head) => (head.next(), Some(log.read(head)?.ok_or_else(|| missing(head))?.digest)),
        };
        let current = log.state().epoch(&self.run);
        let begins = matches!(self.action, Action::Epoch(_));
        let root = log.root_id().unwrap_or(dcp::commit::RootId::new(self.nonce));
        Ok(Record {
            format: FORMAT,
            must_understand: Vec::new(),
            root,
            seq,
            prev,
            nonce: self.nonce,
            writer: "naive".to_owned(),
            time_ms: 0,
            run: self.run.clone(),
            epoch: self.epoch.unwrap_or(if begins { current + 1 } else { current }),
            parent: self.parent,
            action: self.action.clone(),
            state: seq.carries_state().then(|| log.state().clone()),
        })
    }
}
