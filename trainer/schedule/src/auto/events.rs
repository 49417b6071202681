//! Orders made in the order of time: whichever rank can begin something first does, by one rule for all ranks. Where the
//! greedy scheduler goes microbatch by microbatch, and so makes every rank wait for the slowest round trip, this keeps ranks
//! at work with as many microbatches as their memory allows; it is the better start where that is less than a pipeline's
//! depth.

use super::{
    Problem,
    order::{Counts, Kind, Order},
};

/// A rule.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rule {
    /// Weight gradients fill waits of at least this share of their own time.
    fills: f64,
    /// How many microbatches a rank is ahead of its gradients at most, for each rank from it to the last; `None`: as many as
    /// fit.
    ahead: Option<usize>,
    /// What comes first if both could begin: the gradient, or the forward.
    gradient_first: bool,
}

/// The orders of all rules.
pub(super) fn orders(problem: &Problem) -> impl Iterator<Item = Order> {
    let rules = [1.0, 0.5, 0.0].into_iter().flat_map(|fills| {
        [None, Some(1), Some(2)].into_iter().flat_map(move |ahead| {
            [true, false].into_iter().map(move |gradient_first| Rule { fills, ahead, gradient_first })
        })
    });
    rules.filter_map(|rule| order(problem, rule))
}

fn order(problem: &Problem, rule: Rule) -> Option<Order> {
    let ranks = problem.ranks();
    let mut events = Events { problem, rule, ranks: vec![Rank::default(); ranks] };
    let cells = |rank| problem.microbatches * if problem.split(rank) { 3 } else { 2 };
    for _ in 0..(0..ranks).map(cells).sum() {
        let next = (0..ranks).filter_map(|rank| Some((rank, events.proposes(rank)?)));
        let (rank, (start, kind)) = next.min_by(|(_, (a, _)), (_, (b, _))| a.total_cmp(b))?;
        events.append(rank, start, kind)?;
    }
    Some(Order { rows: events.ranks.into_iter().map(|rank| rank.row).collect() })
}

#[derive(Debug, Clone, Default)]
struct Rank {
    row: Vec<Kind>,
    counts: Counts,
    end: f64,
    forward: Vec<f64>,
    gradient: Vec<f64>,
}

struct Events<'a> {
    problem: &'a Problem,
    rule: Rule,
    ranks: Vec<Rank>,
}

impl Events<'_> {
    /// What `rank` would do next, and when; nothing while it does not know of anything.
    fn proposes(&self, rank: usize) -> Option<(f64, Kind)> {
        let it = self.ranks.get(rank)?;
        let backward = if self.problem.split(rank) { Kind::I } else { Kind::B };
        let at = |kind, ready: Option<f64>| Some((it.end.max(ready?), kind));
        let gradient = at(backward, self.gradient_ready(rank, it)).filter(|_| self.fits(rank, it, backward));
        let forward = at(Kind::F, self.forward_ready(rank, it)).filter(|_| self.fits(rank, it, Kind::F));
        let first = match (gradient, forward) {
            (Some(gradient), Some(forward)) => {
                let gradient_first =
                    if self.rule.gradient_first { gradient.0 <= forward.0 } else { gradient.0 < forward.0 };
                Some(if gradient_first { gradient } else { forward })
            }
            (gradient, forward) => gradient.or(forward),
        };
        let pending = it.counts.weight < it.counts.input;
        let gap = first.map_or(f64::INFINITY, |(start, _)| start - it.end);
        let fills = gap > 0.0 && gap >= self.rule.fills * self.problem.stage(rank).weight;
        if pending && fills { Some((it.end, Kind::W)) } else { first }
    }

    fn forward_ready(&self, rank: usize, it: &Rank) -> Option<f64> {
        let next = it.counts.forward;
        let after = self.problem.ranks() - rank;
        let held_back =
            self.rule.ahead.is_some_and(|ahead| next - it.counts.input > ahead * after.saturating_sub(1));
        if next >= self.problem.microbatches || held_back {
            return None;
        }
        match rank.checked_sub(1) {
            Some(before) => {
                Some(self.problem.forward_arrival(rank, *self.ranks.get(before)?.forward.get(next)?))
            }
            None => Some(0.0),
        }
    }

    fn gradient_ready(&self, rank: usize, it: &Rank) -> Option<f64> {
        let next = it.counts.input;
        let own = *it.forward.get(next)?;
        match self.ranks.get(rank + 1) {
            Some(after) => Some(self.problem.gradient_arrival(rank, *after.gradient.get(next)?).max(own)),
            None => Some(own),
        }
    }

    fn fits(&self, rank: usize, it: &Rank, kind: Kind) -> bool {
        let (memory, room) = (self.problem.stage_memory(rank), self.problem.room(rank));
        it.counts.then(kind).is_some_and(|counts| {
            let (before, kept) = (counts.forward - counts.input, counts.input - counts.weight);
            before as f64 * memory.activation + kept as f64 * memory.kept <= room + room.abs() * 1e-9
        })
    }

    fn append(&mut self, rank: usize, start: f64, kind: Kind) -> Option<()> {
        let stage = self.problem.stage(rank);
        let it = self.ranks.get_mut(rank)?;
        it.counts = it.counts.then(kind)?;
        it.row.push(kind);
        it.end = start + stage.of(kind);
        match kind {
            Kind::F => it.forward.push(it.end),
            Kind::I | Kind::B => it.gradient.push(it.end),
            Kind::W => {}
        }
        Some(())
    }
}
