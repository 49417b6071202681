//! `ckpt`: see inside, prove, reshard and convert checkpoints.
//!
//! The command owns the terminal, the environment and the exit code; everything it does is an operation of `dcp`.
//!
//! ```text
//!  args ─► cli ─► verbs::* ─► dcp::ops ─► report ─► output (human | plain | json on stdout)
//!                    │                                progress, warnings, errors on stderr
//!                    └─ any failure ─► exit: kind → message + hint + exit code
//! ```
#![forbid(unsafe_code)]

mod cli;
mod exit;
mod files;
mod interrupt;
mod output;
mod progress;
mod subset;
mod target;
mod verbs;

use std::process::ExitCode;

fn main() -> ExitCode {
    let parsed = match cli::parse() {
        Ok(parsed) => parsed,
        Err(early) => return early,
    };
    let outcome = verbs::run(&parsed);
    exit::conclude(&parsed.global, outcome)
}
