//! [`Plan`]: steps of a program on imagined devices, with real ranks and messages; how long they take, beside the simulation of the same
//! program.
//!
//! Invariant: no data is read, no weight made, nothing saved; every rank gives the same makespans, and so stops after the same step.

use std::{fmt, thread};

use schedule::{Communication, Program, Simulation, Timing, simulate_program};

use crate::{
    Error, Place, Result,
    mesh::{Axis, MeshShape},
    stage::{Span, VirtualLinks, VirtualRank},
    transport::{Limits, Purpose, Transport, local},
};

/// What is rehearsed: the same on every rank.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The schedule, by name.
    pub schedule: String,
    /// What the ranks do.
    pub program: Program,
    /// Where they lie; each replica and tensor-parallel rank has the program for itself.
    pub mesh: MeshShape,
    /// Milliseconds.
    pub timing: Timing,
    /// Shapes of what each stage gives the next.
    pub shapes: Vec<Vec<Vec<i64>>>,
    /// Steps, at most.
    pub steps: u64,
    /// No further step after one that takes no longer than the simulation and this share of it more.
    pub enough: Option<f64>,
}

/// How long the steps took.
#[derive(Debug, Clone, PartialEq)]
pub struct Rehearsal {
    /// The schedule and the mesh, in words.
    pub of: String,
    /// Milliseconds from the first start to the last end on any rank, of each step.
    pub measured: Vec<f64>,
    /// What the simulation says.
    pub simulated: Simulation,
}

impl Plan {
    /// Runs all steps on one rank.
    ///
    /// # Errors
    /// The transport's.
    pub fn run(&self, transport: &dyn Transport) -> Result<Rehearsal> {
        transport.starting(true);
        let at = self.mesh.coordinates(transport.rank())?;
        let world = transport.group("world", &(0..transport.size()).collect::<Vec<_>>())?;
        let peers = self.mesh.group(at, Axis::Pp);
        let links = VirtualLinks { transport, peers: &peers, timing: &self.timing, shapes: &self.shapes };
        let simulated = simulate_program(&self.program, &self.timing, Communication::Posted);
        let enough = self.enough.map(|share| simulated.makespan * (1.0 + share));
        let mut measured = Vec::new();
        for step in 1..=self.steps {
            world.barrier(&Purpose("begin a step".to_owned()))?;
            let span = VirtualRank::run(&self.program, at.pp, links, step).place(format!("step {step}"))?;
            let all = world.all_gather_bytes(&Purpose("spans".to_owned()), &bytes(span))?;
            let took = makespan(&all)?;
            measured.push(took);
            transport.starting(false);
            if enough.is_some_and(|enough| took <= enough) {
                break;
            }
        }
        Ok(Rehearsal { of: self.to_string(), measured, simulated })
    }

    /// Runs all steps on all ranks, as threads of this process.
    ///
    /// # Errors
    /// That of a rank.
    pub fn in_threads(&self, limits: &Limits) -> Result<Rehearsal> {
        let ended: Vec<Result<Rehearsal>> = thread::scope(|scope| {
            let start = |rank: local::LocalTransport| {
                scope.spawn(move || self.run(&rank).inspect_err(|error| rank.abort(error)))
            };
            let threads: Vec<_> =
                local::World::new(self.mesh.ranks(), limits.clone()).into_iter().map(start).collect();
            let panicked = |_| Err(Error::internal("a rank panicked"));
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
        });
        let first = ended.into_iter().collect::<Result<Vec<_>>>()?.into_iter().next();
        first.ok_or_else(|| Error::internal("a rehearsal without ranks"))
    }
}

fn bytes(span: Span) -> [u8; 16] {
    let mut bytes = [0; 16];
    let (first, last) = bytes.split_at_mut(8);
    first.copy_from_slice(&span.first.to_le_bytes());
    last.copy_from_slice(&span.last.to_le_bytes());
    bytes
}

/// Milliseconds from the first start to the last end.
fn makespan(spans: &[Vec<u8>]) -> Result<f64> {
    let word = |bytes: &Vec<u8>, at: usize| {
        let word = bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map(u64::from_le_bytes);
        word.ok_or_else(|| Error::internal("a span that is none"))
    };
    let (mut first, mut last) = (u64::MAX, 0);
    for span in spans {
        (first, last) = (first.min(word(span, 0)?), last.max(word(span, 8)?));
    }
    #[expect(clippy::cast_precision_loss, reason = "a makespan is far below 2^53 microseconds")]
    Ok(last.saturating_sub(first) as f64 / 1000.0)
}

impl Rehearsal {
    /// The shortest step: what disturbs one only makes it longer.
    #[must_use]
    pub fn best(&self) -> f64 {
        self.measured.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// How much longer than simulated that is, as a share.
    #[must_use]
    pub fn excess(&self) -> f64 {
        self.best() / self.simulated.makespan - 1.0
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mesh, table) = (self.mesh, self.program.table());
        write!(
            f,
            "{} on mesh {mesh}, {} stages, {} microbatches",
            self.schedule,
            table.stages(),
            table.microbatches
        )
    }
}

impl fmt::Display for Rehearsal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { of, measured, simulated } = self;
        writeln!(f, "virtual    {of}: no device computes, actions sleep")?;
        for (step, millis) in measured.iter().enumerate() {
            let apart = 100.0 * (millis / simulated.makespan - 1.0);
            writeln!(f, "step {:<5} {millis:.1} ms, {apart:+.2} % of the simulation", step + 1)?;
        }
        writeln!(f, "simulated  {:.1} ms, bubble {:.1} %", simulated.makespan, 100.0 * simulated.bubble())?;
        let busy: f64 = simulated.busy.iter().sum();
        let ranks = simulated.busy.iter().map(|_| 1.0).sum::<f64>();
        let bubble = 100.0 * (1.0 - busy / (ranks * self.best()));
        writeln!(f, "best       {:.1} ms, bubble {bubble:.1} %, {:+.2} %", self.best(), 100.0 * self.excess())
    }
}
