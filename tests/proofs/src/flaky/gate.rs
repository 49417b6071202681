//! The scheduler: actors are threads, of which exactly one runs at a time, from one operation on the store to the next. Which one is next
//! is drawn from the seed, so a run is a function of its seed.
//!
//! ```text
//!  actor ── "I am about to …" ──► drive() ── "go on" ──► one of those that wait
//! ```

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use dcp::commit::Clock;
use sha2::{Digest, Sha256};

use crate::chance::Chance;

/// What a step lasts, on the clock of the run.
const STEP: Duration = Duration::from_millis(20);

enum Event {
    /// Waits for its turn, from this step on.
    Waits(usize, u64),
    Ends,
}

/// An actor's own end.
pub(super) struct Turn {
    id: usize,
    ask: Sender<Event>,
    go: Mutex<Receiver<()>>,
    shared: Arc<Shared>,
}

/// What all actors of a run have in common.
#[derive(Default)]
struct Shared {
    step: AtomicU64,
    trace: Mutex<Sha256>,
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Turn({})", self.id)
    }
}

impl Turn {
    /// Lets others go first; goes on when drawn, and not before `steps` more steps.
    pub(super) fn wait(&self, steps: u64) {
        let from = self.shared.step.load(Ordering::Relaxed).saturating_add(steps);
        // Nobody listens only when the run is being given up.
        if self.ask.send(Event::Waits(self.id, from)).is_ok() {
            let go = self.go.lock().unwrap_or_else(PoisonError::into_inner).recv();
            debug_assert!(go.is_ok(), "the schedule ended before its actors");
        }
    }

    /// Writes into the trace. Only the actor whose turn it is comes here.
    pub(super) fn note(&self, what: &str) {
        let mut trace = self.shared.trace.lock().unwrap_or_else(PoisonError::into_inner);
        trace.update([u8::try_from(self.id).unwrap_or(u8::MAX)]);
        trace.update(what.as_bytes());
        trace.update([0]);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        drop(self.ask.send(Event::Ends));
    }
}

/// The clock of the run: it goes with the steps, and waiting lets others go on.
impl Clock for Turn {
    fn now(&self) -> SystemTime {
        let steps = u32::try_from(self.shared.step.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000) + STEP * steps
    }

    fn pause(&self, time: Duration) {
        self.wait(u64::try_from(time.as_millis() / STEP.as_millis()).unwrap_or(0).min(8));
    }
}

/// The scheduler's end.
pub(super) struct Schedule {
    events: Receiver<Event>,
    go: Vec<Sender<()>>,
    shared: Arc<Shared>,
}

/// A schedule of so many actors, and their turns.
pub(super) fn schedule(actors: usize) -> (Schedule, Vec<Turn>) {
    let (ask, events) = channel();
    let shared = Arc::new(Shared::default());
    let (go, turns) = (0..actors)
        .map(|id| {
            let (go, may_go) = channel();
            let turn = Turn { id, ask: ask.clone(), go: Mutex::new(may_go), shared: Arc::clone(&shared) };
            (go, turn)
        })
        .unzip();
    (Schedule { events, go, shared }, turns)
}

impl Schedule {
    /// Lets the actors go on, one at a time, until all have ended. Returns the steps, and the hash of the trace.
    pub(super) fn drive(self, seed: u64) -> (u64, String) {
        let mut chance = Chance::new(seed, 5);
        let mut waiting: Vec<Option<u64>> = vec![None; self.go.len()];
        // All begin at once, so each has to be heard of before the first goes on.
        let mut unheard = self.go.len();
        let mut step = 0_u64;
        loop {
            while unheard > 0 {
                match self.events.recv() {
                    Ok(Event::Waits(id, from)) => {
                        waiting.iter_mut().skip(id).take(1).for_each(|it| *it = Some(from));
                    }
                    Ok(Event::Ends) => {}
                    Err(_) => unheard = 1,
                }
                unheard -= 1;
            }
            let earliest = waiting.iter().flatten().min().copied();
            let Some(earliest) = earliest else { break };
            step = step.saturating_add(1).max(earliest);
            self.shared.step.store(step, Ordering::Relaxed);
            let ready: Vec<usize> = (0..)
                .zip(&waiting)
                .filter(|(_, from)| from.is_some_and(|from| from <= step))
                .map(|(id, _)| id)
                .collect();
            let drawn = usize::try_from(chance.below(ready.len() as u64)).unwrap_or(0);
            let Some((slot, go)) =
                ready.get(drawn).and_then(|id| Some((waiting.get_mut(*id)?, self.go.get(*id)?)))
            else {
                break;
            };
            *slot = None;
            unheard = usize::from(go.send(()).is_ok());
        }
        let trace = self.shared.trace.lock().unwrap_or_else(PoisonError::into_inner).clone().finalize();
        (step, trace.iter().map(|byte| format!("{byte:02x}")).collect())
    }
}
