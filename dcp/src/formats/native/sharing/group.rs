//! [`GroupFill`]: boxes of a rank that come one by one, each found in the base or written.
//!
//! ```text
//!  put ─► in the base? ─ yes ──────────────────────────────► noted
//!                      └ no ─ large ─► a blob of its own ──► noted
//!                           └ small ─► waits for others, together a blob ─► noted
//!  all noted ─► the note is put
//! ```
//!
//! Memory: boxes below 16 MiB that are to be written wait until they are 64 MiB together, or the group's last has come.
//!
//! Invariants: each box is put exactly once; the note is put when all are durable; a box of which the base could not be read
//! is written, and that is told.

use std::{
    collections::HashMap,
    num::NonZeroUsize,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use reshard::Region;

use super::{
    base::{Base, Found},
    note::{Note, Noted, Rest, SharedFile},
};
use crate::{
    Error, ErrorKind, Result,
    fingerprint::FingerprintSum,
    formats::native::{
        Closed, Fill, Put, attempt::below, layout::Group, part::other_bytes, planned::Planned,
    },
    store::{Nonces, Root},
};

/// Boxes from here on are a blob of their own.
const ALONE: usize = 16 << 20;

/// So many bytes of smaller ones are a blob together.
const TOGETHER: usize = 64 << 20;

/// Bytes between two reports of progress.
const REPORT: u64 = 1 << 20;

/// Boxes of a rank that come one by one.
#[derive(Debug)]
pub(crate) struct GroupFill {
    root: Root,
    group: Group,
    nonces: Arc<dyn Nonces>,
    /// The note of an earlier writer that finished it.
    before: Option<Note>,
    state: Mutex<State>,
}

/// What is known of the boxes so far.
#[derive(Debug, Default)]
struct State {
    /// One for each box.
    steps: Vec<Step>,
    /// Boxes that no call of `put` has taken on yet.
    expected: usize,
    /// Boxes that are not noted yet.
    missing: usize,
    waiting: Vec<(usize, Vec<u8>)>,
    waiting_bytes: usize,
    sums: Vec<FingerprintSum>,
    found: HashMap<usize, Vec<Found>>,
    rest: Vec<Rest>,
    done: GroupDone,
    closing: bool,
    closed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Open,
    Begun,
    Done,
}

/// What became of the boxes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct GroupDone {
    /// Blobs that were written.
    pub(crate) files: usize,
    /// Bytes of them.
    pub(crate) bytes: u64,
    /// Boxes that are referred to.
    pub(crate) shared: usize,
    /// Bytes of them.
    pub(crate) shared_bytes: u64,
}

/// What a group is told while it is filled.
pub(crate) trait Told: Sync {
    /// Bytes were handed to the store, or found there.
    fn wrote(&self, bytes: u64) -> Result<()>;
    /// A blob is durable.
    fn file(&self, path: &str) -> Result<()>;
    /// The base could not be read where a box lies: it is written.
    fn suspect(&self, error: &Error) -> Result<()>;
}

impl GroupFill {
    /// Begins a group of a plan, or takes over what an earlier writer finished.
    ///
    /// # Errors
    /// `Corrupt` for a note that contradicts the plan, or names what is damaged by now; the store's.
    pub(crate) fn new(
        root: &Root,
        planned: &Planned,
        group: Group,
        nonces: &Arc<dyn Nonces>,
    ) -> Result<Self> {
        let before = Note::get(root, planned, &group)?;
        if let Some(note) = &before {
            note.prove(root, planned, &group)?;
            // Its writer may have been stopped before the note was durable.
            root.settle(&below(&planned.dir, &group.names.part())?)?;
        }
        let count = group.boxes.len();
        let state = State {
            steps: vec![Step::Open; count],
            expected: count,
            missing: count,
            sums: vec![FingerprintSum::default(); count],
            closed: before.is_some(),
            ..State::default()
        };
        let (root, nonces) = (root.clone(), Arc::clone(nonces));
        Ok(Self { root, group, nonces, before, state: Mutex::new(state) })
    }

