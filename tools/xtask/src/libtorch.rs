//! libtorch for the trainer: exactly the version that `tch` wants, taken out of the pinned wheels of PyPI's `torch`.
//!
//! Invariants: a build lies in the shared cache under a name made of its lock file, so a changed pin is another entry;
//! cargo finds it by the link `.libtorch` in the workspace root, which `.cargo/config.toml` names as `LIBTORCH`; a
//! `LIBTORCH` that the user has set is used as it is, and nothing is set up then. Only what is linked is kept: of 2 GB
//! of CUDA the CPU build has the two small libraries that `libtorch_cpu.so` itself links.

mod link;
mod parts;
mod wheels;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Error;
use crate::python::Interpreter;
use crate::{cache, python, repository, test};

/// Which libtorch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Build {
    /// Enough to build and test everything.
    Cpu,
    /// With the CUDA libraries.
    Cuda,
}

impl Build {
    fn lock(self) -> &'static str {
        match self {
            Self::Cpu => include_str!("../python/libtorch.lock"),
            Self::Cuda => include_str!("../python/libtorch-cuda.lock"),
        }
    }

    fn entry_name(self) -> String {
        let kind = match self {
            Self::Cpu => "libtorch",
            Self::Cuda => "libtorch-cuda",
        };
        let machine = format!("{} {}", std::env::consts::OS, std::env::consts::ARCH);
        format!("{kind}-{}", cache::fingerprint(&[self.lock(), &machine]))
    }

    /// What `LIBTORCH` is to name. CUDA's libraries find each other by paths relative to `torch/lib`, so `torch` stays.
    fn home(self, entry: &Path) -> PathBuf {
        match self {
            Self::Cpu => entry.to_owned(),
            Self::Cuda => entry.join("torch"),
        }
    }

    fn place(self, cache: &Path) -> PathBuf {
        self.home(&cache.join(self.entry_name()))
    }
}

/// Sets libtorch up, points this checkout to it and returns where it is. Without a `build`: the one that the checkout
/// uses already, else the CPU's.
pub(crate) fn set_up(build: Option<Build>) -> Result<PathBuf, Error> {
    let root = repository::root();
    if let Some(own) = link::chosen_by_user(&root) {
        return link::checked(own);
    }
    let cache = cache::folder()?;
    let build = build.or_else(|| in_use(&root, &cache)).unwrap_or(Build::Cpu);
    let entry = cache::entry(&cache, &build.entry_name(), |folder| install(build, folder))?;
    let home = build.home(&entry);
    if link::point(&root, &home)? {
        link::forget_the_other_build()?;
    }
    Ok(home)
}

fn in_use(root: &Path, cache: &Path) -> Option<Build> {
    let target = link::target(root)?;
    [Build::Cpu, Build::Cuda].into_iter().find(|build| build.place(cache) == target)
}

/// From the Python environment where that has the same wheels, else from pip.
fn install(build: Build, folder: &Path) -> Result<(), Error> {
    eprintln!("setting up libtorch in {} (once per machine)", folder.display());
    let scratch = folder.join("scratch");
    let shared = python::installed()?.map(|environment| environment.site_packages()).transpose()?;
    let site = match shared.filter(|site| wheels::all_installed(build.lock(), site)) {
        Some(site) => site,
        None => wheels::fetch(&Interpreter::find()?, build.lock(), &parts::prefixes(build), &scratch)?,
    };
    parts::take(build, &site, folder)?;
    if scratch.exists() {
        std::fs::remove_dir_all(&scratch).map_err(Error::path("remove", &scratch))?;
    }
    let version = wheels::version(build.lock(), "torch").unwrap_or_default();
    let stated = build.home(folder).join("build-version");
    std::fs::write(&stated, format!("{version}\n")).map_err(Error::path("write", &stated))
}

/// `torch-sys` and our own shim are C++.
pub(crate) fn require_cxx_compiler() -> Result<(), Error> {
    if test::answers(Command::new("c++").arg("--version")) || std::env::var_os("CXX").is_some() {
        return Ok(());
    }
    Err(Error::Missing {
        what: "a C++ compiler (`c++`)".to_owned(),
        remedy: "install one (Debian, Ubuntu: `apt-get install g++`; Fedora: `dnf install gcc-c++`; macOS: \
                 `xcode-select --install`), or name yours in CXX"
            .to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUIREMENTS: &str = include_str!("../python/requirements.lock");

    fn entries(lock: &str) -> Vec<String> {
        let lines = lock.lines().filter(|line| !line.starts_with('#'));
        let text = lines.map(|line| format!("{line}\n")).collect::<String>();
        text.replace(" \\\n    ", " ").lines().map(str::to_owned).collect()
    }

    #[test]
    fn libtorch_is_pinned_to_the_wheels_of_the_python_environment_hash_by_hash() {
        let all = entries(REQUIREMENTS);
        for build in [Build::Cpu, Build::Cuda] {
            let pinned = entries(build.lock());
            assert!(pinned.len() >= 3);
            for entry in pinned {
                assert!(entry.contains("--hash=sha256:") && all.contains(&entry), "{entry}");
            }
        }
        assert_eq!(entries(Build::Cpu.lock()).len(), 3);
    }

    #[test]
    fn the_pin_is_what_the_locked_torch_sys_wants() {
        let lock = std::fs::read_to_string(repository::root().join("Cargo.lock")).unwrap();
        assert!(
            lock.contains("name = \"torch-sys\"\nversion = \"0.26.0\""),
            "tch has moved: move torch's pin with it, to the version that its build script names"
        );
        assert_eq!(wheels::version(Build::Cpu.lock(), "torch"), Some("2.13.0"));
    }

    #[test]
    fn the_two_builds_lie_beside_each_other() {
        let cache = Path::new("cache");
        assert_ne!(Build::Cpu.place(cache), Build::Cuda.place(cache));
        assert!(Build::Cuda.place(cache).ends_with("torch"));
    }
}
