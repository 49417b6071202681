//! The Python environment of tests, fixtures and demo: exactly what `python/requirements.lock` pins, by hash; and that of the servers that
//! tests of object stores start, by `python/servers.lock`.
//!
//! Each lies in the shared cache under a name made of its lock file and the interpreter, so a changed pin is another
//! environment and an old clone keeps its own.

mod interpreter;

pub(crate) use interpreter::Interpreter;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::error::Error;
use crate::{cache, process};

/// What an environment holds.
struct Pins {
    /// Begins its name in the cache.
    name: &'static str,
    lock: &'static str,
    what: &'static str,
    disk: &'static str,
}

const MAIN: Pins = Pins {
    name: "venv",
    lock: include_str!("../python/requirements.lock"),
    what: "torch and all it needs",
    disk: "9 GB",
};

const SERVERS: Pins = Pins {
    name: "servers",
    lock: include_str!("../python/servers.lock"),
    what: "the S3 server of the tests",
    disk: "300 MB",
};

/// A complete environment.
#[derive(Debug)]
pub(crate) struct Environment {
    folder: PathBuf,
}

/// The environment for this checkout; installed on first use.
pub(crate) fn environment() -> Result<Environment, Error> {
    MAIN.environment()
}

/// The environment of servers for tests; installed on first use.
pub(crate) fn servers() -> Result<Environment, Error> {
    SERVERS.environment()
}

/// The environment for this checkout if it is there already.
pub(crate) fn installed() -> Result<Option<Environment>, Error> {
    let interpreter = Interpreter::find()?;
    let found = cache::complete(&cache::folder()?, &MAIN.entry_name(&interpreter));
    Ok(found.map(|folder| Environment { folder }))
}

impl Pins {
    fn environment(&self) -> Result<Environment, Error> {
        let interpreter = Interpreter::find()?;
        let name = self.entry_name(&interpreter);
        let folder = cache::entry(&cache::folder()?, &name, |folder| self.install(&interpreter, folder))?;
        Ok(Environment { folder })
    }

    fn entry_name(&self, interpreter: &Interpreter) -> String {
        format!("{}-{}", self.name, cache::fingerprint(&[self.lock, interpreter.identity()]))
    }

    fn install(&self, interpreter: &Interpreter, folder: &Path) -> Result<(), Error> {
        eprintln!("setting up Python packages in {} ({}: once per machine)", folder.display(), self.what);
        interpreter.create_environment(folder)?;
        let lock = folder.join("requirements.lock");
        std::fs::write(&lock, self.lock).map_err(Error::path("write", &lock))?;
        let mut pip = Command::new(python_in(folder));
        pip.args([
            "-m",
            "pip",
            "install",
            "--require-hashes",
            "--no-deps",
            "--only-binary=:all:",
            "--no-input",
        ])
        .args(["--disable-pip-version-check", "--quiet", "--retries", "5", "--requirement"])
        .arg(&lock)
        .stdout(std::io::stderr());
        let advice = format!(
            "pip's own message is above; it needs to reach its package index (is this machine offline, or behind a proxy that pip \
             doesn't know?) and about {} of disk. Running the same command again starts over cleanly",
            self.disk
        );
        process::run(&mut pip, &advice)
    }
}

fn python_in(folder: &Path) -> PathBuf {
    folder.join("bin/python")
}

impl Environment {
    /// Where it lies.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where its packages lie.
    pub(crate) fn site_packages(&self) -> Result<PathBuf, Error> {
        let lib = self.folder.join("lib");
        let pythons = std::fs::read_dir(&lib).map_err(Error::path("list", &lib))?;
        let mut sites = pythons.flatten().map(|python| python.path().join("site-packages"));
        sites.find(|site| site.is_dir()).ok_or_else(|| Error::Missing {
            what: format!("the folder of packages in {}", lib.display()),
            remedy: "remove that environment and run `cargo xtask setup` again".to_owned(),
        })
    }

    /// Its Python, as a path.
    pub(crate) fn interpreter(&self) -> PathBuf {
        python_in(&self.folder)
    }

    /// Its Python, to be given arguments. Nothing of the user's own Python set-up leaks in, nothing is looked up online.
    pub(crate) fn python(&self) -> Command {
        let mut command = Command::new(python_in(&self.folder));
        command
            .env_remove("PYTHONPATH")
            .env_remove("PYTHONHOME")
            .env("PYTHONNOUSERSITE", "1")
            .env("HF_HUB_OFFLINE", "1")
            .env("TOKENIZERS_PARALLELISM", "false");
        command
    }

    /// Runs its Python with our streams and returns its exit code as ours.
    pub(crate) fn hand_over(&self, arguments: &[impl AsRef<OsStr>]) -> Result<ExitCode, Error> {
        let mut command = self.python();
        command.args(arguments);
        let status =
            command.status().map_err(|source| Error::Start { command: process::shown(&command), source })?;
        Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
    }
}
