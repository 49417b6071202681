//! The proofs of the store, each a subcommand: it prints what it does on stderr, its figures as one JSON object on stdout, and
//! ends with 1 when anything is bad. `cargo xtask prove` runs all of them at sizes that fit CI, `cargo xtask <proof> --full` one at
//! the size that the project promises.
//!
//! ```text
//!  cargo xtask crash|killer|… ──► proofs crash|killer|… [--full] [--seed N] ──► Report (JSON)
//! ```
//!
//! Invariants: a proof draws all chance from its seed, and prints it; a proof that tested nothing is bad; each has tests
//! (or mutations) that show that it can fail.

mod chance;
mod copies;
mod crash;
mod faults;
mod flaky;
mod fuzz;
mod killer;
#[cfg(test)]
mod machine;
mod model;
mod museum;
mod newest;
mod proof;
mod training;
mod values;
mod weights;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use proof::{Size, conclude};

#[global_allocator]
static MEMORY: fuzz::memory::Counting = fuzz::memory::Counting;

/// Proofs of the store.
#[derive(Debug, Parser)]
#[command(name = "proofs", disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    proof: Which,
}

#[derive(Debug, Subcommand)]
enum Which {
    /// Every state that a crash of the machine could leave behind
    Crash(crash::Options),
    /// Processes that are killed at random moments
    Killer(killer::Options),
    /// A process that `killer` starts
    #[command(hide = true, subcommand)]
    KillerChild(killer::child::Task),
    /// Eight writers on a store that loses acknowledgements
    Flaky(Size),
    /// Every order of events, within a bound
    Model(Size),
    /// What it takes to find the newest of many commits
    Newest(Size),
    /// Single faults of what is stored: each found, named, and never loaded
    Faults(Size),
    /// Parsers of bytes from outside, fed with bytes that were changed by chance
    Fuzz {
        /// How much
        #[command(flatten)]
        size: Size,
        /// Write the seeds below this folder, and do nothing else
        #[arg(long)]
        seeds: Option<std::path::PathBuf>,
    },
    /// Copies that were stopped anywhere, by any tool, in any order
    Copies(Size),
    /// Published failures of other stores, rebuilt
    Museum(Size),
}

fn main() -> ExitCode {
    match Arguments::parse().proof {
        Which::Crash(options) => conclude(options.size, |_| crash::run(options)),
        Which::Killer(options) => conclude(options.size, |_| killer::run(&options)),
        Which::KillerChild(task) => match killer::child::run_task(&task) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        },
        Which::Flaky(size) => conclude(size, flaky::run),
        Which::Model(size) => conclude(size, model::run),
        Which::Newest(size) => conclude(size, newest::run),
        Which::Faults(size) => conclude(size, faults::run),
        Which::Fuzz { seeds: Some(folder), .. } => match fuzz::write_seeds(&folder) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("fuzz: {}: {error}", folder.display());
                ExitCode::FAILURE
            }
        },
        Which::Fuzz { size, .. } => conclude(size, fuzz::run),
        Which::Copies(size) => conclude(size, copies::run),
        Which::Museum(size) => conclude(size, museum::run),
    }
}
