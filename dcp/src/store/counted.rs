//! A store that counts what it is asked for, as a bucket would bill it: each call is a request, and so is each further page of a listing.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt};
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use super::name::ObjectPath;

/// Objects on one page of a listing, as buckets have it.
const PAGE: u64 = 1_000;

/// Counts the requests to a store.
#[derive(Debug)]
pub struct CountedStore {
    inner: Arc<dyn ObjectStore>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl CountedStore {
    /// Wraps a store.
    #[must_use]
    pub fn new(inner: Arc<dyn ObjectStore>) -> Self {
        Self { inner, asked: Arc::default() }
    }

    /// What was asked for since the last call, in order, one entry a request: `GET commits/…`.
    #[must_use]
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, what: &str, path: Option<&ObjectPath>) {
        self.lock().push(format!("{what} {}", path.map_or("", AsRef::as_ref)));
    }
}

impl fmt::Display for CountedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CountedStore({})", self.inner)
    }
}

#[async_trait]
impl ObjectStore for CountedStore {
    async fn put_opts(
        &self,
        location: &ObjectPath,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        self.note("PUT", Some(location));
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        location: &ObjectPath,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.note("POST", Some(location));
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &ObjectPath, options: GetOptions) -> Result<GetResult> {
        self.note(if options.head { "HEAD" } else { "GET" }, Some(location));
        self.inner.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &ObjectPath, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        ranges.iter().for_each(|_| self.note("GET", Some(location)));
        self.inner.get_ranges(location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<ObjectPath>>,
    ) -> BoxStream<'static, Result<ObjectPath>> {
        self.note("DELETE", None);
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.note("LIST", prefix);
        let (asked, name) = (Arc::clone(&self.asked), prefix.map_or(String::new(), ToString::to_string));
        let mut seen = 0_u64;
        let counted = self.inner.list(prefix).map(move |object| {
            if seen > 0 && seen.is_multiple_of(PAGE) {
                asked.lock().unwrap_or_else(PoisonError::into_inner).push(format!("LIST {name} (on)"));
            }
            seen += 1;
            object
        });
        counted.boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&ObjectPath>) -> Result<ListResult> {
        self.note("LIST", prefix);
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &ObjectPath, to: &ObjectPath, options: CopyOptions) -> Result<()> {
        self.note("PUT", Some(to));
        self.inner.copy_opts(from, to, options).await
    }
}
