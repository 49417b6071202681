//! A store that fails, as networks and buckets do, by a seed.
//!
//! It wraps any store. Each create draws a fault; so does each read. The faults are those that have broken published commit protocols: an
//! answer that is lost after the object has landed, a conflict that a request has with itself, a conflict although nothing is there, an error
//! before anything happened, an object that lands after its error was reported, one that is not found although it is there, a body that ends
//! early, and a listing that is late.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use futures::future::FutureExt;
use futures::stream::{self, BoxStream, StreamExt};
use object_store::{
    Error, GetOptions, GetResult, GetResultPayload, ObjectMeta, ObjectStore, PutMode, PutOptions, PutPayload,
    PutResult, Result,
};

use super::name::ObjectPath;
use super::over::{Call, Layer, Over};

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
    /// A put over what is there fails, without effect.
    pub no_overwrite: u64,
    /// The body of a read ends early, with an error.
    pub cut_body: u64,
    /// A listing lacks its newest objects.
    pub late_listing: u64,
    /// The object lands, its answer is lost, and so are those of the next operations, whatever they are.
    pub outage: u64,
}

/// Operations that an outage lasts.
const OUTAGE: u64 = 24;

/// A store over another that fails by a seed.
pub type FaultyStore = Over<Faulty>;

/// Fails by a seed.
#[derive(Debug)]
pub struct Faulty {
    inner: Arc<dyn ObjectStore>,
    faults: Faults,
    seed: u64,
    drawn: AtomicU64,
    injected: AtomicU64,
    /// Operations that the present outage still lasts.
    down: AtomicU64,
    /// What is to land later.
    late: Mutex<Vec<(ObjectPath, PutPayload)>>,
}

impl FaultyStore {
    /// Wraps a store.
    #[must_use]
    pub fn new(inner: Arc<dyn ObjectStore>, faults: Faults, seed: u64) -> Self {
        Self::layered(Faulty {
            inner,
            faults,
            seed,
            drawn: AtomicU64::new(0),
            injected: AtomicU64::new(0),
            down: AtomicU64::new(0),
            late: Mutex::default(),
        })
    }
}

impl Faulty {
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
        let known = [f.lost_answer, f.conflict_with_itself, f.false_conflict, f.error_before];
        let rates = [known.as_slice(), &[f.outage, f.late_landing]].concat();
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
            Some(4) => {
                self.inner.put_opts(location, payload, opts).await?;
                self.down.store(OUTAGE, Ordering::Relaxed);
                Err(broken("the connection was closed before the answer"))
            }
            Some(_) => {
                self.late.lock().unwrap_or_else(PoisonError::into_inner).push((location.clone(), payload));
                Err(broken("the request timed out"))
            }
        }
    }
}

/// The same answer, whose body breaks off in the middle.
fn cut(got: GetResult) -> GetResult {
    let half = usize::try_from(got.range.end.saturating_sub(got.range.start) / 2).unwrap_or(0);
    let GetResult { payload, meta, range, attributes, extensions } = got;
    let whole = GetResult {
        payload,
        meta: meta.clone(),
        range: range.clone(),
        attributes: attributes.clone(),
        extensions: extensions.clone(),
    };
    let body =
        whole.into_stream().take(1).map(move |bytes| bytes.map(|bytes| bytes.slice(..half.min(bytes.len()))));
    let end = stream::once(async { Err(broken("the connection was closed within the body")) });
    GetResult {
        payload: GetResultPayload::Stream(body.chain(end).boxed()),
        meta,
        range,
        attributes,
        extensions,
    }
}

fn broken(what: &'static str) -> Error {
    Error::Generic { store: "FaultyStore", source: what.into() }
}

fn taken(location: &ObjectPath) -> Error {
    Error::AlreadyExists { path: location.to_string(), source: "409 Conflict".into() }
}

#[async_trait]
impl Layer for Faulty {
    const NAME: &'static str = "FaultyStore";

    fn inner(&self) -> &Arc<dyn ObjectStore> {
        &self.inner
    }

    /// Fails while the store is down.
    fn before(&self, call: Call<'_>) -> Result<()> {
        let (Call::Put(_) | Call::Head(_) | Call::Get(_)) = call else { return Ok(()) };
        let less = |down: u64| down.checked_sub(1);
        match self.down.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) {
            Ok(_) => Err(broken("503 Service Unavailable")),
            Err(_) => Ok(()),
        }
    }

    async fn put_opts(
        &self,
        location: &ObjectPath,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let done = match opts.mode {
            PutMode::Create => self.create(location, payload, opts).await,
            _ if self.fault(&[self.faults.no_overwrite]).is_some() => Err(broken("503 Slow Down")),
            _ => self.inner.put_opts(location, payload, opts).await,
        };
        // What was under way before this call may land after it, never before an earlier one was answered.
        if self.draw() < 500 {
            self.land_late().await;
        }
        done
    }

    async fn get_opts(&self, location: &ObjectPath, options: GetOptions) -> Result<GetResult> {
        match self.fault(&[self.faults.not_found, self.faults.cut_body]) {
            Some(0) => {
                return Err(Error::NotFound { path: location.to_string(), source: "404 Not Found".into() });
            }
            Some(_) => return self.inner.get_opts(location, options).await.map(cut),
            None => {}
        }
        self.inner.get_opts(location, options).await
    }

    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, Result<ObjectMeta>> {
        if self.fault(&[self.faults.late_listing]).is_none() {
            return self.inner.list(prefix);
        }
        let lacks = usize::try_from(self.draw() % 8).unwrap_or(0) + 1;
        let whole = self.inner.list(prefix).collect::<Vec<_>>();
        let early = whole.map(move |mut listed| {
            listed.truncate(listed.len().saturating_sub(lacks));
            stream::iter(listed)
        });
        early.flatten_stream().boxed()
    }
}
