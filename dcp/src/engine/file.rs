//! [`FileWork`]: one file of the target, from its first unit to its last.
//!
//! The blocks of a compressed file go through its [`Spool`]: each is compressed by the thread that has it, and written when all
//! before it are.
//!
//! Invariants: a file is opened when its first unit is written and finished by whoever writes its last one; digests and
//! CRCs are kept by place while the file is written, so the order of units does not matter; a file that is not finished is given up when this is
//! dropped, and nothing of it becomes visible.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError, RwLock},
};

use super::{plan::Piecework, queue::blocks, room::Room};
use crate::{
    Error, FileDone, Needs, Piece, Place, Result, Sink, TargetFile,
    codec::{CodecError, Encoder, Spool},
    digest::{BlockCodec, BlockLayout, BlockTable, Crc32, Sha256Digest},
    fingerprint::FingerprintSum,
    store::{self, BlobWriter},
};

/// A file of the target that is being written.
#[derive(Debug)]
pub(crate) struct FileWork<'l> {
    at: usize,
    file: &'l TargetFile,
    needs: Needs,
    chunks: Vec<ChunkPlace>,
    /// Blocks of all chunks.
    blocks: usize,
    blob: RwLock<Blob>,
    found: Mutex<Found>,
    coded: Option<Coded>,
}

/// A file that is compressed.
#[derive(Debug)]
struct Coded {
    /// How the blocks of each chunk are stored.
    codecs: Vec<BlockCodec>,
    spool: Mutex<Spool>,
}

/// What a thread needs to put units into compressed files.
#[derive(Debug)]
pub(crate) struct Packer<'r> {
    room: &'r Room,
    encoder: Option<Encoder>,
}

impl<'r> Packer<'r> {
    pub(crate) const fn new(room: &'r Room) -> Self {
        Self { room, encoder: None }
    }

    fn encode<'b>(&'b mut self, codec: BlockCodec, bytes: &'b [u8]) -> Result<(BlockCodec, &'b [u8])> {
        let failed = |error: CodecError| Error::internal(error.to_string());
        if self.encoder.is_none() {
            self.encoder = Some(Encoder::new().map_err(failed)?);
        }
        match &mut self.encoder {
            Some(encoder) => encoder.encode(codec, bytes).map_err(failed),
            None => Ok((BlockCodec::None, bytes)),
        }
    }
}

/// Where a chunk lies, and its first block among those of all chunks of the file.
#[derive(Debug)]
struct ChunkPlace {
    offset: u64,
    bytes: u64,
    first_block: usize,
}

#[derive(Debug)]
enum Blob {
    Closed,
    Open(Box<dyn BlobWriter>),
}

/// What is known of the units so far.
#[derive(Debug)]
struct Found {
    missing: u64,
    digests: Vec<Option<Sha256Digest>>,
    crcs: Vec<Option<u32>>,
    sums: BTreeMap<usize, FingerprintSum>,
    source_sums: BTreeMap<usize, FingerprintSum>,
}

/// What a thread found out about a unit.
#[derive(Debug)]
pub(crate) struct UnitSums {
    /// The block's, where it is known already.
    pub(crate) digest: Option<Sha256Digest>,
    pub(crate) sum: FingerprintSum,
    /// In the source's coordinates, where they differ: see [`FileDone::source_sums`].
    pub(crate) sources: Vec<(usize, FingerprintSum)>,
}

/// Keeps what was found of one of so many blocks; the first makes room for all, so that files cost nothing before they are begun.
fn keep<T: Copy>(found: &mut Vec<Option<T>>, blocks: usize, at: usize, new: T) {
    if found.len() < blocks {
        found.resize(blocks, None);
    }
    if let Some(slot) = found.get_mut(at) {
        *slot = Some(new);
    }
}

