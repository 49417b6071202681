//! From a location that a user wrote to a root.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use object_store::ObjectStore;
use object_store::memory::InMemory;
use object_store::prefix::PrefixStore;
use url::Url;

use super::error::{Result, StoreError};
use super::local::LocalStore;
use super::name::object_path;
use super::root::Root;

/// Opens locations. It holds what `memory://` names stand for, so that two of these values never share anything: a process has
/// one, each test its own. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Stores {
    memory: Arc<Mutex<BTreeMap<String, Arc<InMemory>>>>,
}

/// What a location says.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Location {
    Folder(PathBuf),
    /// A store in memory, and a path within it.
    Memory(String, String),
}

impl Stores {
    /// No memory stores yet.
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
        }
    }

    /// See [`Root::open_foreign`].
    ///
    /// # Errors
    /// As [`Root::open`].
    pub fn open_foreign(&self, location: &str) -> Result<Root> {
        match parse(location)? {
            Location::Folder(folder) => LocalStore::open_foreign(&folder).map(Root::from_local),
            Location::Memory(..) => self.open(location),
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
        };
        root.probe()?;
        Ok(root)
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

/// A location with `scheme://` is a URL; anything else is a path, whatever characters it has.
fn parse(location: &str) -> Result<Location> {
    let Some((scheme, rest)) = location.split_once("://").filter(|(scheme, _)| is_scheme(scheme)) else {
        return folder(location, Path::new(location));
    };
    match scheme.to_ascii_lowercase().as_str() {
        "memory" => {
            let (name, below) = rest.split_once('/').unwrap_or((rest, ""));
            let below = below.trim_end_matches('/');
            if name.is_empty() {
                return Err(refused(location, "a memory store needs a name: `memory://name`"));
            }
            Ok(Location::Memory(name.to_owned(), below.to_owned()))
        }
        "file" => {
            let url = Url::parse(location).map_err(|error| refused(location, &error.to_string()))?;
            let path = url
                .to_file_path()
                .map_err(|()| refused(location, "a file URL needs an absolute path and no host"))?;
            folder(location, &path)
        }
        "s3" | "s3a" | "gs" | "az" | "abfs" | "abfss" | "http" | "https" => Err(StoreError::Unsupported {
            what: location.to_owned(),
            reason: "this build has no support for remote stores; copy the checkpoint to a local folder"
                .to_owned(),
        }),
        _ => Err(StoreError::Unsupported {
            what: location.to_owned(),
            reason: format!("{scheme:?} is not a kind of store; give a path, file:// or memory://"),
        }),
    }
}

fn folder(location: &str, path: &Path) -> Result<Location> {
    match path.to_str() {
        Some("") | None => Err(refused(location, "the path is empty")),
        Some(text) if text.contains('\0') => Err(refused(location, "the path has a NUL character")),
        Some(_) => Ok(Location::Folder(path.to_owned())),
    }
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

fn refused(location: &str, reason: &str) -> StoreError {
    StoreError::Refused { path: location.escape_debug().to_string(), reason: reason.to_owned() }
}
