//! `cargo xtask prove`, `cargo xtask crash` and the like: the proofs of the store, from the package `proofs`.
//!
//! Quick sizes are built as the tests are, so that nothing is compiled twice; full sizes are built optimised.

use clap::{ArgMatches, Args, Command, FromArgMatches, Subcommand};

use crate::error::Error;
use crate::{libtorch, process, python, test};

/// One of the proofs.
#[derive(Debug)]
pub(crate) struct Proof {
    name: &'static str,
    kind: Kind,
    about: &'static str,
}

/// How a proof is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// By the package `proofs`.
    Store,
    /// By the package `proofs`, which kills `ckpt` as well: that lies beside it once it is built.
    Killer,
    /// By the package `proofs`; at full size parsers are to be seen overflowing.
    Parsers,
    /// By tests of crates, with more cases.
    Properties,
    /// By an example of the trainer, which needs libtorch.
    Trainer,
}

/// All of them; they are listed nowhere else.
const PROOFS: [Proof; 11] = [
    proof("crash", Kind::Store, "Prove that no crash of the machine loses or mixes a checkpoint"),
    proof("killer", Kind::Killer, "Prove that no process that is killed loses or mixes a checkpoint"),
    proof(
        "flaky",
        Kind::Store,
        "Prove that commits are neither lost nor doubled on a store that loses acknowledgements",
    ),
    proof(
        "model",
        Kind::Store,
        "Prove commit, collection and retention in every order of events, within a bound",
    ),
    proof("newest", Kind::Store, "Measure what it takes to find the newest of many commits"),
    proof(
        "faults",
        Kind::Store,
        "Prove that every single fault of what is stored is found, named, and never loaded",
    ),
    proof(
        "fuzz",
        Kind::Parsers,
        "Feed all parsers of bytes from outside with bytes changed by chance: none panics, hangs, or takes more memory \
         than it may",
    ),
    proof(
        "copies",
        Kind::Store,
        "Prove that copies of a store, stopped anywhere, are recognised for what they are",
    ),
    proof(
        "museum",
        Kind::Store,
        "Rebuild the published failures of other stores, and show what catches each here",
    ),
    proof(
        "geometry",
        Kind::Properties,
        "Check the properties of names and geometry on random meshes, rules, shapes and flat buffers",
    ),
    proof(
        "parity",
        Kind::Trainer,
        "Prove that every pipeline schedule gives the losses and gradients of one process to the bit, on many meshes",
    ),
];

const fn proof(name: &'static str, kind: Kind, about: &'static str) -> Proof {
    Proof { name, kind, about }
}

fn named(name: &str) -> Option<&'static Proof> {
    PROOFS.iter().find(|proof| proof.name == name)
}

/// Cases of each property of the geometry: as promised, and as CI has time for.
const GEOMETRY_CASES: [&str; 2] = ["20000", "512"];

/// A proof and its size, as a subcommand of its name.
#[derive(Debug)]
pub(crate) struct One {
    proof: &'static Proof,
    size: Size,
}

impl Subcommand for One {
    fn augment_subcommands(chores: Command) -> Command {
        chores.subcommands(PROOFS.iter().map(|it| Size::augment_args(Command::new(it.name)).about(it.about)))
    }

    fn augment_subcommands_for_update(chores: Command) -> Command {
        Self::augment_subcommands(chores)
    }

    fn has_subcommand(name: &str) -> bool {
        named(name).is_some()
    }
}

impl FromArgMatches for One {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let none = || clap::Error::new(clap::error::ErrorKind::MissingSubcommand);
        let (name, matches) = matches.subcommand().ok_or_else(none)?;
        Ok(Self { proof: named(name).ok_or_else(none)?, size: Size::from_arg_matches(matches)? })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
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
pub(crate) fn one(one: &One) -> Result<(), Error> {
    run(one.proof, &one.size)
}

/// Runs all of them.
pub(crate) fn all(size: &Size) -> Result<(), Error> {
    PROOFS.iter().try_for_each(|proof| run(proof, size))
}

fn run(proof: &Proof, size: &Size) -> Result<(), Error> {
    let seed = size.seed.to_string();
    let mut environment = Vec::new();
    let profile = match proof.kind {
        Kind::Properties => return geometry(size, &seed),
        Kind::Trainer => return trainer(proof, size, &seed),
        Kind::Parsers => &["--profile", "fuzz"][..],
        Kind::Store | Kind::Killer => &["--release"],
    };
    if proof.kind == Kind::Killer {
        let mut build = vec!["build", "--quiet", "--package", "ckpt"];
        build.extend(size.full.then_some("--release"));
        process::run(&mut test::cargo(&build), "cargo's own message is above")?;
        environment.extend(python::installed()?.map(|it| ("CKPT_PYTHON", it.interpreter())));
    }
    let mut arguments = vec!["run", "--quiet", "--package", "proofs"];
    arguments.extend(profile.iter().filter(|_| size.full));
    arguments.extend(["--", proof.name, "--seed", &seed]);
    arguments.extend(size.full.then_some("--full"));
    process::run(test::cargo(&arguments).envs(environment), "what is bad is printed above")
}

/// An example of the trainer of the proof's name.
fn trainer(proof: &Proof, size: &Size, seed: &str) -> Result<(), Error> {
    libtorch::set_up(None)?;
    let mut arguments = vec!["run", "--quiet", "--package", "trainer", "--example", proof.name];
    arguments.extend(size.full.then_some("--release"));
    arguments.extend(["--", "--seed", seed]);
    arguments.extend(size.full.then_some("--full"));
    process::run(&mut test::cargo(&arguments), "what is not the same is printed above")
}

/// The properties are tests of the crates themselves, with more cases than a test run has: those of the two pure ones, and in full that a
/// plan's cost is what a copy reads and writes.
fn geometry(size: &Size, seed: &str) -> Result<(), Error> {
    let [full, quick] = GEOMETRY_CASES;
    let cases = if size.full { full } else { quick };
    let mut arguments = vec!["test", "--quiet", "--package", "fqn", "--package", "reshard", "--lib"];
    if size.full {
        arguments.push("--release");
        properties(
            &["test", "--quiet", "--package", "dcp", "--lib", "--release", "tests::cost"],
            cases,
            seed,
        )?;
    }
    properties(&arguments, cases, seed)?;
    println!("{{\"proof\":\"geometry\",\"seed\":{seed},\"cases_of_each_property\":{cases},\"failures\":0}}");
    Ok(())
}

fn properties(arguments: &[&str], cases: &str, seed: &str) -> Result<(), Error> {
    let environment = [("PROPTEST_CASES", cases), ("RESHARD_CASES", cases), ("PROPTEST_RNG_SEED", seed)];
    // What the tests print is not figures.
    let mut command = test::cargo(arguments);
    command.envs(environment).stdout(std::io::stderr());
    process::run(&mut command, "the failing property, and the least case that breaks it, are printed above")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Arguments {
        #[command(subcommand)]
        one: One,
    }

    #[test]
    fn every_proof_is_a_subcommand_of_its_name_that_says_what_it_is() {
        let command = One::augment_subcommands(Command::new("xtask"));
        for proof in &PROOFS {
            let one = Arguments::try_parse_from(["xtask", proof.name, "--full", "--seed", "7"]).unwrap().one;
            assert_eq!((one.proof.name, one.size.full, one.size.seed), (proof.name, true, 7));
            let about = command.find_subcommand(proof.name).unwrap().get_about().unwrap().to_string();
            assert_eq!(about, proof.about);
        }
        assert!(Arguments::try_parse_from(["xtask", "nothing"]).is_err());
    }
}
