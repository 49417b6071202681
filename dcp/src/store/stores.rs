//! From a location that a user wrote to a root.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use object_store::ObjectStore;
use object_store::memory::InMemory;
use object_store::prefix::PrefixStore;

use super::error::{Result, StoreError};
use super::local::LocalStore;
use super::location::{Bucket, Location, parse};
use super::name::object_path;
use super::root::Root;

/// Opens locations. It holds what `memory://` names stand for, so that two of these values never share anything: a process has
/// one, each test its own. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Stores {
    memory: Arc<Mutex<BTreeMap<String, Arc<InMemory>>>>,
    #[cfg(feature = "remote")]
    remote: super::remote::Settings,
}

impl Stores {
    /// No memory stores yet; credentials of buckets come from the environment of this process.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// See [`Root::open`].
    ///
    /// # Errors
    /// As [`Root::open`].
    pub fn open(&self, location: &str) -> Result<Root> {
        match parse(location)? {
            Location::Folder(folder) => LocalStore::open(&folder).map(Root::from_local),
            Location::Memory(name, below) => {
                let known = self.memory.lock().unwrap_or_else(PoisonError::into_inner).get(&name).cloned();
                let store = known.ok_or_else(|| StoreError::NotFound { path: location.to_owned() })?;
                memory_root(store, location, &below)
            }
            Location::Bucket(bucket) => {
                let root = self.bucket(&bucket, location)?;
                root.must_hold_something()?;
                Ok(root)
            }
        }
    }

    /// See [`Root::open_foreign`].
    ///
    /// # Errors
    /// As [`Root::open`].
    pub fn open_foreign(&self, location: &str) -> Result<Root> {
        match parse(location)? {
            Location::Folder(folder) => LocalStore::open_foreign(&folder).map(Root::from_local),
            Location::Memory(..) | Location::Bucket(_) => self.open(location),
        }
    }

    /// See [`Root::create`].
    ///
    /// # Errors
    /// As [`Root::create`].
    pub fn create(&self, location: &str) -> Result<Root> {
        let root = match parse(location)? {
            Location::Folder(folder) => LocalStore::create(&folder).map(Root::from_local)?,
            Location::Memory(name, below) => {
                let store = Arc::clone(
                    self.memory.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_default(),
                );
                memory_root(store, location, &below)?
            }
            Location::Bucket(bucket) => self.bucket(&bucket, location)?,
        };
        root.probe()?;
        Ok(root)
    }

    #[cfg(not(feature = "remote"))]
    #[expect(clippy::unused_self, reason = "builds with object stores have settings here")]
    fn bucket(&self, bucket: &Bucket, location: &str) -> Result<Root> {
        Err(not_built(bucket, location))
    }

    #[cfg(feature = "remote")]
    fn bucket(&self, bucket: &Bucket, location: &str) -> Result<Root> {
        super::remote::open(bucket, location.trim_end_matches('/'), &self.remote)
    }
}

#[cfg(feature = "remote")]
impl Stores {
    /// Takes credentials and endpoints of buckets from these variables instead of the environment of this process.
    #[must_use]
    pub fn with_environment<K, V>(mut self, variables: impl IntoIterator<Item = (K, V)>) -> Self
    where
        K: Into<String>,
        V: Into<String>,
    {
        self.remote.environment = super::remote::Environment::of(variables);
        self
    }

    /// How long to go on with a bucket that fails.
    #[must_use]
    pub const fn with_patience(mut self, patience: super::remote::Patience) -> Self {
        self.remote.patience = patience;
        self
    }
}

/// The refusal of a bucket that this build cannot reach.
#[cfg(not(all(feature = "s3", feature = "gcs", feature = "azure")))]
pub(super) fn not_built(bucket: &Bucket, location: &str) -> StoreError {
    let feature = bucket.kind.feature();
    StoreError::Unsupported {
        what: location.to_owned(),
        reason: format!(
            "this build does not have the feature `{feature}`; build it with `cargo build --release -p ckpt --features {feature}` \
             (`--features cloud` for all object stores), or copy the checkpoint to a local folder"
        ),
    }
}

/// The local path a location means, if it means one.
#[must_use]
pub fn local_path(location: &str) -> Option<PathBuf> {
    match parse(location) {
        Ok(Location::Folder(folder)) => Some(folder),
        _ => None,
    }
}

fn memory_root(store: Arc<InMemory>, location: &str, below: &str) -> Result<Root> {
    let store: Arc<dyn ObjectStore> = match below {
        "" => store,
        below => Arc::new(PrefixStore::new(store, object_path(below)?)),
    };
    Ok(Root::from_store(store, location))
}
