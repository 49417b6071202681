//! Blobs: large objects of known size, written out of order by several threads, visible only when they are whole.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, UploadPart};

use super::coverage::Coverage;
use super::error::{Result, StoreError};
use super::name::ObjectPath;
use super::waiter::Waiter;

/// Writes one blob. Every byte is written exactly once, in any order, from any number of threads.
///
/// Dropped without [`finish`](Self::finish), nothing becomes visible and what was staged is removed.
pub trait BlobWriter: fmt::Debug + Send + Sync {
    /// Writes bytes at an offset.
    ///
    /// # Errors
    /// [`StoreError::BadWrite`] where bytes were written before, or beyond the size; and what the store says.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()>;

    /// Makes the blob durable, then visible under its name, unless that is taken.
    ///
    /// # Errors
    /// [`StoreError::Gap`] when bytes are missing, [`StoreError::AlreadyExists`] when the name is taken,
    /// [`StoreError::NotDurable`] when the system would not confirm; and what the store says.
    fn finish(self: Box<Self>) -> Result<()>;

    /// As [`finish`](Self::finish), of a blob of which only the most bytes were known beforehand (it was begun so: see
    /// [`Root::blob_up_to`](super::Root::blob_up_to)): it has `size`.
    ///
    /// # Errors
    /// [`StoreError::Gap`] unless exactly the first `size` bytes were written; as [`finish`](Self::finish).
    fn finish_at(self: Box<Self>, size: u64) -> Result<()>;

    /// Gives up: nothing becomes visible.
    fn abort(self: Box<Self>);
}

/// The smallest part of an upload in parts. Stores ask for 5 MiB at least.
const PART: u64 = 8 << 20;

/// Stores take 10,000 parts at most.
const MOST_PARTS: u64 = 9_000;

/// How many bytes of parts may wait for earlier parts to become whole, unless one part is larger: a blob of several boxes as a save lays it
/// out, so that whoever puts its boxes in another order is never refused.
const HELD: u64 = 512 << 20;

/// How many bytes of parts may be on their way at once, two parts at least.
const FLYING: u64 = 64 << 20;

/// Bytes that a blob in a bucket holds while it is written, if that is done in order: the parts on their way, and one that is not full.
pub const UPLOADING: u64 = FLYING + PART;

/// A blob of any [`ObjectStore`].
///
/// ```text
///  write_at ─► held: parts with gaps ─► flying: eight parts on their way ─► complete
///              ≤ 512 MiB                ≤ 64 MiB
/// ```
///
/// Such a store takes the parts of an object in order only, so what is written too early waits in memory; a part whose turn has come is
/// sent while others still are. So a blob that is written in order holds 72 MiB, and one that is not at most 576 MiB (or four parts, when
/// parts are larger than that; they are 8 MiB up to blobs of 70 GiB). When too many fly, the next write waits for the oldest. The first
/// failure ends the upload at once: parts cost money until they are aborted. A process that is killed can't abort them; a bucket should have
/// a rule that does so after some days.
///
/// A blob that is begun no larger than one part, or that ends before its first part is full, is put by one conditional create. Others can't
/// be: no store completes an upload on condition through this interface. So the name is looked up at the end, and it is the writer's nonce in
/// the names of blobs that keeps two writers apart: of two uploads of one name that end at once, the later stands. For the same reason an
/// object of the right size that is there after a lost answer is ours.
pub(crate) struct PartsWriter {
    store: Arc<dyn ObjectStore>,
    waiter: Waiter,
    path: ObjectPath,
    /// For messages.
    name: String,
    part: u64,
    state: Mutex<Parts>,
}

struct Parts {
    coverage: Coverage,
    /// Parts that are not whole, or wait for an earlier one.
    held: BTreeMap<u64, Part>,
    /// The next part that the store takes.
    next: u64,
    upload: Option<Box<dyn MultipartUpload>>,
    /// Parts that are on their way, oldest first.
    flying: VecDeque<UploadPart>,
    /// The first failure; after it nothing can be finished.
    failed: bool,
}

