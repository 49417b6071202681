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
    formats::native::{Closed, Fill, GroupFill, Put, Told},
};

/// One rank's half of a save. Dropped unfinished, it leaves nothing visible.
#[derive(Debug)]
pub struct Writer {
    session: Session,
    rank: u32,
    files: Vec<Fill>,
    groups: Vec<GroupFill>,
    places: HashMap<(usize, Region), Spot>,
    held: Held,
    done: AtomicU64,
    total: u64,
}

/// Where a box goes.
#[derive(Debug, Clone, Copy)]
enum Spot {
    /// A chunk of a file.
    File(usize, usize),
    /// A box of a group: it may be found in the base.
    Group(usize, usize),
}

/// What a writer has finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriterDone {
    /// The writer.
    pub rank: u32,
    /// Its files.
    pub files: usize,
    /// Bytes of them, headers included; those that they decode to, where they are compressed.
    pub bytes: u64,
    /// Of its files, and its groups of boxes that may be shared, those that an earlier writer of the same plan had finished.
    pub kept: usize,
    /// Boxes that were not written, but found in an earlier checkpoint.
    pub shared: usize,
    /// Bytes of them.
    pub shared_bytes: u64,
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
        let mut groups = Vec::new();
        for group in planned.groups_of(rank)? {
            let group = GroupFill::new(root, planned, group, nonces)?;
            if !group.is_kept() {
                planned.refuse_if_committed(root, session.log().state())?;
            }
            groups.push(group);
        }
        let mut places = HashMap::new();
        for (nth, group) in groups.iter().enumerate() {
            let boxes = group.boxes().enumerate();
            places
                .extend(boxes.map(|(at, (tensor, region))| ((tensor, region.clone()), Spot::Group(nth, at))));
        }
        for (file, fill) in files.iter().enumerate() {
            let boxes = fill.boxes().enumerate().filter(|(_, (_, region))| !region.is_empty());
            places
                .extend(boxes.map(|(at, (tensor, region))| ((tensor, region.clone()), Spot::File(file, at))));
        }
        let (done, total) = (AtomicU64::new(0), plan.bytes_of(rank));
        let held = Held::new(plan, rank);
        Ok(Self { session: session.clone(), rank, files, groups, places, held, done, total })
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
        let (planned, threads) = (self.session.planned(), self.session.options().threads);
        match self.places.get(&(tensor, region.clone())) {
            None => Err(named(not_ours(plan, tensor, region))),
            Some(&Spot::File(file, chunk)) => {
                let fill = self.files.get(file).ok_or_else(|| Error::internal("a box of no file"))?;
                let put = Put { threads, sum: None, wrote: &|bytes| self.wrote(bytes) };
                let closed = fill.put(planned, chunk, bytes, &put).map_err(named)?;
                self.told(fill, closed)
            }
            Some(&Spot::Group(group, at)) => {
                let group = self.groups.get(group).ok_or_else(|| Error::internal("a box of no group"))?;
                let base = if group.is_kept() { None } else { self.session.base(self.rank)? };
                let teller = Teller { writer: self, tensor, region };
                group.put(planned, at, bytes, base, threads, &teller).map_err(named)
            }
        }
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
        self.groups.iter().try_for_each(GroupFill::require_closed)?;
        let groups: Vec<_> = self.groups.iter().map(GroupFill::done).collect();
        self.held.finish(self.rank, &self.session.planned().parts(self.session.root()))?;
        Ok(WriterDone {
            rank: self.rank,
            files: self.files.len() + groups.iter().map(|group| group.files).sum::<usize>(),
            bytes: self.files.iter().map(Fill::size).chain(groups.iter().map(|group| group.bytes)).sum(),
            kept: self.files.iter().filter(|fill| fill.is_kept()).count()
                + self.groups.iter().filter(|group| group.is_kept()).count(),
            shared: groups.iter().map(|group| group.shared).sum(),
            shared_bytes: groups.iter().map(|group| group.shared_bytes).sum(),
        })
    }

    fn refuse_missing(&self) -> Result<()> {
        let in_groups = self.groups.iter().flat_map(GroupFill::missing);
        let missing: Vec<_> = self.files.iter().flat_map(Fill::missing).chain(in_groups).collect();
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

/// Tells of one box.
struct Teller<'w> {
    writer: &'w Writer,
    tensor: usize,
    region: &'w Region,
}

impl Told for Teller<'_> {
    fn wrote(&self, bytes: u64) -> Result<()> {
        self.writer.wrote(bytes)
    }

    fn file(&self, path: &str) -> Result<()> {
        let rank = self.writer.rank;
        self.writer.session.options().watch.at(Moment::FileDone { rank, path })
    }

    fn suspect(&self, error: &Error) -> Result<()> {
        self.writer.session.suspect_box(self.writer.rank, self.tensor, self.region, error)
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
