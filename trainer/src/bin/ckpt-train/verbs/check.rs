//! `ckpt-train check`: all ranks of a configuration run the first step here, as threads, on a shrunk model.

use std::{
    fs,
    path::{Path, PathBuf},
};

use trainer::{Result, run};

use crate::cli::Check;

pub(super) fn run(options: &Check) -> Result<u8> {
    let resolved = options.source.resolve()?;
    let folder = Folder(std::env::temp_dir().join(format!("ckpt-train-check-{}", std::process::id())));
    let small = options.source.resolve_with(&run::shrunk(&resolved, folder.path())?)?;
    let checked = run::check(small)?;
    super::print(&if options.json { checked.to_json()? + "\n" } else { checked.to_string() })
}

/// A folder that goes when this does.
struct Folder(PathBuf);

impl Folder {
    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What can't be removed is the system's to remove: it lies in the folder for such things.
        let _ = fs::remove_dir_all(&self.0);
    }
}
