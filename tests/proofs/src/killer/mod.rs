//! `killer`: real processes, killed with SIGKILL at random moments, on a real file system.
//!
//! ```text
//!  round: start ─► (drawn moment) kill -9 ─► another process reads everything ─► another one goes on and commits ─► read again
//! ```
//!
//! A kill loses nothing that was handed to the kernel, so this is not about syncs (that is `crash`): it is about everything else that a process
//! leaves when it is gone from one instruction to the next, with real concurrency, and about others that go on with it. After each
//! kill, and after going on, a process of its own reads every checkpoint to the last byte and compares it with what was saved. What was committed
//! must be there; nothing else may be; no process may fail that was not killed; after a collection and a sweep nothing is left that no
//! checkpoint needs, and until then what is left is told as such. Every few rounds the Python reader reads it too.
//!
//! The moment is drawn from the time that the same work takes when nobody kills it; where a process was is told by the lines
//! that it printed. A run that has hit only one phase of a kind of work has proven too little, and is bad.

pub(crate) mod child;
mod rounds;
mod running;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    path::PathBuf,
    time::{Duration, Instant},
};

use clap::Args;
use serde::Serialize;

use self::{
    rounds::{Field, Kind},
    running::Starter,
};
use crate::proof::{Proof, Size};

/// What is tried.
#[derive(Debug, Clone, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) size: Size,
    /// The built `ckpt`; by default the one beside this program, if it is there
    #[arg(long, env = "CKPT_BIN")]
    ckpt: Option<PathBuf>,
    /// The interpreter of the Python reader; without it, that is not run
    #[arg(long, env = "CKPT_PYTHON")]
    python: Option<String>,
    /// Where to work; by default a temporary folder
    #[arg(long)]
    folder: Option<PathBuf>,
    /// As little as shows that all parts work
    #[arg(long, conflicts_with = "full")]
    tiny: bool,
}

/// Kills that a full run must have made.
const PROMISED: u64 = 200;

/// What was tried.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Kills {
    /// Kills that found a process running.
    kills: u64,
    /// Kills that came when the process had ended.
    late: u64,
    rounds: u64,
    bad: u64,
    /// Kills by kind of work and phase.
    phases: BTreeMap<&'static str, BTreeMap<String, u64>>,
    /// Files of killed processes that others went on with.
    kept: u64,
    /// Most files at once that no checkpoint named, all of them told.
    orphans: u64,
    /// Times that a process has read everything.
    looks: u64,
    /// Times that after a collection and a sweep nothing was left.
    clean: u64,
    /// Times that the Python reader has read the newest.
    python: u64,
    not_run: Vec<&'static str>,
    #[serde(skip)]
    told: Vec<String>,
}

impl Proof for Kills {
    const NAME: &'static str = "killer";

    fn bad(&self) -> Vec<String> {
        self.told.clone()
    }
}

/// Kills.
pub(crate) fn run(options: &Options) -> Result<Kills, Box<dyn Error>> {
    let size = options.size;
    let scratch = match &options.folder {
        Some(folder) => tempfile::tempdir_in(folder)?,
        None => tempfile::tempdir()?,
    };
    let program = std::env::current_exe()?;
    let beside = program.with_file_name("ckpt");
    let ckpt = options.ckpt.clone().or_else(|| beside.is_file().then_some(beside));
    let (target, seconds) = match options.tiny {
        true => (6, 60),
        false => (size.pick(24, PROMISED + 40), size.pick(40, 1500)),
    };
    let mut done = Kills::default();
    done.not_run.extend(ckpt.is_none().then_some("ckpt reshard: no built `ckpt`"));
    done.not_run.extend(options.python.is_none().then_some("the Python reader: no CKPT_PYTHON"));
    let starter = Starter { program, root: scratch.path().join("root"), sleep: 3000 };
    let mut field = Field::new(starter, ckpt.clone(), size.seed);
    field.measure()?;
    eprintln!("killer: one of each kind takes {:?}", field.times);
    let (began, kinds) =
        (Instant::now(), Kind::ALL.into_iter().filter(|kind| *kind != Kind::Ckpt || ckpt.is_some()));
    for kind in kinds.collect::<Vec<_>>().into_iter().cycle() {
        if field.killed() >= target || began.elapsed() > Duration::from_secs(seconds) {
            break;
        }
        done.rounds += 1;
        if let Err(what) = field.round(kind) {
            done.bad += 1;
            done.told.push(format!("round {} ({}), seed {}: {what}", done.rounds, kind.name(), size.seed));
            break;
        }
        if done.rounds.is_multiple_of(if options.tiny { 5 } else { 12 }) {
            done.tidy(&mut field, options);
        }
    }
    if done.bad == 0 {
        done.tidy(&mut field, options);
    }
    done.conclude(&field, options);
    if done.bad > 0 {
        eprintln!("killer: what is left lies in {}", scratch.keep().display());
    }
    Ok(done)
}

impl Kills {
    fn tidy(&mut self, field: &mut Field, options: &Options) {
        let cleaned = field.is_clean();
        let read = options.python.as_ref().map(|python| field.python(python));
        self.clean += u64::from(cleaned.is_ok());
        self.python += u64::from(matches!(read, Some(Ok(()))));
        for what in cleaned.err().into_iter().chain(read.and_then(Result::err)) {
            self.bad += 1;
            self.told.push(format!("after round {}: {what}", self.rounds));
        }
    }

    fn conclude(&mut self, field: &Field, options: &Options) {
        let (kept, orphans, looks) = (field.kept, field.orphans, field.looks);
        (self.kills, self.late, self.kept, self.orphans, self.looks) =
            (field.killed(), field.late, kept, orphans, looks);
        let mut hit: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for ((kind, phase), count) in &field.kills {
            let phase = format!("{phase:?}").to_lowercase();
            hit.entry(kind.name()).or_default().insert(phase.clone());
            self.phases.entry(kind.name()).or_default().insert(phase, *count);
        }
        if options.tiny {
            return;
        }
        // Quick runs kill each kind a few times only.
        let all: BTreeSet<&String> = hit.values().flatten().collect();
        if all.len() < 3 {
            self.told.push(format!("all kills hit {all:?}"));
        }
        if options.size.full {
            let alone = hit.iter().filter(|(_, phases)| phases.len() < 2);
            self.told.extend(alone.map(|(kind, phases)| format!("{kind}: all kills hit {phases:?}")));
            if self.kills < PROMISED {
                self.told.push(format!("{} kills, {PROMISED} are promised", self.kills));
            }
            self.told.extend(self.not_run.iter().map(|what| format!("not run: {what}")));
        }
        if self.kills == 0 {
            self.told.push("no process was killed".to_owned());
        }
    }
}
