//! The launcher's loop: start all, watch, stop the rest, judge, start all again.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use super::{Ending, Plan, Reaction, StoreHost, verdict, worker::Worker};
use crate::Result;

/// How a launch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All workers did what they were meant to do.
    Done,
    /// A worker failed for good.
    Failed(Ending),
    /// Stopped by this signal.
    Stopped(i32),
}

/// Time between two looks at the workers.
const LOOK: Duration = Duration::from_millis(20);
/// How long the cause of a death that merely follows from another may take to show.
const CAUSE: Duration = Duration::from_millis(500);
/// How long the last words of dead workers are waited for.
const WORDS: Duration = Duration::from_secs(1);

/// Launches. `stop` yields a signal that asks to stop, once there is one, and how many came; `say` takes short lines.
///
/// # Errors
/// What keeps workers from being started at all.
pub fn launch(
    plan: &Plan,
    host: &dyn StoreHost,
    stop: &dyn Fn() -> Option<(i32, usize)>,
    say: &mut dyn FnMut(&str),
) -> Result<Outcome> {
    let mut restart = 0;
    loop {
        let mut crew = Crew::start(plan, host, restart)?;
        let (pids, store) = (crew.pids(), format!("{}:{}", plan.address, crew.port));
        say(&format!("{} workers ({pids}), store at {store}, restart {restart}", plan.workers));
        let outcome = crew.watch(plan, stop, say)?;
        crew.hear_out();
        let Some((rank, pid, ending)) = outcome else { return Ok(Outcome::Done) };
        let Some(ending) = ending else { return Ok(stopped(stop)) };
        let told = format!("rank {rank} (pid {pid}) {}", ending.told(plan.meaning));
        if ending.reaction(plan.meaning) == Reaction::Final {
            say(&format!("{told}; not restarting: the same would happen again"));
            return Ok(Outcome::Failed(ending));
        }
        if restart >= plan.max_restarts {
            say(&format!("{told}; giving up after {restart} of {} restarts", plan.max_restarts));
            return Ok(Outcome::Failed(ending));
        }
        restart += 1;
        say(&format!("{told}; restarting all ({restart} of {})", plan.max_restarts));
    }
}

fn stopped(stop: &dyn Fn() -> Option<(i32, usize)>) -> Outcome {
    Outcome::Stopped(stop().map_or(0, |(signal, _)| signal))
}

/// All workers of one incarnation, and the store that they meet at.
struct Crew {
    workers: Vec<Worker>,
    port: u16,
    _store: super::Hosted,
}

/// The rank and process that caused the end; no ending when the launcher was asked to stop.
type Cause = (usize, u32, Option<Ending>);

impl Crew {
    fn start(plan: &Plan, host: &dyn StoreHost, restart: u32) -> Result<Self> {
        let store = host.start(&plan.address, plan.port)?;
        let workers: Result<Vec<Worker>> =
            (0..plan.workers).map(|rank| Worker::start(plan, &store, rank, restart)).collect();
        Ok(Self { workers: workers?, port: store.port, _store: store })
    }

    fn pids(&self) -> String {
        let (first, last) = (self.workers.first().map(|w| w.pid), self.workers.last().map(|w| w.pid));
        match (first, last) {
            (Some(first), Some(last)) if first != last => format!("pids {first}..{last}"),
            (Some(first), _) => format!("pid {first}"),
            _ => "none".to_owned(),
        }
    }

    /// Those that have ended since the last look.
    fn look(&mut self) -> Result<Vec<(usize, Ending)>> {
        let mut ended = Vec::new();
        for worker in &mut self.workers {
            if let Some(ending) = worker.poll()? {
                ended.push((worker.rank, ending));
            }
        }
        Ok(ended)
    }

    fn is_over(&self) -> bool {
        self.workers.iter().all(|worker| worker.ending.is_some())
    }

    /// Until all are done (`None`), one has died, or a stop is asked for; none is left running.
    fn watch(
        &mut self,
        plan: &Plan,
        stop: &dyn Fn() -> Option<(i32, usize)>,
        say: &mut dyn FnMut(&str),
    ) -> Result<Option<Cause>> {
        loop {
            let mut deaths: Vec<(usize, Ending)> = self.look()?;
            deaths.retain(|(_, ending)| !ending.is_done());
            if !deaths.is_empty() {
                let cause = self.cause(plan, deaths)?;
                self.stop(plan, stop)?;
                return Ok(cause);
            }
            if let Some((signal, _)) = stop() {
                say(&format!("asked to stop by signal {signal}; ending {} workers", self.running()));
                self.stop(plan, stop)?;
                return Ok(Some((0, 0, None)));
            }
            if self.is_over() {
                return Ok(None);
            }
            sleep(LOOK);
        }
    }

    fn running(&self) -> usize {
        self.workers.iter().filter(|worker| worker.ending.is_none()).count()
    }

    /// Which death caused the others. One that merely follows from another may be noticed first.
    fn cause(&mut self, plan: &Plan, mut deaths: Vec<(usize, Ending)>) -> Result<Option<Cause>> {
        let until = Instant::now() + CAUSE;
        let follows = |deaths: &[(usize, Ending)]| {
            deaths.iter().all(|(_, ending)| ending.reaction(plan.meaning) == Reaction::Follows)
        };
        while follows(&deaths) && !self.is_over() && Instant::now() < until {
            sleep(LOOK);
            deaths.extend(self.look()?.into_iter().filter(|(_, ending)| !ending.is_done()));
        }
        let found = verdict::cause(&deaths, plan.meaning);
        let pid =
            |rank| self.workers.iter().find(|worker| worker.rank == rank).map_or(0, |worker| worker.pid);
        Ok(found.map(|(rank, ending)| (rank, pid(rank), Some(ending))))
    }

    /// Ends all that still run: asks, waits for the grace period or for a second signal, kills.
    fn stop(&mut self, plan: &Plan, stop: &dyn Fn() -> Option<(i32, usize)>) -> Result<()> {
        self.workers.iter().for_each(Worker::terminate);
        let until = Instant::now() + plan.grace;
        let impatient = || stop().is_some_and(|(_, count)| count > 1);
        while !self.is_over() && Instant::now() < until && !impatient() {
            self.look()?;
            sleep(LOOK / 4);
        }
        self.workers.iter().for_each(Worker::kill);
        while !self.is_over() {
            self.look()?;
            sleep(LOOK / 4);
        }
        Ok(())
    }

    /// Waits until what the dead have printed is copied.
    fn hear_out(&self) {
        let until = Instant::now() + WORDS;
        while Instant::now() < until && !self.workers.iter().all(Worker::is_silent) {
            sleep(LOOK / 4);
        }
    }
}
