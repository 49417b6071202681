//! `ckpt-train`: train a model on a mesh of ranks, and launch the ranks.
//!
//! The command owns the terminal, the environment and the exit code; everything it does is an operation of `trainer`.
//!
//! ```text
//!  args ─► dotted overrides rewritten ─► cli ─► verbs: train | launch | config | data
//!                                                 └─ any failure ─► exit: kind → message + hint + exit code
//! ```
#![forbid(unsafe_code)]

mod cli;
mod exit;
mod interrupt;
mod verbs;

use std::process::ExitCode;

fn main() -> ExitCode {
    let parsed = match cli::parse() {
        Ok(parsed) => parsed,
        Err(early) => return early,
    };
    exit::conclude(verbs::run(parsed))
}
