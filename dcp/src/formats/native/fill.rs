//! [`Fill`]: one blob that is written from memory, box by box, in any order and from any thread.
//!
//! ```text
//!  box's bytes ─► 1 MiB at a time: SHA-256, write ─► fingerprint sum ─► (last box) durable blob, block table, part
//! ```
//!
//! Invariants: each box is put exactly once; a blob is visible, and its part there, only when all of it was put; where an
//! earlier writer of the same plan finished the blob, nothing is written, and what is put must be the same bytes.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Mutex, MutexGuard, PoisonError, RwLock},
};

use reshard::Region;

use super::{attempt::below, layout::Blob, part::other_bytes, planned::Planned};
use crate::{
    Error, ErrorKind, FileDone, Place, Result,
    digest::{BlockLayout, BlockTable, Sha256Digest},
    fingerprint::FingerprintSum,
    store::{BlobWriter, Nonces, Root},
};

/// One blob that is written from memory.
#[derive(Debug)]
pub(crate) struct Fill {
    root: Root,
    blob: Blob,
    /// Its path in the attempt's folder.
    path: String,
    blocks: BlockLayout,
    /// The table of an earlier writer that finished it.
    before: Option<BlockTable>,
    writer: RwLock<Option<Box<dyn BlobWriter>>>,
    found: Mutex<Found>,
}

/// What is known of the boxes so far.
#[derive(Debug)]
struct Found {
    /// One for each chunk.
    steps: Vec<Step>,
    digests: Vec<Option<Sha256Digest>>,
    /// What each chunk adds to its tensor's fingerprint.
    sums: Vec<FingerprintSum>,
    /// Chunks that are not done.
    missing: usize,
    closed: Step,
}

/// How far a box, or the whole blob, is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Open,
    /// Under way, or failed.
    Begun,
    Done,
}

/// What became of the blob's part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closed {
    /// Boxes are missing.
    Not,
    /// By this call: durable, with its part.
    Now,
    /// By an earlier call, or an earlier writer.
    Before,
}

impl Fill {
    /// Begins a blob of a plan, or takes over what an earlier writer finished.
    ///
    /// # Errors
    /// `Corrupt` for a part that contradicts its blob or the plan; the store's.
    pub(crate) fn new(root: &Root, planned: &Planned, blob: Blob, nonces: &dyn Nonces) -> Result<Self> {
        let mut edges = Vec::with_capacity(blob.chunks.len() * 2);
        let mut lens = Vec::with_capacity(blob.chunks.len());
        for chunk in &blob.chunks {
            let len = planned.len_of(chunk)?;
            edges.extend([chunk.offset, chunk.offset.saturating_add(len)]);
            lens.push(len);
        }
        let wrong = |error: &dyn std::fmt::Display| Error::internal(format!("{}: {error}", blob.names.key));
        let blocks = BlockLayout::new(blob.size, edges).map_err(|error| wrong(&error))?;
        let part = planned.parts(root).get(&blob)?;
        let (path, before) = match part {
            Some(part) => {
                // Its writer may have been stopped before the part was durable.
                root.settle(&below(&planned.dir, &blob.names.part())?)?;
                (part.done.path, part.done.blocks)
            }
            None => (blob.names.blob(nonces.draw()?), None),
        };
        // A chunk without bytes has nothing to put.
        let steps: Vec<Step> =
            lens.iter().map(|len| if *len == 0 { Step::Done } else { Step::Open }).collect();
        let found = Found {
            missing: steps.iter().filter(|it| **it == Step::Open).count(),
            steps,
            digests: vec![None; blocks.len()],
            sums: vec![FingerprintSum::default(); blob.chunks.len()],
            closed: if before.is_some() { Step::Done } else { Step::Open },
        };
        let (root, writer, found) = (root.clone(), RwLock::new(None), Mutex::new(found));
        Ok(Self { root, blob, path, blocks, before, writer, found })
    }

