//! What node 0's launcher knows of all machines, and what follows from it. Pure: told what happened, it says what is to be done.
//!
//! Invariants: an incarnation has a verdict when, and only when, no rank of it is left anywhere, as far as can be known; a machine takes
//! part in it that was there when it began, and no other.

use std::collections::BTreeMap;

use super::{
    hello::Hello,
    words::{Ground, Refusal},
};
use crate::launch::{
    Meaning,
    accord::{Decision, Patience, Seen, Then, decide},
};

/// All machines, as node 0 knows them.
pub(super) struct Council {
    mine: Hello,
    meaning: fn(u8) -> Option<Meaning>,
    restart: u32,
    /// Launchers that are there, this one's too.
    here: BTreeMap<usize, Hello>,
    /// Those of the incarnation that runs.
    members: Option<BTreeMap<usize, Member>>,
    /// The first fall of the incarnation that runs.
    fallen: Option<String>,
    /// Why a machine is not there, if anything is known.
    absent: BTreeMap<usize, String>,
}

/// A machine in an incarnation.
#[derive(Debug, Default)]
struct Member {
    seen: Option<Seen>,
    ended: bool,
}

impl Member {
    /// Whether nothing more will come of it.
    const fn is_over(&self) -> bool {
        self.ended || matches!(self.seen, Some(Seen::Lost(_)))
    }
}

/// A machine's share of an incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) node: usize,
    pub(super) first: usize,
    pub(super) ranks: usize,
}

impl Council {
    pub(super) fn new(mine: Hello, meaning: fn(u8) -> Option<Meaning>) -> Self {
        let here = BTreeMap::from([(0, mine.clone())]);
        Self { mine, meaning, restart: 0, here, members: None, fallen: None, absent: BTreeMap::new() }
    }

    pub(super) const fn restart(&self) -> u32 {
        self.restart
    }

    /// A launcher has come.
    ///
    /// # Errors
    /// It does not fit, or its number is taken.
    pub(super) fn admit(&mut self, hello: Hello) -> Result<(), Refusal> {
        let admitted = self.mine.admits(&hello).and_then(|()| match self.here.get(&hello.node) {
            None => Ok(()),
            Some(there) => Err(Refusal::new(
                Ground::Taken,
                format!("{}: --node-rank {} is taken by pid {} on {}", hello.who(), hello.node, there.pid, there.machine),
                "give every machine its own --node-rank; a launcher that died is noticed within --node-timeout",
            )),
        });
        if let Err(refusal) = &admitted {
            if refusal.ground != Ground::Taken {
                self.absent.insert(hello.node, format!("refused: {}", refusal.said));
            }
            return admitted;
        }
        self.absent.remove(&hello.node);
        self.here.insert(hello.node, hello);
        Ok(())
    }

    /// A launcher is gone.
    pub(super) fn lost(&mut self, node: usize, why: &str) {
        let Some(gone) = self.here.remove(&node) else { return };
        let told = format!("{}: {why}", gone.who());
        self.absent.insert(node, told.clone());
        let Some(member) = self.members.as_mut().and_then(|members| members.get_mut(&node)) else { return };
        match (&member.seen, member.ended) {
            // What its ranks had to do is done, or it is known why not.
            (Some(_), true) => {}
            (Some(Seen::Died { .. } | Seen::Asked(_)), false) => member.ended = true,
            _ => {
                member.seen = Some(Seen::Lost(told.clone()));
                self.fallen.get_or_insert(told);
            }
        }
    }

    /// Machines that are not there, in order.
    pub(super) fn missing(&self) -> Vec<usize> {
        (0..self.mine.nodes).filter(|node| !self.here.contains_key(node)).collect()
    }

    /// What is known of those, for messages.
    pub(super) fn absences(&self) -> Vec<&String> {
        let missing = self.missing();
        self.absent.iter().filter(|(node, _)| missing.contains(node)).map(|(_, why)| why).collect()
    }

    /// The name of every rank's machine: what the ranks there tell each other too.
    pub(super) fn machines(&self) -> Vec<String> {
        self.here
            .values()
            .flat_map(|hello| std::iter::repeat_n(super::machine(hello.node, &hello.machine), hello.ranks))
            .collect()
    }

    /// All machines are there: an incarnation begins. Ranks are numbered machine by machine.
    pub(super) fn begin(&mut self) -> Vec<Share> {
        self.members = Some(self.here.keys().map(|node| (*node, Member::default())).collect());
        self.fallen = None;
        let mut first = 0;
        let share = |hello: &Hello| {
            let share = Share { node: hello.node, first, ranks: hello.ranks };
            first += hello.ranks;
            share
        };
        self.here.values().map(share).collect()
    }

    /// A machine says what became of its ranks in an incarnation.
    pub(super) fn heard(&mut self, node: usize, restart: u32, seen: Seen) {
        if restart != self.restart {
            return;
        }
        let Some(member) = self.members.as_mut().and_then(|members| members.get_mut(&node)) else { return };
        if !matches!(member.seen, None | Some(Seen::Done)) {
            return;
        }
        let told = match &seen {
            Seen::Done => None,
            Seen::Asked(signal) => Some(format!("node {node} was asked to stop by signal {signal}")),
            Seen::Lost(why) => Some(why.clone()),
            Seen::Died { rank, pid, ending } => {
                Some(format!("rank {rank} (pid {pid}) of node {node} {}", ending.told(self.meaning)))
            }
        };
        if let Some(told) = told {
            self.fallen.get_or_insert(told);
        }
        member.seen = Some(seen);
    }

