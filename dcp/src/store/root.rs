//! A root: the synchronous view of a store that the whole suite uses.
//!
//! A folder is read and written directly; any other store through `object_store`, each call driven to its end on the calling
//! thread. So no function here may be called from within an async task; where that would stop the task's thread, it is an error.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use futures::FutureExt;
use futures::stream::{self, StreamExt, TryStreamExt};
use object_store::{GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode};

use super::blob::{BlobWriter, PartsWriter};
use super::error::{Result, StoreError};
use super::local::{Listed, LocalStore, etag};
use super::name::{ObjectPath, PROBE, check_path, object_path};
use super::nonce::{Nonces, OsNonces};
use super::object_at::ObjectAt;
use super::stores::Stores;
use super::waiter::Waiter;

/// Where checkpoints live: a folder, or a prefix of any object store. Clones share it.
#[derive(Clone)]
pub struct Root {
    store: Arc<dyn ObjectStore>,
    /// The same store, where it is a folder of this machine.
    local: Option<LocalStore>,
    waiter: Waiter,
    name: Arc<str>,
}

/// How often a store may say that a name is taken, while nothing is there, before that is an error.
const FALSE_CONFLICTS: u32 = 4;

/// What became of a create.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use = "a create that found the name taken wrote nothing"]
pub enum Put {
    /// The object is there, durably, and it is this one.
    Created,
    /// The name was taken. It may have been taken by an earlier try of this very call.
    Exists,
}

/// What is known about an object without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its name below the root.
    pub path: ObjectPath,
    /// Its length in bytes.
    pub size: u64,
    /// When it was written, by the clock of the store.
    pub modified: SystemTime,
    /// Changes whenever the object does.
    pub etag: Option<String>,
}

/// What lies right below a prefix.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// The objects, sorted by name.
    pub objects: Vec<ObjectInfo>,
    /// The directories, sorted by name.
    pub dirs: Vec<ObjectPath>,
}

impl Root {
    /// Opens what is there: a path, `file://…`, `memory://name`, or, in builds that have them, `s3://bucket/prefix`, `gs://…`, `az://…`.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when there is nothing (a prefix without objects is nothing), [`StoreError::NoBucket`], [`StoreError::Unsupported`] for stores that this build cannot reach, and what
    /// the store says.
    pub fn open(location: &str, stores: &Stores) -> Result<Self> {
        stores.open(location)
    }

    /// Opens a folder of others, to read it: symbolic links are followed, as caches of model hubs need it. Nothing can be written.
    ///
    /// # Errors
    /// As [`Root::open`].
    pub fn open_foreign(location: &str, stores: &Stores) -> Result<Self> {
        stores.open_foreign(location)
    }

    /// Opens a place to write to, made where it is missing, and probes it (see [`Root::probe`]). What is there already stays.
    ///
    /// # Errors
    /// As [`Root::open`] and [`Root::probe`].
    pub fn create(location: &str, stores: &Stores) -> Result<Self> {
        stores.create(location)
    }

