//! [`Program`]: a lowered table that is safe to run.
//!
//! Invariants, checked when it is made, each by a static walk:
//! - its computations are a valid table, and each stage reduces its gradients once, after the last of them;
//! - *rule A*: the k-th exchange of a pair of ranks is the same on both sides, in both directions together, so that one
//!   ordered channel per pair is enough;
//! - *rule B*: it runs to its end even if every send waits until the receiver is at the matching receive.

use std::collections::{HashMap, HashSet};

use super::{
    Action, Blocked, CellFault, Deadlock, Placement, ScheduleError, Step, Table,
    progress::Fact,
    validate::{in_range, of_parts, rows_match},
};

/// A lowered table that both communication rules hold for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    table: Table,
}

impl Program {
    /// Checks a lowered table.
    ///
    /// # Errors
    /// The first cell, pair of cells or group of ranks that breaks an invariant.
    pub fn new(table: Table) -> Result<Self, ScheduleError> {
        rows_match(&table)?;
        for rank in 0..table.ranks.len() {
            cells(&table, rank)?;
        }
        super::validate(&computations(&table))?;
        for (one, other) in pairs(table.ranks.len()) {
            same_order(&table, one, other)?;
        }
        Rendezvous::new(&table).run()?;
        Ok(Self { table })
    }

    /// The table.
    #[must_use]
    pub const fn table(&self) -> &Table {
        &self.table
    }
}

/// The rank on the other side of a communicating cell.
pub(crate) fn peer(placement: &Placement, action: Action) -> Option<usize> {
    match action.step {
        Step::SendF(_) | Step::RecvB(_) => placement.next_rank(action.stage),
        Step::RecvF(_) | Step::SendB(_) => placement.rank_before(action.stage),
        _ => None,
    }
}

/// A lowered table without what lowering adds.
pub(crate) fn computations(table: &Table) -> Table {
    let only = |row: &Vec<Action>| row.iter().copied().filter(Action::computes).collect();
    Table { ranks: table.ranks.iter().map(only).collect(), ..table.clone() }
}

fn pairs(ranks: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..ranks).flat_map(move |one| (one + 1..ranks).map(move |other| (one, other)))
}

/// Ranges, duplicates, peers, and where gradients are reduced.
fn cells(table: &Table, rank: usize) -> Result<(), ScheduleError> {
    let row = table.row(rank);
    let mut seen = HashMap::new();
    for (step, cell) in row.iter().copied().enumerate() {
        let refused = |fault| ScheduleError::Cell { rank, step, cell, fault };
        of_parts(cell, |part| in_range(table, rank, part)).map_err(refused)?;
        let repeats = matches!(cell.step, Step::Unshard | Step::Reshard);
        if let Some(before) = seen.insert(cell, step).filter(|_| !repeats) {
            return Err(refused(CellFault::Duplicate(before)));
        }
        if cell.step.microbatch().is_some() && !cell.computes() && peer(&table.placement, cell).is_none() {
            return Err(refused(CellFault::NoPeer("there is no neighbouring stage on another rank")));
        }
        if cell.step == Step::ReduceGrad {
            let later = row.get(step..).unwrap_or_default().iter();
            let of_stage = |it: &Action| it.computes() && it.parts().any(|part| part.stage == cell.stage);
            let late = later.copied().find(of_stage);
            late.map_or(Ok(()), |late| Err(refused(CellFault::Before(late))))?;
        }
    }
    let lacks = |stage: &usize| !seen.contains_key(&Action::new(*stage, Step::ReduceGrad));
    match table.placement.stages_of(rank).into_iter().find(lacks) {
        Some(stage) => {
            Err(ScheduleError::Missing { rank, step: row.len(), cell: Action::new(stage, Step::ReduceGrad) })
        }
        None => Ok(()),
    }
}

