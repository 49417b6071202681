//! A store over another one: [`Over`] passes every call on, through a [`Layer`] that looks at it, fails it, or answers in another way. So
//! who tests with a store that counts, fails or waits writes down that and nothing else.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use super::name::ObjectPath;

/// What a store is asked for.
#[derive(Debug, Clone, Copy)]
pub enum Call<'c> {
    /// A put, of whatever mode.
    Put(&'c ObjectPath),
    /// The beginning of an upload in parts.
    Upload(&'c ObjectPath),
    /// What is known about an object.
    Head(&'c ObjectPath),
    /// An object, or a range of it.
    Get(&'c ObjectPath),
    /// So many ranges of an object.
    Ranges(&'c ObjectPath, usize),
    /// A deletion of some objects.
    Delete,
    /// All objects below a prefix.
    List(Option<&'c ObjectPath>),
    /// What lies right below a prefix.
    ListBelow(Option<&'c ObjectPath>),
    /// A copy, to this name.
    Copy(&'c ObjectPath),
}

/// What is done about the calls of a store.
#[async_trait]
pub trait Layer: fmt::Debug + Send + Sync + 'static {
    /// What it is called in messages.
    const NAME: &'static str;

    /// The store below.
    fn inner(&self) -> &Arc<dyn ObjectStore>;

    /// Comes before each call; an error is the answer to it.
    ///
    /// # Errors
    /// What the layer likes.
    fn before(&self, _: Call<'_>) -> Result<()> {
        Ok(())
    }

    /// See [`ObjectStore::put_opts`].
    async fn put_opts(
        &self,
        location: &ObjectPath,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        self.inner().put_opts(location, payload, opts).await
    }

    /// See [`ObjectStore::put_multipart_opts`].
    async fn put_multipart_opts(
        &self,
        location: &ObjectPath,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner().put_multipart_opts(location, opts).await
    }

    /// See [`ObjectStore::get_opts`].
    async fn get_opts(&self, location: &ObjectPath, options: GetOptions) -> Result<GetResult> {
        self.inner().get_opts(location, options).await
    }

    /// See [`ObjectStore::delete_stream`].
    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<ObjectPath>>,
    ) -> BoxStream<'static, Result<ObjectPath>> {
        self.inner().delete_stream(locations)
    }

    /// See [`ObjectStore::list`].
    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner().list(prefix)
    }
}

/// A store over another one. It is its layer, too.
#[derive(Debug)]
pub struct Over<L>(L);

impl<L: Layer> Over<L> {
    /// The store below a layer, as the layer has it.
    pub const fn layered(layer: L) -> Self {
        Self(layer)
    }
}

impl<L> Deref for Over<L> {
    type Target = L;

    fn deref(&self) -> &L {
        &self.0
    }
}

impl<L: Layer> fmt::Display for Over<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", L::NAME, self.0.inner())
    }
}

/// A stream that is only an error.
fn failed<T: Send + 'static>(error: object_store::Error) -> BoxStream<'static, Result<T>> {
    stream::once(std::future::ready(Err(error))).boxed()
}

#[async_trait]
impl<L: Layer> ObjectStore for Over<L> {
    async fn put_opts(
        &self,
        location: &ObjectPath,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        self.0.before(Call::Put(location))?;
        self.0.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        location: &ObjectPath,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.0.before(Call::Upload(location))?;
        self.0.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &ObjectPath, options: GetOptions) -> Result<GetResult> {
        self.0.before(if options.head { Call::Head(location) } else { Call::Get(location) })?;
        self.0.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &ObjectPath, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.0.before(Call::Ranges(location, ranges.len()))?;
        self.0.inner().get_ranges(location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<ObjectPath>>,
    ) -> BoxStream<'static, Result<ObjectPath>> {
        match self.0.before(Call::Delete) {
            Ok(()) => self.0.delete_stream(locations),
            Err(error) => failed(error),
        }
    }

    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.0.before(Call::List(prefix)) {
            Ok(()) => self.0.list(prefix),
            Err(error) => failed(error),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&ObjectPath>) -> Result<ListResult> {
        self.0.before(Call::ListBelow(prefix))?;
        self.0.inner().list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &ObjectPath, to: &ObjectPath, options: CopyOptions) -> Result<()> {
        self.0.before(Call::Copy(to))?;
        self.0.inner().copy_opts(from, to, options).await
    }
}
