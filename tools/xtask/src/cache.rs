//! The cache folder that all clones on a machine share, and the locks in it.
//!
//! Invariant: an entry is used only when its stamp says that it is complete, and built only under its lock; so two
//! runs do not collide, and what an interrupted run left is built anew.

use std::env;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::Error;

const STAMP: &str = "complete";

/// `$CKPT_CACHE_DIR`, else `ckpt-suite` in the user's cache folder. Created if need be.
pub(crate) fn folder() -> Result<PathBuf, Error> {
    let folder = named("CKPT_CACHE_DIR")
        .or_else(|| named("XDG_CACHE_HOME").map(|cache| cache.join("ckpt-suite")))
        .or_else(|| named("HOME").map(|home| home.join(".cache/ckpt-suite")))
        .ok_or(Error::NoCache)?;
    fs::create_dir_all(&folder).map_err(Error::path("create", &folder))?;
    Ok(folder)
}

fn named(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// A short name for exactly these texts.
pub(crate) fn fingerprint(texts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for (at, text) in texts.iter().enumerate() {
        if at > 0 {
            hash.update([0]);
        }
        hash.update(text);
    }
    hash.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect()
}

/// The entry `name` in `cache`, if it is complete.
pub(crate) fn complete(cache: &Path, name: &str) -> Option<PathBuf> {
    let folder = cache.join(name);
    folder.join(STAMP).is_file().then_some(folder)
}

/// The entry `name` in `cache`, built by `build` (given the folder to fill, which is empty) unless it is complete.
pub(crate) fn entry(
    cache: &Path,
    name: &str,
    build: impl FnOnce(&Path) -> Result<(), Error>,
) -> Result<PathBuf, Error> {
    if let Some(folder) = complete(cache, name) {
        return Ok(folder);
    }
    let folder = cache.join(name);
    let stamp = folder.join(STAMP);
    let _held = lock(&cache.join(format!("{name}.lock")))?;
    if !stamp.is_file() {
        clear(&folder)?;
        build(&folder)?;
        fs::write(&stamp, "").map_err(Error::path("write", &stamp))?;
    }
    Ok(folder)
}

fn clear(folder: &Path) -> Result<(), Error> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(Error::path("remove", folder))?;
    }
    fs::create_dir_all(folder).map_err(Error::path("create", folder))
}

/// Takes the lock, saying so if another run holds it. Dropping the file gives it back, and so does a crash.
fn lock(path: &Path) -> Result<File, Error> {
    let file = File::create(path).map_err(Error::path("create", path))?;
    match file.try_lock() {
        Ok(()) => return Ok(file),
        Err(TryLockError::WouldBlock) => eprintln!("waiting for another run that holds {}", path.display()),
        Err(TryLockError::Error(source)) => return Err(Error::path("lock", path)(source)),
    }
    file.lock().map_err(Error::path("lock", path))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    fn failure() -> Error {
        Error::NoCache
    }

    #[test]
    fn an_interrupted_build_is_done_anew_from_an_empty_folder() {
        let cache = tempfile::tempdir().unwrap();
        let broken = entry(cache.path(), "e", |folder| {
            fs::write(folder.join("half"), "x").unwrap();
            Err(failure())
        });
        assert!(broken.is_err());
        let folder = entry(cache.path(), "e", |folder| {
            assert!(!folder.join("half").exists());
            fs::write(folder.join("whole"), "x").map_err(Error::path("write", folder))
        })
        .unwrap();
        assert!(folder.join("whole").is_file());
    }

    #[test]
    fn runs_at_the_same_time_build_once() {
        let cache = tempfile::tempdir().unwrap();
        let builds = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    entry(cache.path(), "e", |_| {
                        builds.fetch_add(1, Ordering::SeqCst);
                        thread::sleep(std::time::Duration::from_millis(50));
                        Ok(())
                    })
                    .unwrap();
                });
            }
        });
        assert_eq!(builds.load(Ordering::SeqCst), 1);
    }
}
