//! Everything in a folder, also what is no object: for those who collect garbage, and tell what takes space.

use std::io;

use super::super::error::{Result, StoreError};
use super::super::fs::FileStat;
use super::super::name::{ObjectPath, check_path};
use super::LocalStore;
use super::list::hidden;

/// A name in the tree of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The name, below the root.
    pub path: String,
    /// What is known about it.
    pub stat: FileStat,
    /// Whether it is a file that is being written, or was when its writer stopped.
    pub unfinished: bool,
}

impl LocalStore {
    /// Everything below a directory, and the directory itself: objects, unfinished files, directories, links. What vanishes meanwhile is left out.
    ///
    /// # Errors
    /// What the system says, with the directory it said it about.
    pub fn tree(&self, dir: Option<&ObjectPath>) -> Result<Vec<Node>> {
        let dir = dir.map_or("", ObjectPath::as_ref);
        let mut found = Vec::new();
        let mut take = |path: &str, unfinished: bool| {
            if let Ok(stat) = self.inner.fs.stat(path) {
                found.push(Node { path: path.to_owned(), stat, unfinished });
            }
        };
        if !dir.is_empty() {
            take(dir, false);
        }
        self.walk(dir, &mut |path, hidden, _| take(path, hidden))?;
        Ok(found)
    }

    /// What lies right in a directory: as [`LocalStore::tree`], without entering the directories there.
    ///
    /// # Errors
    /// What the system says, with the directory it said it about.
    pub fn level(&self, dir: Option<&ObjectPath>) -> Result<Vec<Node>> {
        let entries = self.entries(dir.map_or("", ObjectPath::as_ref))?;
        let node = |(path, _): (String, _)| {
            let stat = self.inner.fs.stat(&path).ok()?;
            let unfinished = hidden(&path);
            Some(Node { path, stat, unfinished })
        };
        Ok(entries.into_iter().filter_map(node).collect())
    }

    /// Removes an unfinished file. It may have got its name by now, or be gone: neither is an error.
    ///
    /// # Errors
    /// [`StoreError::Refused`] for any other name, and what the system says.
    pub fn remove_unfinished(&self, path: &str) -> Result<()> {
        self.inner.writable(path)?;
        let (dir, name) = path.rsplit_once('/').map_or((None, path), |(dir, name)| (Some(dir), name));
        if let Some(dir) = dir {
            check_path(&ObjectPath::from(dir))?;
        }
        if !name.starts_with(super::super::name::STAGING) {
            let reason = "it is not the name of an unfinished file".to_owned();
            return Err(StoreError::Refused { path: self.inner.full(path), reason });
        }
        match self.inner.fs.unlink(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(self.inner.error("delete", path, error))
            }
            _ => Ok(()),
        }
    }

    /// Makes durable which names are in a directory, those that were removed above all. A directory that is gone needs no confirmation.
    ///
    /// # Errors
    /// What the system says.
    pub fn settle_names(&self, dir: &ObjectPath) -> Result<()> {
        let name = check_path(dir)?;
        match self.inner.fs.fsync_dir(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(self.inner.error("make durable", name, error))
            }
            _ => Ok(()),
        }
    }
}