struct Part {
    bytes: BytesMut,
    missing: u64,
}

impl fmt::Debug for PartsWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartsWriter")
            .field("path", &self.name)
            .field("part", &self.part)
            .finish_non_exhaustive()
    }
}

impl PartsWriter {
    pub(super) fn new(
        store: Arc<dyn ObjectStore>,
        waiter: Waiter,
        path: ObjectPath,
        name: String,
        size: u64,
    ) -> Self {
        let (coverage, flying) = (Coverage::new(size), VecDeque::new());
        let state = Parts { coverage, held: BTreeMap::new(), next: 0, upload: None, flying, failed: false };
        let part = PART.max(size.div_ceil(MOST_PARTS).next_multiple_of(1 << 20));
        Self { store, waiter, path, name, part, state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, Parts> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn error(&self, op: &'static str) -> impl Fn(object_store::Error) -> StoreError {
        move |error| StoreError::from_store(op, &self.name, error)
    }

    fn too_early(&self, offset: u64) -> StoreError {
        StoreError::Unsupported {
            what: format!("{}: writing so far ahead (at {offset})", self.name),
            reason: "the store takes the bytes of an object in order, and too many wait for earlier ones"
                .to_owned(),
        }
    }

    /// Copies the bytes into their parts.
    fn gather(&self, parts: &mut Parts, offset: u64, mut data: &[u8]) -> Result<()> {
        let (size, mut at) = (parts.coverage.size(), offset);
        while !data.is_empty() {
            let index = at / self.part;
            if index > parts.next
                && parts.held.len() as u64 * self.part >= HELD.max(2 * self.part)
                && !parts.held.contains_key(&index)
            {
                return Err(self.too_early(at));
            }
            let start = index * self.part;
            let len = self.part.min(size - start);
            let part = parts.held.entry(index).or_insert_with(|| Part {
                bytes: BytesMut::zeroed(usize::try_from(len).unwrap_or(usize::MAX)),
                missing: len,
            });
            let from = usize::try_from(at - start).unwrap_or(usize::MAX);
            let Some(room) = part.bytes.get_mut(from..) else { return Err(self.too_early(at)) };
            let (now, later) = data.split_at(room.len().min(data.len()));
            if let Some(room) = room.get_mut(..now.len()) {
                room.copy_from_slice(now);
            }
            (part.missing, at, data) = (part.missing - now.len() as u64, at + now.len() as u64, later);
        }
        Ok(())
    }

    /// Sends the parts whose turn it is.
    fn send_whole(&self, parts: &mut Parts) -> Result<()> {
        while parts
            .held
            .first_key_value()
            .is_some_and(|(&index, part)| index == parts.next && part.missing == 0)
        {
            let Some((_, part)) = parts.held.pop_first() else { break };
            while parts.flying.len() as u64 >= (FLYING / self.part).max(2) {
                self.land_oldest(parts)?;
            }
            if parts.upload.is_none() {
                let upload = self.waiter.wait(self.store.put_multipart(&self.path));
                parts.upload = Some(upload.map_err(self.error("begin to write"))?);
            }
            let Some(upload) = parts.upload.as_mut() else { break };
            parts.flying.push_back(upload.put_part(part.bytes.freeze().into()));
            parts.next += 1;
        }
        Ok(())
    }

    /// Waits for the part that was sent first.
    fn land_oldest(&self, parts: &mut Parts) -> Result<()> {
        parts.flying.pop_front().map_or(Ok(()), |part| self.waiter.wait(part).map_err(self.error("write")))
    }

    /// Ends the upload: what flies is stopped, what has landed is given back to the store.
    fn give_up(&self, parts: &mut Parts) {
        parts.flying.clear();
        if let Some(mut upload) = parts.upload.take() {
            // A store that cannot be reached now has rules for what is left behind.
            drop(self.waiter.wait(async { upload.abort().await }));
        }
    }

    /// Makes a blob end at `size`: the part that this lies in is whole then.
    fn cut(&self, parts: &mut Parts, size: u64) {
        if let Some(mut last) = parts.held.last_entry() {
            let start = *last.key() * self.part;
            let part = last.get_mut();
            part.bytes.truncate(usize::try_from(size.saturating_sub(start)).unwrap_or(usize::MAX));
            part.missing = 0;
        }
    }

    fn create(&self, bytes: Bytes) -> Result<()> {
        let put = self.store.put_opts(&self.path, bytes.into(), PutMode::Create.into());
        self.waiter.wait(put).map(drop).map_err(self.error("write"))
    }

    fn complete(&self, parts: &mut Parts, size: u64) -> Result<()> {
        while !parts.flying.is_empty() {
            self.land_oldest(parts)?;
        }
        if self.size_there()?.is_some() {
            return Err(StoreError::AlreadyExists { path: self.name.clone() });
        }
        let Some(upload) = parts.upload.as_mut() else {
            return Err(StoreError::Gap { path: self.name.clone(), range: 0..parts.coverage.size() });
        };
        let done = self.waiter.wait(async { upload.complete().await });
        let Err(error) = done.map(drop).map_err(self.error("finish")) else {
            parts.upload = None;
            return Ok(());
        };
        // The answer was lost, perhaps, and a second request found the upload gone.
        match self.size_there() {
            Ok(Some(there)) if there == size => {
                parts.upload = None;
                Ok(())
            }
            _ if error.is_not_found() => Err(StoreError::Io {
                path: self.name.clone(),
                op: "finish",
                source: "the store does not know the upload any more".into(),
            }),
            _ => Err(error),
        }
    }

    fn size_there(&self) -> Result<Option<u64>> {
        match self.waiter.wait(self.store.head(&self.path)) {
            Ok(meta) => Ok(Some(meta.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.error("look up")(error)),
        }
    }
}

impl BlobWriter for PartsWriter {
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let mut parts = self.lock();
        if parts.failed {
            return Err(unfinished(&self.name));
        }
        let range = offset..offset.saturating_add(data.len() as u64);
        let claimed = parts.coverage.claim(&range);
        claimed.map_err(|why| StoreError::BadWrite { path: self.name.clone(), range, why })?;
        let single = parts.coverage.size() <= self.part;
        let done = self.gather(&mut parts, offset, data);
        let done = done.and_then(|()| if single { Ok(()) } else { self.send_whole(&mut parts) });
        if done.is_err() {
            parts.failed = true;
            self.give_up(&mut parts);
        }
        done
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let size = self.lock().coverage.size();
        self.finish_at(size)
    }

    fn finish_at(self: Box<Self>, size: u64) -> Result<()> {
        let mut parts = self.lock();
        if !parts.coverage.is_exactly(size) {
            let range = parts.coverage.gap().unwrap_or(size..size);
            return Err(StoreError::Gap { path: self.name.clone(), range });
        }
        if parts.failed {
            return Err(unfinished(&self.name));
        }
        self.cut(&mut parts, size);
        if parts.upload.is_none() && size <= self.part {
            let bytes = parts.held.pop_first().map(|(_, part)| part.bytes.freeze());
            return self.create(bytes.unwrap_or_default());
        }
        self.send_whole(&mut parts)?;
        self.complete(&mut parts, size)
    }

    fn abort(self: Box<Self>) {}
}

impl Drop for PartsWriter {
    fn drop(&mut self) {
        let mut parts = self.lock();
        self.give_up(&mut parts);
    }
}

/// A blob of which a write failed is never finished, even where the caller forgot that it did.
pub(crate) fn unfinished(name: &str) -> StoreError {
    StoreError::Io { path: name.to_owned(), op: "finish", source: "an earlier write of it failed".into() }
}

#[cfg(test)]
mod tests;