    /// Opens the folder of a single file of others, to read it: the root, and the name of the file in it.
    ///
    /// # Errors
    /// As [`Root::open`]; the file itself is not looked at.
    pub fn open_foreign_file(file: &Path) -> Result<(Self, ObjectPath)> {
        let name = file.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| StoreError::Refused {
            path: file.display().to_string(),
            reason: "it is not the name of a file".to_owned(),
        })?;
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok((Self::from_local(LocalStore::open_foreign(folder)?), object_path(name)?))
    }

    /// The root of a folder.
    #[must_use]
    pub fn from_local(local: LocalStore) -> Self {
        let (name, store) = (local.name().into(), Arc::new(local.clone()));
        Self { name, store, local: Some(local), waiter: Waiter::Inside }
    }

    /// The root of any store; `name` is what users call it.
    #[must_use]
    pub fn from_store(store: Arc<dyn ObjectStore>, name: &str) -> Self {
        Self { store, local: None, waiter: Waiter::Inside, name: name.into() }
    }

    /// The root of a store behind a network.
    #[cfg(feature = "remote")]
    pub(super) fn from_remote(store: Arc<dyn ObjectStore>, name: &str) -> Self {
        Self { store, local: None, waiter: Waiter::Network, name: name.into() }
    }

    /// What users call it.
    #[must_use]
    pub fn display_name(&self) -> &str {
        &self.name
    }

    /// Whether a call waits for the network.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.waiter != Waiter::Inside
    }

    /// The name of an object with that of the root, for messages.
    #[must_use]
    pub fn full_name(&self, path: &ObjectPath) -> String {
        format!("{}/{path}", self.name.trim_end_matches('/')).trim_end_matches('/').to_owned()
    }

    /// The folder, where it is one.
    #[must_use]
    pub const fn local(&self) -> Option<&LocalStore> {
        self.local.as_ref()
    }

    /// The store below.
    #[must_use]
    pub fn object_store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    /// All bytes of an object.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], and what the store says.
    pub fn get(&self, path: &ObjectPath) -> Result<Bytes> {
        self.get_at_most(path, u64::MAX).map(|(bytes, _)| bytes)
    }

    /// All bytes of an object, if there is one.
    ///
    /// # Errors
    /// What the store says.
    pub fn get_opt(&self, path: &ObjectPath) -> Result<Option<Bytes>> {
        found(self.get(path))
    }

    /// All bytes of an object that may have at most `limit`, with what is known about it. Nothing is allocated for a larger one.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::TooLarge`], and what the store says.
    pub fn get_at_most(&self, path: &ObjectPath, limit: u64) -> Result<(Bytes, ObjectInfo)> {
        let got = self
            .waiter
            .wait(self.store.get_opts(self.check(path)?, GetOptions::default()))
            .map_err(self.error("read", path))?;
        let info = info(got.meta.clone());
        if info.size > limit {
            return Err(StoreError::TooLarge { path: self.full_name(path), size: info.size, limit });
        }
        let bytes = self.waiter.wait(got.bytes()).map_err(self.error("read", path))?;
        if bytes.len() as u64 != info.size {
            return Err(StoreError::OutOfRange {
                path: self.full_name(path),
                range: 0..info.size,
                size: bytes.len() as u64,
            });
        }
        Ok((bytes, info))
    }

    /// Exactly these bytes of an object. A range that ends beyond the object is refused before anything is allocated for it.
    ///
    /// # Errors
    /// [`StoreError::OutOfRange`], [`StoreError::NotFound`], and what the store says.
    pub fn get_range(&self, path: &ObjectPath, range: Range<u64>) -> Result<Bytes> {
        if let Some(local) = &self.local {
            let size = local.size(path)?;
            let len = range
                .end
                .checked_sub(range.start)
                .filter(|_| range.end <= size)
                .and_then(|len| usize::try_from(len).ok());
            let len = len.ok_or_else(|| StoreError::OutOfRange {
                path: self.full_name(path),
                range: range.clone(),
                size,
            })?;
            let mut buf = vec![0; len];
            local.read_exact_at(path, range.start, &mut buf)?;
            return Ok(buf.into());
        }
        self.get_remote_range(path, &range)
    }

    fn get_remote_range(&self, path: &ObjectPath, range: &Range<u64>) -> Result<Bytes> {
        let out = |size| StoreError::OutOfRange { path: self.full_name(path), range: range.clone(), size };
        // Stores cut a range that ends too late, and refuse one that is empty or begins too late, each in its own words.
        if range.start >= range.end {
            let size = self.head(path)?.size;
            return if range.start == range.end && range.end <= size {
                Ok(Bytes::new())
            } else {
                Err(out(size))
            };
        }
        match self.waiter.wait(self.store.get_range(self.check(path)?, range.clone())) {
            Ok(bytes) if bytes.len() as u64 == range.end - range.start => Ok(bytes),
            Ok(_) => Err(out(self.head(path)?.size)),
            Err(error) => match self.error("read", path)(error) {
                StoreError::Io { .. } if self.head(path).is_ok_and(|info| info.size < range.end) => {
                    Err(out(self.head(path)?.size))
                }
                other => Err(other),
            },
        }
    }

    /// Reads exactly `buf.len()` bytes at an offset; for a folder straight into `buf`, through a cache of open files.
    ///
    /// # Errors
    /// [`StoreError::OutOfRange`], [`StoreError::NotFound`], and what the store says.
    pub fn read_exact_at(&self, path: &ObjectPath, offset: u64, buf: &mut [u8]) -> Result<()> {
        if let Some(local) = &self.local {
            return local.read_exact_at(path, offset, buf);
        }
        let bytes = self.get_remote_range(path, &(offset..offset.saturating_add(buf.len() as u64)))?;
        buf.copy_from_slice(&bytes);
        Ok(())
    }

    /// An object as random-access bytes, for the readers of formats.
    ///
    /// # Errors
    /// As [`Root::head`].
    pub fn reader(&self, path: &ObjectPath) -> Result<ObjectAt> {
        Ok(ObjectAt::new(self.clone(), path.clone(), self.head(path)?.size))
    }

    /// What is known about an object.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], and what the store says.
    pub fn head(&self, path: &ObjectPath) -> Result<ObjectInfo> {
        if let Some(local) = &self.local {
            return local.stat(path).map(|stat| local_info(Listed { path: path.clone(), stat }));
        }
        self.waiter.wait(self.store.head(self.check(path)?)).map(info).map_err(self.error("look up", path))
    }

    /// All objects below a prefix, sorted by name. A hint only: a store may list late.
    ///
    /// # Errors
    /// What the store says.
    pub fn list(&self, prefix: Option<&ObjectPath>) -> Result<Vec<ObjectInfo>> {
        if let Some(local) = &self.local {
            return Ok(local.list_sorted(prefix)?.into_iter().map(local_info).collect());
        }
        let listed = self.waiter.wait(self.store.list(prefix).map_ok(info).try_collect::<Vec<_>>());
        let mut listed = listed.map_err(self.error("list", prefix.unwrap_or(&ObjectPath::ROOT)))?;
        listed.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(listed)
    }

    /// What lies right below a prefix, sorted by name. A hint only, as [`Root::list`].
    ///
    /// # Errors
    /// What the store says.
    pub fn list_dir(&self, prefix: Option<&ObjectPath>) -> Result<Listing> {
        if let Some(local) = &self.local {
            let (objects, mut dirs) = local.list_dir(prefix)?;
            // A folder lists in the order of whole names, in which `a-b/x` comes before `a/x`.
            dirs.sort();
            return Ok(Listing { objects: objects.into_iter().map(local_info).collect(), dirs });
        }
        let listed = self.waiter.wait(self.store.list_with_delimiter(prefix));
        let listed = listed.map_err(self.error("list", prefix.unwrap_or(&ObjectPath::ROOT)))?;
        let mut listing =
            Listing { objects: listed.objects.into_iter().map(info).collect(), dirs: listed.common_prefixes };
        listing.objects.sort_by(|a, b| a.path.cmp(&b.path));
        listing.dirs.sort();
        Ok(listing)
    }

    /// Creates an object, durably, unless its name is taken.
    ///
    /// # Errors
    /// What the store says. Where [`StoreError::may_have_landed`] holds, the object may be there all the same.
    pub fn put_create(&self, path: &ObjectPath, bytes: Bytes) -> Result<Put> {
        let put = match &self.local {
            Some(local) => local.put_new(path, [bytes.as_ref()]),
            None => self
                .waiter
                .wait(self.store.put_opts(self.check(path)?, bytes.into(), PutMode::Create.into()))
                .map(drop)
                .map_err(self.error("create", path)),
        };
        match put {
            Ok(()) => Ok(Put::Created),
            Err(StoreError::AlreadyExists { .. }) => Ok(Put::Exists),
            Err(error) => Err(error),
        }
    }

    /// Writes an object in place of what is there. Nothing of a root is written so but the head hint.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) fn put_over(&self, path: &ObjectPath, bytes: Bytes) -> Result<()> {
        match &self.local {
            Some(local) => local.put_over(path, [bytes.as_ref()]),
            None => self
                .waiter
                .wait(self.store.put(self.check(path)?, bytes.into()))
                .map(drop)
                .map_err(self.error("write", path)),
        }
    }

    /// Creates an object whose name stands for its content (a digest or a nonce is in it): that the same bytes are there already is
    /// success, whoever put them, once they are durable. An answer that was lost is looked up.
    ///
    /// # Errors
    /// [`StoreError::AlreadyExists`] when other bytes are there, and what the store says.
    #[expect(clippy::needless_pass_by_value, reason = "as `put_create`; cloning such bytes copies nothing")]
    pub fn put_same(&self, path: &ObjectPath, bytes: Bytes) -> Result<()> {
        for _ in 1..FALSE_CONFLICTS {
            match self.put_same_once(path, &bytes) {
                Err(StoreError::NotFound { .. }) => {}
                done => return done,
            }
        }
        self.put_same_once(path, &bytes).map_err(|error| match error {
            StoreError::NotFound { path } => StoreError::Io {
                path,
                op: "create",
                source: "the store says that the name is taken, and that nothing is there".into(),
            },
            other => other,
        })
    }

    fn put_same_once(&self, path: &ObjectPath, bytes: &Bytes) -> Result<()> {
        match self.put_create(path, bytes.clone()) {
            Ok(Put::Created) => return Ok(()),
            Ok(Put::Exists) => {}
            Err(error @ StoreError::NotDurable { .. }) => return Err(error),
            Err(error) if !error.may_have_landed() => return Err(error),
            Err(error) => {
                if self.head(path).is_err() {
                    return Err(error);
                }
            }
        }
        let same = match self.get_at_most(path, bytes.len() as u64) {
            Ok((there, _)) => there == bytes,
            Err(StoreError::TooLarge { .. }) => false,
            Err(error) => return Err(error),
        };
        if same { self.settle(path) } else { Err(StoreError::AlreadyExists { path: self.full_name(path) }) }
    }

    /// Makes durable what is visible already, after an answer was lost. Stores other than folders make visible only what is durable.
    ///
    /// # Errors
    /// [`StoreError::NotDurable`] when the system would not confirm.
    pub fn settle(&self, path: &ObjectPath) -> Result<()> {
        self.local.as_ref().map_or(Ok(()), |local| local.settle(path))
    }

    /// Begins a blob of known size. Its name should hold a nonce: see [`BlobWriter`].
    ///
    /// # Errors
    /// [`StoreError::AlreadyExists`] when the name is taken, and what the store says.
    pub fn blob(&self, path: &ObjectPath, size: u64) -> Result<Box<dyn BlobWriter>> {
        if let Some(local) = &self.local {
            return local.blob(path, size);
        }
        let writer = PartsWriter::new(
            Arc::clone(&self.store),
            self.waiter,
            self.check(path)?.clone(),
            self.full_name(path),
            size,
        );
        Ok(Box::new(writer))
    }

    /// Begins a blob of at most `most` bytes, to be finished by [`BlobWriter::finish_at`].
    ///
    /// # Errors
    /// As [`Self::blob`].
    pub fn blob_up_to(&self, path: &ObjectPath, most: u64) -> Result<Box<dyn BlobWriter>> {
        match &self.local {
            Some(local) => local.blob_up_to(path, most),
            None => self.blob(path, most),
        }
    }

    /// Deletes an object. Only garbage collection has reason to.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] (where the store tells), and what it says.
    pub fn delete(&self, path: &ObjectPath) -> Result<()> {
        if let Some(local) = &self.local {
            return local.remove(path);
        }
        self.waiter.wait(self.store.delete(self.check(path)?)).map_err(self.error("delete", path))
    }

    /// Deletes every object below a prefix; returns the bytes that they had. Only garbage collection has reason to.
    ///
    /// # Errors
    /// What the store says.
    pub fn delete_all(&self, prefix: &ObjectPath) -> Result<u64> {
        if let Some(local) = &self.local {
            return local.remove_all(prefix);
        }
        let listed = self.list(Some(prefix))?;
        let sizes: BTreeMap<_, _> = listed.into_iter().map(|object| (object.path, object.size)).collect();
        // Stores that can take many names in one request.
        let names: Vec<_> = sizes.keys().cloned().map(Ok).collect();
        let deleted =
            self.store.delete_stream(stream::iter(names).boxed()).filter_map(async |deleted| match deleted {
                // Another was faster.
                Err(object_store::Error::NotFound { .. }) => None,
                other => Some(other),
            });
        let deleted =
            self.waiter.wait(deleted.try_collect::<Vec<_>>()).map_err(self.error("delete", prefix))?;
        Ok(deleted.iter().filter_map(|path| sizes.get(path)).sum())
    }

    /// One look at the listing: a prefix of a bucket exists by the objects below it.
    pub(super) fn must_hold_something(&self) -> Result<()> {
        let first = self.waiter.wait(self.store.list(None).into_future().map(|(first, _)| first.transpose()));
        match first.map_err(self.error("open", &ObjectPath::ROOT))? {
            Some(_) => Ok(()),
            None => Err(StoreError::NotFound { path: self.name.to_string() }),
        }
    }

    /// Creates one object twice. A store that accepts both cannot hold a commit log.
    ///
    /// # Errors
    /// [`StoreError::UnsafeStore`] when it does, [`StoreError::Unsupported`] when a folder is on a file system without hard links, and
    /// what the store says.
    pub fn probe(&self) -> Result<()> {
        let path = object_path(&format!("{PROBE}{}", OsNonces.draw()?))?;
        // A first create that finds its own bytes has landed: its answer may have been lost below.
        let first = self.put_same(&path, Bytes::from_static(b"first"));
        let second = first.and_then(|()| self.put_create(&path, Bytes::from_static(b"second")));
        let content = self.get(&path);
        drop(self.delete(&path));
        match (second?, content?.as_ref()) {
            (Put::Exists, b"first") => Ok(()),
            _ => Err(StoreError::UnsafeStore { root: self.name.to_string() }),
        }
    }

    fn check<'p>(&self, path: &'p ObjectPath) -> Result<&'p ObjectPath> {
        check_path(path).map(|_| path)
    }

    fn error(&self, op: &'static str, path: &ObjectPath) -> impl FnOnce(object_store::Error) -> StoreError {
        let name = self.full_name(path);
        move |error| StoreError::from_store(op, &name, error)
    }
}

impl fmt::Debug for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Root").field(&self.name).finish()
    }
}

/// Turns "not found" into nothing.
pub(crate) fn found<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(StoreError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn info(meta: ObjectMeta) -> ObjectInfo {
    ObjectInfo { path: meta.location, size: meta.size, modified: meta.last_modified.into(), etag: meta.e_tag }
}

fn local_info(listed: Listed) -> ObjectInfo {
    let Listed { path, stat } = listed;
    ObjectInfo { path, size: stat.size, modified: stat.modified, etag: Some(etag(&stat)) }
}

#[cfg(test)]
mod tests;
