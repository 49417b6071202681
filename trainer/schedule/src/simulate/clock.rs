//! The walk in time: every rank works through its row, and waits for what its next action needs.
//!
//! Invariant: an action's span depends on spans of actions before it only (on its rank, or by what it needs), so the order
//! in which ranks are looked at can't change the numbers. The table must be one that runs to its end.

use std::collections::HashMap;

use super::Communication;
use crate::{Action, Durations, Edge, Step, Table, program::peer, progress::Fact};

/// How values get to other ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Carried {
    /// By themselves, over the edge between two stages.
    Edges,
    /// By actions of the table.
    Actions(Communication),
}

/// Start and end of every action.
pub(super) fn run(table: &Table, times: &dyn Durations, carried: Carried) -> Vec<Vec<(f64, f64)>> {
    let ranks = table.ranks.len();
    let mut clock = Clock {
        table,
        times,
        carried,
        done: HashMap::new(),
        arrived: HashMap::new(),
        spans: vec![Vec::new(); ranks],
        free: vec![0.0; ranks],
        beside: vec![0.0; ranks],
        gathered: HashMap::new(),
    };
    // A checked table has no deadlock, so each round moves at least one rank.
    while (0..ranks).map(|rank| clock.advance(rank)).fold(false, |any, moved| any | moved) {}
    clock.spans
}

struct Clock<'a> {
    table: &'a Table,
    times: &'a dyn Durations,
    carried: Carried,
    /// When each value was computed.
    done: HashMap<Fact, f64>,
    /// When each value that was sent is at the other rank.
    arrived: HashMap<Fact, f64>,
    spans: Vec<Vec<(f64, f64)>>,
    /// When each rank can begin its next action.
    free: Vec<f64>,
    /// When each rank's collectives that run beside computations have ended.
    beside: Vec<f64>,
    /// When each stage's weights are there.
    gathered: HashMap<usize, f64>,
}

