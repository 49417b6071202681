//! Blobs: large objects of known size, written out of order by several threads, visible only when they are whole.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use futures::executor::block_on;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt, PutMode};

use super::coverage::Coverage;
use super::error::{Result, StoreError};
use super::name::ObjectPath;

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

    /// Gives up: nothing becomes visible.
    fn abort(self: Box<Self>);
}

/// The smallest part of an upload in parts. Stores ask for 5 MiB at least.
const PART: u64 = 8 << 20;

/// Stores take 10,000 parts at most.
const MOST_PARTS: u64 = 9_000;

/// How many bytes of parts may wait for earlier parts to become whole, unless one part is larger.
const HELD: u64 = 256 << 20;

/// A blob of any [`ObjectStore`].
///
/// Such a store takes the parts of an object in order only, so what is written too early waits in memory: at most 256 MiB (or
/// two parts, when parts are larger than that; they are 8 MiB up to blobs of 70 GiB). Blobs of one part are put by one conditional
/// create. Larger ones can't be: uploads in parts are not conditional, so the name is looked up at the end, and it is the
/// writer's nonce in the names of blobs that keeps two writers apart.
pub(crate) struct PartsWriter {
    store: Arc<dyn ObjectStore>,
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
    pub(crate) fn new(store: Arc<dyn ObjectStore>, path: ObjectPath, name: String, size: u64) -> Self {
        Self::with_part(
            store,
            path,
            name,
            size,
            PART.max(size.div_ceil(MOST_PARTS).next_multiple_of(1 << 20)),
        )
    }

    fn with_part(store: Arc<dyn ObjectStore>, path: ObjectPath, name: String, size: u64, part: u64) -> Self {
        let coverage = Coverage::new(size);
        let state = Parts { coverage, held: BTreeMap::new(), next: 0, upload: None, failed: false };
        Self { store, path, name, part, state: Mutex::new(state) }
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
            room.iter_mut().zip(now).for_each(|(to, from)| *to = *from);
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
            if parts.upload.is_none() {
                let upload =
                    block_on(self.store.put_multipart(&self.path)).map_err(self.error("begin to write"))?;
                parts.upload = Some(upload);
            }
            let Some(upload) = parts.upload.as_mut() else { break };
            block_on(upload.put_part(part.bytes.freeze().into())).map_err(self.error("write"))?;
            parts.next += 1;
        }
        Ok(())
    }

    fn create(&self, bytes: Bytes) -> Result<()> {
        let put = self.store.put_opts(&self.path, bytes.into(), PutMode::Create.into());
        block_on(put).map(drop).map_err(self.error("write"))
    }

    fn complete(&self, parts: &mut Parts) -> Result<()> {
        match block_on(self.store.head(&self.path)) {
            Ok(_) => return Err(StoreError::AlreadyExists { path: self.name.clone() }),
            Err(object_store::Error::NotFound { .. }) => {}
            Err(error) => return Err(self.error("look up")(error)),
        }
        let Some(upload) = parts.upload.as_mut() else {
            return Err(StoreError::Gap { path: self.name.clone(), range: 0..parts.coverage.size() });
        };
        let done = block_on(upload.complete()).map(drop).map_err(self.error("finish"));
        if done.is_ok() {
            parts.upload = None;
        }
        done
    }
}

impl BlobWriter for PartsWriter {
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let mut parts = self.lock();
        let range = offset..offset.saturating_add(data.len() as u64);
        let claimed = parts.coverage.claim(&range);
        claimed.map_err(|why| StoreError::BadWrite { path: self.name.clone(), range, why })?;
        let single = parts.coverage.size() <= self.part;
        let done = self.gather(&mut parts, offset, data);
        let done = done.and_then(|()| if single { Ok(()) } else { self.send_whole(&mut parts) });
        parts.failed |= done.is_err();
        done
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let mut parts = self.lock();
        if let Some(range) = parts.coverage.gap() {
            return Err(StoreError::Gap { path: self.name.clone(), range });
        }
        if parts.failed {
            return Err(unfinished(&self.name));
        }
        if parts.coverage.size() <= self.part {
            let bytes = parts.held.pop_first().map(|(_, part)| part.bytes.freeze());
            return self.create(bytes.unwrap_or_default());
        }
        self.complete(&mut parts)
    }

    fn abort(self: Box<Self>) {}
}

impl Drop for PartsWriter {
    fn drop(&mut self) {
        // Parts that were sent cost money until they are aborted. A store that cannot be reached now has rules for that.
        if let Some(mut upload) = self.lock().upload.take() {
            drop(block_on(upload.abort()));
        }
    }
}

/// A blob of which a write failed is never finished, even where the caller forgot that it did.
pub(crate) fn unfinished(name: &str) -> StoreError {
    StoreError::Io { path: name.to_owned(), op: "finish", source: "an earlier write of it failed".into() }
}

#[cfg(test)]
mod tests;
