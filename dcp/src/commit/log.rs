//! The log of a root, read up to its head.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use super::chain::Chain;
use super::clock::{Clock, Retry, SystemClock};
use super::error::{CommitError, Result};
use super::record::{LONGEST, Record, RootId};
use super::seq::Seq;
use super::state::State;
use crate::digest::Sha256Digest;
use crate::store::{Nonce, Nonces, OsNonces, Root, StoreError};

/// What a log needs from outside: time, randomness, patience, and who writes.
#[derive(Debug, Clone)]
pub struct LogOptions {
    /// What time it is, and how to wait.
    pub clock: Arc<dyn Clock>,
    /// Where nonces come from.
    pub nonces: Arc<dyn Nonces>,
    /// How patiently failures are met.
    pub retry: Retry,
    /// The program that writes.
    pub writer: String,
}

impl Default for LogOptions {
    fn default() -> Self {
        let writer = concat!("dcp ", env!("CARGO_PKG_VERSION")).to_owned();
        Self { clock: Arc::new(SystemClock), nonces: Arc::new(OsNonces), retry: Retry::default(), writer }
    }
}

/// A record as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The record.
    pub record: Record,
    /// The digest of its bytes.
    pub digest: Sha256Digest,
    /// When it was written, by the clock of the store. Ages are counted from this.
    pub stored: SystemTime,
}

/// The log of a root: what it amounts to, up to the head that was last seen.
#[derive(Debug)]
pub struct Log {
    pub(super) root: Root,
    pub(super) options: LogOptions,
    pub(super) chain: Chain,
    pub(super) state: State,
    /// Drafts of which it was once unknown whether they had landed, and where they have been found.
    pub(super) tried: BTreeMap<Nonce, Option<Seq>>,
    /// The last record that is known to be durable, and all before it.
    pub(super) settled: Option<Seq>,
}

impl Log {
    /// Reads the log of a root. A root without one has an empty log.
    ///
    /// # Errors
    /// [`CommitError::Damaged`], [`CommitError::Mixed`], [`CommitError::Incomplete`] when the log is not whole, as far as it has to be
    /// read; [`CommitError::Newer`], [`CommitError::NotUnderstood`]; and what the store says.
    pub fn open(root: &Root) -> Result<Self> {
        Self::open_with(root, LogOptions::default())
    }

    /// As [`Log::open`], with time, randomness and patience of the caller's.
    ///
    /// # Errors
    /// As [`Log::open`].
    pub fn open_with(root: &Root, options: LogOptions) -> Result<Self> {
        let (chain, state, tried, settled) = Default::default();
        let mut log = Self { root: root.clone(), options, chain, state, tried, settled };
        let listed = log.listed()?.last().copied();
        log.start_at(listed)?;
        log.refresh()?;
        match listed.filter(|listed| *listed >= log.chain.next()) {
            Some(later) => log.wait_for(later).map(|()| log),
            None => Ok(log),
        }
    }

    /// The numbers of the records that the store lists, in order: a hint.
    pub(super) fn listed(&self) -> Result<Vec<Seq>> {
        let listed = self.root.list(Some(&Seq::dir()))?;
        Ok(listed.iter().filter_map(|object| Seq::of(&object.path)).collect())
    }

    /// Begins at the last record with the state, so that those before it need not be read.
    fn start_at(&mut self, listed: Option<Seq>) -> Result<()> {
        let Some(start) = listed.and_then(Seq::last_with_state) else { return Ok(()) };
        match self.read(start)? {
            Some(entry) => self.absorb(start, &entry),
            // The listing was wrong; reading from the first record finds out how.
            None => Ok(()),
        }
    }

    /// Reads what others have added.
    ///
    /// # Errors
    /// As [`Log::open`].
    pub fn refresh(&mut self) -> Result<()> {
        while let Some(entry) = self.read(self.chain.next())? {
            self.absorb(self.chain.next(), &entry)?;
        }
        Ok(())
    }

