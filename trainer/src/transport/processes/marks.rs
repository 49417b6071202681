//! What ranks tell each other beside the data, by keys of the store: that they came, that they live and what they are at,
//! that they failed and why, that they finished. Written so that a failure can name its cause; the data never waits for it.
//!
//! | key | value |
//! |---|---|
//! | `joined/<restart>/<rank>` | process id |
//! | `mark/<restart>/<rank>` | a beat that counts up, what the rank does, how many collectives of each group it has entered |
//! | `failed/<restart>` | the first rank that failed, and why |
//! | `left/<restart>/<rank>` | empty |
//!
//! Invariants: a thread of its own, with a connection of its own, writes the marks, so that they go on while the rank
//! computes; a failure to read or write them never covers the failure that they explain.

use std::{
    collections::BTreeMap,
    fmt,
    rc::Rc,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use crate::{
    torch::c10d::{C10dError, Status, Store},
    transport::{
        failure::{Failure, Missing, Outcome, Peer},
        scene::Scene,
    },
};

/// Keys of one start of a run.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    pub(super) restart: u64,
}

/// A rank's marks.
pub(super) struct Marks {
    rank: usize,
    world: usize,
    keys: Keys,
    store: Arc<Store>,
    mine: Arc<Mine>,
    every: Duration,
    stop: Option<Sender<()>>,
    beats: Option<JoinHandle<()>>,
}

/// Says whether one of some peers has failed, or has left: for waits that would not end by themselves.
pub(in crate::transport) struct Alarm {
    marks: Rc<Marks>,
    peers: Vec<usize>,
}

