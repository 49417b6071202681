//! One worker: started under a guard in a process group of its own, reaped by the launcher alone.
//!
//! Invariant: a process is signalled only before it is reaped, so its number can't have become another's.

use std::{
    ffi::OsString,
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    thread::JoinHandle,
};

use rustix::process::{Pid, Signal, kill_process_group};

use super::{
    Ending, NODE, Plan,
    accord::Berth,
    machines::machine,
    nodes,
    output::{self, Console},
};
use crate::{Error, ErrorKind, Place, Result};

/// One worker.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) rank: usize,
    pub(super) pid: u32,
    child: Child,
    pub(super) ending: Option<Ending>,
    streams: Vec<JoinHandle<()>>,
}

impl Worker {
    /// Starts the one of this number on this machine.
    pub(super) fn start(plan: &Plan, berth: &Berth, local: usize) -> Result<Self> {
        let rank = berth.first + local;
        let log = output::open(&plan.logs, rank, berth.restart)
            .map_err(|error| {
                Error::new(ErrorKind::Io, format!("{}: {error}", plan.logs.display())).caused_by(error)
            })
            .place("log of a worker")?;
        let mut guard = plan.guard.iter();
        let program = guard.next().ok_or_else(|| Error::internal("no guard to start workers with"))?;
        let mut command = Command::new(program);
        command.args(guard).arg(std::process::id().to_string()).arg("--").args(&plan.command);
        command.envs(variables(plan, berth, local));
        if berth.nodes > 1 && std::env::var_os(NODE).is_none() {
            command.env(NODE, machine(berth.node, &nodes::here()));
        }
        if std::env::var_os("OMP_NUM_THREADS").is_none() {
            command.env("OMP_NUM_THREADS", "1");
        }
        // A group of its own: a Ctrl-C in the terminal reaches the launcher, which ends the workers in order.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| {
            Error::new(ErrorKind::Io, format!("cannot start rank {rank}: {error}")).caused_by(error)
        })?;
        let prefix = if berth.world > 1 { format!("[{rank}] ") } else { String::new() };
        let shown = |console| if plan.shown.shows(rank) { console } else { Console::Nowhere };
        let mut streams = Vec::new();
        if let Some(out) = child.stdout.take() {
            streams.push(output::copy(out, shown(Console::Out), prefix.clone(), log.clone()));
        }
        if let Some(err) = child.stderr.take() {
            streams.push(output::copy(err, shown(Console::Err), prefix, log));
        }
        Ok(Self { rank, pid: child.id(), child, ending: None, streams })
    }

    /// Reaps it, if it has ended since.
    pub(super) fn poll(&mut self) -> Result<Option<Ending>> {
        if self.ending.is_some() {
            return Ok(None);
        }
        self.ending = self.child.try_wait().place(format!("rank {}", self.rank))?.map(Ending::of);
        Ok(self.ending)
    }

    /// Asks it, and what it started, to end.
    pub(super) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Ends it, and what it started.
    pub(super) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        if self.ending.is_none() {
            // It may have ended but not be reaped yet, which is no failure.
            let _ = kill_process_group(Pid::from_child(&self.child), signal);
        }
    }

    /// Whether everything that it printed has been copied.
    pub(super) fn is_silent(&self) -> bool {
        self.streams.iter().all(JoinHandle::is_finished)
    }
}

fn variables(plan: &Plan, berth: &Berth, local: usize) -> Vec<(&'static str, OsString)> {
    let served = if berth.served { "True" } else { "False" };
    let number = |number: usize| number.to_string().into();
    vec![
        ("RANK", number(berth.first + local)),
        ("LOCAL_RANK", number(local)),
        ("WORLD_SIZE", number(berth.world)),
        ("LOCAL_WORLD_SIZE", number(plan.workers)),
        ("GROUP_RANK", number(berth.node)),
        ("GROUP_WORLD_SIZE", number(berth.nodes)),
        ("MASTER_ADDR", berth.address.clone().into()),
        ("MASTER_PORT", berth.port.to_string().into()),
        ("TORCHELASTIC_RESTART_COUNT", berth.restart.to_string().into()),
        ("TORCHELASTIC_MAX_RESTARTS", plan.max_restarts.to_string().into()),
        ("TORCHELASTIC_RUN_ID", berth.run_id.clone().into()),
        ("TORCHELASTIC_USE_AGENT_STORE", served.into()),
    ]
}

impl Drop for Worker {
    /// Whatever way the launcher ends, its workers end.
    fn drop(&mut self) {
        if self.ending.is_none() {
            self.kill();
            let _ = self.child.wait();
        }
    }
}
