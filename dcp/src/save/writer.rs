//! [`Writer`]: one rank's half of a save.
//!
//! Invariants: each of the rank's boxes is put exactly once, any order, any thread; a file becomes durable with its last box;
//! `finish` says yes only when every file of the rank has its part.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
};

use reshard::Region;

use super::{SavePlan, Session, replicas::Held, watch::Moment};
use crate::{
    Error, Result,
    formats::native::{Closed, Fill},
};

/// One rank's half of a save. Dropped unfinished, it leaves nothing visible.
#[derive(Debug)]
pub struct Writer {
    session: Session,
    rank: u32,
    files: Vec<Fill>,
    /// File and chunk of each box.
    places: HashMap<(usize, Region), (usize, usize)>,
    held: Held,
    done: AtomicU64,
    total: u64,
}

/// What a writer has finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriterDone {
    /// The writer.
    pub rank: u32,
    /// Its files.
    pub files: usize,
    /// Bytes of them, headers included.
    pub bytes: u64,
    /// Of these files, those that an earlier writer of the same plan had finished.
    pub kept: usize,
}

impl Writer {
    pub(super) fn begin(session: &Session, rank: u32) -> Result<Self> {
        let plan = session.plan();
        if rank >= plan.ranks() {
            return Err(Error::incompatible(format!("rank {rank} of a mesh of {} ranks", plan.ranks())));
        }
        let (root, planned) = (session.root(), session.planned());
        let nonces = &session.options().log.nonces;
        let mut files = Vec::new();
        for blob in planned.blobs_of(rank)? {
            let fill = Fill::new(root, planned, blob, nonces.as_ref())?;
            if !fill.is_kept() {
                planned.refuse_if_committed(root, session.log().state())?;
            }
            files.push(fill);
        }
        let mut places = HashMap::new();
        for (file, fill) in files.iter().enumerate() {
            let boxes = fill.boxes().enumerate().filter(|(_, (_, region))| !region.is_empty());
            places.extend(boxes.map(|(at, (tensor, region))| ((tensor, region.clone()), (file, at))));
        }
        let (done, total) = (AtomicU64::new(0), plan.bytes_of(rank));
        let held = Held::new(plan, rank);
        Ok(Self { session: session.clone(), rank, files, places, held, done, total })
    }

    /// The rank.
    #[must_use]
    pub const fn rank(&self) -> u32 {
        self.rank
    }

    /// Writes a box of [`SavePlan::boxes_of`]: row-major, packed, little-endian.
    ///
    /// # Errors
    /// `Incompatible` for a box that is not this rank's, other than so many bytes, or a second time; `Conflict` where the same plan
    /// was written before with other bytes; the store's, and what the [`super::Watch`] says.
    pub fn put(&self, tensor: usize, region: &Region, bytes: &[u8]) -> Result<()> {
        let plan = self.session.plan();
        let Some(entry) = plan.tensor(tensor) else {
            return Err(Error::incompatible(format!("tensor {tensor} of {}", plan.tensors().len())));
        };
        let named = |error: Error| error.at(format!("rank {}: {}{region}", self.rank, entry.id()));
        let expected = entry.dtype.bytes_for(region.elements());
        if expected != Some(bytes.len() as u64) {
            let expected = expected.map_or_else(|| "no whole number of".to_owned(), |it| it.to_string());
            let text = format!("{} bytes were given, it has {expected} bytes", bytes.len());
            return Err(named(Error::incompatible(text)));
        }
        if region.is_empty() {
            return Ok(());
        }
        let place = self.places.get(&(tensor, region.clone()));
        let Some(&(file, chunk)) = place else { return Err(named(not_ours(plan, tensor, region))) };
        let Some(fill) = self.files.get(file) else { return Err(Error::internal("a box of no file")) };
        let closed =
            fill.put(self.session.planned(), chunk, bytes, &|bytes| self.wrote(bytes)).map_err(named)?;
        self.told(fill, closed)
    }

    /// Hands in a box of [`SavePlan::replicas_of`], which another rank writes: only its fingerprint is kept.
    ///
    /// # Errors
    /// `Incompatible` for a box that is not among them, other than so many bytes, or a second time.
    pub fn hold(&self, tensor: usize, region: &Region, bytes: &[u8]) -> Result<()> {
        let named = |error: Error| {
            let name = self.session.plan().tensor(tensor).map(|entry| entry.id().to_string());
            error.at(format!("rank {}: {}{region}", self.rank, name.unwrap_or_default()))
        };
        self.held.put(self.session.planned(), tensor, region, bytes).map_err(named)
    }

    /// Says that all boxes were put: what is not durable yet becomes so.
    ///
    /// # Errors
    /// `Incompatible` when boxes are missing, the first of them named; the store's.
    pub fn finish(self) -> Result<WriterDone> {
        self.refuse_missing()?;
        for fill in &self.files {
            let closed = fill.close_if_open(self.session.planned())?;
            self.told(fill, closed)?;
        }
        self.held.finish(self.rank, &self.session.planned().parts(self.session.root()))?;
        Ok(WriterDone {
            rank: self.rank,
            files: self.files.len(),
            bytes: self.files.iter().map(Fill::size).sum(),
            kept: self.files.iter().filter(|fill| fill.is_kept()).count(),
        })
    }

    fn refuse_missing(&self) -> Result<()> {
        let missing: Vec<_> = self.files.iter().flat_map(Fill::missing).collect();
        let Some((tensor, region)) = missing.first() else { return self.refuse_missing_held() };
        let name =
            self.session.plan().tensor(*tensor).map(|entry| entry.id().to_string()).unwrap_or_default();
        let more = match missing.len() {
            1 => String::new(),
            count => format!(", and {} more boxes", count - 1),
        };
        let text = format!("rank {}: {name}{region} was not written{more}", self.rank);
        Err(Error::incompatible(text).hint("put every box of `SavePlan::boxes_of`, then finish"))
    }

    fn refuse_missing_held(&self) -> Result<()> {
        let Some((tensor, region)) = self.held.missing() else { return Ok(()) };
        let name = self.session.plan().tensor(tensor).map(|entry| entry.id().to_string()).unwrap_or_default();
        let text = format!("rank {}: {name}{region}, a replica, was not handed in", self.rank);
        Err(Error::incompatible(text)
            .hint("give every box of `SavePlan::replicas_of` to `hold`, then finish"))
    }

    fn wrote(&self, bytes: u64) -> Result<()> {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let moment = Moment::Wrote { rank: self.rank, done, total: self.total };
        self.session.options().watch.at(moment)
    }

    fn told(&self, fill: &Fill, closed: Closed) -> Result<()> {
        match closed {
            Closed::Now => {
                self.session.options().watch.at(Moment::FileDone { rank: self.rank, path: fill.path() })
            }
            Closed::Not | Closed::Before => Ok(()),
        }
    }
}

/// Why a box is not one of the rank's.
fn not_ours(plan: &SavePlan, tensor: usize, region: &Region) -> Error {
    let text = match plan.writer_of(tensor, region) {
        Some(rank) => format!("rank {rank} writes this box"),
        None => "no such box is in the plan".to_owned(),
    };
    Error::incompatible(text).hint("`SavePlan::boxes_of` says what a rank writes")
}
