//! Finding a Python that can carry the environment, and saying in one sentence what is missing when there is none.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Error;
use crate::process;

/// The Pythons that `requirements.lock` has wheels for, as minor versions of 3.
const SUPPORTED: std::ops::RangeInclusive<u32> = 11..=14;

/// A usable Python of the machine.
#[derive(Debug)]
pub(crate) struct Interpreter {
    program: PathBuf,
    identity: String,
}

impl Interpreter {
    /// `python3`, or else a versioned one beside it.
    pub(crate) fn find() -> Result<Self, Error> {
        let names = std::iter::once("python3".to_owned())
            .chain(SUPPORTED.rev().map(|minor| format!("python3.{minor}")));
        let mut unsuitable = None;
        for name in names {
            match probe(&name) {
                Some((minor, found)) if SUPPORTED.contains(&minor) => return Ok(found),
                Some((minor, _)) => unsuitable = unsuitable.or(Some(minor)),
                None => {}
            }
        }
        Err(Error::Missing {
            what: unsuitable.map_or_else(
                || "Python 3".to_owned(),
                |minor| format!("a suitable Python (the machine has 3.{minor})"),
            ),
            remedy: format!(
                "install Python 3.{} to 3.{} with venv and pip (Debian, Ubuntu: `apt-get install python3 python3-venv \
                 python3-pip`; Fedora: `dnf install python3 python3-pip`; macOS: `brew install python`)",
                SUPPORTED.start(),
                SUPPORTED.end()
            ),
        })
    }

    /// What an environment depends on: version, implementation, machine, and which interpreter it points to.
    pub(crate) fn identity(&self) -> &str {
        &self.identity
    }

    /// An empty environment with pip in `folder`.
    pub(crate) fn create_environment(&self, folder: &Path) -> Result<(), Error> {
        let mut command = Command::new(&self.program);
        command.args(["-m", "venv"]).arg(folder);
        let output = process::output(&mut command)?;
        if output.status.success() {
            return Ok(());
        }
        Err(Error::Missing {
            what: format!("the `venv` module (with pip) of {}", self.program.display()),
            remedy: format!(
                "install it (Debian, Ubuntu: `apt-get install python3-venv python3-pip`); Python said: {}",
                last_line(&output.stdout, &output.stderr)
            ),
        })
    }
}

/// Asks `name` who it is. `None` when it can't be run.
fn probe(name: &str) -> Option<(u32, Interpreter)> {
    const QUESTION: &str = "import platform, sys; print(sys.version_info[1]); print(sys.executable); \
         print(sys.version, platform.machine(), sys.platform, sys.base_prefix)";
    let output = process::output(Command::new(name).args(["-I", "-c", QUESTION])).ok()?;
    let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
    let mut lines = text.lines();
    let minor = lines.next()?.parse().ok()?;
    let program = PathBuf::from(lines.next()?);
    let identity = lines.collect::<Vec<_>>().join("\n");
    Some((minor, Interpreter { program, identity }))
}

fn last_line(stdout: &[u8], stderr: &[u8]) -> String {
    let text = format!("{}\n{}", String::from_utf8_lossy(stdout), String::from_utf8_lossy(stderr));
    text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("nothing").trim().to_owned()
}
