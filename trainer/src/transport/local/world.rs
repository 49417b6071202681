//! What the ranks of a process share: mail, rooms of groups, who has failed or left, and how they wait.
//!
//! Invariants: one lock, held for bookkeeping alone; a rank waits on its own bell, and whoever changes what it waits for
//! rings it; a failure is recorded once and rings all.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use super::group::Room;
use crate::{
    Result,
    transport::{
        Limits,
        failure::{Failure, Missing, Outcome, Peer},
        scene::Scene,
        tamper::Parcel,
    },
};

/// Who waits, for what, how long.
pub(super) struct Wait<'a> {
    pub(super) rank: usize,
    pub(super) what: &'a dyn fmt::Display,
    pub(super) limit: Duration,
}

/// Name, members, and how often this rank has asked for that group before.
pub(super) type RoomKey = (String, Vec<usize>, usize);

/// All that the ranks share.
pub(super) struct Shared {
    pub(super) limits: Limits,
    state: Mutex<State>,
    bells: Vec<Condvar>,
    scenes: Vec<Scene>,
    /// Whether each rank is starting.
    starting: Vec<AtomicBool>,
}

/// What the lock guards.
#[derive(Default)]
pub(super) struct State {
    broken: Option<(usize, String)>,
    left: BTreeMap<usize, String>,
    mail: BTreeMap<(usize, usize), VecDeque<Parcel>>,
    /// Messages that were sent and not taken yet, by sender and receiver.
    untaken: BTreeMap<(usize, usize), usize>,
    pub(super) rooms: BTreeMap<RoomKey, Room>,
    /// Groups that a rank has asked for, so that asking twice for the same one gives a second one.
    asked: BTreeMap<(usize, String, Vec<usize>), usize>,
}

impl Shared {
    pub(super) fn new(ranks: usize, limits: Limits) -> Self {
        let started = Instant::now();
        let scene = |rank| Scene::new(rank, started, limits.scene_actions, limits.dump.clone());
        let scenes = (0..ranks).map(scene).collect();
        let bells = (0..ranks).map(|_| Condvar::new()).collect();
        let starting = (0..ranks).map(|_| AtomicBool::new(false)).collect();
        Self { limits, state: Mutex::default(), bells, scenes, starting }
    }

    /// Whether `rank` is starting.
    pub(super) fn starting(&self, rank: usize, starting: bool) {
        self.starting[rank].store(starting, Ordering::Relaxed);
    }

    /// How long a wait of `rank` may last now.
    pub(super) fn limit(&self, rank: usize) -> Duration {
        self.limits.wait(self.starting[rank].load(Ordering::Relaxed))
    }

    pub(super) const fn size(&self) -> usize {
        self.bells.len()
    }

    pub(super) fn scene(&self, rank: usize) -> &Scene {
        &self.scenes[rank]
    }

