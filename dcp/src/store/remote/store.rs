//! A bucket as an [`ObjectStore`] that any thread can wait for, and whose errors say what landed.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt, TryStreamExt};
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use tokio::runtime::Handle;

use super::answer::{self, Create};
use super::reactor::Within;
use super::trace::Trace;
use super::upload::Upload;
use crate::store::name::ObjectPath;

/// The pauses between creates that met another request for the same name.
const CONFLICT_PAUSES: [u64; 5] = [20, 50, 100, 200, 400];

/// See the module.
#[derive(Debug)]
pub(super) struct Remote {
    inner: Arc<dyn ObjectStore>,
    place: Place,
}

/// Where calls run, and what users call the store.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) reactor: Handle,
    root: Arc<str>,
}

impl Place {
    /// A failure of an operation on an object, in our words.
    pub(super) fn error(
        &self,
        op: &'static str,
        location: Option<&ObjectPath>,
        error: Error,
        trace: &Trace,
    ) -> Error {
        match error {
            // Answers to a reader's own conditions.
            Error::NotModified { .. } | Error::Precondition { .. } => error,
            error => answer::of_call(op, &self.root, &self.name(location), error, &trace.answers())
                .into_object_store(),
        }
    }

    fn name(&self, location: Option<&ObjectPath>) -> String {
        location.map_or_else(|| self.root.to_string(), |location| format!("{}/{location}", self.root))
    }

    /// Runs a call.
    pub(super) async fn call<T>(
        &self,
        op: &'static str,
        location: Option<&ObjectPath>,
        call: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let trace = Trace::default();
        let done = Within::new(&self.reactor, &trace, call).await;
        done.map_err(|error| self.error(op, location, error, &trace))
    }

    /// Runs a call with many outcomes.
    fn stream<T: Send + 'static>(
        &self,
        op: &'static str,
        location: Option<ObjectPath>,
        stream: BoxStream<'static, Result<T>>,
    ) -> BoxStream<'static, Result<T>> {
        let (place, trace) = (self.clone(), Trace::default());
        let stream = Within::new(&self.reactor, &trace, stream);
        stream.map_err(move |error| place.error(op, location.as_ref(), error, &trace)).boxed()
    }
}

impl Remote {
    pub(super) fn new(inner: Arc<dyn ObjectStore>, reactor: Handle, root: &str) -> Self {
        Self { inner, place: Place { reactor, root: root.into() } }
    }

    async fn create(
        &self,
        location: &ObjectPath,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let (name, trace) = (self.place.name(Some(location)), Trace::default());
        let mut pauses = CONFLICT_PAUSES.into_iter();
        loop {
            let put = self.inner.put_opts(location, payload.clone(), opts.clone());
            let error = match Within::new(&self.place.reactor, &trace, put).await {
                Ok(done) => return Ok(done),
                Err(error @ (Error::NotImplemented { .. } | Error::NotSupported { .. })) => {
                    return Err(error);
                }
                Err(error) => error,
            };
            let failed = match answer::of_create(&self.place.root, &name, error, &trace.answers()) {
                Create::Failed(failed) => return Err(failed.into_object_store()),
                Create::Conflict(failed) => failed,
            };
            let Some(pause) = pauses.next() else { return Err(failed.into_object_store()) };
            let pause = async { tokio::time::sleep(Duration::from_millis(pause)).await };
            Within::new(&self.place.reactor, &trace, pause).await;
        }
    }
}

#[async_trait]
impl ObjectStore for Remote {
    async fn put_opts(
        &self,
        location: &ObjectPath,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        match opts.mode {
            PutMode::Create => self.create(location, payload, opts).await,
            _ => self.place.call("write", Some(location), self.inner.put_opts(location, payload, opts)).await,
        }
    }

    async fn put_multipart_opts(
        &self,
        location: &ObjectPath,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let begun = self.inner.put_multipart_opts(location, opts);
        let inner = self.place.call("begin to write", Some(location), begun).await?;
        Ok(Box::new(Upload::new(inner, self.place.clone(), location.clone())))
    }

    async fn get_opts(&self, location: &ObjectPath, options: GetOptions) -> Result<GetResult> {
        let got = self.place.call("read", Some(location), self.inner.get_opts(location, options)).await?;
        let (meta, range) = (got.meta.clone(), got.range.clone());
        let (attributes, extensions) = (got.attributes.clone(), got.extensions.clone());
        let stream = self.place.stream("read", Some(location.clone()), got.into_stream());
        Ok(GetResult { payload: GetResultPayload::Stream(stream), meta, range, attributes, extensions })
    }

    async fn get_ranges(&self, location: &ObjectPath, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.place.call("read", Some(location), self.inner.get_ranges(location, ranges)).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<ObjectPath>>,
    ) -> BoxStream<'static, Result<ObjectPath>> {
        self.place.stream("delete", None, self.inner.delete_stream(locations))
    }

    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.place.stream("list", prefix.cloned(), self.inner.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&ObjectPath>,
        offset: &ObjectPath,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        // Not every server that speaks the protocol knows where to begin; what it lists too early is left out.
        let after = offset.clone();
        let listed = self.inner.list_with_offset(prefix, offset);
        let listed = listed.try_filter(move |meta| std::future::ready(meta.location > after)).boxed();
        self.place.stream("list", prefix.cloned(), listed)
    }

    async fn list_with_delimiter(&self, prefix: Option<&ObjectPath>) -> Result<ListResult> {
        self.place.call("list", prefix, self.inner.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &ObjectPath, to: &ObjectPath, options: CopyOptions) -> Result<()> {
        self.place.call("copy", Some(from), self.inner.copy_opts(from, to, options)).await
    }
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place.root)
    }
}
