//! What CI does is written once, in `.ci/run`; this runs it from anywhere in the checkout.

use std::process::Command;

use crate::error::Error;
use crate::{process, repository};

/// Runs `.ci/run`.
pub(crate) fn run() -> Result<(), Error> {
    let root = repository::root();
    process::run(Command::new(root.join(".ci/run")).current_dir(&root), "the step above failed")
}
