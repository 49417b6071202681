//! Whose turn it is: several processes on one file system, one operation at a time, in an order that follows from a seed.
//!
//! A process that wants to do something waits until all others want something too, or have ended; then one of them is drawn. So at any
//! moment one of them runs, and what happens depends on the seed alone, not on the machine.

use std::{
    collections::BTreeMap,
    sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError},
    thread::{self, ThreadId},
};

/// The order of several processes. Clones share it.
#[derive(Debug, Clone)]
pub struct Turns(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    woken: Condvar,
}

#[derive(Debug)]
struct State {
    /// Those that want to do something, and whether that is a sync.
    waiting: BTreeMap<usize, bool>,
    /// Those that run, or have not begun.
    running: usize,
    chosen: Option<usize>,
    random: u64,
    /// Whether syncs are put off, so that much is pending at once.
    lazy: bool,
}

/// One process of several. It has ended when this is dropped.
#[derive(Debug)]
pub struct Turn {
    turns: Turns,
    process: usize,
    /// The thread that the process began on.
    owner: OnceLock<ThreadId>,
}

impl Turns {
    /// The turns of so many processes: [`Self::process`] must be called for each of them. Every second seed puts off syncs, so that
    /// a crash finds more pending.
    #[must_use]
    pub fn new(processes: usize, seed: u64) -> Self {
        let (waiting, random, lazy) = (BTreeMap::new(), mixed(seed), seed.is_multiple_of(2));
        let state = State { waiting, running: processes, chosen: None, random, lazy };
        Self(Arc::new(Inner { state: Mutex::new(state), woken: Condvar::new() }))
    }

    /// One of the processes, by its number.
    #[must_use]
    pub fn process(&self, process: usize) -> Turn {
        Turn { turns: self.clone(), process, owner: OnceLock::new() }
    }

    /// Waits for a turn.
    fn take(&self, process: usize, sync: bool) {
        let mut state = self.lock();
        state.waiting.insert(process, sync);
        self.rest(&mut state);
        while state.chosen != Some(process) {
            state = self.0.woken.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.chosen = None;
        state.waiting.remove(&process);
        state.running += 1;
    }

    /// One fewer runs: when none does, the next is drawn.
    fn rest(&self, state: &mut State) {
        state.running = state.running.saturating_sub(1);
        if state.running == 0 {
            state.draw();
            self.0.woken.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn draw(&mut self) {
        self.random = mixed(self.random);
        let put_off = self.lazy && self.random >> 61 != 0;
        let busy: Vec<usize> =
            self.waiting.iter().filter(|(_, sync)| !**sync).map(|(process, _)| *process).collect();
        let all: Vec<usize> = self.waiting.keys().copied().collect();
        let among = if put_off && !busy.is_empty() { busy } else { all };
        let at = (self.random >> 8).checked_rem(among.len() as u64).unwrap_or(0);
        self.chosen = usize::try_from(at).ok().and_then(|at| among.get(at).copied());
    }
}

impl Turn {
    /// Waits for a turn. Threads that the process has begun act within its own turn: it waits for them before it wants another.
    pub(super) fn take(&self, sync: bool) {
        let own = thread::current().id();
        if *self.owner.get_or_init(|| own) == own {
            self.turns.take(self.process, sync);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.turns.lock();
        self.turns.rest(&mut state);
    }
}

/// Splitmix64.
pub(super) const fn mixed(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
