//! The launcher's loop: start all, watch, stop the rest, judge, start all again.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::{
    Ending, Plan, Reaction, StoreHost,
    accord::{Accord, Berth, Decision, Desk, Mustered, Seen, Then},
    alone::Alone,
    machines::{First, Other},
    verdict,
    worker::Worker,
};
use crate::Result;

/// How a launch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// All workers did what they were meant to do.
    Done,
    /// A worker failed for good.
    Failed(Ending),
    /// Stopped by this signal.
    Stopped(i32),
    /// A machine of several is gone, and all restarts are used up.
    Parted,
}

/// Time between two looks at the workers.
pub(super) const LOOK: Duration = Duration::from_millis(20);
/// How long the cause of a death that merely follows from another may take to show.
const CAUSE: Duration = Duration::from_millis(500);
/// How long the last words of dead workers are waited for.
const WORDS: Duration = Duration::from_secs(1);

/// Launches. `stop` yields a signal that asks to stop, once there is one, and how many came; `say` takes short lines.
///
/// # Errors
/// What keeps workers from being started at all; a machine that does not come, or does not fit.
pub fn launch(
    plan: &Plan,
    host: &dyn StoreHost,
    stop: &dyn Fn() -> Option<(i32, usize)>,
    say: &mut dyn FnMut(&str),
) -> Result<Outcome> {
    let mut desk = Desk { stop, say };
    let mut accord: Box<dyn Accord + '_> = match &plan.machines {
        None => Box::new(Alone::new(plan, host)),
        Some(machines) if machines.node == 0 => Box::new(First::new(plan, machines, host)?),
        Some(machines) => Box::new(Other::new(plan, machines)),
    };
    loop {
        let decision = match accord.muster(&mut desk)? {
            Mustered::Over(decision) => decision,
            Mustered::Ready(berth) => incarnation(plan, &berth, accord.as_mut(), &mut desk)?,
        };
        if !decision.said.is_empty() {
            (desk.say)(&decision.said);
        }
        if let Then::End(outcome) = decision.then {
            return Ok(outcome);
        }
    }
}

/// Starts the ranks of this machine once, watches them, ends them; what comes next.
fn incarnation(plan: &Plan, berth: &Berth, accord: &mut dyn Accord, desk: &mut Desk<'_>) -> Result<Decision> {
    let mut crew = Crew::start(plan, berth)?;
    let (pids, workers, first) = (crew.pids(), plan.workers, berth.first);
    let met = format!("store at {}:{}, restart {}", berth.address, berth.port, berth.restart);
    (desk.say)(&match berth.nodes {
        1 => format!("{workers} workers ({pids}), {met}"),
        nodes => format!(
            "node {} of {nodes}: {workers} workers ({pids}), ranks {first}..{} of {}, {met}",
            berth.node,
            first + workers - 1,
            berth.world
        ),
    });
    crew.watch(plan, accord, desk)?;
    crew.hear_out();
    accord.verdict(desk)
}

/// All workers of this machine in one incarnation.
struct Crew {
    workers: Vec<Worker>,
}

impl Crew {
    fn start(plan: &Plan, berth: &Berth) -> Result<Self> {
        let workers: Result<Vec<Worker>> =
            (0..plan.workers).map(|local| Worker::start(plan, berth, local)).collect();
        Ok(Self { workers: workers? })
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

    /// Until all are done, one has died here or elsewhere, or a stop is asked for; none is left running, and the others know.
    fn watch(&mut self, plan: &Plan, accord: &mut dyn Accord, desk: &mut Desk<'_>) -> Result<()> {
        loop {
            let mut deaths: Vec<(usize, Ending)> = self.look()?;
            deaths.retain(|(_, ending)| !ending.is_done());
            if !deaths.is_empty() {
                if let Some(seen) = self.cause(plan, deaths)? {
                    accord.tell(seen)?;
                }
                return self.stop(plan, desk);
            }
            if let Some((signal, _)) = (desk.stop)() {
                (desk.say)(&format!("asked to stop by signal {signal}; ending {} workers", self.running()));
                accord.tell(Seen::Asked(signal))?;
                return self.stop(plan, desk);
            }
            if let Some(why) = accord.elsewhere(desk)? {
                (desk.say)(&why);
                return self.stop(plan, desk);
            }
            if self.is_over() {
                return accord.tell(Seen::Done);
            }
            sleep(LOOK);
        }
    }

    fn running(&self) -> usize {
        self.workers.iter().filter(|worker| worker.ending.is_none()).count()
    }

    /// Which death caused the others. One that merely follows from another may be noticed first.
    fn cause(&mut self, plan: &Plan, mut deaths: Vec<(usize, Ending)>) -> Result<Option<Seen>> {
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
        Ok(found.map(|(rank, ending)| Seen::Died { rank, pid: pid(rank), ending }))
    }

    /// Ends all that still run: asks, waits for the grace period or for a second signal, kills.
    fn stop(&mut self, plan: &Plan, desk: &Desk<'_>) -> Result<()> {
        self.workers.iter().for_each(Worker::terminate);
        let until = Instant::now() + plan.grace;
        let impatient = || (desk.stop)().is_some_and(|(_, count)| count > 1);
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