impl Clock<'_> {
    /// Runs `rank` as far as it can; whether it moved.
    fn advance(&mut self, rank: usize) -> bool {
        let mut moved = false;
        while let Some(action) = self.current(rank)
            && self.step(rank, action).is_some()
        {
            moved = true;
        }
        moved
    }

    fn current(&self, rank: usize) -> Option<Action> {
        self.table.row(rank).get(self.spans.get(rank)?.len()).copied()
    }

    /// Does `action`, the next of `rank`; nothing if what it needs isn't there.
    fn step(&mut self, rank: usize, action: Action) -> Option<()> {
        let posted = self.carried == Carried::Actions(Communication::Posted);
        match action.step {
            Step::SendF(_) | Step::SendB(_) | Step::RecvF(_) | Step::RecvB(_) if !posted => {
                self.meet(rank, action)
            }
            Step::SendF(_) | Step::SendB(_) => self.post(rank, action),
            Step::RecvF(_) | Step::RecvB(_) | Step::Reshard => self.at_once(rank),
            Step::Unshard | Step::ReduceGrad => self.collective(rank, action, posted),
            Step::F(_) | Step::I(_) | Step::W(_) | Step::B(_) | Step::Overlap { .. } => {
                self.compute(rank, action)
            }
        }
    }

    fn compute(&mut self, rank: usize, action: Action) -> Option<()> {
        let apart: f64 = action.parts().map(|part| self.times.action(part)).sum();
        // Lowering sends what a composite gives after all of it; a table says nothing of sends.
        if self.carried == Carried::Edges && action.parts().count() > 1 && self.times.cell(action) >= apart {
            return self.in_turn(rank, action);
        }
        let start = self.ready(rank, action, self.free_at(rank)?)?;
        let end = start + self.times.cell(action);
        self.done.extend(Fact::given_by(action).map(|fact| (fact, end)));
        self.hold(rank, start, end)
    }

    /// A composite from which nothing is gained: its parts, one after the other, each when what it needs is there.
    fn in_turn(&mut self, rank: usize, cell: Action) -> Option<()> {
        let (mut first, mut at) = (None, self.free_at(rank)?);
        let mut given = Vec::new();
        for part in cell.parts() {
            let start = self.ready(rank, part, at)?;
            first = first.or(Some(start));
            at = start + self.times.action(part);
            given.extend(Fact::given_by(part).map(|fact| (fact, at)));
        }
        self.done.extend(given);
        self.hold(rank, first?, at)
    }

    /// From `start` on, when all that `action` needs is there.
    fn ready(&self, rank: usize, action: Action, mut start: f64) -> Option<f64> {
        for fact in Fact::needed_by(action, self.table.stages()) {
            start = start.max(self.available(rank, fact)?);
        }
        let gathered = action.parts().filter_map(|part| self.gathered.get(&part.stage));
        Some(gathered.copied().fold(start, f64::max))
    }

    /// When `rank` has `fact`.
    fn available(&self, rank: usize, fact: Fact) -> Option<f64> {
        if self.table.placement.rank_of(fact.stage()) == Some(rank) {
            return self.done.get(&fact).copied();
        }
        match self.carried {
            Carried::Edges => Some(self.done.get(&fact)? + self.times.transfer(fact.edge()?)),
            Carried::Actions(_) => self.arrived.get(&fact).copied(),
        }
    }

    /// A send that does not hold its rank.
    fn post(&mut self, rank: usize, send: Action) -> Option<()> {
        let (fact, edge) = (Fact::sent_by(send)?, Edge::of(send)?);
        let start = self.free_at(rank)?.max(*self.done.get(&fact)?);
        let end = start + self.times.transfer(edge);
        self.arrived.insert(fact, end);
        self.spans.get_mut(rank)?.push((start, end));
        Some(())
    }

    /// A send or receive that waits for the other side; both sides are done here.
    fn meet(&mut self, rank: usize, action: Action) -> Option<()> {
        let peer = peer(&self.table.placement, action)?;
        let partner = action.partner().filter(|partner| self.current(peer) == Some(*partner))?;
        let fact = Fact::sent_by(action).or_else(|| Fact::sent_by(partner))?;
        let start = self.free_at(rank)?.max(self.free_at(peer)?).max(*self.done.get(&fact)?);
        let end = start + self.times.transfer(Edge::of(action)?);
        self.arrived.insert(fact, end);
        self.hold(peer, start, end)?;
        self.hold(rank, start, end)
    }

    fn collective(&mut self, rank: usize, action: Action, beside: bool) -> Option<()> {
        let lane = if beside { self.beside.get(rank).copied()? } else { 0.0 };
        let start = self.free_at(rank)?.max(lane);
        let end = start + self.times.action(action);
        if action.step == Step::Unshard {
            self.gathered.insert(action.stage, end);
        }
        if !beside {
            return self.hold(rank, start, end);
        }
        *self.beside.get_mut(rank)? = end;
        self.spans.get_mut(rank)?.push((start, end));
        Some(())
    }

    fn at_once(&mut self, rank: usize) -> Option<()> {
        let now = self.free_at(rank)?;
        self.hold(rank, now, now)
    }

    fn free_at(&self, rank: usize) -> Option<f64> {
        self.free.get(rank).copied()
    }

    fn hold(&mut self, rank: usize, start: f64, end: f64) -> Option<()> {
        *self.free.get_mut(rank)? = end;
        self.spans.get_mut(rank)?.push((start, end));
        Some(())
    }
}

impl Fact {
    /// What a send carries.
    const fn sent_by(send: Action) -> Option<Self> {
        match send.step {
            Step::SendF(m) => Some(Self::Forward(send.stage, m)),
            Step::SendB(m) => Some(Self::Gradient(send.stage, m)),
            _ => None,
        }
    }

    /// Over which edge it goes out.
    fn edge(self) -> Option<Edge> {
        let action = match self {
            Self::Forward(stage, m) => Action::new(stage, Step::F(m)),
            Self::Gradient(stage, m) => Action::new(stage, Step::I(m)),
        };
        Edge::of(action)
    }
}
