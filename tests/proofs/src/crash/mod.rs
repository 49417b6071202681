//! `crash`: every state that a crash of the machine could leave behind.
//!
//! ```text
//!  Scenario ─ record ─► Recording: journal of the simulated file system, promises with their moments
//!                          │ each prefix × what was not synced (Disk::choices: all where few; corners and drawn ones where many)
//!                          ▼
//!                        Tree ─ mount ─► check: log, records, every checkpoint bit for bit, promises; go on, collect, sweep
//! ```
//!
//! Which losses and re-orderings are legal, and why, is said in [`dcp::store::sim`]. A state is *bad* if
//!
//! * the log does not open, has fewer records than calls have promised by returning, or a record that nobody wrote;
//! * a checkpoint exists that is not whole (every block against its SHA-256) or holds other bytes than were saved, bit for bit: so
//!   the newest is the old one or the new one, never a mixture, and never none once a commit has returned;
//! * something is damaged that was retired and is not condemned;
//! * going on fails: the interrupted work, done again, keeps what it had finished and commits; so does another save; then all but the
//!   newest can be retired and collected, and nothing unfinished stays.
//!
//! That the search can find something is shown by [`mutation`]s: each sync that the store makes is left out once, and steps are swapped; every
//! one of them must lead to a bad state, or the proof has failed. That a process meets an error while it runs is no such state: it is told of
//! beside, and counts for nothing.

mod check;
mod explore;
mod mutation;
mod objects;
mod scenario;
#[cfg(test)]
mod tests;
mod trial;
mod world;

use std::{
    collections::{BTreeMap, HashSet},
    error::Error,
    thread,
    time::Instant,
};

use clap::Args;
use serde::Serialize;

use self::{
    explore::{Bad, Explored, Limits, Seen, Way, again, explore},
    mutation::Mutation,
    scenario::Scenario,
    trial::{Trial, tried},
};
use crate::{
    chance::mixed,
    proof::{Proof, Size},
    weights::Outcome,
};

/// What is tried.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) size: Size,
    /// Look at one state again, as a bad one was printed: `save/3/117/drawn-5`
    #[arg(long, value_name = "STATE")]
    only: Option<Way>,
    /// As little as shows that all parts work
    #[arg(long, conflicts_with = "full")]
    tiny: bool,
}

/// Distinct states that a full run must have looked at.
const PROMISED: u64 = 100_000;

/// Schedules of those scenarios that go on until enough states were seen.
const MOST_SCHEDULES: u64 = 600;

/// Bad states that are printed.
const SHOWN: usize = 5;

/// What was tried.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Crashes {
    /// Choices at prefixes, all scenarios together.
    states: u64,
    /// States that differ, as the store can tell them apart.
    distinct: u64,
    bad: u64,
    scenarios: BTreeMap<String, Row>,
    mutations: Vec<Trial>,
    /// What is bad about it all.
    #[serde(skip)]
    told: Vec<String>,
}

/// One scenario.
#[derive(Debug, Default, Serialize)]
struct Row {
    schedules: u64,
    operations: u64,
    states: u64,
    checked: u64,
    bad: u64,
    seconds: f64,
}

impl Proof for Crashes {
    const NAME: &'static str = "crash";

    fn bad(&self) -> Vec<String> {
        self.told.clone()
    }
}

/// How much is tried.
struct Effort {
    limits: Limits,
    schedules: u64,
    /// Of the processes that are killed, one in so many places.
    kill_every: u64,
    mutations: bool,
}

impl Effort {
    fn of(options: &Options) -> Self {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let size = options.size;
        let (all, drawn, schedules, kill_every) = match options.tiny {
            true => (2, 0, 1, 40),
            false => (size.pick(6, 64), size.pick(1, 24), size.pick(1, 12), size.pick(9, 1)),
        };
        let mutations = !options.tiny;
        Self { limits: Limits { all, drawn, threads, first: false }, schedules, kill_every, mutations }
    }
}