    /// No rank of an incarnation is left on a machine.
    pub(super) fn ended(&mut self, node: usize, restart: u32) {
        if restart == self.restart
            && let Some(member) = self.members.as_mut().and_then(|members| members.get_mut(&node))
        {
            member.ended = true;
        }
    }

    /// Why the incarnation that runs must end, once it must.
    pub(super) fn fallen(&self) -> Option<&str> {
        self.fallen.as_deref()
    }

    /// What comes next, once no rank is left.
    pub(super) fn verdict(&mut self) -> Option<Decision> {
        let members = self.members.as_ref()?;
        if !members.values().all(Member::is_over) {
            return None;
        }
        let seen: Vec<(usize, Seen)> =
            members.iter().filter_map(|(node, member)| Some((*node, member.seen.clone()?))).collect();
        let patience =
            Patience { restart: self.restart, max_restarts: self.mine.max_restarts, meaning: self.meaning };
        let decision = decide(&seen, self.mine.nodes, patience);
        self.members = None;
        self.restart += u32::from(decision.then == Then::Again);
        Some(decision)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::hello::tests::hello, *};
    use crate::launch::{Ending, Outcome, Reaction};

    fn meaning(code: u8) -> Option<Meaning> {
        (code == 75).then_some(Meaning { text: "lost a peer", reaction: Reaction::Follows })
    }

    fn died(rank: usize, ending: Ending) -> Seen {
        Seen::Died { rank, pid: 7, ending }
    }

    fn complete() -> Council {
        let mut council = Council::new(Hello { ranks: 1, ..hello(0) }, meaning);
        assert_eq!(council.missing(), [1, 2]);
        council.admit(hello(2)).unwrap();
        council.admit(hello(1)).unwrap();
        council
    }

    #[test]
    fn ranks_are_numbered_by_machine_whoever_comes_first() {
        let mut council = complete();
        assert!(council.missing().is_empty());
        let share = |node, first, ranks| Share { node, first, ranks };
        assert_eq!(council.begin(), [share(0, 0, 1), share(1, 1, 2), share(2, 3, 2)]);
        assert_eq!(council.machines().len(), 5);
        let taken = council.admit(hello(1)).unwrap_err();
        assert!(
            taken.ground == Ground::Taken && taken.said.contains("--node-rank 1 is taken by pid 7 on host1"),
            "{taken:?}"
        );
    }

    #[test]
    fn a_death_on_one_machine_ends_all_and_the_verdict_waits_for_the_last_rank() {
        let mut council = complete();
        council.begin();
        assert_eq!(council.fallen(), None);
        council.heard(0, 0, died(0, Ending::Code(75)));
        assert!(council.fallen().unwrap().starts_with("rank 0 (pid 7) of node 0 exited with code 75"));
        council.heard(2, 0, died(3, Ending::Signal(9)));
        council.ended(0, 0);
        council.ended(2, 0);
        assert_eq!(council.verdict(), None, "node 1 has not ended its ranks");
        council.ended(1, 9);
        assert_eq!(council.verdict(), None, "what is said of another incarnation counts for nothing");
        council.ended(1, 0);
        let decision = council.verdict().unwrap();
        assert_eq!(decision.then, Then::Again);
        assert!(
            decision.said.starts_with("rank 3 (pid 7) of node 2 was killed by signal 9"),
            "{}",
            decision.said
        );
        assert_eq!((council.restart(), council.verdict()), (1, None));
        council.begin();
        council.heard(1, 0, died(1, Ending::Signal(9)));
        assert_eq!(council.fallen(), None, "that was the one before");
    }

    #[test]
    fn a_machine_that_is_gone_is_waited_for_and_may_be_another_process() {
        let mut council = complete();
        council.begin();
        council.lost(1, "its connection closed");
        assert_eq!(council.fallen(), Some("node 1 (host1, pid 7): its connection closed"));
        council.admit(Hello { pid: 8, ..hello(1) }).unwrap();
        council.ended(1, 0);
        council.ended(0, 0);
        assert_eq!(council.verdict(), None, "node 2 still runs its ranks");
        council.ended(2, 0);
        let decision = council.verdict().unwrap();
        assert_eq!(
            decision.said,
            "node 1 is gone: node 1 (host1, pid 7): its connection closed; restarting all (1 of 1)"
        );
        assert!(council.missing().is_empty());
        council.begin();
        council.lost(2, "silent");
        council.ended(0, 1);
        council.ended(1, 1);
        assert_eq!(council.verdict().unwrap().then, Then::End(Outcome::Parted));
        assert_eq!(council.absences(), ["node 2 (host2, pid 7): silent"]);
    }

    #[test]
    fn a_machine_whose_ranks_are_done_may_go_but_not_before() {
        let mut council = complete();
        council.begin();
        for node in 0..3 {
            council.heard(node, 0, Seen::Done);
            council.ended(node, 0);
            if node == 1 {
                council.lost(1, "its connection closed");
            }
        }
        assert_eq!(council.verdict().unwrap().then, Then::End(Outcome::Done));
    }

    #[test]
    fn a_refused_machine_is_missing_and_it_is_known_why() {
        let mut council = Council::new(hello(0), meaning);
        council.admit(Hello { version: "9".to_owned(), ..hello(1) }).unwrap_err();
        assert_eq!(council.missing(), [1, 2]);
        assert!(council.absences()[0].starts_with("refused: node 1"), "{:?}", council.absences());
        council.admit(hello(1)).unwrap();
        assert!(council.absences().is_empty());
    }
}
