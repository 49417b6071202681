//! `model`: every order of events, within a bound, of two writers, a collector and a reader on one log.
//!
//! What records mean is not modelled, nor what a policy lets go: worlds are judged by the real [`dcp::commit::State`] and the real
//! [`dcp::retention::plan`]. Modelled are the store, which takes a create or
//! loses its answer or lets it land late, the clock, and the actors. So a writer that sleeps while its folder is condemned and deleted, a
//! collector that goes by a log it read long ago, and a crash between any two steps are all among the orders. The bound is stated with the
//! figures. The same is run with one rule left out each, and must end in a counterexample.

mod steps;
mod world;

use std::error::Error;

use serde::Serialize;
use stateright::{Checker, Model, Property};

use crate::proof::{Proof, Size};
use steps::Step;
use world::{Act, At, Folder, Reader, TRIES, World, Writer};

/// The rule that is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
enum Mutation {
    None,
    DeletedWithoutCondemned,
    NoGrace,
    CondemnedNotChecked,
    NewestVerifiedNotKept,
    UnknownIsSuccess,
}

impl Mutation {
    const ALL: [Self; 5] = [
        Self::DeletedWithoutCondemned,
        Self::NoGrace,
        Self::CondemnedNotChecked,
        Self::NewestVerifiedNotKept,
        Self::UnknownIsSuccess,
    ];
}

/// How far the model goes.
#[derive(Debug, Clone, Copy, Serialize)]
struct Bound {
    writers: u8,
    /// Checkpoints that each writer begins.
    checkpoints_each: u8,
    crashes: u8,
    lost_or_late_answers: u8,
    reads: u8,
    ticks: u8,
    records: u8,
}

#[derive(Debug, Clone)]
struct Protocol {
    bound: Bound,
    mutation: Mutation,
}

impl Model for Protocol {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let writer = Writer { attempt: 0, also: None, at: At::Data };
        let writers = vec![writer; usize::from(self.bound.writers)];
        vec![World {
            acts: Vec::new(),
            times: Vec::new(),
            folders: vec![Folder::default(); writers.len() * usize::from(TRIES)],
            writers,
            view: None,
            reader: Reader::Idle,
            reads: self.bound.reads,
            late: Vec::new(),
            now: 0,
            crashes: self.bound.crashes,
            losses: self.bound.lost_or_late_answers,
            acknowledged: 0,
            refused: 0,
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        // What is broken stays so.
        if world.reader != Reader::Broken {
            world.steps(&self.bound, self.mutation, steps);
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        world.after(step, self.mutation)
    }

    fn within_boundary(&self, world: &World) -> bool {
        world.length() <= self.bound.records
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("a reader finds all of what it chose", |_, world: &World| {
                world.reader != Reader::Broken
            }),
            Property::always("a checkpoint that exists has its bytes", bytes_are_there),
            Property::always("what was acknowledged was committed", acknowledged_is_committed),
            Property::always(
                "the newest verified checkpoint stays until a newer one is verified",
                verified_stays,
            ),
            Property::always("no checkpoint is committed twice", committed_once),
            Property::sometimes("a folder is deleted in full", |_, world: &World| {
                let gone =
                    |it: &Act| matches!(it, Act::Condemn { dir } if world.folder(*dir) == Folder::default());
                world.acts.iter().any(gone)
            }),
            Property::sometimes("a writer wakes up with its folder condemned", |_, world: &World| {
                world.refused != 0
            }),
            Property::sometimes("a checkpoint is verified", |_, world: &World| {
                world.acts.iter().any(|it| matches!(it, Act::Verified { .. }))
            }),
            Property::sometimes("a checkpoint refers to another's folder", |_, world: &World| {
                world.acts.iter().any(|it| matches!(it, Act::Commit { also: Some(_), .. }))
            }),
            Property::sometimes("a checkpoint is retired", |_, world: &World| {
                world.acts.iter().any(|it| matches!(it, Act::Retire { .. }))
            }),
        ]
    }
}

fn bytes_are_there(protocol: &Protocol, world: &World) -> bool {
    let (facts, data, manifests) =
        (world.head(protocol.mutation), world.bits(|it| it.data), world.bits(|it| it.manifest));
    facts.data & !data == 0 && facts.manifests & !manifests == 0
}

/// Committed with effect, and never forgotten by the log.
fn acknowledged_is_committed(protocol: &Protocol, world: &World) -> bool {
    let facts = world.head(protocol.mutation);
    world.acknowledged & !(facts.committed & facts.known) == 0
}

fn verified_stays(protocol: &Protocol, world: &World) -> bool {
    world.head(protocol.mutation).verified_stayed
}

fn committed_once(protocol: &Protocol, world: &World) -> bool {
    world.head(protocol.mutation).twice == 0
}

/// What was tried.
#[derive(Debug, Serialize)]
pub(crate) struct Checked {
    bound: Bound,
    /// Different states, and all that were come to.
    states: usize,
    visits: usize,
    depth: usize,
    violated: Vec<String>,
    /// What should happen somewhere and does not, so that the bound is too small to say anything.
    never: Vec<&'static str>,
    mutations: Vec<Mutated>,
}

/// A rule that was left out.
#[derive(Debug, Serialize)]
struct Mutated {
    mutation: Mutation,
    /// The property that broke, and in how many steps.
    broken: Option<&'static str>,
    steps: usize,
    example: Vec<String>,
}

impl Proof for Checked {
    const NAME: &'static str = "model";

