//! Adding a record, without ever losing one, writing one twice, or reporting a conflict that is none.
//!
//! The hazard: a create is not repeatable. It may land and its answer be lost, on the way or in a retry below us; then the next try finds the
//! name taken, by ourselves. So a name that is taken says nothing yet: what is there is read back, and its nonce says whose it is. And where the
//! store gives no answer at all, the same bytes are put at the same number again; the number is not left before a record is seen there.

use super::error::{CommitError, Result};
use super::log::{Entry, Log};
use super::names::Label;
use super::record::{Action, Epoch, FORMAT, Record, RootId};
use super::seq::Seq;
use crate::digest::Sha256Digest;
use crate::store::{Nonce, Put, StoreError};

use bytes::Bytes;
use std::time::{Duration, SystemTime};

/// How often another may be faster before a writer gives up.
const ROUNDS: u32 = 10_000;

/// How often the end of the log is looked at before a draft is refused for what a later record could change.
const LOOKS: u32 = 3;

/// A record that is to be added; its number and its place in the chain are found out then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    nonce: Nonce,
    run: Label,
    epoch: Option<u64>,
    parent: Option<Seq>,
    newest: Option<Option<Seq>>,
    action: Action,
}

impl Draft {
    /// Ties it to an incarnation of the run: if another has taken over by then, it is not written. Without it, it is written for whatever
    /// incarnation there is, as is right for a person at a terminal and wrong for a trainer.
    #[must_use]
    pub const fn in_epoch(mut self, epoch: u64) -> Self {
        self.epoch = Some(epoch);
        self
    }

    /// Says which checkpoint a committed one goes on from.
    #[must_use]
    pub const fn after(mut self, parent: Option<Seq>) -> Self {
        self.parent = parent;
        self
    }

    /// Ties it to what is the newest checkpoint of its run: it is written only while that is the one that its writer decided by, or while there
    /// is none. Whoever adds what is old, and must not make it the newest, needs this.
    #[must_use]
    pub const fn while_newest(mut self, newest: Option<Seq>) -> Self {
        self.newest = Some(newest);
        self
    }
}

/// A record that is in the log, durably.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// Its number.
    pub seq: Seq,
    /// Whether it was there before: written by an earlier try, or by another worker that committed the same attempt.
    pub before: bool,
}

/// Whose record holds a number.
enum Holder {
    /// Ours, by these very bytes.
    Created,
    /// Ours, found there: an earlier call may have written it with another time in it.
    Ours(Box<Entry>),
    Other(Box<Entry>),
}

impl Log {
    /// Begins a record about a run. The draft is what is appended again after [`CommitError::Unknown`].
    ///
    /// # Errors
    /// When the system has no nonce to give.
    pub fn draft(&self, run: &Label, action: Action) -> Result<Draft> {
        let nonce = self.options.nonces.draw()?;
        Ok(Draft { nonce, run: run.clone(), epoch: None, parent: None, newest: None, action })
    }

    /// Begins an incarnation of a run, and returns its epoch. Everything that an earlier one still appends is refused from then on.
    ///
    /// # Errors
    /// As [`Log::append`].
    pub fn begin_epoch(&mut self, run: &Label) -> Result<u64> {
        let draft = self.draft(run, Action::Epoch(Epoch {}))?;
        let committed = self.append(&draft)?;
        let entry = self.read_sure(committed.seq)?;
        let gone =
            || CommitError::Store(StoreError::NotFound { path: self.root.full_name(&committed.seq.path()) });
        entry.map(|entry| entry.record.epoch).ok_or_else(gone)
    }

    /// Adds a record at the end of the log, durably. A commit of an attempt that has been committed is success, whoever did it.
    ///
    /// # Errors
    /// [`CommitError::Rejected`] when it would be void, [`CommitError::Passed`] when its run has another newest checkpoint than it is tied to: nothing
    /// was written. [`CommitError::Unknown`] when the store leaves open whether it
    /// landed. [`StoreError::NotDurable`] when it is there and may not survive a crash. Otherwise as [`Log::open`]; nothing was written then.
    pub fn append(&mut self, draft: &Draft) -> Result<Committed> {
        // A draft that was tried and is still known here was left in doubt, and stays so until a record or a verdict settles it: whatever
        // fails in between, an earlier try may have landed.
        let doubt = self.tried.contains_key(&draft.nonce);
        self.tried.entry(draft.nonce).or_insert(None);
        let done = self.prove().and_then(|()| self.append_in_rounds(draft, doubt));
        let settled = match &done {
            Ok(_) | Err(CommitError::Rejected { .. } | CommitError::Contended { .. }) => true,
            Err(CommitError::Unknown { .. } | CommitError::Store(StoreError::NotDurable { .. })) => false,
            Err(_) => !doubt,
        };
        if settled {
            self.tried.remove(&draft.nonce);
        }
        match done {
            Err(CommitError::Store(source)) if doubt && !matches!(source, StoreError::NotDurable { .. }) => {
                Err(CommitError::Unknown { path: self.root.full_name(&self.chain.next().path()), source })
            }
            Ok(committed) => {
                if !committed.before {
                    self.hint();
                }
                Ok(committed)
            }
            failed => failed,
        }
    }

