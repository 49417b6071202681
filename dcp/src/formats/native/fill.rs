//! [`Fill`]: one blob that is written from memory, box by box, in any order and from any thread.
//!
//! ```text
//!  box's bytes ─► 2 MiB at a time: fingerprint sum, SHA-256, write ─► (last box) durable blob, block table, part
//! ```
//!
//! Where the blob is compressed, the blocks of a box are compressed side by side and go through a [`Spool`]. A box that is put before one
//! that lies in front of it waits there, compressed, in memory: at worst a blob's worth (512 MiB) for each of the rank's blobs that are
//! not done; where boxes are put in the plan's order, 8 blocks for each thread.
//!
//! Invariants: each box is put exactly once; a blob is visible, and its part there, only when all of it was put; where an
//! earlier writer of the same plan finished the blob, nothing is written, and what is put must be the same bytes.

use std::{
    collections::BTreeMap,
    num::NonZeroUsize,
    ops::Range,
    sync::{
        Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use reshard::Region;

use super::{attempt::below, layout::Blob, part::other_bytes, planned::Planned};
use crate::{
    Error, ErrorKind, FileDone, Place, Result, TargetChunk,
    codec::{CodecError, Encoder, Spool},
    crew,
    digest::{BlockCodec, BlockLayout, BlockTable, Sha256Digest},
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
    /// Of a blob that is compressed.
    spool: Option<Mutex<Spool>>,
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
    /// Of an earlier writer's blob that is compressed: what each box added to the fingerprint then.
    before: Vec<FingerprintSum>,
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

/// Blocks of a box that each thread compresses before any goes on.
const WINDOW: usize = 8;

/// How a box is put.
pub(crate) struct Put<'w> {
    /// Threads that compress it, this one among them.
    pub(crate) threads: NonZeroUsize,
    /// What it adds to its tensor's fingerprint, where that is known.
    pub(crate) sum: Option<FingerprintSum>,
    /// Called after each block with the bytes that it has.
    pub(crate) wrote: &'w (dyn Fn(u64) -> Result<()> + Sync),
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
        part.iter().try_for_each(|part| planned.parts(root).prove(part))?;
        let (path, before, sums_before) = match part {
            Some(part) => {
                // Its writer may have been stopped before the part was durable.
                root.settle(&below(&planned.dir, &blob.names.part())?)?;
                (part.done.path, part.done.blocks, part.boxes)
            }
            None => (blob.names.blob(nonces.draw()?), None, Vec::new()),
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
            before: sums_before,
        };
        let (root, writer, found) = (root.clone(), RwLock::new(None), Mutex::new(found));
        let spool = blob.is_coded().then(|| Mutex::new(Spool::new(blocks.clone())));
        Ok(Self { root, blob, path, blocks, before, writer, found, spool })
    }

    /// Whether an earlier writer finished it.
    pub(crate) const fn is_kept(&self) -> bool {
        self.before.is_some()
    }

    /// Bytes of the blob; of a compressed one those that it decodes to.
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
    pub(crate) fn put(&self, planned: &Planned, place: usize, bytes: &[u8], put: &Put<'_>) -> Result<Closed> {
        let chunk =
            self.blob.chunks.get(place).ok_or_else(|| Error::internal("a box that is not in its blob"))?;
        self.claim(place)?;
        let (start, end) = (chunk.offset, chunk.offset.saturating_add(bytes.len() as u64));
        let blocks = self.blocks_of(start..end);
        let (sum, digests) = match &self.spool {
            None => self.plain(planned, chunk, blocks, bytes, put)?,
            Some(spool) => {
                let sum = match put.sum {
                    Some(sum) => sum,
                    None => planned.sum(chunk.tensor, &chunk.region, bytes)?,
                };
                if self.before.is_some() {
                    self.compare(planned, place, &sum)?;
                    (put.wrote)(bytes.len() as u64)?;
                } else {
                    let codec = self.blob.codecs.get(place).copied().unwrap_or_default();
                    let part = |block| self.part(block, start, bytes).map(|(_, part)| part);
                    self.pack(planned, spool, codec, blocks, &part, put)?;
                }
                (sum, Vec::new())
            }
        };
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

    /// Writes the blocks of a box as they are: each is added up, hashed and written while the processor has it in its cache.
    fn plain(
        &self,
        planned: &Planned,
        chunk: &TargetChunk,
        blocks: Range<usize>,
        bytes: &[u8],
        put: &Put<'_>,
    ) -> Result<(FingerprintSum, Vec<(usize, Sha256Digest)>)> {
        let mut digests = Vec::with_capacity(blocks.len());
        let mut sum = planned.summing(chunk.tensor, &chunk.region)?;
        let mut add = |part: &[u8]| match put.sum {
            Some(_) => Ok(()),
            None => sum.add(part).map_err(|error| Error::internal(error.to_string()).caused_by(error)),
        };
        for block in blocks.clone().step_by(2) {
            let (at, part) = self.part(block, chunk.offset, bytes)?;
            add(part)?;
            let next = Some(block + 1).filter(|next| blocks.contains(next));
            let next = next.map(|next| self.part(next, chunk.offset, bytes)).transpose()?;
            // Two blocks are hashed in less time than one after the other.
            let [digest, next_digest] = match next {
                Some((_, next)) => {
                    add(next)?;
                    Sha256Digest::of_two(part, next)
                }
                None => [Sha256Digest::of(part); 2],
            };
            let two = [(block, Some((at, part)), digest), (block + 1, next, next_digest)];
            for (block, part, digest) in two {
                let Some((at, part)) = part else { continue };
                self.write(planned, block, at, part, &digest)?;
                digests.push((block, digest));
                (put.wrote)(part.len() as u64)?;
            }
        }
        let sum = match put.sum {
            Some(sum) => sum,
            None => sum.finish().map_err(|error| Error::internal(error.to_string()).caused_by(error))?,
        };
        Ok((sum, digests))
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
        let table = self.seal(planned)?;
        let found = self.lock();
        let done = FileDone {
            file: 0,
            path: self.path.clone(),
            size: table.file_len(),
            logical: table.is_coded().then(|| table.logical_len()),
            crc32: Vec::new(),
            blocks: Some(table),
            sums: self.by_tensor(&found.sums),
            source_sums: Vec::new(),
        };
        let boxes = found.sums.clone();
        drop(found);
        planned.parts(&self.root).put(&self.blob, &done, boxes)?;
        self.lock().closed = Step::Done;
        Ok(Closed::Now)
    }

    /// Makes the blob durable.
    fn seal(&self, planned: &Planned) -> Result<BlockTable> {
        self.open(planned)?;
        let table = match &self.spool {
            None => self.table(&self.lock())?,
            Some(spool) => self.begun(planned, spool)?.finish()?,
        };
        let writer = self.writer.write().unwrap_or_else(PoisonError::into_inner).take();
        let writer = writer.ok_or_else(|| Error::internal(format!("{} was finished twice", self.path)))?;
        let coded = self.spool.is_some();
        if coded { writer.finish_at(table.file_len()) } else { writer.finish() }.place(&self.path)?;
        Ok(table)
    }

    /// Whether a box of a compressed blob that an earlier writer finished is the same now: by what it adds to the fingerprint, since
    /// another version of zstd makes other stored bytes of it.
    fn compare(&self, planned: &Planned, place: usize, sum: &FingerprintSum) -> Result<()> {
        match self.lock().before.get(place) {
            Some(before) if before == sum => Ok(()),
            _ => Err(other_bytes(&planned.parts(&self.root), &self.path)),
        }
    }

    /// The bytes of a block of a box, and where they are in the blob.
    fn part<'b>(&self, block: usize, start: u64, bytes: &'b [u8]) -> Result<(u64, &'b [u8])> {
        let range = self.blocks.range(block).unwrap_or_default();
        let part = bytes.get(index(range.start - start)..index(range.end - start));
        Ok((range.start, part.ok_or_else(|| Error::internal("a block that is longer than its box"))?))
    }

    /// Compresses the blocks of a box, a few at a time, so that what waits for a slow thread is bounded.
    fn pack<'b>(
        &self,
        planned: &Planned,
        spool: &Mutex<Spool>,
        codec: BlockCodec,
        blocks: Range<usize>,
        part: &(dyn Fn(usize) -> Result<&'b [u8]> + Sync),
        put: &Put<'_>,
    ) -> Result<()> {
        let failed = |error: CodecError| Error::internal(format!("{}: {error}", self.path));
        let store = |block: usize, encoder: &mut Encoder| {
            let part = part(block)?;
            let (codec, stored) = encoder.encode(codec, part).map_err(failed)?;
            let digest = Sha256Digest::of(stored);
            let write = |at: u64, bytes: &[u8]| self.write_stored(at, bytes);
            self.begun(planned, spool)?.put(block, codec, stored, digest, &write)?;
            (put.wrote)(part.len() as u64)
        };
        let many = put.threads.get().saturating_mul(WINDOW);
        for first in blocks.clone().step_by(many) {
            let end = blocks.end.min(first.saturating_add(many));
            let next = AtomicUsize::new(first);
            crew::work(put.threads.get().min(end - first), || {
                let mut encoder = Encoder::new().map_err(failed)?;
                loop {
                    match next.fetch_add(1, Ordering::Relaxed) {
                        block if block < end => store(block, &mut encoder)?,
                        _ => return Ok(()),
                    }
                }
            })?;
        }
        Ok(())
    }

    /// The spool, once what stands before the first chunk is in it.
    fn begun<'s>(&self, planned: &Planned, spool: &'s Mutex<Spool>) -> Result<MutexGuard<'s, Spool>> {
        self.open(planned)?;
        let mut spool = spool.lock().unwrap_or_else(PoisonError::into_inner);
        if spool.next() == 0 {
            spool.head(&self.blob.head, &|at, bytes| self.write_stored(at, bytes))?;
        }
        Ok(spool)
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
        self.write_stored(offset, bytes)
    }

    fn write_stored(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let writer = self.writer.read().unwrap_or_else(PoisonError::into_inner);
        let writer = writer.as_ref().ok_or_else(|| Error::internal(format!("{} is closed", self.path)))?;
        writer.write_at(offset, bytes).place(&self.path)
    }

    /// Opens the blob, with what stands before the first chunk; in a compressed one that is the spool's first.
    fn open(&self, planned: &Planned) -> Result<()> {
        if self.writer.read().unwrap_or_else(PoisonError::into_inner).is_some() {
            return Ok(());
        }
        let mut slot = self.writer.write().unwrap_or_else(PoisonError::into_inner);
        if slot.is_none() {
            let path = below(&planned.dir, &self.path)?;
            *slot = Some(if self.spool.is_some() {
                self.root.blob_up_to(&path, self.blob.size)?
            } else {
                let writer = self.root.blob(&path, self.blob.size)?;
                writer.write_at(0, &self.blob.head).place(&self.path)?;
                writer
            });
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
