//! Listing a folder: sorted by the whole name, as a bucket lists.

use super::super::error::Result;
use super::super::fs::{FileKind, FileStat};
use super::super::name::{ObjectPath, PROBE, STAGING};
use super::LocalStore;

/// An object found by listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub path: ObjectPath,
    /// What is known about it.
    pub stat: FileStat,
}

impl LocalStore {
    /// All objects below a prefix (all segments of it whole), sorted by name. None where there is no such directory.
    ///
    /// # Errors
    /// What the system says, with the directory it said it about.
    pub fn list_sorted(&self, prefix: Option<&ObjectPath>) -> Result<Vec<Listed>> {
        let mut found = Vec::new();
        self.walk(prefix.map_or("", ObjectPath::as_ref), &mut |path, hidden, kind| {
            if kind == FileKind::File && !hidden {
                found.extend(self.listed(path));
            }
        })?;
        Ok(found)
    }

    /// The objects right below a prefix, and the directories there, both sorted.
    ///
    /// # Errors
    /// What the system says, with the directory it said it about.
    pub fn list_dir(&self, prefix: Option<&ObjectPath>) -> Result<(Vec<Listed>, Vec<ObjectPath>)> {
        let (mut objects, mut dirs) = (Vec::new(), Vec::new());
        for (path, kind) in self.entries(prefix.map_or("", ObjectPath::as_ref))? {
            match kind {
                FileKind::File if !hidden(&path) => objects.extend(self.listed(&path)),
                FileKind::Dir => dirs.extend(ObjectPath::parse(&path)),
                _ => {}
            }
        }
        Ok((objects, dirs))
    }

    /// The names of unfinished files, and of probes that were stopped.
    pub(super) fn unfinished(&self) -> Result<Vec<String>> {
        let mut found = Vec::new();
        self.walk("", &mut |path, hidden, _| {
            if hidden || path.starts_with(PROBE) {
                found.push(path.to_owned());
            }
        })?;
        Ok(found)
    }

    /// Visits every name below a directory, in order, without recursion: the depth is not ours to choose.
    pub(super) fn walk(&self, dir: &str, visit: &mut dyn FnMut(&str, bool, FileKind)) -> Result<()> {
        let mut ahead: Vec<_> = self.entries(dir)?.into_iter().rev().collect();
        while let Some((path, kind)) = ahead.pop() {
            visit(&path, hidden(&path), kind);
            if kind == FileKind::Dir {
                ahead.extend(self.entries(&path)?.into_iter().rev());
            }
        }
        Ok(())
    }

    /// The names in a directory, sorted as their whole names are: a directory sorts as `name/`.
    pub(super) fn entries(&self, dir: &str) -> Result<Vec<(String, FileKind)>> {
        let entries = match self.inner.fs.read_dir(dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound || is_a_file(&error) => {
                return Ok(Vec::new());
            }
            Err(error) => return Err(self.inner.error("list", dir, error)),
        };
        let mut entries: Vec<_> =
            entries.into_iter().map(|entry| (below(dir, &entry.name), entry.kind)).collect();
        entries.sort_by_cached_key(
            |(path, kind)| if *kind == FileKind::Dir { format!("{path}/") } else { path.clone() },
        );
        Ok(entries)
    }

    /// Nothing for what has vanished meanwhile, and for names that cannot be objects.
    fn listed(&self, path: &str) -> Option<Listed> {
        let stat = self.inner.fs.stat(path).ok()?;
        ObjectPath::parse(path).ok().map(|path| Listed { path, stat })
    }
}

fn below(dir: &str, name: &str) -> String {
    if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") }
}

pub(super) fn hidden(path: &str) -> bool {
    path.rsplit('/').next().is_some_and(|name| name.starts_with(STAGING))
}

fn is_a_file(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::NotADirectory
}