    /// Whether an earlier writer finished it.
    pub(crate) const fn is_kept(&self) -> bool {
        self.before.is_some()
    }

    /// Bytes of the blob.
    pub(crate) const fn size(&self) -> u64 {
        self.blob.size
    }

    /// Its path in the attempt's folder.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Its boxes, in the order of their bytes.
    pub(crate) fn boxes(&self) -> impl Iterator<Item = (usize, &Region)> {
        self.blob.chunks.iter().map(|chunk| (chunk.tensor, &chunk.region))
    }

    /// The boxes that were not put.
    pub(crate) fn missing(&self) -> Vec<(usize, &Region)> {
        let found = self.lock();
        let each = self.boxes().zip(&found.steps).filter(|(_, it)| **it != Step::Done);
        each.map(|(it, _)| it).collect()
    }

    /// Puts the box of a chunk: packed bytes, as many as it has. `wrote` is called after each block. The last box makes the blob
    /// durable, and puts its part.
    ///
    /// # Errors
    /// `Incompatible` for a second time, `Conflict` where an earlier writer wrote other bytes; the store's, and what `wrote` says.
    pub(crate) fn put(
        &self,
        planned: &Planned,
        place: usize,
        bytes: &[u8],
        wrote: &dyn Fn(u64) -> Result<()>,
    ) -> Result<Closed> {
        let chunk =
            self.blob.chunks.get(place).ok_or_else(|| Error::internal("a box that is not in its blob"))?;
        self.claim(place)?;
        let (start, end) = (chunk.offset, chunk.offset.saturating_add(bytes.len() as u64));
        let part_of = |block: usize| {
            let range = self.blocks.range(block).unwrap_or_default();
            let part = bytes.get(index(range.start - start)..index(range.end - start));
            part.map(|part| (range.start, part))
                .ok_or_else(|| Error::internal("a block that is longer than its box"))
        };
        let (blocks, mut digests) = (self.blocks_of(start..end), Vec::new());
        for block in blocks.clone().step_by(2) {
            let (at, part) = part_of(block)?;
            let next = Some(block + 1).filter(|next| blocks.contains(next)).map(part_of).transpose()?;
            // Two blocks are hashed in less time than one after the other.
            let [digest, next_digest] = match next {
                Some((_, next)) => Sha256Digest::of_two(part, next),
                None => [Sha256Digest::of(part); 2],
            };
            let two = [(block, Some((at, part)), digest), (block + 1, next, next_digest)];
            for (block, part, digest) in two {
                let Some((at, part)) = part else { continue };
                self.write(planned, block, at, part, &digest)?;
                digests.push((block, digest));
                wrote(part.len() as u64)?;
            }
        }
        let sum = planned.sum(chunk.tensor, &chunk.region, bytes)?;
        let mut found = self.lock();
        for (block, digest) in digests {
            if let Some(slot) = found.digests.get_mut(block) {
                *slot = Some(digest);
            }
        }
        if let Some(slot) = found.sums.get_mut(place) {
            *slot = sum;
        }
        if let Some(it) = found.steps.get_mut(place) {
            *it = Step::Done;
        }
        found.missing = found.missing.saturating_sub(1);
        let last = found.missing == 0;
        drop(found);
        if last { self.close_if_open(planned) } else { Ok(Closed::Not) }
    }

