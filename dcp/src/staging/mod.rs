//! [`Staging`]: a target of another format on a local disk, all or nothing.
//!
//! ```text
//!  <parent>/.<name>.ckpt-partial-<first 16 digits of the plan digest>/
//!      data/…       the target's files, each durable when it has its name
//!      journal/…    one record for each file that is finished, written after it
//!           publish: data ──rename, create-only──► <parent>/<name>, then the rest is removed
//! ```
//!
//! Invariants: nothing has the target's name before `publish`; a target that exists is never touched; a file in `data`
//! that the journal does not name is not finished and is removed when the same plan comes again; two runs of one plan
//! never work at the same time; what other plans left is told, never removed.

mod journal;
mod publish;

use std::{
    ffi::OsString,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use rustix::fs::{FlockOperation, flock};

use self::journal::Journal;
use crate::{
    Error, ErrorKind, FileDone, Place, Result,
    store::{BlobWriter, LocalStore, StoreError, object_path},
};

/// What a target is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetKind {
    /// A folder of files.
    Folder,
    /// One file.
    File,
}

/// A target being written beside its place.
#[derive(Debug)]
pub struct Staging {
    target: PathBuf,
    kind: TargetKind,
    partial: PathBuf,
    data: LocalStore,
    journal: Journal,
    /// Held as long as this lives: keeps a second run of the plan out.
    _lock: File,
}

const INFIX: &str = ".ckpt-partial-";

impl Staging {
    /// Begins, or goes on with, the plan of this digest. The folder above the target is made where it is missing.
    ///
    /// # Errors
    /// `Conflict` when the target exists or another run of the same plan is at work; what the system says.
    pub fn open(target: &Path, plan_digest: &str, kind: TargetKind) -> Result<Self> {
        free(target)?;
        let partial = partial(target, plan_digest)?;
        LocalStore::create(&partial)?;
        let lock = locked(&partial)?;
        let data = LocalStore::create(&partial.join("data"))?;
        let journal = Journal::open(LocalStore::create(&partial.join("journal"))?)?;
        let staging = Self { target: target.to_owned(), kind, partial, data, journal, _lock: lock };
        staging.tidy()?;
        Ok(staging)
    }

    /// What stopped runs left beside a target: whether that of the plan of this digest is among them, and where those of other plans
    /// are. Nothing is touched.
    ///
    /// # Errors
    /// As [`Staging::open`], and what the system says.
    pub fn left(target: &Path, plan_digest: &str) -> Result<(bool, Vec<PathBuf>)> {
        let own = partial(target, plan_digest)?;
        let mut left = beside(target)?;
        let before = left.len();
        left.retain(|path| *path != own);
        Ok((left.len() < before, left))
    }

    /// Begins a file, by its path within the target; for a single file, by the target's own name.
    ///
    /// # Errors
    /// A path that leads out of the target, one that is taken, and what the store says.
    pub fn blob(&self, path: &str, size: u64) -> Result<Box<dyn BlobWriter>> {
        Ok(self.data.blob(&object_path(path)?, size)?)
    }

    /// Writes a small file whole.
    ///
    /// # Errors
    /// As [`Staging::blob`].
    pub fn put(&self, path: &str, bytes: &Bytes) -> Result<()> {
        Ok(self.data.put_new(&object_path(path)?, [bytes.as_ref()])?)
    }

    /// Files that an earlier run of this plan finished and that are still there.
    #[must_use]
    pub fn finished(&self) -> Vec<FileDone> {
        self.journal.records()
    }

    /// Remembers, durably, that a file is finished.
    ///
    /// # Errors
    /// What the store says.
    pub fn file_done(&self, done: &FileDone) -> Result<()> {
        self.journal.add(done)
    }