impl Coded {
    fn new(file: &TargetFile, chunks: &[ChunkPlace], codecs: Vec<BlockCodec>) -> Result<Self> {
        let edges = chunks.iter().flat_map(|chunk| [chunk.offset, chunk.offset.saturating_add(chunk.bytes)]);
        let wrong = |error: &dyn std::fmt::Display| Error::internal(format!("{}: {error}", file.path));
        if codecs.len() != chunks.len() {
            return Err(wrong(&format!("{} codecs for {} chunks", codecs.len(), chunks.len())));
        }
        let layout = BlockLayout::new(file.size, edges).map_err(|error| wrong(&error))?;
        Ok(Self { codecs, spool: Mutex::new(Spool::new(layout)) })
    }
}

impl<'l> FileWork<'l> {
    /// A file with these chunks, whose blocks are stored as `codecs` says: empty for one that is stored as it is.
    pub(crate) fn new(
        at: usize,
        file: &'l TargetFile,
        needs: Needs,
        work: &[&Piecework],
        codecs: Vec<BlockCodec>,
    ) -> Result<Self> {
        let mut chunks = Vec::with_capacity(work.len());
        let mut count = 0_usize;
        for chunk in work {
            chunks.push(ChunkPlace { offset: chunk.offset, bytes: chunk.bytes, first_block: count });
            count += blocks(chunk.bytes).count();
        }
        let found = Found {
            missing: work.iter().map(|chunk| chunk.bytes).sum(),
            digests: Vec::new(),
            crcs: Vec::new(),
            sums: work.iter().map(|chunk| (chunk.job, FingerprintSum::default())).collect(),
            source_sums: BTreeMap::new(),
        };
        let coded = if codecs.is_empty() { None } else { Some(Coded::new(file, &chunks, codecs)?) };
        let (blob, found) = (RwLock::new(Blob::Closed), Mutex::new(found));
        Ok(Self { at, file, needs, chunks, blocks: count, blob, found, coded })
    }

    /// Whether it is compressed, where that gains anything.
    pub(crate) const fn is_coded(&self) -> bool {
        self.coded.is_some()
    }

    /// Whether nothing is to be copied into it.
    pub(crate) fn is_hollow(&self) -> bool {
        self.lock().missing == 0
    }

    /// Writes a unit: block `block` of the chunk at `place`. `true` when it was the file's last.
    pub(crate) fn put(
        &self,
        sink: &dyn Sink,
        (place, block): (usize, usize),
        job: usize,
        bytes: &[u8],
        sums: &UnitSums,
        packer: &mut Packer<'_>,
    ) -> Result<bool> {
        let chunk = self.chunks.get(place).ok_or_else(|| Error::internal("a unit of no chunk"))?;
        let at = chunk.first_block + block;
        let (mut digest, mut crc) = (None, None);
        if let Some(coded) = &self.coded {
            self.pack(sink, coded, (place, block), bytes, packer)?;
        } else {
            digest = self.needs.blocks.then(|| sums.digest.unwrap_or_else(|| Sha256Digest::of(bytes)));
            crc = self.needs.crc32.then(|| Crc32::of(bytes).value());
            let offset = chunk.offset.saturating_add(block as u64 * u64::from(crate::digest::BLOCK_LEN));
            self.write(sink, offset, bytes)?;
        }
        let mut found = self.lock();
        if let Some(digest) = digest {
            keep(&mut found.digests, self.blocks, at, digest);
        }
        if let Some(crc) = crc {
            keep(&mut found.crcs, self.blocks, at, crc);
        }
        *found.sums.entry(job).or_default() += sums.sum;
        for (at, sum) in &sums.sources {
            *found.source_sums.entry(*at).or_default() += *sum;
        }
        found.missing = found.missing.saturating_sub(bytes.len() as u64);
        Ok(found.missing == 0)
    }

