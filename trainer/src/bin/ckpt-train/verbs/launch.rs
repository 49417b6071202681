//! `ckpt-train launch`: starts ranks, and starts all again when one dies.

use std::{
    env,
    ffi::OsString,
    process::id,
    time::{SystemTime, UNIX_EPOCH},
};

use trainer::{
    Error, ErrorKind, Result,
    config::check_world,
    launch::{Outcome, Plan, Served, launch},
};

use crate::{
    cli::{self, Launch, Verb},
    exit,
    interrupt::Interrupt,
};

pub(super) fn run(options: Launch) -> Result<u8> {
    if options.program.is_none() {
        check(&options)?;
    }
    let plan = plan(options)?;
    let interrupt = Interrupt::install()?;
    let outcome = launch(&plan, &Served, &|| interrupt.seen(), &mut |line| eprintln!("launch  {line}"))?;
    Ok(match outcome {
        Outcome::Done => exit::DONE.number,
        Outcome::Failed(ending) => ending.code(),
        Outcome::Stopped(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
    })
}

/// Refuses what every rank would refuse, once and before any is started.
fn check(options: &Launch) -> Result<()> {
    let arguments =
        ["ckpt-train", "train"].map(OsString::from).into_iter().chain(options.arguments.iter().cloned());
    let refused = |_| Error::config("the arguments after -- are none of `ckpt-train train`");
    let parsed = cli::parse_from(arguments).map_err(refused)?;
    match parsed.verb {
        Verb::Train(train) => {
            let resolved = train.source.resolve()?;
            check_world(resolved.config.parallelism.mesh, usize::from(options.nproc))
        }
        _ => Err(refused(std::process::ExitCode::FAILURE)),
    }
}

fn plan(options: Launch) -> Result<Plan> {
    let failed = |error: std::io::Error| {
        Error::new(ErrorKind::Io, format!("cannot find the path of this program: {error}")).caused_by(error)
    };
    let this: OsString = env::current_exe().map_err(failed)?.into();
    let own = options.program.is_none();
    let mut command =
        options.program.map_or_else(|| vec![this.clone(), "train".into()], |program| vec![program]);
    command.extend(options.arguments);
    Ok(Plan {
        guard: vec![this, "guard".into()],
        command,
        workers: usize::from(options.nproc),
        max_restarts: options.max_restarts,
        grace: options.grace,
        address: "127.0.0.1".to_owned(),
        port: options.port,
        logs: options.logs,
        shown: options.show,
        run_id: options.run_id.unwrap_or_else(name),
        meaning: if own { exit::meaning } else { exit::unknown },
    })
}

/// A name that no other run on this machine has at the same time.
fn name() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{}-{}", since.as_secs(), id())
}
