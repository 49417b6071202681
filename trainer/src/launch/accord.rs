//! What the launcher's loop asks of whoever knows about all machines of a run: a launcher that is alone ([`super::alone`]), or one of
//! several ([`super::machines`]). And the decision that all of them act on, which is pure.
//!
//! Invariant: an incarnation ends everywhere before the next one begins anywhere, and all machines give it the same number.

use serde::{Deserialize, Serialize};

use super::{Ending, Meaning, Outcome, Reaction};
use crate::Result;

/// Where the ranks of this machine are in one incarnation of the run, and where they meet the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Berth {
    /// How often all were started before.
    pub(super) restart: u32,
    /// The first rank of this machine; the others follow.
    pub(super) first: usize,
    /// Ranks of all machines.
    pub(super) world: usize,
    /// This machine.
    pub(super) node: usize,
    /// Machines.
    pub(super) nodes: usize,
    /// Host of the store.
    pub(super) address: String,
    /// Port of the store.
    pub(super) port: u16,
    /// Whether a launcher serves it; else rank 0 has to.
    pub(super) served: bool,
    /// Name of the run.
    pub(super) run_id: String,
}

/// What became of an incarnation on one machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Seen {
    /// All ranks there did what they were meant to do.
    Done,
    /// One died, and caused what else died there.
    Died {
        /// It.
        rank: usize,
        /// Its process.
        pid: u32,
        /// How.
        ending: Ending,
    },
    /// Its launcher was asked to stop by this signal.
    Asked(i32),
    /// Its launcher is gone, as far as the first one can tell.
    Lost(String),
}

/// What all machines do next, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Decision {
    /// Why, for the console; empty when there is nothing to tell.
    pub(super) said: String,
    pub(super) then: Then,
}

/// What all machines do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Then {
    /// Start all ranks again.
    Again,
    /// End, so.
    End(Outcome),
}

/// A launcher is ready for the next incarnation, or there is none.
#[derive(Debug)]
pub(super) enum Mustered {
    Ready(Berth),
    Over(Decision),
}

/// What the launcher's loop is told from outside, and tells.
pub(super) struct Desk<'a> {
    /// A signal that asks to stop, once there is one, and how many came.
    pub(super) stop: &'a dyn Fn() -> Option<(i32, usize)>,
    /// Takes short lines.
    pub(super) say: &'a mut dyn FnMut(&str),
}

