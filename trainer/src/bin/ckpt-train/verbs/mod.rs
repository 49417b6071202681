//! The verbs. Each yields the exit code of what it did, or the failure.

mod check;
mod compare;
mod config;
mod data;
pub(crate) mod doctor;
mod generate;
mod launch;
pub(crate) mod plan;
pub(crate) mod preflight;
mod schedule;
mod stages;
mod trace;
mod train;

use std::io::{self, Write};

pub(crate) use self::schedule::args::Schedule;
use trainer::{Error, ErrorKind, Result, launch::guarded};

use crate::{
    cli::{Cli, Verb},
    exit,
};

/// Does what was asked for.
pub(crate) fn run(cli: Cli) -> Result<u8> {
    match cli.verb {
        Verb::Train(options) => train::run(&options),
        Verb::Launch(options) => launch::run(options),
        Verb::Check(options) => check::run(&options),
        Verb::Config(options) => config::run(&options),
        Verb::Data { verb } => data::run(&verb),
        Verb::Generate(options) => generate::run(&options),
        Verb::Schedule { verb } => schedule::run(&verb),
        Verb::Plan(options) => plan::run(&options),
        Verb::Preflight(options) => preflight::run(&options),
        Verb::Stages(options) => stages::run(&options),
        Verb::Compare(options) => compare::run(&options),
        Verb::Doctor(options) => doctor::run(&options),
        Verb::Trace { folder } => trace::run(&folder),
        Verb::ExitCodes => exit_codes(),
        Verb::Guard { launcher, command } => match command.split_first() {
            Some((program, arguments)) => Err(guarded(launcher, program, arguments)),
            None => Ok(exit::USAGE.number),
        },
    }
}

fn exit_codes() -> Result<u8> {
    use trainer::launch::Reaction;
    let line = |code: &exit::Code| {
        let done = match code.reaction {
            Reaction::Final => "ends the run",
            Reaction::Restart => "all start again",
            Reaction::Follows => "all start again; another rank is the cause",
        };
        format!("{:>3}  {}; {done}\n", code.number, code.meaning)
    };
    print(&exit::ALL.iter().map(line).collect::<String>())
}

/// Prints to stdout. A reader that went away is no failure.
fn print(text: &str) -> Result<u8> {
    let written = io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush());
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::new(ErrorKind::Io, format!("cannot print: {error}")).caused_by(error))
        }
        _ => Ok(exit::DONE.number),
    }
}
