//! Every test of the workspace, with the real Python libraries, and servers that speak the protocols of object stores, at hand.

use std::process::{Command, Stdio};

use crate::error::Error;
use crate::{libtorch, process, python, repository, servers};

/// Doc tests first, then the rest, so that the runner's own summary is the last thing printed.
pub(crate) fn run(arguments: &[String]) -> Result<(), Error> {
    require_c_compiler()?;
    libtorch::require_cxx_compiler()?;
    let interpreter = python::environment()?.interpreter();
    libtorch::set_up(None)?;
    let servers = servers::variables();
    let mut steps = Vec::new();
    if arguments.is_empty() {
        steps.push(cargo(&["test", "--workspace", "--doc", "--quiet"]));
    }
    steps.push(if has_nextest() {
        cargo(&["nextest", "run", "--workspace", "--no-fail-fast"])
    } else {
        cargo(&["test", "--workspace", "--lib", "--bins", "--tests", "--no-fail-fast"])
    });
    if let Some(last) = steps.last_mut() {
        last.args(arguments);
    }
    steps.iter_mut().try_for_each(|step| {
        eprintln!("$ {}", process::shown(step));
        step.env("CKPT_PYTHON", &interpreter).envs(servers.iter().map(|(name, value)| (name, value)));
        process::run(step, "see the failing tests above")
    })
}

/// SQLite and zstd are compiled from source.
pub(crate) fn require_c_compiler() -> Result<(), Error> {
    let found = ["cc", "gcc", "clang"].into_iter().any(|name| answers(Command::new(name).arg("--version")));
    if found || std::env::var_os("CC").is_some() {
        return Ok(());
    }
    Err(Error::Missing {
        what: "a C compiler".to_owned(),
        remedy:
            "install one (Debian, Ubuntu: `apt-get install gcc libc6-dev`; Fedora: `dnf install gcc`; macOS: \
                 `xcode-select --install`)"
                .to_owned(),
    })
}

fn has_nextest() -> bool {
    answers(&mut cargo(&["nextest", "--version"]))
}

/// Whether the program is there and ends well.
pub(crate) fn answers(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// The cargo that runs us, in the workspace root.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(arguments).current_dir(repository::root());
    command
}
