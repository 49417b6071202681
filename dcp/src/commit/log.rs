//! The log of a root, read up to its head: from the head hint where that fits, from the last record with the state otherwise.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use super::chain::Chain;
use super::clock::{Clock, Retry, SystemClock};
use super::error::{CommitError, Result};
use super::hint::{self, Found, Hint};
use super::record::{Action, LONGEST, Record, RootId};
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
    /// How long after a head hint the same handle puts the next one, at least; never, without. Stores limit how often one object may be
    /// written, and in a burst of records only the last hint counts.
    pub hint_every: Option<Duration>,
}

impl Default for LogOptions {
    fn default() -> Self {
        let writer = concat!("dcp ", env!("CARGO_PKG_VERSION")).to_owned();
        let hint_every = Some(Duration::from_secs(1));
        let (clock, nonces) = (Arc::new(SystemClock), Arc::new(OsNonces));
        Self { clock, nonces, retry: Retry::default(), writer, hint_every }
    }
}

/// A record as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The record.
    pub record: Record,
    /// Its bytes.
    pub bytes: Bytes,
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
    /// Whether the state is, in part, the word of a hint.
    pub(super) hinted: bool,
    /// When this handle put its last hint, by the clock of the options.
    hint_put: Option<SystemTime>,
    /// Whether it has added records since.
    hint_due: bool,
    /// The last record that was read on opening.
    last_read: Option<(Seq, Bytes)>,
    /// The record of the newest checkpoint, where it was come by.
    newest: Option<(Seq, Bytes)>,
}

impl Log {
    /// Reads the log of a root. A root without one has an empty log.
    ///
    /// # Errors
    /// [`CommitError::Damaged`], [`CommitError::Mixed`], [`CommitError::Incomplete`], [`CommitError::Cut`] when the log is not whole, as
    /// far as it has to be read; [`CommitError::Newer`], [`CommitError::NotUnderstood`]; and what the store says.
    pub fn open(root: &Root) -> Result<Self> {
        Self::open_with(root, LogOptions::default())
    }

    /// As [`Log::open`], with time, randomness and patience of the caller's.
    ///
    /// # Errors
    /// As [`Log::open`].
    pub fn open_with(root: &Root, options: LogOptions) -> Result<Self> {
        // A store that does not answer here is asked again below.
        let Ok(Found::Hint(hint)) = hint::read(root) else { return Self::open_listed(root, options) };
        let (id, seq) = (hint.root, hint.seq);
        let mut log = Self::empty(root, options);
        if log.begin_at(*hint) {
            return Ok(log);
        }
        // What does not fit is told by the log itself.
        let mut listed = Self::open_listed(root, log.options.clone())?;
        listed.refuse_cut(id, seq).map(|()| listed)
    }

    /// Reads it by listing, from the last record that carries the state.
    fn open_listed(root: &Root, options: LogOptions) -> Result<Self> {
        let mut log = Self::empty(root, options);
        log.read_listed().map(|()| log)
    }

    pub(super) fn empty(root: &Root, options: LogOptions) -> Self {
        Self {
            root: root.clone(),
            options,
            chain: Chain::default(),
            state: State::default(),
            tried: BTreeMap::new(),
            settled: None,
            hinted: false,
            hint_put: None,
            hint_due: false,
            last_read: None,
            newest: None,
        }
    }

    fn read_listed(&mut self) -> Result<()> {
        let listed = self.listed()?.last().copied();
        self.start_at(listed)?;
        self.refresh()?;
        listed.filter(|listed| *listed >= self.chain.next()).map_or(Ok(()), |later| self.wait_for(later))
    }

    /// Begins behind the record that a hint names, and reads what came after. False where anything does not fit, or where so much came after
    /// that listing is faster.
    fn begin_at(&mut self, hint: Hint) -> bool {
        let Ok(Some((bytes, _))) = self.fetch(hint.seq) else { return false };
        if !hint.fits(&bytes) {
            return false;
        }
        self.newest = hint.newest();
        self.last_read = Some((hint.seq, bytes));
        self.chain = Chain { root: Some(hint.root), last: Some((hint.seq, hint.record)) };
        (self.state, self.hinted) = (hint.state, true);
        matches!(self.read_on(Seq::FOLD_EVERY), Ok(true))
    }

    /// Refuses a log that ends before the record that a hint of the same root names: it was cut, since a hint is put after its record.
    fn refuse_cut(&mut self, root: RootId, seq: Seq) -> Result<()> {
        let other = self.chain.root.is_some_and(|own| own != root);
        if other || self.head() >= Some(seq) {
            return Ok(());
        }
        match self.wait_for(seq) {
            Err(CommitError::Incomplete { path, .. }) => {
                Err(CommitError::Cut { path, hint: self.root.full_name(&hint::path()), seq })
            }
            waited => waited,
        }
    }

