//! `cargo xtask prove`, `cargo xtask crash` and the like: the proofs of the store, from the package `proofs`.
//!
//! Quick sizes are built as the tests are, so that nothing is compiled twice; full sizes are built optimised.

use clap::{Args, ValueEnum};

use crate::error::Error;
use crate::{process, python, test};

/// One of the proofs.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Proof {
    /// Every state that a crash of the machine could leave behind
    Crash,
    /// Real processes, killed at random moments
    Killer,
    /// Eight writers on a store that loses acknowledgements
    Flaky,
    /// Every order of events, within a bound
    Model,
    /// What it takes to find the newest of many commits
    Newest,
    /// Single faults of what is stored
    Faults,
    /// Parsers of bytes from outside
    Fuzz,
    /// Copies that were stopped anywhere
    Copies,
    /// Published failures of other stores
    Museum,
}

/// How much is tried.
#[derive(Debug, Args)]
pub(crate) struct Size {
    /// As much as the project promises, instead of what fits CI
    #[arg(long)]
    full: bool,
    /// Where all chance comes from
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs one proof; its figures go to stdout, as JSON.
pub(crate) fn one(proof: Proof, size: &Size) -> Result<(), Error> {
    let name = proof.to_possible_value().map(|it| it.get_name().to_owned()).unwrap_or_default();
    let seed = size.seed.to_string();
    let mut environment = Vec::new();
    if matches!(proof, Proof::Killer) {
        // It kills `ckpt` as well, which lies beside it once it is built.
        let mut build = vec!["build", "--quiet", "--package", "ckpt"];
        build.extend(size.full.then_some("--release"));
        process::run(&mut test::cargo(&build), "cargo's own message is above")?;
        environment.extend(python::installed()?.map(|it| ("CKPT_PYTHON", it.interpreter())));
    }
    let mut arguments = vec!["run", "--quiet", "--package", "proofs"];
    // The parsers are to be seen overflowing.
    let profile = if matches!(proof, Proof::Fuzz) { &["--profile", "fuzz"][..] } else { &["--release"] };
    arguments.extend(profile.iter().filter(|_| size.full));
    arguments.extend(["--", &name, "--seed", &seed]);
    arguments.extend(size.full.then_some("--full"));
    process::run(test::cargo(&arguments).envs(environment), "what is bad is printed above")
}

/// Runs all of them.
pub(crate) fn all(size: &Size) -> Result<(), Error> {
    Proof::value_variants().iter().try_for_each(|proof| one(*proof, size))
}
