//! `crash`: every state that a crash of the machine could leave behind.

use std::error::Error;

use serde::Serialize;

use crate::proof::{Proof, Size};

/// What was tried.
#[derive(Debug, Serialize)]
pub(crate) struct Crashes {
    states: u64,
}

impl Proof for Crashes {
    const NAME: &'static str = "crash";

    fn bad(&self) -> Vec<String> {
        if self.states == 0 { vec!["no state was tried".to_owned()] } else { Vec::new() }
    }
}

/// Tries them.
pub(crate) fn run(size: Size) -> Result<Crashes, Box<dyn Error>> {
    Ok(Crashes { states: size.pick(0, 0) })
}