    fn append_in_rounds(&mut self, draft: &Draft, doubt: bool) -> Result<Committed> {
        for round in 0..ROUNDS {
            self.refresh()?;
            if let Some(seq) = self.found_before(draft) {
                self.root.settle(&seq.path())?;
                return Ok(Committed { seq, before: true });
            }
            self.refuse_passed(draft)?;
            let (seq, record) = (self.chain.next(), self.record_of(draft)?);
            if let Err(void) = self.state.judge(&record) {
                if void.is_final() || self.ends_here()? {
                    return Err(CommitError::Rejected { void });
                }
                continue;
            }
            let bytes = Bytes::from(record.encode()?);
            // A crash that lost the record before it would leave a log that nobody can open.
            self.settle()?;
            match self.create(seq, &bytes, draft.nonce, doubt)? {
                Holder::Created => {
                    let (digest, stored) = (Sha256Digest::of(&bytes), SystemTime::UNIX_EPOCH);
                    let entry = Entry { record, bytes, digest, stored };
                    self.absorb(seq, &entry)?;
                    self.settled = Some(seq);
                    return Ok(Committed { seq, before: false });
                }
                Holder::Ours(entry) => {
                    self.absorb(seq, &entry)?;
                    self.settled = Some(seq);
                    return Ok(Committed { seq, before: false });
                }
                Holder::Other(entry) => {
                    self.absorb(seq, &entry)?;
                    self.step_aside(round)?;
                }
            }
        }
        Err(CommitError::Contended { rounds: ROUNDS })
    }

    /// The create that follows is at the number after what was judged here, so nothing comes in between.
    fn refuse_passed(&self, draft: &Draft) -> Result<()> {
        let newest = self.state.newest(&draft.run).map(|(seq, _)| seq);
        match draft.newest {
            Some(expected) if expected != newest => {
                Err(CommitError::Passed { run: draft.run.clone(), expected, newest })
            }
            _ => Ok(()),
        }
    }

    /// Whether there is no further record, by more than one look: a store may take a while to show one, and it could lift what a draft is
    /// refused for. (A create at a number that is taken finds out by itself.)
    fn ends_here(&mut self) -> Result<bool> {
        let head = self.head();
        for look in 0..LOOKS {
            self.refresh()?;
            if self.head() != head {
                return Ok(false);
            }
            self.options
                .retry
                .pause_after(look)
                .into_iter()
                .for_each(|pause| self.options.clock.pause(pause));
        }
        Ok(true)
    }

    /// The record that an earlier try, or another worker, has written for this draft.
    fn found_before(&self, draft: &Draft) -> Option<Seq> {
        let own = self.tried.get(&draft.nonce).copied().flatten();
        own.or_else(|| match &draft.action {
            Action::Commit(commit) => self.state.committed(&commit.attempt),
            _ => None,
        })
    }

    /// What the draft would be as the next record.
    fn record_of(&self, draft: &Draft) -> Result<Record> {
        let (seq, current) = (self.chain.next(), self.state.epoch(&draft.run));
        let begins = matches!(draft.action, Action::Epoch(_));
        let age = self.options.clock.now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Ok(Record {
            format: FORMAT,
            must_understand: Vec::new(),
            root: self.chain.root.map_or_else(|| self.options.nonces.draw().map(RootId::new), Ok)?,
            seq,
            prev: self.chain.prev(),
            nonce: draft.nonce,
            writer: self.options.writer.clone(),
            time_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
            run: draft.run.clone(),
            epoch: draft.epoch.unwrap_or(if begins { current.saturating_add(1) } else { current }),
            parent: draft.parent,
            action: draft.action.clone(),
            state: seq.carries_state().then(|| self.state.clone()),
        })
    }

    /// Puts the record as number `seq`, until it is certain whose record that is. It may be in doubt from an earlier call.
    fn create(&self, seq: Seq, bytes: &Bytes, nonce: Nonce, mut in_doubt: bool) -> Result<Holder> {
        let mut tries = 0;
        loop {
            let error = match self.root.put_create(&seq.path(), bytes.clone()) {
                Ok(Put::Created) => return Ok(Holder::Created),
                Ok(Put::Exists) => match self.read_sure(seq) {
                    Ok(Some(entry)) => return self.holder(seq, entry, nonce),
                    Ok(None) => StoreError::NotFound { path: self.root.full_name(&seq.path()) },
                    // What could not be read may be ours.
                    Err(CommitError::Store(error)) => error,
                    Err(error) => return Err(error),
                },
                Err(error @ StoreError::NotDurable { .. }) => return Err(error.into()),
                Err(error) if !in_doubt && !error.may_have_landed() => return Err(error.into()),
                Err(error) => error,
            };
            in_doubt = true;
            if let Ok(Some(entry)) = self.read(seq) {
                return self.holder(seq, entry, nonce);
            }
            let Some(pause) = self.options.retry.pause_after(tries) else {
                return Err(CommitError::Unknown { path: self.root.full_name(&seq.path()), source: error });
            };
            self.options.clock.pause(pause);
            tries += 1;
        }
    }

    fn holder(&self, seq: Seq, entry: Entry, nonce: Nonce) -> Result<Holder> {
        if entry.record.nonce != nonce {
            return Ok(Holder::Other(Box::new(entry)));
        }
        self.root.settle(&seq.path())?;
        Ok(Holder::Ours(Box::new(entry)))
    }

    /// Lets others go first, for a random while that grows with how often they were faster.
    fn step_aside(&self, round: u32) -> Result<()> {
        let longest = 1_u128 << round.min(7);
        let wait = self.options.nonces.draw()?.bits() % (longest * 1_000);
        self.options.clock.pause(Duration::from_micros(u64::try_from(wait).unwrap_or(0)));
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests;