    /// Makes sure that state and records are the word of the log alone: where it began with a hint, the log is read again without one.
    /// Whoever decides by it what to write, to delete or to pass over asks for this first; [`Log::append`] does.
    ///
    /// # Errors
    /// As [`Log::open`].
    pub fn prove(&mut self) -> Result<()> {
        if !self.hinted {
            return Ok(());
        }
        let mut proven = Self::empty(&self.root, self.options.clone());
        proven.tried.clone_from(&self.tried);
        proven.read_listed()?;
        // The record that the hint named was there; a listing may be late.
        self.head()
            .filter(|head| *head >= proven.chain.next())
            .map_or(Ok(()), |head| proven.wait_for(head))?;
        proven.hint_put = self.hint_put;
        *self = proven;
        Ok(())
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
        self.read_on(u64::MAX).map(drop)
    }

    /// Reads so many records at most; whether it came to the end.
    fn read_on(&mut self, most: u64) -> Result<bool> {
        for _ in 0..=most {
            let seq = self.chain.next();
            let Some(entry) = self.read(seq)? else { return Ok(true) };
            self.absorb(seq, &entry)?;
        }
        Ok(false)
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
        let Some((bytes, stored)) = self.fetch(seq)? else { return Ok(None) };
        let record = Record::decode(&self.root.full_name(&seq.path()), &bytes)?;
        Ok(Some(Entry { record, digest: Sha256Digest::of(&bytes), bytes, stored }))
    }

    /// The bytes of a record of this log. Those that reading the log came by are not read again.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], and what the store says.
    pub fn record(&self, seq: Seq) -> Result<Bytes> {
        let known = self.newest.iter().chain(&self.last_read).find(|(known, _)| *known == seq);
        if let Some((_, bytes)) = known {
            return Ok(bytes.clone());
        }
        let path = seq.path();
        let missing = || CommitError::Store(StoreError::NotFound { path: self.root.full_name(&path) });
        self.fetch(seq)?.map(|(bytes, _)| bytes).ok_or_else(missing)
    }

    /// The bytes under a number, unchecked, and when they were stored.
    fn fetch(&self, seq: Seq) -> Result<Option<(Bytes, SystemTime)>> {
        let path = seq.path();
        match self.root.get_at_most(&path, LONGEST) {
            Ok((bytes, info)) => Ok(Some((bytes, info.modified))),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(StoreError::TooLarge { .. }) => {
                let reason = "it is larger than any record".to_owned();
                Err(CommitError::Damaged { path: self.root.full_name(&path), reason })
            }
            Err(error) => Err(error.into()),
        }
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
        if self.state.apply(record).is_ok() && matches!(record.action, Action::Commit(_)) {
            self.newest = Some((seq, entry.bytes.clone()));
        }
        if let Some(found) = self.tried.get_mut(&record.nonce) {
            *found = Some(seq);
        }
        Ok(())
    }
}

/// Hints of our own.
impl Log {
    /// Notes that records were added, and tells readers, unless that was done just now.
    pub(super) fn hint(&mut self) {
        let Some(every) = self.options.hint_every else { return };
        self.hint_due = true;
        let now = self.options.clock.now();
        let early = |put: SystemTime| now.duration_since(put).is_ok_and(|since| since < every);
        if !self.hint_put.is_some_and(early) {
            self.put_hint();
            self.hint_put = Some(now);
        }
    }

    fn put_hint(&mut self) {
        self.hint_due = false;
        let (Some(root), Some(last)) = (self.chain.root, self.chain.last) else { return };
        // The last record may be another's, read and not durable. A hint that outlives its record in a crash says that the log was cut.
        if self.settle().is_err() {
            return;
        }
        let newest = self.state.checkpoints.last_key_value().map(|(seq, _)| *seq);
        // The last record is read in any case.
        let newest = self.newest.as_ref().filter(|(seq, _)| Some(*seq) == newest && *seq != last.0);
        let bytes = hint::encode(root, last, &self.state, newest.map(|(_, bytes)| bytes.as_ref()));
        if let Some(bytes) = bytes {
            hint::put(&self.root, bytes);
        }
    }
}

/// The last records of a burst are told of as well.
impl Drop for Log {
    fn drop(&mut self) {
        if self.hint_due && !std::thread::panicking() {
            self.put_hint();
        }
    }
}

#[cfg(test)]
mod tests;
