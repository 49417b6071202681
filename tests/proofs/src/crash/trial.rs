//! [`tried`]: one mutation, until a crash leaves a bad state.

use std::thread;

use serde::Serialize;

use super::{
    explore::{Limits, Seen, explore},
    mutation::Mutation,
    scenario::Scenario,
};
use crate::weights::Outcome;

/// What came of a mutation.
#[derive(Debug, Serialize)]
pub(super) struct Trial {
    pub(super) mutation: String,
    /// The scenario that found it; none for one that survived.
    pub(super) scenario: Option<String>,
    /// States looked at until then.
    pub(super) states: u64,
    /// The state, and what was bad about it.
    pub(super) found: Option<(String, String)>,
    /// Where a process met an error before anything had crashed, and which: the first of them.
    pub(super) met: Option<(String, String)>,
}

impl Trial {
    /// The error that was met, as an addition to a sentence.
    pub(super) fn beside(&self) -> String {
        self.met.as_ref().map_or_else(String::new, |(way, met)| format!(" (running {way}: {met})"))
    }
}

/// Tries a mutation: the scenario that is likely to find it, then all others.
pub(super) fn tried(number: usize, mutation: Mutation) -> Outcome<Trial> {
    let others = Scenario::ALL.into_iter().filter(|scenario| *scenario != mutation.likely());
    tried_in(std::iter::once(mutation.likely()).chain(others), number, mutation)
}

/// Tries a mutation in these scenarios, one after the other.
///
/// # Errors
/// Where a process meets an error without the mutation as well: no proof can be carried out then.
pub(super) fn tried_in(
    scenarios: impl IntoIterator<Item = Scenario>,
    number: usize,
    mutation: Mutation,
) -> Outcome<Trial> {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let limits = Limits { all: 4, drawn: 1, threads, first: true };
    let mut row = Trial { mutation: mutation.to_string(), scenario: None, states: 0, found: None, met: None };
    for scenario in scenarios {
        let seen = Seen::default();
        let schedules = match scenario.is_continued() {
            true => 1..10_000,
            false if scenario == mutation.likely() => 2..40,
            false => 2..4,
        };
        for schedule in schedules {
            let recording = match scenario.record(schedule, Some(mutation)) {
                Ok(Some(recording)) => recording,
                Ok(None) => break,
                // Nothing has crashed yet, and a process met what it would not without the mutation: no state that a crash left.
                Err(met) => {
                    scenario
                        .record(schedule, None)
                        .map_err(|error| format!("{scenario}/{schedule}: {error}"))?;
                    row.met.get_or_insert((format!("{scenario}/{schedule}"), met));
                    continue;
                }
            };
            // What is found and not durable is what got its name right before the kill.
            if scenario == mutation.likely() && scenario.is_continued() && !recording.begins_after_a_name() {
                continue;
            }
            let explored = explore(&recording, (Some(number), scenario, schedule), limits, &seen);
            row.states += explored.states;
            if let Some(bad) = explored.bad.into_iter().next() {
                row.scenario = Some(scenario.to_string());
                row.found = Some((bad.way.to_string(), bad.what));
                return Ok(row);
            }
            if !scenario.has_schedules() {
                break;
            }
        }
    }
    Ok(row)
}
