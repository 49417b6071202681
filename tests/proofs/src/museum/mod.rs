//! `museum`: failures that other stores have published, each rebuilt against this one, with a switch.
//!
//! ```text
//!  exhibit ─ switch off ─► the ordinary way must work        switch on ─► the failure must be withstood, or refused by name
//! ```
//!
//! Each exhibit runs real product code: the commit log, saves, loads, verification, retention, the readers of other formats. What it
//! returns is what the product said or did; that must differ with the switch, or the switch does nothing. `MUSEUM.md` beside this
//! package is the list; a test holds it equal to the code.

mod commit;
mod formats;
mod integrity;
mod rigged;
mod save;

use std::collections::BTreeMap;
use std::fmt::Debug;

use dcp::store::{Root, Stores};
use dcp::{Error, ErrorKind};
use serde::Serialize;

use crate::proof::{Proof, Size};
use crate::training::Outcome;

/// One published failure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exhibit {
    /// Where it was published.
    source: &'static str,
    /// What happened there.
    happened: &'static str,
    /// What the switch does here.
    switch: &'static str,
    /// What catches it, or withstands it.
    caught_by: &'static str,
    /// Runs it; what the product said or did, or that it survived.
    show: fn(bool) -> Outcome<String>,
}

/// What each exhibit came to.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Museum {
    exhibits: usize,
    sources: usize,
    /// What was said with the switch on.
    said: BTreeMap<&'static str, String>,
    survived: Vec<String>,
}

/// Exhibits that there are at least.
const LEAST: usize = 24;

impl Proof for Museum {
    const NAME: &'static str = "museum";

    fn bad(&self) -> Vec<String> {
        let mut bad = self.survived.clone();
        if self.exhibits < LEAST {
            bad.push(format!("{} exhibits, at least {LEAST} are promised", self.exhibits));
        }
        bad
    }
}

/// All exhibits, in the order of the list.
fn exhibits() -> Vec<Exhibit> {
    [commit::EXHIBITS, save::EXHIBITS, integrity::EXHIBITS, formats::EXHIBITS].concat()
}

/// Runs all of them.
pub(crate) fn run(_size: Size) -> Outcome<Museum> {
    let all = exhibits();
    let sources = all.iter().map(|it| it.source.split(", ").count()).sum();
    let mut museum = Museum { exhibits: all.len(), sources, ..Museum::default() };
    eprint!("{}", list());
    for exhibit in &all {
        match exhibit.tried() {
            Ok(said) => {
                museum.said.insert(exhibit.source, said);
            }
            Err(why) => museum.survived.push(format!("{}: {}: {why}", exhibit.source, exhibit.switch)),
        }
    }
    Ok(museum)
}

impl Exhibit {
    /// What the product says with the switch on, if both ways went as they must.
    fn tried(&self) -> Result<String, String> {
        let off = (self.show)(false).map_err(|error| format!("with the switch off: {error}"))?;
        let on = (self.show)(true).map_err(|error| format!("survives: {error}"))?;
        if on == off { Err(format!("the switch changes nothing: {on}")) } else { Ok(on) }
    }
}

/// The list, as `MUSEUM.md` has it.
fn list() -> String {
    let head = "# The museum\n\nFailures that other stores have published, each rebuilt here with a switch; `cargo xtask museum` runs them. With the switch \
                off the ordinary way works; with it on, what the last column names refuses the failure or withstands it. Written by a test \
                of the package `proofs`.\n\n| Published as | What happened there | The switch here | What catches it here |\n| --- | --- | --- | --- |\n";
    let row =
        |it: &Exhibit| format!("| {} | {} | {} | {} |\n", it.source, it.happened, it.switch, it.caught_by);
    exhibits().iter().map(row).fold(head.to_owned(), |text, row| text + &row)
}

/// A root in memory.
fn memory() -> Outcome<Root> {
    Ok(Root::create("memory://run", &Stores::new())?)
}

/// The refusal that must be: of this kind, with these words in it.
fn refused<T: Debug>(result: Result<T, Error>, kind: ErrorKind, words: &[&str]) -> Outcome<String> {
    let error = match result {
        Ok(passed) => return Err(format!("it was let pass: {passed:?}").into()),
        Err(error) => error,
    };
    let text = error.to_string();
    let lacks = words.iter().find(|word| !text.contains(**word));
    match lacks {
        _ if error.kind() != kind => Err(format!("refused as {:?}: {text}", error.kind()).into()),
        Some(word) => Err(format!("refused without saying {word:?}: {text}").into()),
        None => Ok(text),
    }
}

/// An error of this crate's own boxes, as the product's.
fn product<T>(outcome: Outcome<T>) -> Result<T, Error> {
    outcome.map_err(|error| match error.downcast::<Error>() {
        Ok(error) => *error,
        Err(error) => Error::internal(error.to_string()),
    })
}

/// What must be so.
fn must(holds: bool, what: impl FnOnce() -> String) -> Outcome<()> {
    if holds { Ok(()) } else { Err(what().into()) }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_committed_list_is_that_of_the_code() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("MUSEUM.md");
        if std::env::var_os("MUSEUM_WRITE").is_some() {
            std::fs::write(&path, list()).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(committed, list(), "write it with MUSEUM_WRITE=1");
    }

    #[test]
    fn every_exhibit_is_one_of_a_kind() {
        let all = exhibits();
        let mut switches: Vec<&str> = all.iter().map(|it| it.switch).collect();
        switches.sort_unstable();
        switches.dedup();
        assert_eq!(switches.len(), all.len());
        assert!(all.len() >= LEAST);
    }
}
