//! [`candidates`]: moves of a cell within its row that could make an order shorter. Only those that touch the critical path
//! can: the chain of cells, each of which starts when the one before it ends, that leads to the last end.

use super::{
    Goal, Problem,
    order::{Kind, Order, Timed},
};

/// How far a cell is moved at most, except that weight gradients also go to the end.
const REACH: usize = 4;

/// Moments that differ by less are one.
const INSTANT: f64 = 1e-9;

/// Takes a cell out of a row and puts it back at another position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) rank: usize,
    pub(super) from: usize,
    pub(super) to: usize,
}

impl Move {
    /// The row with the cell moved.
    pub(super) fn apply(self, row: &[Kind]) -> Option<Vec<Kind>> {
        let mut row = row.to_vec();
        if self.from >= row.len() || self.to >= row.len() {
            return None;
        }
        let cell = row.remove(self.from);
        row.insert(self.to, cell);
        Some(row)
    }
}

/// Moves of critical cells, from the end of the path to its beginning.
pub(super) fn candidates(problem: &Problem, order: &Order, timed: &Timed) -> Vec<Move> {
    let path = Path::new(problem, order, timed).cells();
    path.into_iter().flat_map(|(rank, at)| around(order.row(rank), timed, rank, at)).collect()
}

fn around(row: &[Kind], timed: &Timed, rank: usize, at: usize) -> Vec<Move> {
    let Some(kind) = row.get(at) else { return Vec::new() };
    let last = row.len().saturating_sub(1);
    let reach = (at.saturating_sub(REACH)..at).rev().chain(at + 1..=(at + REACH).min(last));
    let differs = |to: &usize| row.get(*to) != Some(kind);
    let mut moves: Vec<_> = reach.filter(differs).map(|to| Move { rank, from: at, to }).collect();
    if *kind == Kind::W && at + REACH < last {
        moves.push(Move { rank, from: at, to: last });
    }
    // A weight gradient from later on fills the time that the rank waits before this cell.
    let later = row.iter().enumerate().skip(at + 1).find(|(_, kind)| **kind == Kind::W);
    if let Some((from, _)) = later.filter(|_| waited(timed, rank, at) > INSTANT) {
        moves.push(Move { rank, from, to: at });
    }
    moves
}

/// How long `rank` waits before its cell `at`.
fn waited(timed: &Timed, rank: usize, at: usize) -> f64 {
    let spans = timed.spans.get(rank).map_or(&[][..], Vec::as_slice);
    let before = at.checked_sub(1).and_then(|before| spans.get(before));
    spans.get(at).zip(before).map_or(0.0, |((start, _), (_, end))| start - end)
}

struct Path<'a> {
    problem: &'a Problem,
    order: &'a Order,
    timed: &'a Timed,
    /// Positions of each rank's forwards, and of its input gradients.
    forward: Vec<Vec<usize>>,
    gradient: Vec<Vec<usize>>,
}

impl<'a> Path<'a> {
    fn new(problem: &'a Problem, order: &'a Order, timed: &'a Timed) -> Self {
        let positions = |wanted: fn(Kind) -> bool| {
            let of = |row: &Vec<Kind>| {
                row.iter().enumerate().filter(|(_, kind)| wanted(**kind)).map(|(at, _)| at).collect()
            };
            order.rows.iter().map(of).collect()
        };
        Self {
            problem,
            order,
            timed,
            forward: positions(|kind| kind == Kind::F),
            gradient: positions(|kind| matches!(kind, Kind::I | Kind::B)),
        }
    }

    /// All cells of the paths to the ends that make the cost.
    fn cells(&self) -> Vec<(usize, usize)> {
        let mut seen: Vec<Vec<bool>> = self.order.rows.iter().map(|row| vec![false; row.len()]).collect();
        let mut open = self.ends();
        let mut found = Vec::new();
        while let Some((rank, at)) = open.pop() {
            match seen.get_mut(rank).and_then(|row| row.get_mut(at)) {
                Some(seen) if !*seen => *seen = true,
                _ => continue,
            }
            found.push((rank, at));
            open.extend(self.before(rank, at));
        }
        found
    }

    fn ends(&self) -> Vec<(usize, usize)> {
        let cost = self.timed.cost(self.problem.goal);
        let takes = |rank: usize| match self.problem.goal {
            Goal::LongestRank => self.timed.length(rank),
            Goal::Makespan => {
                self.timed.spans.get(rank).and_then(|row| row.last()).map_or(0.0, |(_, end)| *end)
            }
        };
        let ranks = (0..self.order.rows.len()).filter(|rank| takes(*rank) >= cost - INSTANT);
        ranks.filter_map(|rank| Some((rank, self.order.row(rank).len().checked_sub(1)?))).collect()
    }

    /// Cells whose end lets this one start.
    fn before(&self, rank: usize, at: usize) -> Vec<(usize, usize)> {
        let Some((start, _)) = self.timed.spans.get(rank).and_then(|row| row.get(at)) else {
            return Vec::new();
        };
        let ends_then = |end: f64| end >= start - INSTANT;
        let own = at.checked_sub(1).filter(|_| waited(self.timed, rank, at) <= INSTANT).map(|at| (rank, at));
        let other = match self.order.row(rank).get(at) {
            Some(Kind::F) => rank.checked_sub(1).and_then(|before| {
                let number = self.forward.get(rank)?.binary_search(&at).ok()?;
                let end = *self.timed.forward.get(before)?.get(number)?;
                let cell = (before, *self.forward.get(before)?.get(number)?);
                ends_then(self.problem.forward_arrival(rank, end)).then_some(cell)
            }),
            Some(Kind::I | Kind::B) => self.gradient.get(rank + 1).and_then(|after| {
                let number = self.gradient.get(rank)?.binary_search(&at).ok()?;
                let end = *self.timed.gradient.get(rank + 1)?.get(number)?;
                ends_then(self.problem.gradient_arrival(rank, end)).then_some((rank + 1, *after.get(number)?))
            }),
            _ => None,
        };
        own.into_iter().chain(other).collect()
    }
}