/// Whoever knows about all machines.
pub(super) trait Accord {
    /// Waits until every machine is ready to start its ranks.
    ///
    /// # Errors
    /// Who did not come, what does not fit, a port that is taken.
    fn muster(&mut self, desk: &mut Desk<'_>) -> Result<Mustered>;

    /// Why this incarnation is over, once that is known from another machine.
    ///
    /// # Errors
    /// What keeps this launcher from going on.
    fn elsewhere(&mut self, desk: &mut Desk<'_>) -> Result<Option<String>>;

    /// Says what became of the incarnation on this machine, as soon as it is known; ranks may still run.
    ///
    /// # Errors
    /// As [`Accord::elsewhere`].
    fn tell(&mut self, seen: Seen) -> Result<()>;

    /// What is done next. Called when no rank of this machine is left.
    ///
    /// # Errors
    /// What keeps this launcher from going on.
    fn verdict(&mut self, desk: &mut Desk<'_>) -> Result<Decision>;
}

/// How often all may be started again, how often they were, and what exit codes mean.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    pub(super) restart: u32,
    pub(super) max_restarts: u32,
    pub(super) meaning: fn(u8) -> Option<Meaning>,
}

/// What follows from what all machines saw; the number of the machine first, which is told where there are several.
pub(super) fn decide(seen: &[(usize, Seen)], nodes: usize, patience: Patience) -> Decision {
    let Some((node, worst)) = cause(seen, patience.meaning) else {
        return Decision { said: String::new(), then: Then::End(Outcome::Done) };
    };
    let (told, ending) = match worst {
        Seen::Died { rank, pid, ending } => {
            let on = if nodes > 1 { format!(" of node {node}") } else { String::new() };
            (format!("rank {rank} (pid {pid}){on} {}", ending.told(patience.meaning)), Some(*ending))
        }
        Seen::Lost(why) => (format!("node {node} is gone: {why}"), None),
        Seen::Asked(signal) => {
            let said = match nodes {
                1 => String::new(),
                _ => format!("node {node} was asked to stop by signal {signal}; all have ended"),
            };
            return Decision { said, then: Then::End(Outcome::Stopped(*signal)) };
        }
        Seen::Done => return Decision { said: String::new(), then: Then::End(Outcome::Done) },
    };
    let failed = ending.map_or(Outcome::Parted, Outcome::Failed);
    let Patience { restart, max_restarts, meaning } = patience;
    if ending.is_some_and(|ending| ending.reaction(meaning) == Reaction::Final) {
        let said = format!("{told}; not restarting: the same would happen again");
        return Decision { said, then: Then::End(failed) };
    }
    if restart >= max_restarts {
        let said = format!("{told}; giving up after {restart} of {max_restarts} restarts");
        return Decision { said, then: Then::End(failed) };
    }
    let said = format!("{told}; restarting all ({} of {max_restarts})", restart + 1);
    Decision { said, then: Then::Again }
}

/// What caused the rest: a request to stop; else a death of its own accord, one that would happen again first; else a machine that is
/// gone; else a death that merely follows from another.
fn cause(seen: &[(usize, Seen)], meaning: fn(u8) -> Option<Meaning>) -> Option<(usize, &Seen)> {
    let weight = |seen: &Seen| match seen {
        Seen::Done => None,
        Seen::Asked(_) => Some(0),
        Seen::Died { ending, .. } => Some(match ending.reaction(meaning) {
            Reaction::Final => 1,
            Reaction::Restart => 2,
            Reaction::Follows => 4,
        }),
        Seen::Lost(_) => Some(3),
    };
    let fallen = seen.iter().filter_map(|(node, seen)| weight(seen).map(|weight| (weight, *node, seen)));
    fallen.min_by_key(|(weight, node, _)| (*weight, *node)).map(|(_, node, seen)| (node, seen))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meaning(code: u8) -> Option<Meaning> {
        match code {
            75 => Some(Meaning { text: "lost a peer", reaction: Reaction::Follows }),
            78 => Some(Meaning { text: "bad configuration", reaction: Reaction::Final }),
            _ => None,
        }
    }

    fn died(rank: usize, ending: Ending) -> Seen {
        Seen::Died { rank, pid: 7, ending }
    }

    fn decided(seen: &[(usize, Seen)], restart: u32) -> Decision {
        decide(seen, 3, Patience { restart, max_restarts: 1, meaning })
    }

    #[test]
    fn the_death_that_others_follow_from_is_the_cause_on_whatever_machine_it_was() {
        let follows = (0, died(0, Ending::Code(75)));
        let seen = [follows.clone(), (1, died(3, Ending::Signal(9))), (2, Seen::Done)];
        let again = decided(&seen, 0);
        assert_eq!(
            again.said,
            "rank 3 (pid 7) of node 1 was killed by signal 9 (SIGKILL); restarting all (1 of 1)"
        );
        assert_eq!(again.then, Then::Again);
        let over = decided(&seen, 1);
        assert!(over.said.ends_with("giving up after 1 of 1 restarts"), "{}", over.said);
        assert_eq!(over.then, Then::End(Outcome::Failed(Ending::Signal(9))));
        let gone = decided(&[follows, (2, Seen::Lost("its connection closed".to_owned()))], 1);
        assert_eq!(gone.said, "node 2 is gone: its connection closed; giving up after 1 of 1 restarts");
        assert_eq!(gone.then, Then::End(Outcome::Parted));
    }

    #[test]
    fn what_would_happen_again_and_who_asks_to_stop_end_all_machines() {
        let wrong = (2, died(5, Ending::Code(78)));
        let last = decided(&[(0, died(0, Ending::Signal(9))), wrong.clone()], 0);
        assert!(last.said.contains("rank 5 (pid 7) of node 2") && last.said.contains("not restarting"));
        assert_eq!(last.then, Then::End(Outcome::Failed(Ending::Code(78))));
        assert_eq!(decided(&[wrong, (1, Seen::Asked(15))], 0).then, Then::End(Outcome::Stopped(15)));
        assert_eq!(decided(&[(0, Seen::Done), (1, Seen::Done)], 0).then, Then::End(Outcome::Done));
    }
}
