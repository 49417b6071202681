//! Where copies go: a folder, or a bucket in memory; written to as the tools write, not through the store.

use dcp::store::{Root, Stores, object_path};
use futures::executor::block_on;
use object_store::{ObjectStore as _, PutOptions};

use super::order::lay_out;
use super::scene::State;
use crate::training::{Outcome, location, scratch};

/// The target of a copy, and what lies in it.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) stores: Stores,
    pub(super) location: String,
    /// As tools see it; temporary names included.
    pub(super) state: State,
    folder: Option<tempfile::TempDir>,
}

impl Place {
    /// A folder with a state in it.
    pub(super) fn folder(there: &State) -> Outcome<Self> {
        let folder = scratch()?;
        lay_out(folder.path(), there)?;
        let location = location(folder.path())?.to_owned();
        Ok(Self { stores: Stores::new(), location, state: there.clone(), folder: Some(folder) })
    }

    /// A bucket with a state in it.
    pub(super) fn bucket(there: &State) -> Outcome<Self> {
        let (stores, location) = (Stores::new(), "memory://copy/runs/a".to_owned());
        Root::create(&location, &stores)?;
        let mut place = Self { stores, location, state: State::new(), folder: None };
        for (path, bytes) in there {
            place.put(path, bytes)?;
        }
        Ok(place)
    }

    /// The root that it may be.
    pub(super) fn root(&self) -> Outcome<Root> {
        Ok(Root::open(&self.location, &self.stores)?)
    }

    /// Puts an object, over whatever is there.
    pub(super) fn put(&mut self, path: &str, bytes: &[u8]) -> Outcome<()> {
        match &self.folder {
            Some(folder) => {
                let file = folder.path().join(path);
                std::fs::create_dir_all(file.parent().ok_or("a file without a folder")?)?;
                std::fs::write(file, bytes)?;
            }
            None => {
                let (root, path) = (self.root()?, object_path(path)?);
                let payload = bytes.to_vec().into();
                block_on(root.object_store().put_opts(&path, payload, PutOptions::default()))?;
            }
        }
        self.state.insert(path.to_owned(), bytes.to_vec());
        Ok(())
    }

    /// Removes an object.
    pub(super) fn remove(&mut self, path: &str) -> Outcome<()> {
        match &self.folder {
            Some(folder) => std::fs::remove_file(folder.path().join(path))?,
            None => self.root()?.delete(&object_path(path)?)?,
        }
        self.state.remove(path);
        Ok(())
    }
}
