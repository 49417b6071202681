//! Giving what is staged its name: create-only, durable, at one moment.

use std::{
    fs::{self, File},
    path::Path,
};

use rustix::{
    fs::{CWD, RenameFlags, renameat_with},
    io::Errno,
};

use super::{TargetKind, taken};
use crate::{Error, Place, Result, store::StoreError};

/// Makes a tree durable, files first. They were when they were finished; this is for those that came another way.
pub(super) fn sync_tree(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir).map_err(Error::from).place(dir.display())? {
        let path = entry?.path();
        if path.is_dir() {
            sync_tree(&path)?;
        } else {
            sync(&path)?;
        }
    }
    sync(dir)
}

/// Renames `from` to `to`, which must not exist.
pub(super) fn rename_new(from: &Path, to: &Path, kind: TargetKind) -> Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => {}
        Err(Errno::EXIST | Errno::NOTEMPTY | Errno::ISDIR | Errno::NOTDIR) => return Err(taken(to)),
        // Some network file systems don't know the flag.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => rename_by_create(from, to, kind)?,
        Err(error) => return Err(failed("rename to its name", to, error.into())),
    }
    sync(parent(to))
}

/// Takes the name by an operation that fails where it is taken, then puts the content there.
fn rename_by_create(from: &Path, to: &Path, kind: TargetKind) -> Result<()> {
    let outcome = match kind {
        TargetKind::File => fs::hard_link(from, to),
        TargetKind::Folder => fs::create_dir(to).and_then(|()| {
            // An empty folder is replaced at one moment; one that somebody filled is not.
            fs::rename(from, to).inspect_err(|_| drop(fs::remove_dir(to)))
        }),
    };
    match outcome {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Err(taken(to)),
        Err(error) => Err(failed("give its name to", to, error)),
    }
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn sync(path: &Path) -> Result<()> {
    let synced = File::open(path).and_then(|file| file.sync_all());
    synced.map_err(|error| failed("make durable", path, error))
}

fn failed(op: &'static str, path: &Path, error: std::io::Error) -> Error {
    StoreError::from_io(op, &path.display().to_string(), error).into()
}