    /// Compresses a unit and hands it to the spool, as soon as there is room.
    fn pack(
        &self,
        sink: &dyn Sink,
        coded: &Coded,
        (place, block): (usize, usize),
        bytes: &[u8],
        packer: &mut Packer<'_>,
    ) -> Result<()> {
        let codec = coded.codecs.get(place).copied().unwrap_or_default();
        let room = packer.room;
        let (codec, stored) = packer.encode(codec, bytes)?;
        let digest = Sha256Digest::of(stored);
        let write = |at: u64, bytes: &[u8]| self.write(sink, at, bytes);
        loop {
            let seen = room.moves();
            let mut spool = self.begun(sink, coded)?;
            let offset = self.chunks.get(place).map_or(0, |chunk| chunk.offset);
            let number = spool.layout().count_before(offset) + block;
            let turn = spool.next() == number;
            if turn || room.take(stored.len() as u64) {
                let before = spool.held();
                spool.put(number, codec, stored, digest, &write)?;
                let after = spool.held();
                drop(spool);
                if turn {
                    room.give(before.saturating_sub(after));
                }
                return Ok(());
            }
            drop(spool);
            room.wait(seen)?;
        }
    }

    /// The spool of a compressed file, whose head was put.
    fn begun<'c>(&self, sink: &dyn Sink, coded: &'c Coded) -> Result<std::sync::MutexGuard<'c, Spool>> {
        let mut spool = coded.spool.lock().unwrap_or_else(PoisonError::into_inner);
        if spool.next() == 0 {
            let write = |at: u64, bytes: &[u8]| self.write(sink, at, bytes);
            let [Piece { offset: 0, bytes }] = self.file.head.as_slice() else {
                return Err(Error::internal(format!("{}: compressed, and without one head", self.file.path)));
            };
            spool.head(bytes, &write)?;
        }
        Ok(spool)
    }

    /// Makes a compressed file durable. Bytes written, and what is to be remembered.
    fn finish_coded(&self, sink: &dyn Sink, coded: &Coded) -> Result<(u64, FileDone)> {
        let table = self.begun(sink, coded)?.finish()?;
        self.close(|blob| blob.finish_at(table.file_len()))?;
        let mut done = self.done(table.file_len(), Vec::new());
        done.logical = table.is_coded().then(|| table.logical_len());
        done.blocks = Some(table);
        Ok((done.size, done))
    }

    /// Writes what surrounds the chunks and makes the file durable. Bytes not yet counted, and what is to be remembered.
    pub(crate) fn finish(&self, sink: &dyn Sink) -> Result<(u64, FileDone)> {
        if let Some(coded) = &self.coded {
            return self.finish_coded(sink, coded);
        }
        let crcs = self.chunk_crcs()?;
        let tail = sink.tail(self.at, &crcs).place(&self.file.path)?;
        let mut around = 0;
        for piece in self.file.head.iter().chain(&tail) {
            self.write(sink, piece.offset, &piece.bytes)?;
            around += piece.bytes.len() as u64;
        }
        if self.file.size == 0 {
            self.write(sink, 0, &[])?;
        }
        let blocks = if self.needs.blocks { Some(self.table(&tail)?) } else { None };
        let mut found = self.lock();
        (found.digests, found.crcs) = (Vec::new(), Vec::new());
        drop(found);
        self.close(|blob| blob.finish())?;
        Ok((around, FileDone { blocks, ..self.done(self.file.size, crcs) }))
    }

    fn close(&self, finish: impl FnOnce(Box<dyn BlobWriter>) -> store::Result<()>) -> Result<()> {
        let blob = self.blob.write().map(|mut blob| std::mem::replace(&mut *blob, Blob::Closed));
        match blob {
            Ok(Blob::Open(blob)) => finish(blob).place(&self.file.path),
            _ => Err(Error::internal(format!("{} was finished twice", self.file.path))),
        }
    }

    fn done(&self, size: u64, crc32: Vec<u32>) -> FileDone {
        let found = self.lock();
        let list =
            |sums: &BTreeMap<usize, FingerprintSum>| sums.iter().map(|(at, sum)| (*at, *sum)).collect();
        let (path, sums, source_sums) = (self.file.path.clone(), list(&found.sums), list(&found.source_sums));
        FileDone { file: self.at, path, size, logical: None, crc32, blocks: None, sums, source_sums }
    }

    /// Gives the file up, if it is open.
    pub(crate) fn abort(self) {
        if let Ok(Blob::Open(blob)) = self.blob.into_inner() {
            blob.abort();
        }
    }

    fn write(&self, sink: &dyn Sink, offset: u64, bytes: &[u8]) -> Result<()> {
        let poisoned = || Error::internal(format!("a writer of {} panicked", self.file.path));
        if let Blob::Open(blob) = &*self.blob.read().map_err(|_| poisoned())? {
            return blob.write_at(offset, bytes).place(&self.file.path);
        }
        let mut slot = self.blob.write().map_err(|_| poisoned())?;
        if let Blob::Closed = &*slot {
            *slot = Blob::Open(sink.blob(self.at).place(&self.file.path)?);
        }
        drop(slot);
        self.write(sink, offset, bytes)
    }

    /// CRC-32 of each chunk, from those of its blocks.
    fn chunk_crcs(&self) -> Result<Vec<u32>> {
        if !self.needs.crc32 {
            return Ok(Vec::new());
        }
        let found = self.lock();
        let missing = || Error::internal(format!("{} lacks the CRC of a block", self.file.path));
        let crc_of = |chunk: &ChunkPlace| {
            let mut crc = Crc32::new();
            for (block, bytes) in blocks(chunk.bytes).enumerate() {
                let part =
                    found.crcs.get(chunk.first_block + block).copied().flatten().ok_or_else(missing)?;
                crc.combine(&Crc32::known(part, bytes.end - bytes.start));
            }
            Ok(crc.value())
        };
        self.chunks.iter().map(crc_of).collect()
    }

    /// The file's block table: those of its chunks as they were found, those around them from the pieces.
    fn table(&self, tail: &[Piece]) -> Result<BlockTable> {
        let edges =
            self.chunks.iter().flat_map(|chunk| [chunk.offset, chunk.offset.saturating_add(chunk.bytes)]);
        let wrong = |error: &dyn std::fmt::Display| Error::internal(format!("{}: {error}", self.file.path));
        let layout = BlockLayout::new(self.file.size, edges).map_err(|error| wrong(&error))?;
        let found = self.lock();
        let mut of_chunks = found.digests.iter();
        let mut chunks = self.chunks.iter().filter(|chunk| chunk.bytes > 0).peekable();
        let mut digests = Vec::with_capacity(layout.len());
        for range in layout.ranges() {
            while chunks.next_if(|chunk| chunk.offset + chunk.bytes <= range.start).is_some() {}
            let in_chunk = chunks.peek().is_some_and(|chunk| chunk.offset <= range.start);
            let digest = if in_chunk { of_chunks.next().copied().flatten() } else { None };
            digests.push(match digest {
                Some(digest) => digest,
                None if in_chunk => return Err(wrong(&"a block was not hashed")),
                None => Sha256Digest::of(&self.around(tail, range.start, range.end)?),
            });
        }
        BlockTable::new(layout, digests).map_err(|error| wrong(&error))
    }

    /// The bytes `start..end` of the file, which lie between chunks.
    fn around(&self, tail: &[Piece], start: u64, end: u64) -> Result<Vec<u8>> {
        let mut pieces: Vec<&Piece> = self.file.head.iter().chain(tail).collect();
        pieces.sort_by_key(|piece| piece.offset);
        let mut bytes = Vec::new();
        for piece in pieces {
            let (from, to) = (start.max(piece.offset), end.min(piece.offset + piece.bytes.len() as u64));
            if from < to {
                let part = |at: u64| usize::try_from(at - piece.offset).unwrap_or(usize::MAX);
                bytes.extend_from_slice(piece.bytes.get(part(from)..part(to)).unwrap_or_default());
            }
        }
        if bytes.len() as u64 == end - start {
            return Ok(bytes);
        }
        Err(Error::internal(format!("{}: nothing fills bytes {start}..{end}", self.file.path)))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
