//! The main job, end to end, on a checkpoint that real PyTorch writes: six stages, each with checks of its own.
//!
//! Invariants: every check is counted, with its verdict, in the closing table; one that fails makes the exit code
//! non-zero, and the stages behind it still run where they can. What PyTorch recorded while training is the oracle:
//! the suite's own word is never enough.

mod report;
mod stages;
mod workplace;

use crate::error::Error;
use crate::{process, python, repository, test};
use workplace::Workplace;

/// Runs all stages; with `reuse`, on the training that an earlier run left.
pub(crate) fn run(reuse: bool) -> Result<(), Error> {
    test::require_c_compiler()?;
    let environment = python::environment()?;
    process::run(
        &mut test::cargo(&["build", "--quiet", "--package", "ckpt", "--bin", "ckpt"]),
        "the build failed",
    )?;
    let folder = repository::root().join("target/demo");
    let mut workplace = Workplace::new(folder, environment, reuse)?;
    for (number, (title, stage)) in (1..).zip(stages::ALL) {
        workplace.report.stage(number, title);
        stage(&mut workplace);
    }
    let readme = repository::root().join("README.md");
    let readme = std::fs::read_to_string(&readme).map_err(Error::path("read", &readme))?;
    workplace.report.close(&workplace.folder, &readme)
}
