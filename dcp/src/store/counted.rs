//! A store that counts what it is asked for, as a bucket would bill it: each call is a request, and so is each further page of a listing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use futures::stream::{BoxStream, StreamExt};
use object_store::{ObjectMeta, ObjectStore, Result};

use super::name::ObjectPath;
use super::over::{Call, Layer, Over};

/// Objects on one page of a listing, as buckets have it.
const PAGE: u64 = 1_000;

/// A store that counts the requests to another.
pub type CountedStore = Over<Counted>;

/// Counts requests.
#[derive(Debug)]
pub struct Counted {
    inner: Arc<dyn ObjectStore>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl CountedStore {
    /// Wraps a store.
    #[must_use]
    pub fn new(inner: Arc<dyn ObjectStore>) -> Self {
        Self::layered(Counted { inner, asked: Arc::default() })
    }
}

impl Counted {
    /// What was asked for since the last call, in order, one entry a request: `GET commits/…`.
    #[must_use]
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn told(what: &str, path: Option<&ObjectPath>) -> String {
    format!("{what} {}", path.map_or("", AsRef::as_ref))
}

#[async_trait]
impl Layer for Counted {
    const NAME: &'static str = "CountedStore";

    fn inner(&self) -> &Arc<dyn ObjectStore> {
        &self.inner
    }

    fn before(&self, call: Call<'_>) -> Result<()> {
        let (what, path, times) = match call {
            Call::Put(path) | Call::Copy(path) => ("PUT", Some(path), 1),
            Call::Upload(path) => ("POST", Some(path), 1),
            Call::Head(path) => ("HEAD", Some(path), 1),
            Call::Get(path) => ("GET", Some(path), 1),
            Call::Ranges(path, ranges) => ("GET", Some(path), ranges),
            Call::Delete => ("DELETE", None, 1),
            Call::List(prefix) | Call::ListBelow(prefix) => ("LIST", prefix, 1),
        };
        self.lock().extend(std::iter::repeat_n(told(what, path), times));
        Ok(())
    }

    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (asked, page) = (Arc::clone(&self.asked), format!("{} (on)", told("LIST", prefix)));
        let mut seen = 0_u64;
        let counted = self.inner.list(prefix).map(move |object| {
            if seen > 0 && seen.is_multiple_of(PAGE) {
                asked.lock().unwrap_or_else(PoisonError::into_inner).push(page.clone());
            }
            seen += 1;
            object
        });
        counted.boxed()
    }
}