/// Rule A for one pair.
fn same_order(table: &Table, one: usize, other: usize) -> Result<(), ScheduleError> {
    let (ours, theirs) = (exchanges(table, one, other), exchanges(table, other, one));
    let text = |found: Option<&(usize, Action)>| {
        found.map_or_else(|| "nothing".to_owned(), |(step, cell)| format!("{cell} (step {step})"))
    };
    for turn in 0..ours.len().max(theirs.len()) {
        let (a, b) = (ours.get(turn), theirs.get(turn));
        if a.and_then(|(_, cell)| cell.partner()) == b.map(|(_, cell)| *cell) && a.is_some() {
            continue;
        }
        let at = if let Some(at) = a { Some((one, other, at, b)) } else { b.map(|at| (other, one, at, a)) };
        let Some((rank, peer, (step, cell), found)) = at else { break };
        let expected = cell.partner().map_or_else(|| "nothing".to_owned(), |it| it.to_string());
        let fault = CellFault::Pair { turn, peer, expected, found: text(found) };
        return Err(ScheduleError::Cell { rank, step: *step, cell: *cell, fault });
    }
    Ok(())
}

/// What `rank` exchanges with `with`, in order, with positions.
fn exchanges(table: &Table, rank: usize, with: usize) -> Vec<(usize, Action)> {
    let row = table.row(rank).iter().copied().enumerate();
    row.filter(|(_, cell)| peer(&table.placement, *cell) == Some(with)).collect()
}

/// Rule B: a run in which nothing is buffered.
struct Rendezvous<'a> {
    table: &'a Table,
    at: Vec<usize>,
    /// Computed or received, by rank.
    here: Vec<HashSet<Fact>>,
}

impl<'a> Rendezvous<'a> {
    fn new(table: &'a Table) -> Self {
        let ranks = table.ranks.len();
        Self { table, at: vec![0; ranks], here: vec![HashSet::new(); ranks] }
    }

    fn run(mut self) -> Result<(), ScheduleError> {
        while (0..self.at.len()).map(|rank| self.advance(rank)).fold(false, |any, moved| any | moved) {}
        let blocked: Vec<_> = (0..self.at.len()).filter_map(|rank| self.blocked(rank)).collect();
        if blocked.is_empty() { Ok(()) } else { Err(ScheduleError::Deadlock(Deadlock { blocked })) }
    }

    fn advance(&mut self, rank: usize) -> bool {
        let Some(action) = self.current(rank).filter(|action| self.waits_for(rank, *action).is_none()) else {
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
        let received = match action.step {
            Step::RecvF(m) => action.stage.checked_sub(1).map(|before| Fact::Forward(before, m)),
            Step::RecvB(m) => Some(Fact::Gradient(action.stage + 1, m)),
            _ => None,
        };
        let facts = received.into_iter().chain(Fact::given_by(action));
        self.here.get_mut(rank).into_iter().for_each(|here| here.extend(facts.clone()));
    }

    fn current(&self, rank: usize) -> Option<Action> {
        self.table.row(rank).get(*self.at.get(rank)?).copied()
    }

    fn waits_for(&self, rank: usize, action: Action) -> Option<String> {
        let here = self.here.get(rank)?;
        let needed = match action.step {
            Step::SendF(m) => vec![Fact::Forward(action.stage, m)],
            Step::SendB(m) => vec![Fact::Gradient(action.stage, m)],
            _ => Fact::needed_by(action, self.table.stages()),
        };
        if let Some(fact) = needed.into_iter().find(|fact| !here.contains(fact)) {
            return Some(format!("{fact} on this rank"));
        }
        let (peer, partner) = (peer(&self.table.placement, action)?, action.partner()?);
        let found = self.current(peer);
        let met = found == Some(partner);
        let text = found.map_or_else(|| "at its end".to_owned(), |cell| format!("at {cell}"));
        // The partner of a receive is a send whose value must be there, or both would pass too early.
        let ready =
            met && (matches!(partner.step, Step::RecvF(_) | Step::RecvB(_)) || self.sends(peer, partner));
        (!ready).then(|| format!("{partner} of rank {peer}, which is {text}"))
    }

    fn sends(&self, rank: usize, send: Action) -> bool {
        let fact = match send.step {
            Step::SendF(m) => Fact::Forward(send.stage, m),
            Step::SendB(m) => Fact::Gradient(send.stage, m),
            _ => return true,
        };
        self.here.get(rank).is_some_and(|here| here.contains(&fact))
    }

    fn blocked(&self, rank: usize) -> Option<Blocked> {
        let cell = self.current(rank)?;
        let waits_for = self.waits_for(rank, cell)?;
        Some(Blocked { rank, step: *self.at.get(rank)?, cell, waits_for })
    }
}

#[cfg(test)]
mod tests;