    /// Makes durable what was read: whoever wrote the last records may have been stopped between giving them their names and making those
    /// durable. What is built on a record (a record after it, a success, a deletion) must not outlive it in a crash.
    ///
    /// # Errors
    /// [`StoreError::NotDurable`] when the system would not confirm, and what the store says.
    pub fn settle(&mut self) -> Result<()> {
        let Some(head) = self.head().filter(|head| self.settled < Some(*head)) else { return Ok(()) };
        // The names of all records are in one directory.
        self.root.settle(&head.path())?;
        self.settled = Some(head);
        Ok(())
    }

    /// Goes on to a record that must be there, since it was listed.
    fn wait_for(&mut self, later: Seq) -> Result<()> {
        while self.chain.next() <= later {
            let seq = self.chain.next();
            let entry = self.read_sure(seq)?;
            let missing = || CommitError::Incomplete { path: self.root.full_name(&seq.path()), later };
            self.absorb(seq, &entry.ok_or_else(missing)?)?;
        }
        self.refresh()
    }

    /// The last record.
    #[must_use]
    pub fn head(&self) -> Option<Seq> {
        self.chain.last.map(|(seq, _)| seq)
    }

    /// Which root this is; none while it has no records.
    #[must_use]
    pub fn root_id(&self) -> Option<RootId> {
        self.chain.root
    }

    /// What the records up to the head amount to.
    #[must_use]
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// The root.
    #[must_use]
    pub const fn root(&self) -> &Root {
        &self.root
    }

    /// The record of a number, if there is one. It is checked by itself, not in its chain.
    ///
    /// # Errors
    /// [`CommitError::Damaged`], [`CommitError::Newer`], [`CommitError::NotUnderstood`], and what the store says.
    pub fn read(&self, seq: Seq) -> Result<Option<Entry>> {
        let path = seq.path();
        let (bytes, info) = match self.root.get_at_most(&path, LONGEST) {
            Ok(got) => got,
            Err(StoreError::NotFound { .. }) => return Ok(None),
            Err(StoreError::TooLarge { .. }) => {
                let reason = "it is larger than any record".to_owned();
                return Err(CommitError::Damaged { path: self.root.full_name(&path), reason });
            }
            Err(error) => return Err(error.into()),
        };
        let record = Record::decode(&self.root.full_name(&path), &bytes)?;
        Ok(Some(Entry { record, digest: Sha256Digest::of(&bytes), stored: info.modified }))
    }

    /// A record that is known to be there: a store may take a while to show it.
    pub(super) fn read_sure(&self, seq: Seq) -> Result<Option<Entry>> {
        let mut tries = 0;
        loop {
            if let Some(entry) = self.read(seq)? {
                return Ok(Some(entry));
            }
            let Some(pause) = self.options.retry.pause_after(tries) else { return Ok(None) };
            self.options.clock.pause(pause);
            tries += 1;
        }
    }

    /// Takes in the record that was found as number `seq`.
    pub(super) fn absorb(&mut self, seq: Seq, entry: &Entry) -> Result<()> {
        let (record, name) = (&entry.record, self.root.full_name(&seq.path()));
        let begun = self.chain.last.is_some() || seq == Seq::FIRST;
        self.chain.advance(&name, seq, record, entry.digest)?;
        match &record.state {
            Some(carried) if !begun => self.state = carried.clone(),
            Some(carried) if *carried != self.state => {
                let reason =
                    "the state that it carries is not what the records before it amount to".to_owned();
                return Err(CommitError::Mixed { path: name, reason });
            }
            None if seq.carries_state() => {
                let reason = "it carries no state, which every 64th record does".to_owned();
                return Err(CommitError::Mixed { path: name, reason });
            }
            _ => {}
        }
        // A void record is part of the log all the same; an audit tells which ones are.
        drop(self.state.apply(record));
        if let Some(found) = self.tried.get_mut(&record.nonce) {
            *found = Some(seq);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
