//! `cargo xtask virtual`: every pipeline schedule on imagined devices, measured beside simulated, by an example of the trainer.

use crate::error::Error;
use crate::{libtorch, process, test};

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Also on 8 ranks, with more microbatches and with uneven times: some minutes
    #[arg(long)]
    full: bool,
    /// Print all figures as JSON instead of lines
    #[arg(long)]
    json: bool,
}

/// Measures; errs when a schedule takes over 3 % longer than simulated, or ZB-H1 gains less than a fifth over 1F1B.
pub(crate) fn run(options: &Options) -> Result<(), Error> {
    libtorch::set_up(None)?;
    let mut arguments = vec!["run", "--quiet", "--package", "trainer", "--example", "virtual", "--"];
    if options.full {
        // Eight processes share what processors there are: what each does besides sleeping is in the way of all.
        arguments.insert(1, "--release");
        arguments.push("--full");
    }
    arguments.extend(options.json.then_some("--json"));
    process::run(&mut test::cargo(&arguments), "what deviates is printed above")
}
