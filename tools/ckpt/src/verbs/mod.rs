//! One file per verb: reads its options, calls an operation of `dcp`, hands the report to `output`.

mod copy;
mod diff;
mod facts;
mod help;
mod inspect;
mod names;
mod open;
mod root;
mod seal;
mod verify;
mod write;

pub(crate) use write::Worker;

use std::time::Instant;

use dcp::{Cancel, Error, Progress, Result};
use fqn::{Entry, pattern::Pattern};

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
        Verb::Verify(args) => verify::run(&context, args),
        Verb::Convert(args) => write::convert(&context, args),
        Verb::Reshard(args) => write::reshard(&context, args),
        Verb::Export(args) => write::export(&context, args),
        Verb::Copy(args) => copy::run(&context, args),
        Verb::Diff(args) => diff::run(&context, args),
        Verb::Seal(args) => seal::run(&context, args),
        Verb::Ls(args) => root::ls(&context, args),
        Verb::Log(args) => root::log(&context, args),
        Verb::Tag(args) => root::tag(&context, args),
        Verb::Pin(args) => root::pin(&context, args),
        Verb::Forget(args) => root::forget(&context, args),
        Verb::Gc(args) => root::gc(&context, args),
        Verb::Du(args) => root::du(&context, args),
        Verb::Doctor(args) => root::doctor(&context, args),
    }
}

/// Whether a tensor is among those that `glob` selects.
fn matches(glob: Option<&Pattern>, entry: &Entry) -> bool {
    glob.is_none_or(|glob| glob.matches(entry.fqn.as_str()))
}

/// The pattern that a `#GLOB` means.
fn pattern(glob: Option<&str>) -> Result<Option<Pattern>> {
    let read =
        |text| Pattern::new(text).map_err(|e| Error::incompatible(format!("#{text}: {e}")).caused_by(e));
    glob.map(read).transpose()
}
