//! `flaky`: eight writers commit on a store that loses acknowledgements, answers 409 and 5xx before and after an object has landed, lands
//! late, breaks off bodies, lists late and is down for a while, while a collector takes their unfinished folders for garbage.
//!
//! ```text
//!  trainers ×8, collector ──► Log (real) ──► InTurn ──► FaultyStore ──► memory
//!      │ what they were told       drive(): one operation at a time, drawn from the seed
//!      └────────► judge(): the log as it is in the end
//! ```
//!
//! Four trainers have a run each, four share two runs, so that they take over from each other by epochs. Every record that was acknowledged
//! must be in the log as often as it was acknowledged, and no other; every refusal must have been right at the head where it was made; every
//! checkpoint that exists must have its bytes. The same is run with protocols that are wrong in one step each, and must fail.

mod actor;
mod check;
mod gate;
mod naive;
mod store;
mod writer;

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dcp::commit::{Commit, DirName, Label, ManifestRef};
use dcp::store::Root;
use dcp::store::faults::{Faults, FaultyStore};
use dcp::store::over::Over;
use object_store::ObjectStore;
use object_store::memory::InMemory;
use serde::Serialize;

use crate::proof::{Proof, Size};
use actor::{Actor, Outcome, Testimony};
use naive::Mutation;
use store::InTurn;
use writer::Trainer;

const WRITERS: u64 = 8;

/// A fifth of all creates lose their acknowledgement, one half of them by a conflict that a request has with itself.
const FAULTS: Faults = Faults {
    lost_answer: 100,
    conflict_with_itself: 100,
    false_conflict: 30,
    error_before: 50,
    late_landing: 50,
    not_found: 15,
    no_overwrite: 100,
    cut_body: 40,
    late_listing: 150,
    outage: 15,
};

/// What was tried, and what came of it.
#[derive(Debug, Serialize)]
pub(crate) struct Flaky {
    writers: u64,
    run: Ran,
    /// What is bad with the same protocol in the code of the wrong ones: nothing, or they would prove nothing.
    by_hand: Vec<String>,
    mutations: Vec<Mutated>,
}

/// One run.
#[derive(Debug, Serialize)]
struct Ran {
    commits: u64,
    records: u64,
    steps: u64,
    faults: u64,
    /// Appends that were once in doubt, and those of them that came to a verdict.
    unknown: u64,
    resolved: u64,
    /// Appends that certainly wrote nothing, and were given up.
    given_up: u64,
    /// Times that a writer woke with its folder condemned, and that one was fenced.
    condemned: u64,
    fenced: u64,
    /// Folders that were deleted.
    deleted: u64,
    live: u64,
    lost: u64,
    surplus: u64,
    false_conflicts: u64,
    damaged: u64,
    voids: u64,
    findings: Vec<String>,
    /// Writers that could not go on, and why.
    stuck: Vec<String>,
    trace: String,
}

/// A wrong protocol, and what gave it away.
#[derive(Debug, Serialize)]
struct Mutated {
    mutation: Mutation,
    caught: bool,
    lost: u64,
    surplus: u64,
    false_conflicts: u64,
    damaged: u64,
    voids: u64,
    findings: usize,
    stuck: usize,
}

impl Ran {
    /// Whether the log itself gives the protocol away; that a writer could not go on is not enough.
    fn caught(&self) -> bool {
        self.lost + self.surplus + self.false_conflicts + self.damaged + self.voids > 0
            || !self.findings.is_empty()
    }

    fn bad(&self) -> Vec<String> {
        let count = |what: &str, n: u64| (n > 0).then(|| format!("{n} {what}"));
        let counts = [
            count("acknowledged records lost", self.lost),
            count("records twice, or though reported as not written", self.surplus),
            count("false conflicts", self.false_conflicts),
            count("checkpoints damaged", self.damaged),
            count("records void", self.voids),
        ];
        let found = self.findings.iter().chain(&self.stuck).cloned();
        counts.into_iter().flatten().chain(found).collect()
    }
}

impl Proof for Flaky {
    const NAME: &'static str = "flaky";

    fn bad(&self) -> Vec<String> {
        let mut bad = self.run.bad();
        bad.extend(self.by_hand.iter().map(|what| format!("by hand: {what}")));
        let tried = [
            ("faults", self.run.faults),
            ("appends in doubt", self.run.unknown),
            ("folders condemned under a writer", self.run.condemned),
            ("writers fenced", self.run.fenced),
            ("folders deleted", self.run.deleted),
        ];
        bad.extend(
            tried.iter().filter(|(_, n)| *n == 0).map(|(what, _)| format!("no {what}: nothing was tried")),
        );
        let survivors = self.mutations.iter().filter(|it| !it.caught);
        bad.extend(survivors.map(|it| format!("a protocol with {:?} passed", it.mutation)));
        bad
    }
}

/// Content of a commit record.
fn commit_of(step: u64, dir: &DirName, manifest: ManifestRef) -> Commit {
    crate::values::commit(step, dir, manifest, [dir.clone()])
}

/// Runs the protocol as it is, then the wrong ones.
pub(crate) fn run(size: Size) -> Result<Flaky, Box<dyn Error>> {
    let commits = size.pick(1_000, 10_000);
    eprintln!("flaky: {WRITERS} writers, {commits} commits, seed {}", size.seed);
    let right = ran(size.seed, commits, Mutation::None).map_err(|error| error as Box<dyn Error>)?;
    let by_hand = ran(size.seed, 240, Mutation::ByHand).map_err(|error| error as Box<dyn Error>)?.bad();
    let mut mutations = Vec::new();
    for mutation in Mutation::ALL {
        let wrong = ran(size.seed, 240, mutation).map_err(|error| error as Box<dyn Error>)?;
        let mutated = Mutated {
            mutation,
            caught: wrong.caught(),
            lost: wrong.lost,
            surplus: wrong.surplus,
            false_conflicts: wrong.false_conflicts,
            damaged: wrong.damaged,
            voids: wrong.voids,
            findings: wrong.findings.len(),
            stuck: wrong.stuck.len(),
        };
        eprintln!("flaky: {mutation:?}: {}", if mutated.caught { "caught" } else { "PASSED" });
        mutations.push(mutated);
    }
    Ok(Flaky { writers: WRITERS, run: right, by_hand, mutations })
}

