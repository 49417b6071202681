//! `cargo xtask`: the project's own chores, the same for people and for CI.
//!
//! Invariants: a chore that fails ends with a non-zero code and one sentence that says what to do; nothing is
//! installed outside the cache folder ([`cache`]); nothing is fetched except through pip, npm and cargo.

mod arrows;
mod bench;
mod cache;
mod ci;
mod demo;
mod devices;
mod error;
mod fixtures;
mod kills;
mod libtorch;
mod process;
mod prove;
mod python;
mod repository;
mod servers;
mod setup;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use error::Error;

/// Chores of the checkpoint suite.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Debug, Subcommand)]
enum Chore {
    /// Set up what tests, demo and trainer need, in a cache folder shared by all clones: Python with torch, libtorch, and the servers
    /// that tests of object stores start
    Setup(setup::Options),
    /// Run the main job from end to end, on a checkpoint that real PyTorch writes and on the trainer's own, and check
    /// every result
    Demo(demo::Options),
    /// Set up what is missing and run every test
    Test {
        /// Passed to the test runner, for example a filter.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Measure speed and memory against torch's own tools
    Bench {
        #[command(subcommand)]
        what: Benchmark,
    },
    #[command(flatten)]
    Proof(prove::One),
    /// Run all proofs of the store
    Prove(prove::Size),
    /// Prove that a training run survives being killed, on whatever mesh it goes on
    Kills(kills::Options),
    /// Measure every pipeline schedule on imagined devices beside its simulation, over threads and over processes
    Virtual(devices::Options),
    /// Everything that `.ci/run` does
    Ci,
    /// Check which crate reaches which, and that dependencies stay few
    Arrows,
    /// Write the fixtures anew into a scratch folder and say how they differ from the committed ones
    Fixtures,
    /// Run the environment's Python: `cargo xtask python -- script.py`
    Python {
        /// What Python is given.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

#[derive(Debug, Subcommand)]
enum Benchmark {
    /// `ckpt` on a large torch DCP checkpoint, and on one of many tensors
    Ckpt(bench::Options),
    /// The native store: saves, verification, fingerprints, large manifests, long logs
    Store(bench::store::Options),
    /// A checkpoint on another mesh: beside torch's load and save, and beside floors
    Reshard(bench::reshard::Options),
    /// The store's codecs on weights and moments of a model that was really trained
    Codecs(bench::codecs::Options),
    /// A training step of the trainer, without saves and with them
    Trainer(bench::trainer::Options),
}

fn main() -> ExitCode {
    match run(Arguments::parse().chore) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            let mut cause = std::error::Error::source(&error);
            while let Some(inner) = cause {
                eprintln!("  because: {inner}");
                cause = inner.source();
            }
            ExitCode::FAILURE
        }
    }
}

fn run(chore: Chore) -> Result<ExitCode, Error> {
    match chore {
        Chore::Setup(options) => done(|| setup::run(&options)),
        Chore::Demo(options) => done(|| demo::run(&options)),
        Chore::Test { arguments } => done(|| test::run(&arguments)),
        Chore::Bench { what: Benchmark::Ckpt(options) } => done(|| bench::run(&options)),
        Chore::Bench { what: Benchmark::Store(options) } => done(|| bench::store::run(&options)),
        Chore::Bench { what: Benchmark::Reshard(options) } => done(|| bench::reshard::run(&options)),
        Chore::Bench { what: Benchmark::Codecs(options) } => done(|| bench::codecs::run(&options)),
        Chore::Bench { what: Benchmark::Trainer(options) } => done(|| bench::trainer::run(&options)),
        Chore::Proof(proof) => done(|| prove::one(&proof)),
        Chore::Prove(size) => done(|| prove::all(&size)),
        Chore::Kills(options) => done(|| kills::run(&options)),
        Chore::Virtual(options) => done(|| devices::run(&options)),
        Chore::Ci => done(ci::run),
        Chore::Arrows => done(arrows::run),
        Chore::Fixtures => done(fixtures::run),
        Chore::Python { arguments } => python::environment()?.hand_over(&arguments),
    }
}

fn done(chore: impl FnOnce() -> Result<(), Error>) -> Result<ExitCode, Error> {
    chore().map(|()| ExitCode::SUCCESS)
}