    /// Makes the blob durable and puts its part, if all boxes are there, unless that was done.
    ///
    /// # Errors
    /// The store's; `Conflict` where another writer was first, with other bytes.
    pub(crate) fn close_if_open(&self, planned: &Planned) -> Result<Closed> {
        {
            let mut found = self.lock();
            if found.missing > 0 {
                return Ok(Closed::Not);
            }
            match found.closed {
                Step::Open => found.closed = Step::Begun,
                Step::Done => return Ok(Closed::Before),
                Step::Begun => {
                    return Err(Error::new(
                        ErrorKind::Io,
                        format!("{}: an earlier write of it failed", self.path),
                    ));
                }
            }
        }
        self.open(planned)?;
        let writer = self.writer.write().unwrap_or_else(PoisonError::into_inner).take();
        let writer = writer.ok_or_else(|| Error::internal(format!("{} was finished twice", self.path)))?;
        writer.finish().place(&self.path)?;
        let found = self.lock();
        let done = FileDone {
            file: 0,
            path: self.path.clone(),
            size: self.blob.size,
            crc32: Vec::new(),
            blocks: Some(self.table(&found)?),
            sums: self.by_tensor(&found.sums),
            source_sums: Vec::new(),
        };
        let boxes = found.sums.clone();
        drop(found);
        planned.parts(&self.root).put(&self.blob, &done, boxes)?;
        self.lock().closed = Step::Done;
        Ok(Closed::Now)
    }

    fn claim(&self, place: usize) -> Result<()> {
        let mut found = self.lock();
        match found.steps.get_mut(place) {
            Some(it @ Step::Open) => {
                *it = Step::Begun;
                Ok(())
            }
            _ => Err(Error::incompatible("this box was put before").hint("each box is put exactly once")),
        }
    }

    fn by_tensor(&self, sums: &[FingerprintSum]) -> Vec<(usize, FingerprintSum)> {
        let mut by_tensor: BTreeMap<usize, FingerprintSum> = BTreeMap::new();
        for (chunk, sum) in self.blob.chunks.iter().zip(sums) {
            *by_tensor.entry(chunk.tensor).or_default() += *sum;
        }
        by_tensor.into_iter().collect()
    }

    /// The blocks of a chunk, which begin and end with it.
    fn blocks_of(&self, bytes: Range<u64>) -> Range<usize> {
        if bytes.is_empty() {
            return 0..0;
        }
        self.blocks.count_before(bytes.start)..self.blocks.count_before(bytes.end)
    }

    fn write(
        &self,
        planned: &Planned,
        block: usize,
        offset: u64,
        bytes: &[u8],
        digest: &Sha256Digest,
    ) -> Result<()> {
        if let Some(table) = &self.before {
            let same = table.block(block).is_some_and(|before| before.digest == *digest);
            return if same { Ok(()) } else { Err(other_bytes(&planned.parts(&self.root), &self.path)) };
        }
        self.open(planned)?;
        let writer = self.writer.read().unwrap_or_else(PoisonError::into_inner);
        let writer = writer.as_ref().ok_or_else(|| Error::internal(format!("{} is closed", self.path)))?;
        writer.write_at(offset, bytes).place(&self.path)
    }

    /// Opens the blob, with what stands before the first chunk.
    fn open(&self, planned: &Planned) -> Result<()> {
        if self.writer.read().unwrap_or_else(PoisonError::into_inner).is_some() {
            return Ok(());
        }
        let mut slot = self.writer.write().unwrap_or_else(PoisonError::into_inner);
        if slot.is_none() {
            let writer = self.root.blob(&below(&planned.dir, &self.path)?, self.blob.size)?;
            writer.write_at(0, &self.blob.head).place(&self.path)?;
            *slot = Some(writer);
        }
        Ok(())
    }

    /// The block table: what was put as it was hashed, the rest from the head.
    fn table(&self, found: &Found) -> Result<BlockTable> {
        let missing = || Error::internal(format!("{}: a block was not hashed", self.path));
        let digest = |(range, known): (Range<u64>, &Option<Sha256Digest>)| {
            let head = || self.blob.head.get(index(range.start)..index(range.end)).map(Sha256Digest::of);
            known.or_else(head).ok_or_else(missing)
        };
        let digests = self.blocks.ranges().zip(&found.digests).map(digest).collect::<Result<Vec<_>>>()?;
        BlockTable::new(self.blocks.clone(), digests)
            .map_err(|error| Error::internal(format!("{}: {error}", self.path)))
    }

    fn lock(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is held in memory has an index.
fn index(at: u64) -> usize {
    usize::try_from(at).unwrap_or(usize::MAX)
}
