//! `cargo xtask prove`, `cargo xtask crash` and the like: the proofs of the store, from the package `proofs`.
//!
//! Quick sizes are built as the tests are, so that nothing is compiled twice; full sizes are built optimised.

use clap::{ArgMatches, Args, Command, FromArgMatches, Subcommand, ValueEnum};

use crate::error::Error;
use crate::{process, python, test};

/// One of the proofs: the one list of them.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Proof {
    /// Prove that no crash of the machine loses or mixes a checkpoint
    Crash,
    /// Prove that no process that is killed loses or mixes a checkpoint
    Killer,
    /// Prove that commits are neither lost nor doubled on a store that loses acknowledgements
    Flaky,
    /// Prove commit, collection and retention in every order of events, within a bound
    Model,
    /// Measure what it takes to find the newest of many commits
    Newest,
    /// Prove that every single fault of what is stored is found, named, and never loaded
    Faults,
    /// Feed all parsers of bytes from outside with bytes changed by chance: none panics, hangs, or takes more memory than it may
    Fuzz,
    /// Prove that copies of a store, stopped anywhere, are recognised for what they are
    Copies,
    /// Rebuild the published failures of other stores, and show what catches each here
    Museum,
    /// Check the properties of names and geometry on random meshes, rules, shapes and flat buffers
    Geometry,
}

/// Cases of each property of the geometry: as promised, and as CI has time for.
const GEOMETRY_CASES: [&str; 2] = ["20000", "512"];

/// A proof and its size, as a subcommand of its name.
#[derive(Debug)]
pub(crate) struct One {
    proof: Proof,
    size: Size,
}

impl Subcommand for One {
    fn augment_subcommands(chores: Command) -> Command {
        let proofs = Proof::value_variants().iter().filter_map(ValueEnum::to_possible_value);
        chores.subcommands(proofs.map(|proof| {
            let command = Command::new(proof.get_name().to_owned());
            Size::augment_args(command.about(proof.get_help().cloned().unwrap_or_default()))
        }))
    }

    fn augment_subcommands_for_update(chores: Command) -> Command {
        Self::augment_subcommands(chores)
    }

    fn has_subcommand(name: &str) -> bool {
        Proof::from_str(name, false).is_ok()
    }
}

impl FromArgMatches for One {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let none = || clap::Error::new(clap::error::ErrorKind::MissingSubcommand);
        let (name, matches) = matches.subcommand().ok_or_else(none)?;
        let proof = Proof::from_str(name, false)
            .map_err(|why| clap::Error::raw(clap::error::ErrorKind::InvalidSubcommand, why))?;
        Ok(Self { proof, size: Size::from_arg_matches(matches)? })
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
    Proof::value_variants().iter().try_for_each(|proof| run(*proof, size))
}

fn run(proof: Proof, size: &Size) -> Result<(), Error> {
    let name = proof.to_possible_value().map(|it| it.get_name().to_owned()).unwrap_or_default();
    let seed = size.seed.to_string();
    if matches!(proof, Proof::Geometry) {
        return geometry(size, &seed);
    }
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

/// The properties are tests of the two crates themselves, with more cases than a test run has.
fn geometry(size: &Size, seed: &str) -> Result<(), Error> {
    let [full, quick] = GEOMETRY_CASES;
    let cases = if size.full { full } else { quick };
    let mut arguments = vec!["test", "--quiet", "--package", "fqn", "--package", "reshard", "--lib"];
    arguments.extend(size.full.then_some("--release"));
    let environment = [("PROPTEST_CASES", cases), ("RESHARD_CASES", cases), ("PROPTEST_RNG_SEED", seed)];
    // What the tests print is not figures.
    let mut command = test::cargo(&arguments);
    command.envs(environment).stdout(std::io::stderr());
    process::run(&mut command, "the failing property, and the least case that breaks it, are printed above")?;
    println!("{{\"proof\":\"geometry\",\"seed\":{seed},\"cases_of_each_property\":{cases},\"failures\":0}}");
    Ok(())
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
        for proof in Proof::value_variants() {
            let name = proof.to_possible_value().unwrap().get_name().to_owned();
            let one = Arguments::try_parse_from(["xtask", &name, "--full", "--seed", "7"]).unwrap().one;
            assert_eq!(
                (format!("{:?}", one.proof), one.size.full, one.size.seed),
                (format!("{proof:?}"), true, 7)
            );
            let command = One::augment_subcommands(Command::new("xtask"));
            assert!(
                command
                    .find_subcommand(&name)
                    .unwrap()
                    .get_about()
                    .is_some_and(|it| !it.to_string().is_empty())
            );
        }
        assert!(Arguments::try_parse_from(["xtask", "nothing"]).is_err());
    }
}
