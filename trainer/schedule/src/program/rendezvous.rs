//! Rule B: a run in which nothing is buffered, so that a send and its receive pass together.

use super::{
    super::{
        Action, Blocked, Deadlock, ScheduleError, Step, Table,
        progress::{Fact, Facts},
    },
    peer,
};

/// # Errors
/// The ranks that can't go on.
pub(super) fn run(table: &Table) -> Result<(), ScheduleError> {
    let at = vec![0; table.ranks.len()];
    let mut run = Run { table, at, computed: Facts::none(table), received: Facts::none(table) };
    let ranks = 0..table.ranks.len();
    while ranks.clone().map(|rank| run.advance(rank)).fold(false, |any, moved| any | moved) {}
    let blocked: Vec<_> = ranks.filter_map(|rank| run.blocked(rank)).collect();
    if blocked.is_empty() { Ok(()) } else { Err(ScheduleError::Deadlock(Deadlock { blocked })) }
}

struct Run<'a> {
    table: &'a Table,
    at: Vec<usize>,
    computed: Facts,
    /// By the neighbour that needs it.
    received: Facts,
}

impl Run<'_> {
    fn advance(&mut self, rank: usize) -> bool {
        let Some(action) = self.current(rank).filter(|action| self.lacks(rank, *action).is_none()) else {
            return false;
        };
        self.pass(rank, action);
        if let (Some(peer), Some(partner)) = (peer(&self.table.placement, action), action.partner()) {
            self.pass(peer, partner);
        }
        true
    }

    fn pass(&mut self, rank: usize, action: Action) {
        self.at.get_mut(rank).into_iter().for_each(|at| *at += 1);
        Fact::given_by(action).for_each(|fact| self.computed.insert(fact));
        received_by(action).into_iter().for_each(|fact| self.received.insert(fact));
    }

    fn current(&self, rank: usize) -> Option<Action> {
        self.table.row(rank).get(*self.at.get(rank)?).copied()
    }

    fn here(&self, rank: usize, fact: Fact) -> bool {
        let own = self.table.placement.rank_of(fact.stage()) == Some(rank);
        if own { self.computed.contains(fact) } else { self.received.contains(fact) }
    }

    /// What `action` waits for: in words, and the rank.
    fn lacks(&self, rank: usize, action: Action) -> Option<(String, usize)> {
        let needed =
            sent_by(action).map_or_else(|| Fact::needed_by(action, self.table.stages()), |fact| vec![fact]);
        if let Some(fact) = needed.into_iter().find(|fact| !self.here(rank, *fact)) {
            return Some((format!("{fact} on this rank"), rank));
        }
        let (peer, partner) = (peer(&self.table.placement, action)?, action.partner()?);
        let found = self.current(peer);
        // The partner of a receive is a send whose value must be there, or both would pass too early.
        let ready = found == Some(partner) && sent_by(partner).is_none_or(|fact| self.here(peer, fact));
        let text = found.map_or_else(|| "at its end".to_owned(), |cell| format!("at {cell}"));
        (!ready).then(|| (format!("{partner} of rank {peer}, which is {text}"), peer))
    }

    fn blocked(&self, rank: usize) -> Option<Blocked> {
        let cell = self.current(rank)?;
        let (waits_for, on) = self.lacks(rank, cell)?;
        Some(Blocked { rank, step: *self.at.get(rank)?, cell, waits_for, on })
    }
}

const fn sent_by(action: Action) -> Option<Fact> {
    match action.step {
        Step::SendF(m) => Some(Fact::Forward(action.stage, m)),
        Step::SendB(m) => Some(Fact::Gradient(action.stage, m)),
        _ => None,
    }
}

const fn received_by(action: Action) -> Option<Fact> {
    match (action.step, action.stage.checked_sub(1)) {
        (Step::RecvF(m), Some(before)) => Some(Fact::Forward(before, m)),
        (Step::RecvB(m), _) => Some(Fact::Gradient(action.stage + 1, m)),
        _ => None,
    }
}
