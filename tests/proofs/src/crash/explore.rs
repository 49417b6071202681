//! [`explore`]: all prefixes of a recording, and what a crash at each of them may leave.

use std::{
    collections::HashMap,
    fmt,
    str::FromStr,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use dcp::store::sim::{Choice, Disk};

use super::{
    check::{Facts, check},
    mutation::Mutation,
    scenario::Scenario,
    world::Recording,
};
use crate::chance::mixed;
use crate::weights::{Outcome, text};

/// A state, by what leads to it. As text it is `save/3/117/drawn-5`: scenario, schedule, operations done, choice; before it, for a
/// mutation, its number: `4@save/3/117/drawn-5`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) mutation: Option<usize>,
    pub(crate) scenario: Scenario,
    pub(crate) schedule: u64,
    pub(crate) prefix: usize,
    pub(crate) choice: Choice,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(number) = self.mutation {
            write!(f, "{number}@")?;
        }
        write!(f, "{}/{}/{}/{}", self.scenario, self.schedule, self.prefix, self.choice)
    }
}

impl FromStr for Way {
    type Err = String;

    fn from_str(way: &str) -> Outcome<Self> {
        let (mutation, rest) = match way.split_once('@') {
            Some((number, rest)) => (Some(number.parse().map_err(text)?), rest),
            None => (None, way),
        };
        let [scenario, schedule, prefix, choice] = rest.split('/').collect::<Vec<_>>()[..] else {
            return Err(format!("{way:?} is not SCENARIO/SCHEDULE/PREFIX/CHOICE"));
        };
        let (schedule, prefix) = (schedule.parse().map_err(text)?, prefix.parse().map_err(text)?);
        let (scenario, choice) = (scenario.parse()?, choice.parse().map_err(text)?);
        Ok(Self { mutation, scenario, schedule, prefix, choice })
    }
}

/// How much is tried at each prefix.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// So many combinations are all tried.
    pub(crate) all: u64,
    /// Of more, so many are drawn, beside the corners.
    pub(crate) drawn: u64,
    pub(crate) threads: usize,
    /// Whether the first bad state is enough.
    pub(crate) first: bool,
}

/// A state that is bad.
#[derive(Debug, Clone)]
pub(crate) struct Bad {
    pub(crate) way: Way,
    pub(crate) what: String,
}

/// What was tried.
#[derive(Debug, Default)]
pub(crate) struct Explored {
    /// Choices at prefixes.
    pub(crate) states: u64,
    /// States whose like was not seen before.
    pub(crate) checked: u64,
    pub(crate) bad: Vec<Bad>,
}

/// What was found in states that were looked at: shared by recordings of one scenario, whose objects and works are the same wherever their
/// states are.
#[derive(Debug, Default)]
pub(crate) struct Seen(Mutex<HashMap<u64, Outcome<Facts>>>);

impl Seen {
    /// The states.
    pub(crate) fn states(&self) -> Vec<u64> {
        lock(&self.0).keys().copied().collect()
    }
}

/// What is shared by those who explore one recording.
struct Search<'r> {
    recording: &'r Recording,
    way: Way,
    limits: Limits,
    seen: &'r Seen,
    found: Mutex<Explored>,
    stop: AtomicBool,
}

fn lock<T>(it: &Mutex<T>) -> MutexGuard<'_, T> {
    it.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks at the states that crashes of a recording may leave.
pub(crate) fn explore(
    recording: &Recording,
    (mutation, scenario, schedule): (Option<usize>, Scenario, u64),
    limits: Limits,
    seen: &Seen,
) -> Explored {
    let way = Way { mutation, scenario, schedule, prefix: 0, choice: Choice::All(0) };
    let (found, stop) = (Mutex::default(), AtomicBool::new(false));
    let search = Search { recording, way, limits, seen, found, stop };
    thread::scope(|scope| {
        for thread in 1..limits.threads {
            let search = &search;
            scope.spawn(move || search.run(thread));
        }
        search.run(0);
    });
    let mut found = search.found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.bad.sort_by_key(|bad| bad.way.prefix);
    found
}

impl Search<'_> {
    /// Every so many prefixes, from one of the first.
    fn run(&self, thread: usize) {
        let mut disk = Disk::new();
        let journal = &self.recording.journal;
        for prefix in 0..=journal.len() {
            if let Some(op) = prefix.checked_sub(1).and_then(|at| journal.get(at)) {
                disk.apply(op);
            }
            if prefix >= self.recording.from && prefix % self.limits.threads == thread {
                self.prefix(&disk, prefix);
            }
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
        }
    }

    fn prefix(&self, disk: &Disk, prefix: usize) {
        let seed = mixed(self.way.schedule ^ mixed(prefix as u64));
        for choice in disk.choices(self.limits.all, self.limits.drawn, seed) {
            let bad = self.state(disk, prefix, choice);
            let mut found = lock(&self.found);
            found.states += 1;
            if let Err(what) = bad {
                found.bad.push(Bad { way: Way { prefix, choice, ..self.way }, what });
                if self.limits.first {
                    self.stop.store(true, Ordering::Relaxed);
                    return;
                }
            }
        }
    }

    /// Whether a state is as it must be after so many operations.
    fn state(&self, disk: &Disk, prefix: usize, choice: Choice) -> Outcome<()> {
        let tree = disk.state(choice);
        let fingerprint = tree.fingerprint();
        let before = lock(&self.seen.0).get(&fingerprint).cloned();
        let facts = before.unwrap_or_else(|| {
            let facts = check(self.recording, &tree);
            if lock(&self.seen.0).insert(fingerprint, facts.clone()).is_none() {
                lock(&self.found).checked += 1;
            }
            facts
        })?;
        let mut due = self.recording.promises.iter().filter(|(at, _)| *at <= prefix);
        due.try_for_each(|(_, promise)| facts.keep(promise))
    }
}

/// One state again, and everything that can be told about it.
pub(crate) fn again(way: Way) -> Outcome<Option<Bad>> {
    let mutation = way.mutation.map(|number| Mutation::all().get(number).copied().ok_or("no such mutation"));
    let recording = way.scenario.record(way.schedule, mutation.transpose()?)?;
    let recording = recording.ok_or("the process ends before it is killed there")?;
    let mut disk = Disk::new();
    recording.journal.iter().take(way.prefix).for_each(|op| disk.apply(op));
    let tree = disk.state(way.choice);
    for op in recording.journal.iter().take(way.prefix).rev().take(12).rev() {
        eprintln!("  {}", shortened(&format!("{op:?}")));
    }
    for (path, _) in tree.iter() {
        eprintln!(
            "  left: {path} {}",
            tree.file(path).map_or_else(String::new, |it| format!("({} bytes)", it.len()))
        );
    }
    let facts = check(&recording, &tree);
    let mut due = recording.promises.iter().filter(|(at, _)| *at <= way.prefix);
    let kept = facts.and_then(|facts| due.try_for_each(|(_, promise)| facts.keep(promise)));
    Ok(kept.err().map(|what| Bad { way, what }))
}

fn shortened(text: &str) -> String {
    text.chars().take(160).collect()
}