    /// Makes the target visible under its name, durably, and removes what it was staged in.
    ///
    /// # Errors
    /// `Conflict` when the target was made by somebody else in the meantime; what the system says. Nothing is visible then,
    /// and the same plan can be run again.
    pub fn publish(self) -> Result<()> {
        let from = match self.kind {
            TargetKind::Folder => self.partial.join("data"),
            TargetKind::File => self.single()?,
        };
        publish::sync_tree(&self.partial.join("data"))?;
        publish::rename_new(&from, &self.target, self.kind)?;
        // The target is there and durable: what is left behind is rubbish, and its removal no condition of success.
        drop(fs::remove_dir_all(&self.partial));
        Ok(())
    }

    /// What runs of other plans for this target left behind.
    ///
    /// # Errors
    /// What the system says.
    pub fn stale(&self) -> Result<Vec<PathBuf>> {
        let mut stale = beside(&self.target)?;
        stale.retain(|path| *path != self.partial);
        Ok(stale)
    }

    /// The folder that it is staged in.
    #[must_use]
    pub fn partial(&self) -> &Path {
        &self.partial
    }

    /// Removes what no record names, and records of what is no longer whole.
    fn tidy(&self) -> Result<()> {
        self.data.sweep(Duration::ZERO)?;
        let there = self.data.list_sorted(None)?;
        let size = |path: &str| there.iter().find(|it| it.path.as_ref() == path).map(|it| it.stat.size);
        self.journal.keep(|done| size(&done.path) == Some(done.size))?;
        let finished = self.journal.records();
        for listed in &there {
            if !finished.iter().any(|done| done.path == listed.path.as_ref()) {
                self.data.remove(&listed.path)?;
            }
        }
        Ok(())
    }

    /// The file that a target of one file consists of.
    fn single(&self) -> Result<PathBuf> {
        let there = self.data.list_sorted(None)?;
        match there.as_slice() {
            [one] => Ok(self.partial.join("data").join(one.path.as_ref())),
            other => Err(Error::internal(format!("{} files for a target of one", other.len()))),
        }
    }
}

/// The folder that holds the target, and how names of what is staged for it begin.
fn place(target: &Path) -> Result<(PathBuf, OsString)> {
    let Some(name) = target.file_name() else {
        return Err(Error::incompatible(format!(
            "{} is not the name of a new file or folder",
            target.display()
        )));
    };
    let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut prefix = OsString::from(".");
    prefix.push(name);
    prefix.push(INFIX);
    Ok((parent.to_owned(), prefix))
}

/// Where the plan of this digest stages the target.
fn partial(target: &Path, plan_digest: &str) -> Result<PathBuf> {
    let (parent, mut name) = place(target)?;
    let short: String = plan_digest.chars().take(16).collect();
    if short.len() != 16 || !short.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(Error::internal(format!("{plan_digest:?} is not a plan digest")));
    }
    name.push(short);
    Ok(parent.join(name))
}

/// All that is staged for the target, sorted.
fn beside(target: &Path) -> Result<Vec<PathBuf>> {
    let (parent, prefix) = place(target)?;
    let entries = match fs::read_dir(&parent) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(Error::from).place(parent.display())?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().map(|name| name.as_encoded_bytes());
        if name.is_some_and(|name| name.starts_with(prefix.as_encoded_bytes())) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Refuses a target that exists, a dangling link included.
fn free(target: &Path) -> Result<()> {
    match fs::symlink_metadata(target) {
        Ok(_) => Err(taken(target)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::from(error)).place(target.display()),
    }
}

fn taken(target: &Path) -> Error {
    Error::new(
        ErrorKind::Conflict,
        format!("{} already exists, and nothing is overwritten", target.display()),
    )
    .hint("name another target, or remove this one")
}

fn locked(partial: &Path) -> Result<File> {
    let file = File::open(partial).map_err(Error::from).place(partial.display())?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let text = format!("another run of the same plan is writing to {}", partial.display());
            Err(Error::new(ErrorKind::Conflict, text).hint("wait for it, or stop it"))
        }
        Err(error) => Err(StoreError::from_io("lock", &partial.display().to_string(), error.into()).into()),
    }
}

#[cfg(test)]
mod tests;
