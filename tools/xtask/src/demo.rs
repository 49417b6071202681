//! The main job, end to end, in two halves of six and four stages, each with checks of its own: the command, on a checkpoint that
//! real PyTorch writes; and the trainer, from its first step to what other software makes of its last.
//!
//! Invariants: every check is counted, with its verdict, in the closing table; one that fails makes the exit code
//! non-zero, and the stages behind it still run where they can. What PyTorch recorded while training, and what
//! transformers, torch and Python readers of our own files find, is the oracle: the suite's own word is never enough.

mod report;
mod stages;
mod train;
mod trainer;
mod workplace;

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::error::Error;
use crate::{libtorch, process, python, repository, test};
use workplace::Workplace;

/// A stage: it calls the programs as a user would and checks what they did.
type Stage = fn(&mut Workplace);

/// What to run.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// One half alone; both when not given
    half: Option<Half>,
    /// Use PyTorch's training of an earlier run again, if there is one
    #[arg(long)]
    reuse: bool,
    /// Folder of text files that the trainer trains on, instead of the licence texts that come with PyTorch
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

/// The halves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Half {
    /// The command `ckpt`, on what PyTorch writes
    Ckpt,
    /// The trainer: train, be killed, resume elsewhere, export
    Train,
}

impl Options {
    fn has(&self, half: Half) -> bool {
        self.half.is_none_or(|only| only == half)
    }

    /// Stages with their numbers and titles, which do not depend on the half.
    fn stages(&self) -> impl Iterator<Item = (usize, &'static str, Stage)> {
        let ckpt = stages::ALL.map(|(title, stage)| (Half::Ckpt, title, stage));
        let train = train::ALL.map(|(title, stage)| (Half::Train, title, stage));
        let numbered = (1..).zip(ckpt.into_iter().chain(train));
        numbered
            .filter(|(_, (half, ..))| self.has(*half))
            .map(|(number, (_, title, stage))| (number, title, stage))
    }
}

/// Runs the stages that were asked for.
pub(crate) fn run(options: &Options) -> Result<(), Error> {
    test::require_c_compiler()?;
    let environment = python::environment()?;
    build(&["--package", "ckpt", "--bin", "ckpt"])?;
    if options.has(Half::Train) {
        libtorch::require_cxx_compiler()?;
        libtorch::set_up(None)?;
        build(&["--package", "trainer", "--bin", "ckpt-train"])?;
    }
    let folder = repository::root().join("target/demo");
    let cleared = |half| options.has(half);
    let mut workplace = Workplace::new(folder, environment, options.reuse, cleared)?;
    if options.has(Half::Train) {
        workplace.train_on(options.data.as_deref())?;
    }
    for (number, title, stage) in options.stages() {
        workplace.report.stage(number, title);
        stage(&mut workplace);
    }
    let readme = repository::root().join("README.md");
    let readme = std::fs::read_to_string(&readme).map_err(Error::path("read", &readme))?;
    workplace.report.close(&workplace.folder, &readme, options.half.is_none())
}

fn build(what: &[&str]) -> Result<(), Error> {
    let mut command = test::cargo(&["build", "--quiet"]);
    process::run(command.args(what), "the build failed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_half_alone_has_the_numbers_and_titles_that_it_has_in_the_whole() {
        let of = |half| {
            let options = Options { half, reuse: false, data: None };
            options.stages().map(|(number, title, _)| (number, title)).collect::<Vec<_>>()
        };
        let whole = of(None);
        assert_eq!([of(Some(Half::Ckpt)), of(Some(Half::Train))].concat(), whole);
        assert!(whole.iter().map(|(number, _)| *number).eq(1..=whole.len()));
    }
}
