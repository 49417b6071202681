//! `cargo xtask`: the project's own chores, the same for people and for CI.
//!
//! Invariants: a chore that fails ends with a non-zero code and one sentence that says what to do; nothing is
//! installed outside the cache folder ([`cache`]); nothing is fetched except through pip, npm and cargo.

mod arrows;
mod bench;
mod cache;
mod ci;
mod demo;
mod error;
mod fixtures;
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
    /// Prove that no crash of the machine loses or mixes a checkpoint
    Crash(prove::Size),
    /// Prove that no process that is killed loses or mixes a checkpoint
    Killer(prove::Size),
    /// Prove that commits are neither lost nor doubled on a store that loses acknowledgements
    Flaky(prove::Size),
    /// Prove commit, collection and retention in every order of events, within a bound
    Model(prove::Size),
    /// Measure what it takes to find the newest of many commits
    Newest(prove::Size),
    /// Prove that every single fault of what is stored is found, named, and never loaded
    Faults(prove::Size),
    /// Feed all parsers of bytes from outside with bytes changed by chance: none panics, hangs, or takes more memory than it may
    Fuzz(prove::Size),
    /// Prove that copies of a store, stopped anywhere, are recognised for what they are
    Copies(prove::Size),
    /// Rebuild the published failures of other stores, and show what catches each here
    Museum(prove::Size),
    /// Run all proofs of the store
    Prove(prove::Size),
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
        Chore::Bench { what: Benchmark::Codecs(options) } => done(|| bench::codecs::run(&options)),
        Chore::Bench { what: Benchmark::Trainer(options) } => done(|| bench::trainer::run(&options)),
        Chore::Crash(size) => done(|| prove::one(prove::Proof::Crash, &size)),
        Chore::Killer(size) => done(|| prove::one(prove::Proof::Killer, &size)),
        Chore::Flaky(size) => done(|| prove::one(prove::Proof::Flaky, &size)),
        Chore::Model(size) => done(|| prove::one(prove::Proof::Model, &size)),
        Chore::Newest(size) => done(|| prove::one(prove::Proof::Newest, &size)),
        Chore::Faults(size) => done(|| prove::one(prove::Proof::Faults, &size)),
        Chore::Fuzz(size) => done(|| prove::one(prove::Proof::Fuzz, &size)),
        Chore::Copies(size) => done(|| prove::one(prove::Proof::Copies, &size)),
        Chore::Museum(size) => done(|| prove::one(prove::Proof::Museum, &size)),
        Chore::Prove(size) => done(|| prove::all(&size)),
        Chore::Ci => done(ci::run),
        Chore::Arrows => done(arrows::run),
        Chore::Fixtures => done(fixtures::run),
        Chore::Python { arguments } => python::environment()?.hand_over(&arguments),
    }
}

fn done(chore: impl FnOnce() -> Result<(), Error>) -> Result<ExitCode, Error> {
    chore().map(|()| ExitCode::SUCCESS)
}
