//! An actor's way to the store: each operation waits for its turn, may fail by the seed, and leaves its outcome in the trace.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use dcp::store::ObjectPath;
use dcp::store::faults::FaultyStore;
use futures::stream::BoxStream;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use super::gate::Turn;

#[derive(Debug)]
pub(super) struct TurnStore {
    pub(super) inner: Arc<FaultyStore>,
    pub(super) turn: Arc<Turn>,
}

impl TurnStore {
    fn done<T>(&self, what: &str, path: &ObjectPath, result: Result<T>) -> Result<T> {
        let end = match &result {
            Ok(_) => "ok",
            Err(object_store::Error::NotFound { .. }) => "missing",
            Err(object_store::Error::AlreadyExists { .. }) => "exists",
            Err(_) => "failed",
        };
        self.turn.note(&format!("{what} {path} {end}"));
        result
    }

    fn begin(&self, what: &str, path: Option<&ObjectPath>) {
        self.turn.wait(0);
        self.turn.note(&format!("{what} {}", path.map_or("", AsRef::as_ref)));
    }
}

impl fmt::Display for TurnStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TurnStore({})", self.inner)
    }
}

#[async_trait]
impl ObjectStore for TurnStore {
    async fn put_opts(
        &self,
        location: &ObjectPath,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        self.turn.wait(0);
        self.done("put", location, self.inner.put_opts(location, payload, opts).await)
    }

    async fn put_multipart_opts(
        &self,
        location: &ObjectPath,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.begin("upload", Some(location));
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &ObjectPath, options: GetOptions) -> Result<GetResult> {
        self.turn.wait(0);
        self.done("get", location, self.inner.get_opts(location, options).await)
    }

    async fn get_ranges(&self, location: &ObjectPath, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.begin("ranges", Some(location));
        self.inner.get_ranges(location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<ObjectPath>>,
    ) -> BoxStream<'static, Result<ObjectPath>> {
        self.begin("delete", None);
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.begin("list", prefix);
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&ObjectPath>) -> Result<ListResult> {
        self.begin("list right below", prefix);
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &ObjectPath, to: &ObjectPath, options: CopyOptions) -> Result<()> {
        self.begin("copy", Some(to));
        self.inner.copy_opts(from, to, options).await
    }
}
