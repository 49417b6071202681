//! Small files that the command itself writes: plans and baselines. Whole or not at all.

use std::fs;
use std::io::Write;
use std::path::Path;

use dcp::{Error, ErrorKind, Place, Result};

/// Writes `bytes` as the new file `path`. A baseline is written once, before any split: one that is there is somebody's
/// reference.
///
/// # Errors
/// `Conflict` where the file exists; what the system says, with the path.
pub(crate) fn create(path: &Path, bytes: &[u8]) -> Result<()> {
    match fs::File::create_new(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            Err(Error::new(ErrorKind::Conflict, format!("{}: the file exists", path.display()))
                .hint("nothing is overwritten; give another name, or remove it"))
        }
        Err(error) => Err(error).place(path.display()),
        Ok(mut file) => file.write_all(bytes).and_then(|()| file.sync_all()).place(path.display()),
    }
}

/// Writes `bytes` as `path`, whatever was there before; a reader sees the old file or the new one.
///
/// # Errors
/// What the system says, with the path.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = || -> std::io::Result<()> {
        if path.exists() && !path.is_file() {
            // A pipe or a terminal takes bytes as they come.
            return fs::OpenOptions::new().write(true).open(path)?.write_all(bytes);
        }
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.tmp", std::process::id()));
        let beside = path.with_file_name(name);
        let written = fs::File::create_new(&beside).and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()
        });
        let done = written.and_then(|()| fs::rename(&beside, path));
        if done.is_err() {
            // The first failure is the one to tell.
            let _ = fs::remove_file(&beside);
        }
        done
    };
    write().place(path.display())
}
