//! A store that fails, as networks and buckets do, by a seed.
//!
//! It wraps any store. Each create draws a fault; so does each read. The faults are those that have broken published commit protocols: an
//! answer that is lost after the object has landed, a conflict that a request has with itself, a conflict although nothing is there, an error
//! before anything happened, an object that lands after its error was reported, and one that is not found although it is there.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use super::name::ObjectPath;

/// How often each fault happens, in thousandths of all creates or reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Faults {
    /// The object lands, and an error is reported.
    pub lost_answer: u64,
    /// The object lands, and it is reported that the name was taken.
    pub conflict_with_itself: u64,
    /// Nothing lands, and it is reported that the name was taken.
    pub false_conflict: u64,
    /// Nothing lands, and an error is reported.
    pub error_before: u64,
    /// An error is reported; the object lands later, unless the name is taken by then.
    pub late_landing: u64,
    /// A read does not find what is there.
    pub not_found: u64,
}

/// A store that fails by a seed.
#[derive(Debug)]
pub struct FaultyStore {
    inner: Arc<dyn ObjectStore>,
    faults: Faults,
    seed: u64,
    drawn: AtomicU64,
    injected: AtomicU64,
    /// What is to land later.
    late: Mutex<Vec<(ObjectPath, PutPayload)>>,
}

impl FaultyStore {
    /// Wraps a store.
    #[must_use]
    pub fn new(inner: Arc<dyn ObjectStore>, faults: Faults, seed: u64) -> Self {
        Self {
            inner,
            faults,
            seed,
            drawn: AtomicU64::new(0),
            injected: AtomicU64::new(0),
            late: Mutex::default(),
        }
    }

    /// How many faults have happened: a test without any has tested nothing.
    #[must_use]
    pub fn injected(&self) -> u64 {
        self.injected.load(Ordering::Relaxed)
    }

    /// A number below 1,000 (splitmix64 over seed and count).
    fn draw(&self) -> u64 {
        let n = self.drawn.fetch_add(1, Ordering::Relaxed);
        let mut z = self.seed.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % 1_000
    }

    /// Which of some faults happens, if any: its index.
    fn fault(&self, rates: &[u64]) -> Option<usize> {
        let drawn = self.draw();
        let mut sum = 0;
        let hit = rates.iter().position(|rate| {
            sum += rate;
            drawn < sum
        });
        self.injected.fetch_add(u64::from(hit.is_some()), Ordering::Relaxed);
        hit
    }

    async fn land_late(&self) {
        let late = std::mem::take(&mut *self.late.lock().unwrap_or_else(PoisonError::into_inner));
        for (location, payload) in late {
            // Whether it still could is for the readers to find out.
            drop(self.inner.put_opts(&location, payload, PutMode::Create.into()).await);
        }
    }

    async fn create(
        &self,
        location: &ObjectPath,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let f = &self.faults;
        let rates = [f.lost_answer, f.conflict_with_itself, f.false_conflict, f.error_before, f.late_landing];
        match self.fault(&rates) {
            None => self.inner.put_opts(location, payload, opts).await,
            Some(0) => {
                self.inner.put_opts(location, payload, opts).await?;
                Err(broken("the connection was closed before the answer"))
            }
            Some(1) => {
                self.inner.put_opts(location, payload, opts).await?;
                Err(taken(location))
            }
            Some(2) => Err(taken(location)),
            Some(3) => Err(broken("the connection was refused")),
            Some(_) => {
                self.late.lock().unwrap_or_else(PoisonError::into_inner).push((location.clone(), payload));
                Err(broken("the request timed out"))
            }
        }
    }
}

fn broken(what: &'static str) -> Error {
    Error::Generic { store: "FaultyStore", source: what.into() }
}

fn taken(location: &ObjectPath) -> Error {
    Error::AlreadyExists { path: location.to_string(), source: "409 Conflict".into() }
}

#[async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(
        &self,
        location: &ObjectPath,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let done = match opts.mode {
            PutMode::Create => self.create(location, payload, opts).await,
            _ => self.inner.put_opts(location, payload, opts).await,
        };
        // What was under way before this call may land after it, never before an earlier one was answered.
        if self.draw() < 500 {
            self.land_late().await;
        }
        done
    }

    async fn put_multipart_opts(
        &self,
        location: &ObjectPath,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &ObjectPath, options: GetOptions) -> Result<GetResult> {
        if self.fault(&[self.faults.not_found]).is_some() {
            return Err(Error::NotFound { path: location.to_string(), source: "404 Not Found".into() });
        }
        self.inner.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &ObjectPath, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.inner.get_ranges(location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<ObjectPath>>,
    ) -> BoxStream<'static, Result<ObjectPath>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&ObjectPath>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &ObjectPath, to: &ObjectPath, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultyStore({})", self.inner)
    }
}
