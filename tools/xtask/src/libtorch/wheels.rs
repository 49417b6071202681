//! The pinned wheels: whether a folder of packages has them, and fetching them through pip if not.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Error;
use crate::process;
use crate::python::Interpreter;

const UNPACK: &str = include_str!("../../python/unpack.py");

/// `(package, version)` of each entry that is for this system.
fn pins(lock: &str) -> impl Iterator<Item = (&str, &str)> {
    lock.lines()
        .filter(|line| cfg!(target_os = "linux") || !line.contains("sys_platform == \"linux\""))
        .filter_map(|line| {
            let (name, rest) = line.split_once("==").filter(|(name, _)| !name.contains([' ', '#']))?;
            Some((name, rest.split([' ', ';']).next()?))
        })
}

/// The version to which `lock` pins `package`.
pub(super) fn version<'a>(lock: &'a str, package: &str) -> Option<&'a str> {
    pins(lock).find(|(name, _)| *name == package).map(|(_, version)| version)
}

/// Whether `site` has each package of `lock` in exactly that version.
pub(super) fn all_installed(lock: &str, site: &Path) -> bool {
    pins(lock).all(|(name, version)| {
        site.join(format!("{}-{version}.dist-info", name.replace('-', "_"))).join("METADATA").is_file()
    })
}

/// Downloads the wheels by hash and unpacks what begins with `prefixes`. Returns the folder of packages; it lies, with
/// all else that was needed on the way, in `scratch`.
pub(super) fn fetch(
    interpreter: &Interpreter,
    lock: &str,
    prefixes: &[&str],
    scratch: &Path,
) -> Result<PathBuf, Error> {
    let environment = scratch.join("pip");
    interpreter.create_environment(&environment)?;
    let (python, wheels, site) =
        (environment.join("bin/python"), scratch.join("wheels"), scratch.join("site"));
    let written = scratch.join("libtorch.lock");
    std::fs::write(&written, lock).map_err(Error::path("write", &written))?;
    download(&python, &written, &wheels)?;
    let mut unpack = Command::new(&python);
    unpack.args(["-I", "-c", UNPACK]).arg(&site).args(listed(&wheels)?).arg("--").args(prefixes);
    process::run(&mut unpack, "Python's message is above; is the disk full?")?;
    if all_installed(lock, &site) {
        return Ok(site);
    }
    Err(process::failed(&unpack, "not every pinned wheel came out", "run the same command again"))
}

fn download(python: &Path, lock: &Path, wheels: &Path) -> Result<(), Error> {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "download", "--require-hashes", "--no-deps", "--only-binary=:all:", "--no-input"])
        .args(["--disable-pip-version-check", "--quiet", "--retries", "5", "--requirement"])
        .arg(lock)
        .arg("--dest")
        .arg(wheels)
        .stdout(std::io::stderr());
    process::run(
        &mut pip,
        "pip's own message is above; it needs to reach its package index (is this machine offline, or behind a proxy \
         that pip doesn't know?) and about 2 GB of disk, 8 GB with CUDA. Running the same command again starts over \
         cleanly; a libtorch that you have can be named in LIBTORCH instead",
    )
}

fn listed(wheels: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = std::fs::read_dir(wheels).map_err(Error::path("list", wheels))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = "# a comment==1\ntorch==2.13.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n";

    #[test]
    fn pins_are_read_from_a_lock_file() {
        assert_eq!(pins(LOCK).collect::<Vec<_>>(), [("torch", "2.13.0")]);
        assert_eq!(version(LOCK, "numpy"), None);
    }

    #[test]
    fn an_environment_with_another_version_is_not_taken() {
        let site = tempfile::tempdir().unwrap();
        for (version, same) in [("2.12.0", false), ("2.13.0", true)] {
            let folder = site.path().join(format!("torch-{version}.dist-info"));
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("METADATA"), "").unwrap();
            assert_eq!(all_installed(LOCK, site.path()), same);
        }
    }
}
