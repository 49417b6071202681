//! `ckpt-train launch`: starts ranks, and starts all again when one dies.

use std::{
    env,
    ffi::OsString,
    process::id,
    time::{SystemTime, UNIX_EPOCH},
};

use trainer::{
    Error, ErrorKind, Result,
    config::{Resolved, check_world},
    launch::{Machines, Outcome, Plan, Served, Task, launch},
};

use crate::{
    cli::{self, Launch, Verb},
    exit,
    interrupt::Interrupt,
};

pub(super) fn run(options: Launch) -> Result<u8> {
    let training = if options.program.is_none() { Some(training(&options)?) } else { None };
    let machines = machines(&options, training.as_ref())?;
    let plan = plan(options, machines)?;
    let interrupt = Interrupt::install()?;
    let outcome = launch(&plan, &Served, &|| interrupt.seen(), &mut |line| eprintln!("launch  {line}"))?;
    Ok(match outcome {
        Outcome::Done => exit::DONE.number,
        Outcome::Failed(ending) => ending.code(),
        Outcome::Stopped(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        Outcome::Parted => exit::PEER.number,
    })
}

/// What every rank would run; refuses what every rank would refuse, once and before any is started.
fn training(options: &Launch) -> Result<Resolved> {
    let arguments =
        ["ckpt-train", "train"].map(OsString::from).into_iter().chain(options.arguments.iter().cloned());
    let refused = |_| Error::config("the arguments after -- are none of `ckpt-train train`");
    let parsed = cli::parse_from(arguments).map_err(refused)?;
    match parsed.verb {
        Verb::Train(train) => {
            let resolved = train.source.resolve()?;
            // How many the other machines start is known when they are there.
            if options.machines.nnodes == 1 {
                check_world(resolved.config.parallelism.mesh, usize::from(options.nproc))?;
            }
            Ok(resolved)
        }
        _ => Err(refused(std::process::ExitCode::FAILURE)),
    }
}

/// Which machine of several this is.
fn machines(options: &Launch, training: Option<&Resolved>) -> Result<Option<Machines>> {
    let given = &options.machines;
    let (nodes, node) = (usize::from(given.nnodes), given.node_rank.map(usize::from));
    if nodes == 1 {
        return match node {
            None | Some(0) => Ok(None),
            Some(node) => Err(Error::config(format!("--node-rank {node}, but --nnodes is 1"))
                .hint("give every launcher --nnodes, the number of machines")),
        };
    }
    let missing = |what: &str, hint: &str| {
        Error::config(format!("--nnodes {nodes}, but no {what} was given")).hint(hint)
    };
    let node = node.ok_or_else(|| {
        missing("--node-rank", "number the machines from 0; under SLURM: --node-rank $SLURM_NODEID")
    })?;
    if node >= nodes {
        return Err(Error::config(format!("--node-rank {node} is none of the {nodes} machines (--nnodes)"))
            .hint(format!("number the machines from 0 to {}", nodes - 1)));
    }
    let meeting = given.meeting().ok_or_else(|| {
        missing(
            "--rdzv",
            "give all of them --rdzv HOST:PORT, with an address of node 0 and a free port there",
        )
    })?;
    Ok(Some(Machines {
        nodes,
        node,
        meeting,
        wait: given.rdzv_timeout,
        silence: given.node_timeout,
        run_id: options.run_id.clone(),
        task: task(options, training)?,
        laid: training.map(|training| {
            let laid = &training.config.parallelism;
            (laid.mesh, laid.tp_across_nodes)
        }),
    }))
}

fn task(options: &Launch, training: Option<&Resolved>) -> Result<Task> {
    let text = |word: &OsString| word.to_string_lossy().into_owned();
    Ok(match training {
        Some(training) => Task::Training(training.config.values()?),
        None => Task::Program(options.program.iter().chain(&options.arguments).map(text).collect()),
    })
}

fn plan(options: Launch, machines: Option<Machines>) -> Result<Plan> {
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
        port: options.port,
        logs: options.logs,
        shown: options.show,
        run_id: options.run_id.unwrap_or_else(name),
        meaning: if own { exit::meaning } else { exit::unknown },
        machines,
    })
}

/// A name that no other run on this machine has at the same time.
fn name() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{}-{}", since.as_secs(), id())
}