/// What this rank writes about itself.
struct Mine {
    scene: Arc<Scene>,
    entered: Mutex<BTreeMap<String, u64>>,
    beat: Mutex<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Mark {
    beat: u64,
    doing: String,
    entered: BTreeMap<String, u64>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Fall {
    rank: usize,
    why: String,
}

/// A wait that failed: what for, and who may be at fault.
pub(super) struct Wait<'a> {
    pub(super) what: &'a dyn fmt::Display,
    pub(super) limit: Duration,
    pub(super) suspects: Vec<usize>,
    /// The group and which collective of it.
    pub(super) entered: Option<(&'a str, u64)>,
}

impl Keys {
    pub(super) fn joined(&self, rank: usize) -> String {
        format!("joined/{}/{rank}", self.restart)
    }

    fn mark(&self, rank: usize) -> String {
        format!("mark/{}/{rank}", self.restart)
    }

    fn failed(&self) -> String {
        format!("failed/{}", self.restart)
    }

    fn left(&self, rank: usize) -> String {
        format!("left/{}/{rank}", self.restart)
    }
}

impl Marks {
    /// Begins to write marks through `beating`, a connection of their own.
    pub(super) fn new(
        (rank, world): (usize, usize),
        keys: Keys,
        store: Arc<Store>,
        beating: Store,
        scene: Arc<Scene>,
        step: Duration,
    ) -> Self {
        // Four a second, fewer in large worlds, where all of them reach one server.
        let crowd = u32::try_from(world / 64).unwrap_or(u32::MAX).max(1);
        let every = (Duration::from_millis(250) * crowd).min(step / 4).max(Duration::from_millis(20));
        let mine = Arc::new(Mine { scene, entered: Mutex::default(), beat: Mutex::default() });
        let (stop, stopped) = mpsc::channel();
        let (key, failed, writer) = (keys.mark(rank), keys.failed(), Arc::clone(&mine));
        // At once: a rank that is stopped before its first beat is as silent as one that is stopped later.
        let _ = mine.write(&beating, &key);
        let beats = thread::spawn(move || {
            while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                // A store that is gone is noticed where it is needed.
                let _ = writer.write(&beating, &key);
                // This rank may be the one that the others wait for, stuck where it can't say so.
                if beating.has(&failed).unwrap_or(false) {
                    writer.scene.dump();
                }
            }
        });
        Self { rank, world, keys, store, mine, every, stop: Some(stop), beats: Some(beats) }
    }

    /// Counts a collective of a group that this rank enters.
    pub(super) fn enter(&self, group: &str, sequence: u64) {
        let mut entered = self.mine.entered.lock().unwrap_or_else(PoisonError::into_inner);
        match entered.get_mut(group) {
            Some(count) => *count = sequence,
            None => {
                entered.insert(group.to_owned(), sequence);
            }
        }
    }

    /// Says that this rank has failed, unless another one has before.
    pub(super) fn fail(&self, why: &str) {
        let fall = Fall { rank: self.rank, why: why.to_owned() };
        if let Ok(text) = serde_json::to_vec(&fall) {
            let _ = self.store.set_first(&self.keys.failed(), &text);
        }
        let _ = self.mine.write(&self.store, &self.keys.mark(self.rank));
    }

    /// Says that this rank will do nothing more.
    pub(super) fn leave(&self) {
        let _ = self.store.set(&self.keys.left(self.rank), &[]);
    }

    /// Waits until all others have said so, for the one that serves the store.
    pub(super) fn outlast(&self, limit: Duration) {
        let others = (0..self.world).filter(|rank| *rank != self.rank);
        let keys: Vec<_> = others.map(|rank| self.keys.left(rank)).collect();
        if !keys.is_empty() {
            let _ = self.store.wait(&keys, limit);
        }
    }

    /// Which rank has failed first, if one has.
    fn fallen(&self) -> Option<Fall> {
        let text = self.store.get(&self.keys.failed()).ok()??;
        serde_json::from_slice(&text).ok()
    }

    fn mark(&self, rank: usize) -> Option<Mark> {
        serde_json::from_slice(&self.store.get(&self.keys.mark(rank)).ok()??).ok()
    }

    fn broken(&self) -> Outcome<()> {
        match self.fallen().filter(|fall| fall.rank != self.rank) {
            Some(Fall { rank: by, why }) => Err(Failure::Broken { rank: self.rank, by, why }),
            None => Ok(()),
        }
    }

    fn departed(&self, wait: &Wait<'_>) -> Outcome<()> {
        let gone = wait.suspects.iter().find(|rank| self.store.has(&self.keys.left(**rank)).unwrap_or(false));
        let why = "it has finished, and its transport is closed";
        gone.map_or(Ok(()), |rank| Err(self.gone(wait, Peer::Rank(*rank), why.to_owned())))
    }

    fn gone(&self, wait: &Wait<'_>, peer: Peer, why: String) -> Failure {
        Failure::Gone { rank: self.rank, what: wait.what.to_string(), peer, why }
    }

    /// The cause of a wait that failed, as far as the marks tell.
    pub(super) fn explain(&self, wait: &Wait<'_>, error: C10dError) -> Failure {
        let _ = self.mine.write(&self.store, &self.keys.mark(self.rank));
        match error.status {
            Status::Late => self.broken().err().unwrap_or_else(|| self.late(wait)),
            Status::Network => self.lost(wait, error),
            Status::Failed => {
                self.broken().err().unwrap_or(Failure::Torch { what: wait.what.to_string(), why: error.why })
            }
        }
    }

    /// Those who have not entered the collective, or all suspects where the marks do not tell; what each does, and whether
    /// its process still beats.
    fn late(&self, wait: &Wait<'_>) -> Failure {
        let marks: Vec<_> = wait.suspects.iter().map(|rank| (*rank, self.mark(*rank))).collect();
        let behind = |mark: &Option<Mark>| match (mark, wait.entered) {
            (Some(mark), Some((group, sequence))) => mark.entered.get(group).copied().unwrap_or(0) < sequence,
            _ => true,
        };
        let some = marks.iter().any(|(_, mark)| behind(mark));
        thread::sleep(self.every * 5 / 2);
        let missing = marks.iter().filter(|(_, mark)| !some || behind(mark));
        let missing = missing.map(|(rank, mark)| (*rank, self.doing(*rank, mark.as_ref()))).collect();
        let (rank, limit) = (self.rank, wait.limit);
        Failure::Late { rank, what: wait.what.to_string(), limit, missing: Missing(missing) }
    }

    /// What a rank does, by a mark of some beats ago.
    fn doing(&self, rank: usize, before: Option<&Mark>) -> String {
        let silent =
            self.mark(rank).map(|now| now.beat).is_none_or(|now| before.is_some_and(|it| it.beat == now));
        let still = if silent { "; its process is silent: stopped, dead, or cut off" } else { "" };
        format!("{}{still}", before.map_or("has left no mark", |it| it.doing.as_str()))
    }

    /// A connection broke: because a rank failed and said so, because one has finished, or else because of the one whose
    /// marks have stopped.
    fn lost(&self, wait: &Wait<'_>, error: C10dError) -> Failure {
        let before: Vec<_> =
            wait.suspects.iter().map(|rank| self.mark(*rank).map(|mark| mark.beat)).collect();
        let until = Instant::now() + self.every * 5 / 2;
        while Instant::now() < until {
            if let Err(known) = self.broken().and_then(|()| self.departed(wait)) {
                return known;
            }
            thread::sleep(Duration::from_millis(20));
        }
        let silent = wait.suspects.iter().zip(&before);
        let silent = silent.filter(|(rank, before)| self.mark(**rank).map(|mark| mark.beat) == **before);
        let silent: Vec<_> = silent.map(|(rank, _)| *rank).collect();
        let suspects = if silent.is_empty() { wait.suspects.clone() } else { silent };
        self.gone(wait, Peer::OneOf(suspects), error.why)
    }
}

impl Alarm {
    pub(super) fn new(marks: Rc<Marks>, peers: &[usize]) -> Self {
        Self { marks, peers: peers.to_vec() }
    }

    /// What has happened, if anything has. A store that does not answer says nothing.
    pub(in crate::transport) fn sounds(&self) -> Option<String> {
        let Marks { keys, store, .. } = &*self.marks;
        let left = |rank: &&usize| store.has(&keys.left(**rank)).unwrap_or(false);
        match self.marks.fallen() {
            Some(fall) => Some(format!("rank {} has failed", fall.rank)),
            None => self.peers.iter().find(left).map(|rank| format!("rank {rank} has left")),
        }
    }
}

impl Mine {
    fn write(&self, store: &Store, key: &str) -> Result<(), C10dError> {
        let entered = self.entered.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Held while writing, so that a later beat is not overwritten by an earlier one.
        let mut beat = self.beat.lock().unwrap_or_else(PoisonError::into_inner);
        *beat += 1;
        let mark = Mark { beat: *beat, doing: self.scene.brief(), entered };
        store.set(key, &serde_json::to_vec(&mark).unwrap_or_default())
    }
}

impl Drop for Marks {
    fn drop(&mut self) {
        drop(self.stop.take());
        let Some(beats) = self.beats.take() else { return };
        // A store that does not answer keeps the thread in a call, which must not keep this rank from ending.
        let until = Instant::now() + Duration::from_secs(2);
        while !beats.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
    }
}