fn trainers(commits: u64) -> Outcome<Vec<Trainer>> {
    let trainer = |n: u64| {
        let rivals = n >= 4;
        let run = if rivals { format!("shared-{}", n / 2) } else { format!("own-{n}") };
        let commits = commits / WRITERS + u64::from(n < commits % WRITERS);
        Ok(Trainer { name: format!("w{n}"), run: run.parse()?, commits, rivals })
    };
    (0..WRITERS).map(trainer).collect()
}

fn ran(seed: u64, commits: u64, mutation: Mutation) -> Outcome<Ran> {
    let memory: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let trainers = trainers(commits)?;
    let (schedule, turns) = gate::schedule(trainers.len() + 1);
    let faulty: Vec<_> = (0..turns.len() as u64)
        .map(|n| {
            Arc::new(FaultyStore::new(Arc::clone(&memory), FAULTS, seed.wrapping_mul(1_000).wrapping_add(n)))
        })
        .collect();
    let training = AtomicU64::new(trainers.len() as u64);
    let (mut said, mut stuck, mut committed) = (Vec::new(), Vec::new(), 0);
    let (steps, trace) = std::thread::scope(|scope| {
        let actors: Vec<_> = turns
            .into_iter()
            .zip(&faulty)
            .zip(trainers.iter().map(Some).chain([None]))
            .zip(0_u64..)
            .map(|(((turn, store), trainer), n)| {
                let (training, store) = (&training, Arc::clone(store));
                scope
                    .spawn(move || life(turn, store, trainer, seed.wrapping_add(n << 32), mutation, training))
            })
            .collect();
        let driven = schedule.drive(seed);
        for actor in actors {
            match actor.join() {
                Ok((testimony, done)) => {
                    said.push(testimony);
                    match done {
                        Ok(count) => committed += count,
                        Err(error) => stuck.push(error.to_string()),
                    }
                }
                Err(_) => stuck.push("a writer panicked".to_owned()),
            }
        }
        driven
    });
    let verdict = check::judge(&Root::from_store(memory, "memory"), &said)?;
    let sum = |of: fn(&Testimony) -> u64| said.iter().map(of).sum();
    Ok(Ran {
        commits: committed,
        records: verdict.records,
        steps,
        faults: faulty.iter().map(|store| store.injected()).sum(),
        unknown: sum(|it| it.unknown),
        resolved: sum(|it| it.resolved),
        given_up: sum(|it| it.given_up),
        condemned: sum(|it| it.condemned),
        fenced: sum(|it| it.fenced),
        deleted: sum(|it| it.deleted),
        live: verdict.live,
        lost: verdict.lost,
        surplus: verdict.surplus,
        false_conflicts: verdict.false_conflicts,
        damaged: verdict.damaged,
        voids: verdict.voids,
        findings: verdict.findings,
        stuck,
        trace,
    })
}

/// One actor, from its first turn to its end: what it was told, and how many checkpoints it committed.
fn life(
    turn: gate::Turn,
    inner: Arc<FaultyStore>,
    trainer: Option<&Trainer>,
    seed: u64,
    mutation: Mutation,
    training: &AtomicU64,
) -> (Testimony, Outcome<u64>) {
    let turn = Arc::new(turn);
    turn.wait(0);
    // The turn ends with this function, not before: what comes after would not be in order.
    let kept = Arc::clone(&turn);
    let root = Root::from_store(Arc::new(Over::layered(InTurn { inner, turn: Arc::clone(&turn) })), "flaky");
    let made = Actor::new(turn, root, seed, mutation);
    let ended = made.map(|mut actor| {
        let done = match trainer {
            Some(trainer) => writer::train(&mut actor, trainer),
            None => collector(&mut actor, training),
        };
        (std::mem::take(&mut actor.said), done)
    });
    if trainer.is_some() {
        training.fetch_sub(1, Ordering::Relaxed);
    }
    drop(kept);
    ended.unwrap_or_else(|error| (Testimony::default(), Err(error)))
}

fn collector(actor: &mut Actor, training: &AtomicU64) -> Outcome<u64> {
    let run: Label = "collector".parse()?;
    writer::collect(actor, &run, || training.load(Ordering::Relaxed) == 0).map(|()| 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(seed: u64) -> Ran {
        ran(seed, 160, Mutation::None).unwrap()
    }

    #[test]
    fn a_seed_gives_the_same_trace_again_and_another_seed_another() {
        let (first, again, other) = (tried(3), tried(3), tried(4));
        assert_eq!((&first.trace, first.steps, first.records), (&again.trace, again.steps, again.records));
        assert_ne!(first.trace, other.trace);
        for ran in [first, other] {
            assert_eq!(ran.bad(), [""; 0]);
            assert_eq!(ran.commits, 160);
            assert!(ran.unknown > 0 && ran.faults > 100, "{ran:?}");
        }
    }

    #[test]
    fn every_wrong_protocol_is_caught() {
        assert_eq!(ran(1, 240, Mutation::ByHand).unwrap().bad(), [""; 0]);
        for mutation in Mutation::ALL {
            let wrong = ran(1, 240, mutation).unwrap();
            assert!(wrong.caught(), "{mutation:?}: {wrong:?}");
        }
    }
}