    /// A thread that panicked under the lock left bookkeeping that is whole: nothing under it calls out.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ring(&self, rank: usize) {
        self.bells[rank].notify_all();
    }

    /// Waits until `ready` gives something, the world breaks, someone who is `missing` has left, or time is up.
    pub(super) fn wait<T>(
        &self,
        wait: &Wait<'_>,
        mut ready: impl FnMut(&mut State) -> Outcome<Option<T>>,
        missing: impl Fn(&State) -> Vec<usize>,
    ) -> Outcome<T> {
        let deadline = Instant::now() + wait.limit;
        let mut waiting = None;
        let mut state = self.lock();
        loop {
            // What is complete is given out, though another rank has failed since: it may have failed at what comes next.
            if let Some(found) = ready(&mut state)? {
                return Ok(found);
            }
            state.whole(wait.rank)?;
            state.present(wait, &missing(&state))?;
            waiting.get_or_insert_with(|| self.scene(wait.rank).wait(wait.what));
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.late(wait, &missing(&state)));
            }
            state = self.bells[wait.rank].wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn late(&self, wait: &Wait<'_>, missing: &[usize]) -> Failure {
        let seen = missing.iter().map(|rank| (*rank, self.scene(*rank).brief())).collect();
        let (rank, limit) = (wait.rank, wait.limit);
        Failure::Late { rank, what: wait.what.to_string(), limit, missing: Missing(seen) }
    }

    /// Passes an outcome on; a failure of this rank's own ends the waits of all others.
    pub(super) fn guarded<T>(&self, rank: usize, outcome: Outcome<T>) -> Result<T> {
        outcome.map_err(|failure| {
            self.fail(rank, &failure);
            failure.into()
        })
    }

    /// Records the first failure, writes the scenes, and wakes everyone.
    pub(super) fn fail(&self, rank: usize, why: &dyn fmt::Display) {
        let why = why.to_string();
        let first = {
            let mut state = self.lock();
            let first = state.broken.is_none();
            state.broken.get_or_insert_with(|| (rank, why.clone()));
            first
        };
        self.scene(rank).fail(&why);
        if first {
            // A rank that is stuck can't write its own; all are in this process.
            self.scenes.iter().for_each(Scene::dump);
        }
        self.bells.iter().for_each(Condvar::notify_all);
    }

    pub(super) fn leave(&self, rank: usize) {
        self.lock().left.insert(rank, "it has finished, and its transport is closed".to_owned());
        self.bells.iter().for_each(Condvar::notify_all);
    }
}

impl State {
    /// Errs when a rank has failed.
    pub(super) fn whole(&self, rank: usize) -> Outcome<()> {
        self.broken
            .as_ref()
            .map_or(Ok(()), |(by, why)| Err(Failure::Broken { rank, by: *by, why: why.clone() }))
    }

    /// Why `rank` is gone, if it is.
    pub(super) fn left(&self, rank: usize) -> Option<String> {
        self.left.get(&rank).cloned()
    }

    fn present(&self, wait: &Wait<'_>, missing: &[usize]) -> Outcome<()> {
        let gone = missing.iter().find_map(|rank| self.left.get(rank).map(|why| (*rank, why.clone())));
        gone.map_or(Ok(()), |(peer, why)| {
            let what = wait.what.to_string();
            Err(Failure::Gone { rank: wait.rank, what, peer: Peer::Rank(peer), why })
        })
    }

    pub(super) fn post(&mut self, from: usize, to: usize, parcel: Parcel) {
        self.mail.entry((from, to)).or_default().push_back(parcel);
        *self.untaken.entry((from, to)).or_default() += 1;
    }

    pub(super) fn next(&mut self, from: usize, to: usize) -> Option<Parcel> {
        self.mail.get_mut(&(from, to))?.pop_front()
    }

    pub(super) fn taken(&mut self, from: usize, to: usize) {
        if let Some(count) = self.untaken.get_mut(&(from, to)) {
            *count = count.saturating_sub(1);
        }
    }

    /// Messages of `from` that have not been taken.
    pub(super) fn under_way(&self, from: usize) -> usize {
        self.untaken.range((from, 0)..=(from, usize::MAX)).map(|(_, count)| *count).sum()
    }

    /// Ranks that have not taken what `from` sent.
    pub(super) fn holders(&self, from: usize) -> Vec<usize> {
        let sent = self.untaken.range((from, 0)..=(from, usize::MAX));
        sent.filter(|(_, count)| **count > 0).map(|((_, to), _)| *to).collect()
    }

    /// The room of a group, which comes to be when the first member asks.
    pub(super) fn room(&mut self, rank: usize, name: &str, members: &[usize]) -> RoomKey {
        let asked = self.asked.entry((rank, name.to_owned(), members.to_vec())).or_default();
        let key = (name.to_owned(), members.to_vec(), *asked);
        *asked += 1;
        self.rooms.entry(key.clone()).or_default();
        key
    }
}
