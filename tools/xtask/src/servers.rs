//! The servers that tests of object stores start: moto (S3) in a Python environment of its own, Azurite (Azure) by npm. GCS needs none: the
//! tests bring a small one of their own.
//!
//! Both are pinned with the hash of every file that is fetched, lie in the shared cache, and run none of their installers' scripts. The tests
//! find them by a variable each; without it they fail and say so, since a test that skipped itself would prove nothing.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Error;
use crate::{cache, process, python, test};

const PACKAGE: &str = include_str!("../node/package.json");
const PACKAGE_LOCK: &str = include_str!("../node/package-lock.json");

/// A server, and how tests find it.
pub(crate) struct Server {
    /// What it is, for messages.
    pub(crate) what: &'static str,
    /// The variable that tests read.
    pub(crate) variable: &'static str,
    set_up: fn() -> Result<PathBuf, Error>,
}

/// All of them.
pub(crate) const ALL: [Server; 2] = [
    Server { what: "the S3 server (moto)", variable: "CKPT_S3_SERVER", set_up: moto },
    Server { what: "the Azure server (Azurite)", variable: "CKPT_AZURE_SERVER", set_up: azurite },
];

impl Server {
    /// Installs it if need be; the value of its variable.
    pub(crate) fn set_up(&self) -> Result<PathBuf, Error> {
        (self.set_up)()
    }
}

/// Installs what can be. What cannot is said, by name, and its tests will fail: that is no reason to run no others.
pub(crate) fn variables() -> Vec<(&'static str, PathBuf)> {
    let found = ALL.iter().filter_map(|server| match server.set_up() {
        Ok(value) => Some((server.variable, value)),
        Err(error) => {
            eprintln!("not run: {}, so its tests will fail: {error}", server.what);
            None
        }
    });
    found.collect()
}

fn moto() -> Result<PathBuf, Error> {
    Ok(python::servers()?.interpreter())
}

fn azurite() -> Result<PathBuf, Error> {
    for program in ["node", "npm"] {
        if !test::answers(Command::new(program).arg("--version")) {
            return Err(Error::Missing {
                what: format!("{program} (for the Azure server that tests of object stores start)"),
                remedy: "install Node.js 20 or later with npm (Debian, Ubuntu: `apt-get install nodejs npm`; Fedora: `dnf install \
                         nodejs`; macOS: `brew install node`)"
                    .to_owned(),
            });
        }
    }
    let name = format!("azurite-{}", cache::fingerprint(&[PACKAGE, PACKAGE_LOCK]));
    cache::entry(&cache::folder()?, &name, install)
}

fn install(folder: &Path) -> Result<(), Error> {
    eprintln!("setting up Azurite in {} (180 MB: once per machine)", folder.display());
    for (name, text) in [("package.json", PACKAGE), ("package-lock.json", PACKAGE_LOCK)] {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(Error::path("write", &path))?;
    }
    let mut npm = Command::new("npm");
    npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"])
        .current_dir(folder)
        .stdout(std::io::stderr());
    process::run(
        &mut npm,
        "npm's own message is above; it needs to reach its registry. Running the same command again starts over cleanly",
    )
}