    /// Whether an earlier writer finished it.
    pub(crate) const fn is_kept(&self) -> bool {
        self.before.is_some()
    }

    /// Its boxes.
    pub(crate) fn boxes(&self) -> impl Iterator<Item = (usize, &Region)> {
        self.group.boxes.iter().map(|(tensor, region)| (*tensor, region))
    }

    /// The boxes that were not put, or not well.
    pub(crate) fn missing(&self) -> Vec<(usize, &Region)> {
        let state = self.lock();
        let each = self.boxes().zip(&state.steps).filter(|(_, step)| **step != Step::Done);
        each.map(|(it, _)| it).collect()
    }

    /// What became of the boxes, as far as this writer did it.
    pub(crate) fn done(&self) -> GroupDone {
        self.lock().done
    }

    /// Puts a box: packed bytes, as many as it has.
    ///
    /// # Errors
    /// `Incompatible` for a second time, `Conflict` where an earlier writer put other bytes; the store's, and what `told` says.
    pub(crate) fn put(
        &self,
        planned: &Planned,
        place: usize,
        bytes: &[u8],
        base: Option<&Base>,
        threads: NonZeroUsize,
        told: &dyn Told,
    ) -> Result<()> {
        let (tensor, region) =
            self.group.boxes.get(place).ok_or_else(|| Error::internal("a box that is not in its group"))?;
        self.claim(place)?;
        let sum = planned.sum(*tensor, region, bytes)?;
        if let Some(before) = &self.before {
            return self.compare(planned, before, place, sum, bytes.len() as u64, told);
        }
        let entry = planned.entry(*tensor)?;
        let found = match base.map_or(Ok(None), |base| base.find(entry, region, bytes, sum)) {
            Ok(found) => found,
            Err(error) => {
                told.suspect(&error)?;
                None
            }
        };
        let (shared, alone) = (found.is_some(), found.is_none() && bytes.len() >= ALONE);
        let waits = (!shared && !alone).then(|| bytes.to_vec());
        let batch = self.take_on(place, sum, found, waits, bytes.len() as u64);
        if shared {
            report(bytes.len() as u64, told)?;
        }
        if alone {
            self.write(planned, &[(place, bytes)], threads, told)?;
        }
        if !batch.is_empty() {
            let boxes: Vec<(usize, &[u8])> = batch.iter().map(|(at, bytes)| (*at, &bytes[..])).collect();
            self.write(planned, &boxes, threads, told)?;
        }
        self.close_if_done(planned)
    }

    /// Takes note of what a box is, and hands out small ones that are to be written now.
    fn take_on(
        &self,
        place: usize,
        sum: FingerprintSum,
        found: Option<Vec<Found>>,
        waits: Option<Vec<u8>>,
        len: u64,
    ) -> Vec<(usize, Vec<u8>)> {
        let mut state = self.lock();
        state.expected = state.expected.saturating_sub(1);
        if let Some(slot) = state.sums.get_mut(place) {
            *slot = sum;
        }
        if let Some(found) = found {
            state.found.insert(place, found);
            state.settle(place);
            state.done.shared += 1;
            state.done.shared_bytes += len;
        }
        if let Some(bytes) = waits {
            state.waiting_bytes += bytes.len();
            state.waiting.push((place, bytes));
        }
        if state.waiting_bytes < TOGETHER && state.expected > 0 {
            return Vec::new();
        }
        state.waiting_bytes = 0;
        std::mem::take(&mut state.waiting)
    }

