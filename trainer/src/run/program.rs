//! The program of a run: of a named schedule, or of a file.

use schedule::{Gather, Program, Shape};

use crate::{Result, config::Parallelism};

/// What each pipeline rank does in a step, checked and with its communication.
///
/// # Errors
/// `Config` for what no schedule can do with these numbers, and for a file that is refused.
pub(super) fn program(parallelism: &Parallelism, shape: Shape, gather: Gather) -> Result<Program> {
    let table = schedule::generate(schedule::named(&parallelism.schedule)?, shape)?;
    Ok(schedule::lower(&table, gather)?)
}