    fn bad(&self) -> Vec<String> {
        let mut bad = self.violated.clone();
        bad.extend(self.never.iter().map(|what| format!("never: {what}; the bound is too small")));
        let survived = self.mutations.iter().filter(|it| it.broken.is_none());
        bad.extend(survived.map(|it| format!("nothing broke with {:?}", it.mutation)));
        if self.states < 1_000 {
            bad.push(format!("{} states are too few to say anything", self.states));
        }
        bad
    }
}

const QUICK: Bound = Bound {
    writers: 2,
    checkpoints_each: TRIES,
    crashes: 0,
    lost_or_late_answers: 1,
    reads: 1,
    ticks: 2,
    records: 5,
};

/// The largest bound of those tried that ends within an hour and the memory of a machine of 24 GiB.
const FULL: Bound = Bound { crashes: 1, ..QUICK };

/// Checks the protocol, then without each of its rules.
pub(crate) fn run(size: Size) -> Result<Checked, Box<dyn Error>> {
    let bound = if size.full { FULL } else { QUICK };
    eprintln!("model: {bound:?}");
    let threads = std::thread::available_parallelism().map_or(1, Into::into);
    let checker = Protocol { bound, mutation: Mutation::None }.checker().threads(threads).spawn_bfs().join();
    let (mut violated, mut never) = (Vec::new(), Vec::new());
    for property in checker.model().properties() {
        let found = checker.discovery(property.name);
        match (property.expectation.discovery_is_failure(), found) {
            (true, Some(path)) => {
                let steps: Vec<_> = path.into_actions().iter().map(|step| format!("{step:?}")).collect();
                violated.push(format!("not so: {}: {}", property.name, steps.join(", ")));
            }
            (false, None) => never.push(property.name),
            _ => {}
        }
    }
    Ok(Checked {
        bound,
        states: checker.unique_state_count(),
        visits: checker.state_count(),
        depth: checker.max_depth(),
        violated,
        never,
        mutations: Mutation::ALL.into_iter().map(mutated).collect(),
    })
}

/// Looks for a counterexample in a bound that has one.
fn mutated(mutation: Mutation) -> Mutated {
    let bound = Bound { crashes: 0, ..QUICK };
    let finished = Protocol { bound, mutation }
        .checker()
        .finish_when(stateright::HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let failed = |property: &Property<Protocol>| property.expectation.discovery_is_failure();
    let broken = finished.model().properties().into_iter().filter(failed).find_map(|property| {
        let path = finished.discovery(property.name)?;
        Some((property.name, path.into_actions().iter().map(|step| format!("{step:?}")).collect::<Vec<_>>()))
    });
    let (broken, example) = broken.map_or((None, Vec::new()), |(name, steps)| (Some(name), steps));
    eprintln!("model: {mutation:?}: {}", broken.unwrap_or("NOTHING BROKE"));
    Mutated { mutation, broken, steps: example.len(), example }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_any_one_rule_there_is_a_counterexample() {
        for mutation in Mutation::ALL {
            assert!(mutated(mutation).broken.is_some(), "{mutation:?}");
        }
    }

    #[test]
    fn with_all_rules_there_is_none_in_a_small_bound() {
        let bound = Bound { records: 4, lost_or_late_answers: 1, ..QUICK };
        let checker = Protocol { bound, mutation: Mutation::None }.checker().spawn_bfs().join();
        for property in checker.model().properties() {
            if property.expectation.discovery_is_failure() {
                assert!(checker.discovery(property.name).is_none(), "{}", property.name);
            }
        }
        assert!(checker.unique_state_count() > 1_000);
    }
}
