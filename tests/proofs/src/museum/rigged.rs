//! A store that misbehaves in one chosen way, and counts what is asked of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use dcp::store::over::{Call, Layer, Over};
use dcp::store::{ObjectPath, Root};
use futures::StreamExt as _;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::{Error, ObjectStore, PutOptions, PutPayload, PutResult, Result};

/// The one thing that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The object lands; a retry below meets it and reports that the name is taken.
    ConflictWithItself,
    /// Nothing lands, and it is reported that the name is taken (a 409 that says: somebody else is at it).
    FalseConflict,
    /// The object lands, and the store is gone from then on.
    GoneAfterLanding,
    /// Nothing lands, and an error is reported.
    Refused,
}

/// A store with one trouble, for names that contain a text, so many times.
#[derive(Debug)]
pub(super) struct Rigged {
    inner: Arc<dyn ObjectStore>,
    trouble: Trouble,
    at: &'static str,
    left: AtomicU64,
    had: AtomicU64,
    gone: AtomicBool,
    deletes: Arc<AtomicU64>,
}

impl Rigged {
    /// The store.
    pub(super) fn new(trouble: Trouble, at: &'static str, times: u64) -> Arc<Over<Self>> {
        Arc::new(Over::layered(Self {
            inner: Arc::new(InMemory::new()),
            trouble,
            at,
            left: AtomicU64::new(times),
            had: AtomicU64::new(0),
            gone: AtomicBool::new(false),
            deletes: Arc::default(),
        }))
    }

    /// A root on one.
    pub(super) fn root(store: &Arc<Over<Self>>) -> Root {
        Root::from_store(Arc::clone(store) as Arc<dyn ObjectStore>, "memory://rigged")
    }

    /// From now on nothing goes wrong.
    pub(super) fn heal(&self) {
        self.gone.store(false, Ordering::Relaxed);
        self.left.store(0, Ordering::Relaxed);
    }

    /// How often the trouble happened.
    pub(super) fn had(&self) -> u64 {
        self.had.load(Ordering::Relaxed)
    }

    /// How many objects were deleted.
    pub(super) fn deletes(&self) -> u64 {
        self.deletes.load(Ordering::Relaxed)
    }

    fn strikes(&self, location: &ObjectPath) -> bool {
        let due = location.as_ref().contains(self.at)
            && self
                .left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
                .is_ok();
        self.had.fetch_add(u64::from(due), Ordering::Relaxed);
        due
    }
}

fn broken(what: &'static str) -> Error {
    Error::Generic { store: "Rigged", source: what.into() }
}

fn taken(location: &ObjectPath) -> Error {
    Error::AlreadyExists { path: location.to_string(), source: "409 Conflict".into() }
}

#[async_trait]
impl Layer for Rigged {
    const NAME: &'static str = "Rigged";

    fn inner(&self) -> &Arc<dyn ObjectStore> {
        &self.inner
    }

    /// Nothing is answered by a store that is gone, but to those who would clean up in it: they are to be caught.
    fn before(&self, call: Call<'_>) -> Result<()> {
        let gone = self.gone.load(Ordering::Relaxed);
        match call {
            Call::Upload(location) if !gone && self.strikes(location) => {
                Err(broken("503 Service Unavailable"))
            }
            Call::List(_) | Call::Delete => Ok(()),
            _ if gone => Err(broken("the store does not answer")),
            _ => Ok(()),
        }
    }

    async fn put_opts(
        &self,
        location: &ObjectPath,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        if !self.strikes(location) {
            return self.inner.put_opts(location, payload, opts).await;
        }
        match self.trouble {
            Trouble::ConflictWithItself => {
                self.inner.put_opts(location, payload, opts).await?;
                Err(taken(location))
            }
            Trouble::FalseConflict => Err(taken(location)),
            Trouble::GoneAfterLanding => {
                self.inner.put_opts(location, payload, opts).await?;
                self.gone.store(true, Ordering::Relaxed);
                Err(broken("the connection was closed before the answer"))
            }
            Trouble::Refused => Err(broken("503 Service Unavailable")),
        }
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<ObjectPath>>,
    ) -> BoxStream<'static, Result<ObjectPath>> {
        let deletes = Arc::clone(&self.deletes);
        let counted = locations.inspect(move |_| {
            deletes.fetch_add(1, Ordering::Relaxed);
        });
        self.inner.delete_stream(counted.boxed())
    }
}
