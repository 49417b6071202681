//! One file per verb: reads its options, calls an operation of `dcp`, hands the report to `output`.

mod help;
mod inspect;
mod names;
mod open;

use std::time::Instant;

use dcp::{Cancel, Progress, Result};

use crate::cli::{Cli, Global, Verb};
use crate::exit::{self, Code};
use crate::{interrupt, progress};

/// What every verb gets beside its own options.
pub(crate) struct Context<'a> {
    /// Options that every verb takes.
    pub(crate) global: &'a Global,
    /// The wish to stop.
    pub(crate) cancel: Cancel,
    /// Who watches.
    pub(crate) progress: Box<dyn Progress>,
    /// When the run began.
    pub(crate) since: Instant,
}

/// Runs the verb.
pub(crate) fn run(cli: &Cli) -> Result<Code> {
    let context = Context {
        global: &cli.global,
        cancel: interrupt::install()?,
        progress: progress::watcher(cli.global.progress, cli.global.quiet),
        since: Instant::now(),
    };
    match &cli.verb {
        Verb::Inspect(args) => inspect::run(&context, args),
        Verb::Fqn(verb) => names::run(&context, verb),
        Verb::Help(args) => help::run(args.topic.as_deref()),
        Verb::Completions(args) => {
            clap_complete::generate(args.shell, &mut crate::cli::command(), "ckpt", &mut anstream::stdout());
            Ok(exit::DONE)
        }
        _ => Err(dcp::Error::unsupported("this verb is on its way")),
    }
}
