//! Files that are being written: under a reserved name beside their final one, removed unless they are published.

use std::sync::Arc;

use super::error::{Result, StoreError};
use super::fs::{FsFile, write_full};
use super::local::Inner;
use super::name::STAGING;

/// A file under construction.
#[derive(Debug)]
pub(crate) struct Staging {
    store: Arc<Inner>,
    /// Its own, reserved name.
    path: String,
    /// The name it is to have.
    target: String,
    file: Arc<dyn FsFile>,
    /// Whether the reserved name still has to be removed.
    staged: bool,
}

impl Staging {
    /// Begins a file that is to be called `target`; the directories above it are made, durably.
    pub(crate) fn begin(store: &Arc<Inner>, target: &str) -> Result<Self> {
        let dir = dir_of(target);
        store.ensure_dir(dir)?;
        loop {
            let name = format!("{STAGING}{}", store.nonces.draw()?);
            let path = if dir.is_empty() { name } else { format!("{dir}/{name}") };
            match store.fs.create_new(&path) {
                Ok(file) => {
                    return Ok(Self {
                        store: Arc::clone(store),
                        path,
                        target: target.to_owned(),
                        file,
                        staged: true,
                    });
                }
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    // Whatever is wrong, what we remember of this directory is no longer sure.
                    store.forget_dir(dir);
                    return Err(store.error("create", target, error));
                }
            }
        }
    }

    /// Asks for space ahead, so that a full disk is known before the work is done.
    pub(crate) fn reserve(&self, size: u64) -> Result<()> {
        self.file.reserve(size).map_err(|error| self.store.error("reserve space for", &self.target, error))
    }

    /// How long it is by now.
    pub(crate) fn len(&self) -> Result<u64> {
        let stat = self.file.stat().map_err(|error| self.store.error("look up", &self.target, error))?;
        Ok(stat.size)
    }

    pub(crate) fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        let written = write_full(self.file.as_ref(), data, offset);
        written.map_err(|error| self.store.error("write", &self.target, error))
    }

    /// Makes the file durable and gives it its name, which must be free.
    pub(crate) fn publish_new(mut self) -> Result<()> {
        self.sync()?;
        match self.store.fs.link(&self.path, &self.target) {
            Ok(()) => {}
            // Over NFS the first answer may be lost and its repetition fail. The file itself knows how many names it has.
            Err(_) if self.linked() => {}
            Err(error) => return Err(self.store.link_error(&self.target, error)),
        }
        self.unstage();
        self.sync_dir()
    }

    /// Makes the file durable and gives it its name, in place of what was there.
    pub(crate) fn publish_over(mut self) -> Result<()> {
        self.sync()?;
        let renamed = self.store.fs.rename(&self.path, &self.target);
        renamed.map_err(|error| self.store.error("rename", &self.target, error))?;
        self.staged = false;
        self.sync_dir()
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn target(&self) -> &str {
        &self.target
    }

    fn sync(&self) -> Result<()> {
        self.file.fsync().map_err(|error| self.store.error("make durable", &self.target, error))
    }

    /// Confirms the new name. It is visible by now, so that a failure does not mean that nothing happened.
    fn sync_dir(&self) -> Result<()> {
        self.store.fs.fsync_dir(dir_of(&self.target)).map_err(|error| StoreError::NotDurable {
            path: self.store.full(&self.target),
            source: error.into(),
        })
    }

    fn linked(&self) -> bool {
        let (own, target) = (self.file.stat(), self.store.fs.stat(&self.target));
        matches!((own, target), (Ok(own), Ok(target)) if own.inode == target.inode && own.links > 1)
    }

    /// A failure to remove the reserved name harms nobody; a later sweep removes it.
    fn unstage(&mut self) {
        self.staged = false;
        drop(self.store.fs.unlink(&self.path));
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.staged {
            self.unstage();
        }
    }
}

/// The directory of a name; `""` is the root.
pub(crate) fn dir_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(dir, _)| dir)
}
