//! `LocalStore` in the terms of the `object_store` crate. The functions block; see the module above.

use std::future::ready;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use object_store::{
    CopyMode, CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
    UploadPart,
};

use super::super::error::StoreError;
use super::super::fs::{FileStat, FsFile, read_full};
use super::super::name::{ObjectPath, check_path};
use super::super::staging::Staging;
use super::{Listed, LocalStore};

/// How much a stream reads at once.
const CHUNK: u64 = 1 << 20;

#[async_trait]
impl ObjectStore for LocalStore {
    async fn put_opts(
        &self,
        location: &ObjectPath,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let data = payload.iter().map(AsRef::as_ref);
        match opts.mode {
            PutMode::Create => self.put_new(location, data),
            PutMode::Overwrite => self.put_over(location, data),
            PutMode::Update(_) => return Err(not_implemented("put with PutMode::Update")),
        }
        .map_err(StoreError::into_object_store)?;
        self.put_result(location)
    }

    async fn put_multipart_opts(
        &self,
        location: &ObjectPath,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let begun = check_path(location).and_then(|name| {
            self.inner.writable(name)?;
            Staging::begin(&self.inner, name)
        });
        let staging = begun.map_err(StoreError::into_object_store)?;
        let upload = Upload {
            store: self.clone(),
            location: location.clone(),
            staging: Some(Arc::new(staging)),
            end: 0,
            failed: Arc::default(),
        };
        Ok(Box::new(upload))
    }

    async fn get_opts(&self, location: &ObjectPath, options: GetOptions) -> Result<GetResult> {
        let file = self.open_file(location).map_err(StoreError::into_object_store)?;
        let stat = file.stat().map_err(|error| self.generic("look up", location, error))?;
        let meta = meta(&Listed { path: location.clone(), stat });
        options.check_preconditions(&meta)?;
        if options.version.is_some() {
            return Err(not_implemented("get of an old version"));
        }
        let range = match options.range {
            None => 0..meta.size,
            Some(range) => range
                .as_range(meta.size)
                .map_err(|error| Error::Generic { store: "LocalStore", source: error.into() })?,
        };
        let read = if options.head { 0..0 } else { range.clone() };
        let payload = GetResultPayload::Stream(self.stream(file, location.clone(), read));
        Ok(GetResult { payload, meta, range, attributes: Default::default(), extensions: Default::default() })
    }

    async fn get_ranges(&self, location: &ObjectPath, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let file = self.open_file(location).map_err(StoreError::into_object_store)?;
        ranges.iter().map(|range| self.read(file.as_ref(), location, range.clone())).collect()
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<ObjectPath>>,
    ) -> BoxStream<'static, Result<ObjectPath>> {
        let store = self.clone();
        let delete = move |location: Result<ObjectPath>| {
            let location = location?;
            store.remove(&location).map_err(StoreError::into_object_store)?;
            Ok(location)
        };
        locations.map(delete).boxed()
    }

    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.list_sorted(prefix) {
            Ok(found) => stream::iter(found).map(|listed| Ok(meta(&listed))).boxed(),
            Err(error) => stream::once(ready(Err(error.into_object_store()))).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&ObjectPath>) -> Result<ListResult> {
        let (objects, common_prefixes) = self.list_dir(prefix).map_err(StoreError::into_object_store)?;
        Ok(ListResult {
            common_prefixes,
            objects: objects.iter().map(meta).collect(),
            extensions: Default::default(),
        })
    }

    async fn copy_opts(&self, from: &ObjectPath, to: &ObjectPath, options: CopyOptions) -> Result<()> {
        let file = self.open_file(from).map_err(StoreError::into_object_store)?;
        let size = file.stat().map_err(|error| self.generic("look up", from, error))?.size;
        let begun = check_path(to).and_then(|to| self.staged(to, []));
        let staging = begun.map_err(StoreError::into_object_store)?;
        let mut offset = 0;
        while offset < size {
            let piece = self.read(file.as_ref(), from, offset..size.min(offset + CHUNK))?;
            staging.write_at(&piece, offset).map_err(StoreError::into_object_store)?;
            offset += piece.len() as u64;
        }
        let published = match options.mode {
            CopyMode::Create => staging.publish_new(),
            CopyMode::Overwrite => staging.publish_over(),
        };
        self.inner.open.forget(to.as_ref());
        published.map_err(StoreError::into_object_store)
    }
}

