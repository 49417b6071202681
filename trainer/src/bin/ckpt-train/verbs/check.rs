//! `ckpt-train check`: all ranks of a configuration run the first step here, on a shrunk model; or one does, at its real sizes.

use std::{
    fs,
    path::{Path, PathBuf},
};

use trainer::{Result, run};

use crate::cli::Check;

pub(super) fn run(options: &Check) -> Result<u8> {
    let resolved = options.source.resolve()?;
    let folder = Folder(std::env::temp_dir().join(format!("ckpt-train-check-{}", std::process::id())));
    if let Some(rank) = options.rank {
        let one = options.source.resolve_with(&run::unshrunk(&resolved, folder.path())?)?;
        let alone = run::check_alone(one, rank)?;
        return super::print(&if options.json { alone.to_json()? + "\n" } else { alone.to_string() });
    }
    let mut settings = run::shrunk(&resolved, folder.path())?;
    settings.extend(options.threads.then(|| run::one_store(folder.path())));
    let small = options.source.resolve_with(&settings)?;
    let checked = if options.threads { run::check_in_threads(small)? } else { run::check(small)? };
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
