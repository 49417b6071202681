//! The arrows between crates: `fqn ← reshard ← dcp ← tools, trainer`, and libtorch only behind `trainer`; and what the
//! trainer's sources must not name ([`purity`]).
//!
//! Arrows are checked on cargo's own resolved graph with every feature on, development dependencies aside.

mod graph;
mod purity;

use std::collections::BTreeSet;

use crate::error::Error;
use crate::{process, repository, test};
use graph::Graph;

/// A crate of ours, and all the crates of ours that it may reach.
const LAYERS: [(&str, &[&str]); 8] = [
    ("fqn", &[]),
    ("reshard", &["fqn"]),
    ("dcp", &["fqn", "reshard"]),
    ("ckpt", &["fqn", "reshard", "dcp"]),
    ("schedule", &[]),
    ("trainer", &["fqn", "reshard", "dcp", "schedule"]),
    ("fixtures", &[]),
    ("xtask", &[]),
];
/// Crates with I/O, databases or threads of their own, which the pure crates must not reach.
const IMPURE: [&str; 5] = ["object_store", "rusqlite", "tokio", "rustix", "tempfile"];
/// Reached for exported generators only, by a feature that no product has on; other test packages ask it for processes of its own.
const GENERATORS: [&str; 1] = ["proptest"];
/// What only the trainer may reach, and so nothing that a bare `cargo build` builds.
const TORCH: [&str; 3] = ["tch", "torch-sys", "cudarc"];
/// More packages than this in `Cargo.lock` need a reason in review. A good 20 of them are `tch`'s, for archives that the
/// trainer never opens; some 70 come with the object stores, which only builds that ask for them compile, some 20 with the proofs.
const CEILING: usize = 360;
/// More packages than this in a plain `ckpt` need a reason in review: it is to be built in minutes.
const PLAIN_CEILING: usize = 150;
/// What a plain `ckpt` must not reach: object stores are features of it.
const NETWORK: [&str; 5] = ["tokio", "hyper", "reqwest", "rustls", "ring"];

/// Prints each broken rule; an error if there is one.
pub(crate) fn run() -> Result<(), Error> {
    let mut broken = violations(&graph()?);
    broken.extend(purity::violations(&repository::root())?);
    let lock = repository::root().join("Cargo.lock");
    let text = std::fs::read_to_string(&lock).map_err(Error::path("read", &lock))?;
    let packages = text.lines().filter(|line| *line == "[[package]]").count();
    if packages > CEILING {
        broken.push(format!("Cargo.lock holds {packages} packages, more than {CEILING}"));
    }
    let plain = plain_packages()?;
    if plain.len() > PLAIN_CEILING {
        broken.push(format!("a plain ckpt has {} packages, more than {PLAIN_CEILING}", plain.len()));
    }
    let reached =
        NETWORK.iter().filter(|name| plain.iter().any(|package| package.starts_with(&format!("{name} "))));
    broken.extend(reached.map(|name| format!("a plain ckpt reaches {name}")));
    for line in &broken {
        println!("broken  {line}");
    }
    if broken.is_empty() {
        println!(
            "arrows  all hold, the model is free of ranks; {packages} packages of at most {CEILING}, a plain ckpt has {} of at most \
             {PLAIN_CEILING}",
            plain.len()
        );
        return Ok(());
    }
    Err(Error::Checks { count: broken.len(), what: "the rules on dependencies".to_owned() })
}

/// What a build of `ckpt` without features compiles: names and versions.
fn plain_packages() -> Result<BTreeSet<String>, Error> {
    let mut command = test::cargo(&[
        "tree",
        "--locked",
        "--package=ckpt",
        "--edges=normal,build",
        "--prefix=none",
        "--format={p}",
    ]);
    let output = process::output(&mut command)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(process::failed(&command, &output.status.to_string(), &said));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect())
}

fn graph() -> Result<Graph, Error> {
    let mut command = test::cargo(&["metadata", "--format-version=1", "--locked", "--all-features"]);
    let output = process::output(&mut command)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(process::failed(&command, &output.status.to_string(), &said));
    }
    Graph::read(&output.stdout).map_err(|source| Error::Answer { command: process::shown(&command), source })
}

fn violations(graph: &Graph) -> Vec<String> {
    let mut broken = Vec::new();
    for member in graph.members() {
        let reached = graph.reached_from(member);
        let allowed = LAYERS.iter().find(|(name, _)| *name == member).map(|(_, allowed)| *allowed);
        let mut forbid = |name: &str| broken.push(format!("{member} reaches {name}"));
        if let Some(allowed) = allowed {
            reached
                .iter()
                .filter(|name| graph.is_member(name) && !allowed.contains(name))
                .for_each(|name| forbid(name));
        }
        if member == "fqn" || member == "reshard" {
            let past = graph.reached_past(member, &GENERATORS);
            past.iter().filter(|name| IMPURE.contains(name)).for_each(|name| forbid(name));
        }
        if graph.is_default(member) || (member != "trainer" && !reached.contains("trainer")) {
            reached.iter().filter(|name| TORCH.contains(name)).for_each(|name| forbid(name));
        }
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(edges: &[(&str, &[&str])]) -> Vec<String> {
        let members = ["fqn", "reshard", "dcp", "ckpt", "trainer"];
        violations(&Graph::new(&members, edges))
    }

    #[test]
    fn the_design_breaks_no_rule() {
        let edges: [(&str, &[&str]); 5] = [
            ("reshard", &["fqn", "serde"]),
            ("dcp", &["reshard", "fqn", "rusqlite"]),
            ("ckpt", &["dcp"]),
            ("trainer", &["dcp", "tch"]),
            ("tch", &["torch-sys"]),
        ];
        assert_eq!(broken(&edges), Vec::<String>::new());
    }

    #[test]
    fn an_arrow_that_points_back_is_found_through_other_crates() {
        let edges: [(&str, &[&str]); 2] = [("fqn", &["between"]), ("between", &["dcp"])];
        assert_eq!(broken(&edges), ["fqn reaches dcp"]);
    }

    #[test]
    fn libtorch_behind_the_command_is_found() {
        let edges: [(&str, &[&str]); 2] = [("ckpt", &["x"]), ("x", &["tch"])];
        assert_eq!(broken(&edges), ["ckpt reaches tch"]);
    }

    #[test]
    fn the_trainer_among_the_default_members_is_found() {
        let graph = Graph::new(&["trainer", "ckpt"], &[("trainer", &["tch"])]);
        assert_eq!(violations(&graph), Vec::<String>::new());
        assert_eq!(violations(&graph.with_defaults(&["trainer", "ckpt"])), ["trainer reaches tch"]);
    }

    #[test]
    fn a_pure_crate_must_not_do_io() {
        assert_eq!(broken(&[("reshard", &["object_store"])]), ["reshard reaches object_store"]);
        assert_eq!(broken(&[("reshard", &["proptest"]), ("proptest", &["tempfile"])]), [""; 0]);
    }
}
