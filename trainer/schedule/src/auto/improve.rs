//! [`improve`]: makes an order shorter, move by move, each of which lets it end earlier (or, as early, lets other ranks end
//! earlier), until no candidate does or the effort is spent. Hence never worse, and always the same.

use super::{
    Goal, Origin, Plan, Problem,
    moves::{self, Move},
    order::{Kind, Order, Timed, row_fits},
};
use crate::ScheduleError;

/// How many cells the search may place in time, over all orders that it tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort(pub u64);

impl Effort {
    /// Only what is found without a search.
    pub const NONE: Self = Self(0);
}

impl Default for Effort {
    /// About a second.
    fn default() -> Self {
        Self(30_000_000)
    }
}

/// Starts that are searched from, the best first.
const STARTS: usize = 3;

/// Differences below this share are none.
const HAIR: f64 = 1e-12;

/// `plan` made shorter.
///
/// # Errors
/// None for a plan of this problem.
pub fn improve(problem: &Problem, plan: Plan, effort: Effort) -> Result<Plan, ScheduleError> {
    let Some(mut search) = Search::new(problem, plan.order.clone(), effort) else { return Ok(plan) };
    search.run();
    search.join_halves();
    if search.moves == 0 {
        return Ok(plan);
    }
    let found = Plan::new(problem, search.order, Origin::Improved { moves: search.moves })?;
    Ok(found.filter(|found| found.cost <= plan.cost).unwrap_or(plan))
}

/// The best that comes of any of `starts`.
pub(super) fn best_of(
    problem: &Problem,
    mut starts: Vec<Plan>,
    effort: Effort,
) -> Result<Plan, ScheduleError> {
    starts.sort_by(|a, b| a.cost.total_cmp(&b.cost));
    starts.dedup_by(|later, before| later.order == before.order);
    starts.truncate(STARTS);
    let each = Effort(effort.0 / STARTS as u64);
    let mut best: Option<Plan> = None;
    for start in starts {
        let found = improve(problem, start, each)?;
        if best.as_ref().is_none_or(|best| found.cost < best.cost) {
            best = Some(found);
        }
    }
    best.ok_or_else(|| ScheduleError::Shape("no order fits the memory limits".to_owned()))
}

struct Search<'a> {
    problem: &'a Problem,
    order: Order,
    timed: Timed,
    score: (f64, f64),
    left: u64,
    moves: usize,
}

impl<'a> Search<'a> {
    fn new(problem: &'a Problem, order: Order, effort: Effort) -> Option<Self> {
        let timed = Timed::of(problem, &order)?;
        let score = score(problem, &timed);
        Some(Self { problem, order, timed, score, left: effort.0, moves: 0 })
    }

    fn run(&mut self) {
        // Where the last move helped, the next one often does too: the list goes on from there.
        let mut at = 0;
        loop {
            let candidates = moves::candidates(self.problem, &self.order, &self.timed);
            let count = candidates.len();
            let turn = (0..count).map(|turn| (at + turn) % count.max(1));
            let Some(helped) = turn.into_iter().find(|at| {
                candidates.get(*at).is_some_and(|candidate| self.left > 0 && self.tries(*candidate))
            }) else {
                return;
            };
            at = helped;
        }
    }

    fn tries(&mut self, candidate: Move) -> bool {
        candidate
            .apply(self.order.row(candidate.rank))
            .is_some_and(|row| self.takes(candidate.rank, row, false))
    }

    /// Takes `row` for `rank` if it fits and is better, or `as_good`.
    fn takes(&mut self, rank: usize, row: Vec<Kind>, as_good: bool) -> bool {
        if !row_fits(self.problem, rank, &row) {
            return false;
        }
        let cells: usize = self.order.rows.iter().map(Vec::len).sum();
        self.left = self.left.saturating_sub(cells as u64);
        let Some(slot) = self.order.rows.get_mut(rank) else { return false };
        let before = std::mem::replace(slot, row);
        let found = Timed::of(self.problem, &self.order).map(|timed| (score(self.problem, &timed), timed));
        match found.filter(|(score, _)| less(*score, self.score) || (as_good && !less(self.score, *score))) {
            Some((score, timed)) => {
                (self.score, self.timed, self.moves) = (score, timed, self.moves + 1);
                true
            }
            None => {
                self.order.rows.get_mut(rank).into_iter().for_each(|slot| *slot = before.clone());
                false
            }
        }
    }

    /// I and W that follow each other become B where that is cheaper.
    fn join_halves(&mut self) {
        for rank in 0..self.problem.ranks() {
            let stage = self.problem.stage(rank);
            if stage.backward() >= stage.input + stage.weight {
                continue;
            }
            let mut at = 0;
            while let Some(row) = self.order.rows.get(rank).filter(|row| at + 1 < row.len()) {
                if row.get(at) == Some(&Kind::I) && row.get(at + 1) == Some(&Kind::W) {
                    let mut joined = row.clone();
                    joined.splice(at..at + 2, [Kind::B]);
                    // Refused where a weight gradient of another microbatch is due.
                    self.takes(rank, joined, true);
                }
                at += 1;
            }
        }
    }
}

/// The goal, then how long all ranks take together.
fn score(problem: &Problem, timed: &Timed) -> (f64, f64) {
    let ranks = 0..problem.ranks();
    let sum = match problem.goal {
        Goal::LongestRank => ranks.map(|rank| timed.length(rank)).sum(),
        Goal::Makespan => timed.spans.iter().filter_map(|row| row.last()).map(|(_, end)| *end).sum(),
    };
    (timed.cost(problem.goal), sum)
}

/// By more than rounding.
fn less(a: (f64, f64), b: (f64, f64)) -> bool {
    let below = |a: f64, b: f64| a < b - HAIR * b.abs();
    below(a.0, b.0) || (!below(b.0, a.0) && below(a.1, b.1))
}