/// Tries them.
pub(crate) fn run(options: Options) -> Result<Crashes, Box<dyn Error>> {
    let mut done = Crashes::default();
    if let Some(way) = options.only {
        done.states = 1;
        if let Some(bad) = again(way)? {
            done.bad = 1;
            done.told.push(format!("{way}: {}", bad.what));
        }
        return Ok(done);
    }
    let (effort, mut distinct) = (Effort::of(&options), HashSet::new());
    for scenario in Scenario::ALL {
        let began = Instant::now();
        let (mut row, seen) = (Row::default(), Seen::default());
        for schedule in schedules(scenario, &effort, options.size.seed) {
            if !done.one(scenario, schedule, effort.limits, &seen, &mut row)? {
                break;
            }
        }
        // A full run goes on with writers on other schedules until it has kept its promise.
        distinct.extend(seen.states());
        if options.size.full && scenario.is_last() {
            done.more(&mut distinct, &effort, options.size.seed)?;
        }
        row.seconds = began.elapsed().as_secs_f64();
        row.told(scenario);
        if row.checked == 0 {
            done.told.push(format!("{scenario}: no state was looked at"));
        }
        done.scenarios.insert(scenario.to_string(), row);
    }
    done.distinct = distinct.len() as u64;
    if options.size.full && done.distinct < PROMISED {
        done.told.push(format!("{} distinct states, {PROMISED} are promised", done.distinct));
    }
    if effort.mutations {
        mutations(&mut done)?;
    }
    Ok(done)
}

fn told(bad: &Bad) -> String {
    format!("{}; again with: cargo run --package proofs -- crash --only {}", bad.what, bad.way)
}

impl Crashes {
    /// One scenario on one schedule; whether there is such a one.
    fn one(
        &mut self,
        scenario: Scenario,
        schedule: u64,
        limits: Limits,
        seen: &Seen,
        row: &mut Row,
    ) -> Outcome<bool> {
        let Some(recording) = scenario.record(schedule, None)? else { return Ok(false) };
        let explored = explore(&recording, (None, scenario, schedule), limits, seen);
        row.schedules += 1;
        row.operations += (recording.journal.len() - recording.from) as u64;
        row.add(&explored);
        self.states += explored.states;
        self.bad += explored.bad.len() as u64;
        self.told.extend(explored.bad.iter().take(SHOWN).map(told));
        Ok(true)
    }

    /// Further schedules of those scenarios in which many act at once, as many as it takes.
    fn more(&mut self, distinct: &mut HashSet<u64>, effort: &Effort, seed: u64) -> Outcome<()> {
        let many = [Scenario::Busy, Scenario::Busy, Scenario::Save, Scenario::Busy, Scenario::Forget];
        for (n, scenario) in (effort.schedules..MOST_SCHEDULES).zip(many.into_iter().cycle()) {
            if distinct.len() as u64 >= PROMISED + PROMISED / 20 {
                break;
            }
            let (seen, mut row) =
                (Seen::default(), self.scenarios.remove(scenario.name()).unwrap_or_default());
            let began = Instant::now();
            self.one(scenario, schedule(seed, n), effort.limits, &seen, &mut row)?;
            row.seconds += began.elapsed().as_secs_f64();
            self.scenarios.insert(scenario.to_string(), row);
            distinct.extend(seen.states());
            eprintln!("crash: {} distinct states so far", distinct.len());
        }
        Ok(())
    }
}

impl Row {
    fn told(&self, scenario: Scenario) {
        let Self { operations, states, checked, bad, seconds, .. } = self;
        eprintln!(
            "crash: {scenario}: {operations} operations, {states} states, {checked} distinct, {bad} bad, {seconds:.1} s"
        );
    }

    fn add(&mut self, explored: &Explored) {
        self.states += explored.states;
        self.checked += explored.checked;
        self.bad += explored.bad.len() as u64;
    }
}

/// The schedules of a scenario: orders of turns, or places where a process is killed.
fn schedules(scenario: Scenario, effort: &Effort, seed: u64) -> Box<dyn Iterator<Item = u64>> {
    if scenario.is_continued() {
        let every = effort.kill_every;
        // The last of them lies behind the end, where it is not killed.
        return Box::new((0..10_000).map(move |n| 1 + n * every));
    }
    if !scenario.has_schedules() {
        return Box::new(std::iter::once(0));
    }
    let schedules = effort.schedules;
    Box::new((0..schedules).map(move |n| schedule(seed, n)))
}

/// An order of turns. Every second one puts off syncs.
const fn schedule(seed: u64, n: u64) -> u64 {
    (mixed(seed ^ mixed(n)) >> 20 << 1) | (n % 2)
}

/// Tries each mutation until it leads to a bad state.
fn mutations(done: &mut Crashes) -> Outcome<()> {
    for (number, mutation) in Mutation::all().into_iter().enumerate() {
        let row = tried(number, mutation)?;
        match &row.scenario {
            Some(scenario) => {
                eprintln!(
                    "crash: {mutation}: found by {scenario} after {} states{}",
                    row.states,
                    row.beside()
                );
            }
            None => done.told.push(format!("{mutation}: survives {} states{}", row.states, row.beside())),
        }
        done.mutations.push(row);
    }
    Ok(())
}
