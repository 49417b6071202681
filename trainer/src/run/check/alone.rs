//! One rank at its real sizes, the others imagined.

use std::{
    fmt,
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;

use super::{
    Job, Observer,
    ledger::{self, Line},
    one_step,
};
use crate::{
    Error, Result,
    config::Resolved,
    mesh::{Coordinates, MeshShape},
    metrics,
    run::{Begun, StepDone, Terms, run_rank, start::limits, world::STACK},
    torch::memory,
    transport::fake::{FakeTransport, Flows, Words},
};

/// What one rank takes, alone.
#[derive(Debug, Clone)]
pub struct Alone {
    mesh: MeshShape,
    at: Coordinates,
    rank: usize,
    /// Of the step, alone on this machine's processors.
    pub step: Duration,
    /// Before it: laying out shards and giving weights their values.
    pub start: Duration,
    /// The most bytes of tensors at once.
    pub tensors: u64,
    /// The most bytes that this process held at once.
    pub memory: u64,
    /// What it sends in the step, by kind, beside what planning says.
    pub lines: Vec<Line>,
    /// Calls of collectives in the step, of groups of more than one.
    pub collectives: u64,
}

/// Settings that leave a configuration its sizes, and take its data and checkpoints from it: one step, in `folder`.
///
/// # Errors
/// A text that can't be written.
pub fn unshrunk(config: &Resolved, folder: &Path) -> Result<Vec<String>> {
    let training = &config.config.training;
    one_step(training.global_batch, training.seq_len, folder)
}

/// Runs the first step of rank `rank` of `config`, which is [`unshrunk`].
///
/// # Errors
/// `Config` for a rank that is not on the mesh; what the rank refuses.
pub fn check_alone(config: Resolved, rank: usize) -> Result<Alone> {
    let mesh = config.config.parallelism.mesh;
    let at = mesh.coordinates(rank)?;
    let limits = limits(&config.config.comm, &config.config.debug, 0)?;
    let job = Job::new(config)?;
    let words = Arc::new(Words::default());
    memory::count()?;
    let (times, tensors, flows) = thread::scope(|scope| {
        let run = || -> Result<_> {
            memory::restart()?;
            let transport = FakeTransport::new(rank, job.ranks(), limits, Arc::clone(&words));
            let mut times = Times::default();
            let terms = Terms { stop: Arc::default(), restart: 0 };
            run_rank(&job, &transport, &mut times, &terms)?;
            Ok((times, memory::counted()?.most, Flows::of(&transport.record(), &words)))
        };
        let started = thread::Builder::new().stack_size(STACK).spawn_scoped(scope, run)?;
        started.join().unwrap_or_else(|_| Err(Error::internal("a rank panicked")))
    })?;
    Ok(Alone {
        mesh,
        at,
        rank,
        step: times.step,
        start: times.start,
        tensors: tensors.unsigned_abs(),
        memory: metrics::resident().1,
        lines: ledger::lines(&job, at, &flows)?,
        collectives: flows.collectives.values().map(|flow| flow.count).sum(),
    })
}

/// Remembers how long things took.
struct Times {
    began: Instant,
    start: Duration,
    step: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self { began: Instant::now(), start: Duration::ZERO, step: Duration::ZERO }
    }
}

impl Observer for Times {
    fn begun(&mut self, _: &Begun) -> Result<()> {
        self.start = self.began.elapsed();
        Ok(())
    }
    fn step(&mut self, step: &StepDone) -> Result<()> {
        self.step = step.took;
        Ok(())
    }
}

#[derive(Serialize)]
struct Told<'a> {
    rank: usize,
    mesh: String,
    dp: usize,
    pp: usize,
    tp: usize,
    step_seconds: f64,
    start_seconds: f64,
    peak_tensor_bytes: u64,
    peak_bytes: u64,
    collectives: u64,
    sent: &'a [Line],
}

impl Alone {
    /// All of it as JSON.
    ///
    /// # Errors
    /// Never.
    pub fn to_json(&self) -> Result<String> {
        let Coordinates { dp, pp, tp } = self.at;
        let told = Told {
            rank: self.rank,
            mesh: self.mesh.to_string(),
            dp,
            pp,
            tp,
            step_seconds: self.step.as_secs_f64(),
            start_seconds: self.start.as_secs_f64(),
            peak_tensor_bytes: self.tensors,
            peak_bytes: self.memory,
            collectives: self.collectives,
            sent: &self.lines,
        };
        serde_json::to_string_pretty(&told).map_err(|error| Error::internal(error.to_string()))
    }
}

impl fmt::Display for Alone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MeshShape { dp, pp, tp } = self.mesh;
        let (at, ranks) = (self.at, self.mesh.ranks());
        writeln!(
            f,
            "rank      {} of {ranks}, alone: dp {} of {dp}, pp {} of {pp}, tp {} of {tp}; the others are imagined, so its loss means nothing",
            self.rank, at.dp, at.pp, at.tp
        )?;
        let mib = |bytes: u64| bytes / (1 << 20);
        writeln!(
            f,
            "memory    {} MiB of tensors at most, {} MiB of this process",
            mib(self.tensors),
            mib(self.memory)
        )?;
        let (step, start) = (self.step.as_secs_f64(), self.start.as_secs_f64());
        writeln!(
            f,
            "time      {step:.2} s for the step on one of this machine's processors, {start:.2} s before it"
        )?;
        writeln!(
            f,
            "traffic   sent in a step, and what `ckpt-train plan` counts ({} collectives)",
            self.collectives
        )?;
        self.lines.iter().try_for_each(|line| writeln!(f, "  {line}"))
    }
}