impl LocalStore {
    fn put_result(&self, location: &ObjectPath) -> Result<PutResult> {
        let stat = self.stat(location).map_err(StoreError::into_object_store)?;
        Ok(PutResult { e_tag: Some(etag(&stat)), version: None, extensions: Default::default() })
    }

    fn generic(&self, op: &'static str, location: &ObjectPath, error: io::Error) -> Error {
        self.inner.error(op, location.as_ref(), error).into_object_store()
    }

    fn stream(
        &self,
        file: Arc<dyn FsFile>,
        location: ObjectPath,
        range: Range<u64>,
    ) -> BoxStream<'static, Result<Bytes>> {
        let store = self.clone();
        stream::try_unfold(range, move |left| {
            let chunk = left.start..left.end.min(left.start.saturating_add(CHUNK));
            let next = if chunk.is_empty() {
                Ok(None)
            } else {
                let rest = chunk.end..left.end;
                store.read(file.as_ref(), &location, chunk).map(|bytes| Some((bytes, rest)))
            };
            ready(next)
        })
        .boxed()
    }

    /// Reads a range that ends within the file, or says that it does not.
    fn read(&self, file: &dyn FsFile, location: &ObjectPath, range: Range<u64>) -> Result<Bytes> {
        let stat = file.stat().map_err(|error| self.generic("look up", location, error))?;
        let cut = || StoreError::OutOfRange {
            path: self.inner.full(location.as_ref()),
            range: range.clone(),
            size: stat.size,
        };
        let len = range.end.checked_sub(range.start).filter(|_| range.end <= stat.size);
        let len = len.and_then(|len| usize::try_from(len).ok()).ok_or_else(|| cut().into_object_store())?;
        let mut buf = vec![0; len];
        match read_full(file, &mut buf, range.start) {
            Ok(n) if n == len => Ok(buf.into()),
            Ok(_) => Err(cut().into_object_store()),
            Err(error) => Err(self.generic("read", location, error)),
        }
    }
}

/// An upload in parts: the parts follow each other in the order in which they were handed over.
#[derive(Debug)]
struct Upload {
    store: LocalStore,
    location: ObjectPath,
    staging: Option<Arc<Staging>>,
    end: u64,
    /// Whether a part failed, or was never polled to its end.
    failed: Arc<Mutex<Pending>>,
}

#[derive(Debug, Default)]
struct Pending {
    handed_over: u64,
    written: u64,
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (start, staging, pending) = (self.end, self.staging.clone(), Arc::clone(&self.failed));
        self.end += data.content_length() as u64;
        pending.lock().unwrap_or_else(PoisonError::into_inner).handed_over += 1;
        Box::pin(async move {
            let staging = staging.ok_or_else(ended)?;
            let mut offset = start;
            for piece in &data {
                staging.write_at(piece, offset).map_err(StoreError::into_object_store)?;
                offset += piece.len() as u64;
            }
            pending.lock().unwrap_or_else(PoisonError::into_inner).written += 1;
            Ok(())
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        {
            let pending = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
            if pending.handed_over != pending.written {
                return Err(Error::Generic {
                    store: "LocalStore",
                    source: "an upload was completed before its parts were".into(),
                });
            }
        }
        let staging = self.staging.take().and_then(Arc::into_inner).ok_or_else(ended)?;
        let published = staging.publish_over();
        self.store.inner.open.forget(self.location.as_ref());
        published.map_err(StoreError::into_object_store)?;
        self.store.put_result(&self.location)
    }

    async fn abort(&mut self) -> Result<()> {
        self.staging = None;
        Ok(())
    }
}

fn ended() -> Error {
    Error::Generic {
        store: "LocalStore",
        source: "the upload has ended, or one of its parts is still being written".into(),
    }
}

fn not_implemented(operation: &str) -> Error {
    Error::NotImplemented { operation: operation.to_owned(), implementer: "LocalStore".to_owned() }
}

fn meta(listed: &Listed) -> ObjectMeta {
    ObjectMeta {
        location: listed.path.clone(),
        last_modified: listed.stat.modified.into(),
        size: listed.stat.size,
        e_tag: Some(etag(&listed.stat)),
        version: None,
    }
}

/// Changes when the file is replaced, or written in place by someone else.
pub(in super::super) fn etag(stat: &FileStat) -> String {
    let age = stat.modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("\"{:x}-{:x}-{:x}\"", stat.inode, age.as_nanos(), stat.size)
}