    /// Writes boxes as one blob, durable with its part when this returns.
    fn write(
        &self,
        planned: &Planned,
        boxes: &[(usize, &[u8])],
        threads: NonZeroUsize,
        told: &dyn Told,
    ) -> Result<()> {
        let number = |at: &usize| u32::try_from(*at).map_err(|_| Error::incompatible("more than 2^32 boxes"));
        let numbers = boxes.iter().map(|(at, _)| number(at)).collect::<Result<Vec<_>>>()?;
        let rest = Rest { nonce: self.nonces.draw()?, boxes: numbers };
        let fill = Fill::new(&self.root, planned, rest.blob(planned, &self.group)?, &*self.nonces)?;
        let places: HashMap<(usize, Region), usize> =
            fill.boxes().enumerate().map(|(at, (tensor, region))| ((tensor, region.clone()), at)).collect();
        let mut closed = Closed::Not;
        let sums: Vec<Option<FingerprintSum>> = {
            let state = self.lock();
            boxes.iter().map(|(at, _)| state.sums.get(*at).copied()).collect()
        };
        for ((at, bytes), sum) in boxes.iter().zip(sums) {
            let key = self.group.boxes.get(*at).and_then(|key| places.get(key));
            let place = key.ok_or_else(|| Error::internal("a box that is not in its blob"))?;
            let put = Put { threads, sum, wrote: &|bytes| told.wrote(bytes) };
            closed = fill.put(planned, *place, bytes, &put)?;
        }
        if closed != Closed::Now {
            return Err(Error::internal(format!("{} is not done with its last box", fill.path())));
        }
        let mut state = self.lock();
        state.done.files += 1;
        state.done.bytes += fill.size();
        state.rest.push(rest);
        boxes.iter().for_each(|(at, _)| state.settle(*at));
        drop(state);
        told.file(fill.path())
    }

    /// Puts the note, if all boxes are done and nobody else does.
    fn close_if_done(&self, planned: &Planned) -> Result<()> {
        let note = {
            let mut state = self.lock();
            if state.missing > 0 || state.closing || state.closed {
                return Ok(());
            }
            state.closing = true;
            state.note(planned)?
        };
        note.put(&self.root, planned, &self.group)?;
        self.lock().closed = true;
        Ok(())
    }

    /// Whether the note is put.
    ///
    /// # Errors
    /// `Io` where an earlier try to put it failed.
    pub(crate) fn require_closed(&self) -> Result<()> {
        if self.lock().closed {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Io, format!("{}: an earlier write of it failed", self.group.names.part())))
    }

    /// Compares a box with what an earlier writer of the same plan put.
    fn compare(
        &self,
        planned: &Planned,
        before: &Note,
        place: usize,
        sum: FingerprintSum,
        len: u64,
        told: &dyn Told,
    ) -> Result<()> {
        if before.boxes.get(place).is_none_or(|noted| noted.sum != sum) {
            return Err(other_bytes(&planned.parts(&self.root), &self.group.names.part()));
        }
        self.lock().settle(place);
        report(len, told)
    }

    fn claim(&self, place: usize) -> Result<()> {
        match self.lock().steps.get_mut(place) {
            Some(step @ Step::Open) => {
                *step = Step::Begun;
                Ok(())
            }
            _ => Err(Error::incompatible("this box was put before").hint("each box is put exactly once")),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn settle(&mut self, place: usize) {
        if let Some(step) = self.steps.get_mut(place) {
            *step = Step::Done;
        }
        self.missing = self.missing.saturating_sub(1);
    }

    fn note(&mut self, planned: &Planned) -> Result<Note> {
        let mut note = Note::new(planned);
        let mut files: HashMap<SharedFile, u32> = HashMap::new();
        for (place, sum) in self.sums.iter().enumerate() {
            let mut pieces = Vec::new();
            for Found { file, piece } in self.found.remove(&place).unwrap_or_default() {
                let next = u32::try_from(note.files.len());
                let next = next.map_err(|_| Error::incompatible("more than 2^32 files"))?;
                let at = *files.entry(file.clone()).or_insert(next);
                if at == next {
                    note.files.push(file);
                }
                pieces.push((at, piece));
            }
            note.boxes.push(Noted { sum: *sum, pieces });
        }
        note.rest = std::mem::take(&mut self.rest);
        Ok(note)
    }
}

/// Tells of bytes that need not be written, in steps as those that are.
fn report(bytes: u64, told: &dyn Told) -> Result<()> {
    let mut left = bytes;
    while left > 0 {
        let step = left.min(REPORT);
        told.wrote(step)?;
        left -= step;
    }
    Ok(())
}
