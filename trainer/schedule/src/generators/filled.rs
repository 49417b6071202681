//! [`filled`]: puts weight gradients into rows of forwards and input gradients, where a rank would idle if all computations took the same
//! time, and where it has to make room for the next forward.

use std::collections::VecDeque;

use super::{super::Step, Action, Shape};
use crate::progress::{Fact, Facts};

/// `rows` of F and I, with the W of every I: no rank goes forward while `most` microbatches of its stages are alive, from F to W. Rows
/// that can't be run to their end within that come back as far as they got.
pub(super) fn filled(shape: Shape, rows: Vec<Vec<Action>>, most: usize) -> Vec<Vec<Action>> {
    let ranks = rows.into_iter().map(|row| Rank { row: row.into(), ..Rank::default() }).collect();
    let mut run =
        Run { most, stages: shape.stages, ranks, done: Facts::of(shape.stages, shape.microbatches) };
    while run.tick() {}
    run.ranks.into_iter().map(|rank| rank.out).collect()
}

/// All ranks, in step: each tick is a computation of each.
struct Run {
    most: usize,
    stages: usize,
    ranks: Vec<Rank>,
    done: Facts,
}

#[derive(Default)]
struct Rank {
    /// What is left of the row.
    row: VecDeque<Action>,
    /// Weight gradients whose input gradients are there, oldest first.
    owed: VecDeque<Action>,
    /// Microbatches from F to W.
    live: usize,
    out: Vec<Action>,
}

impl Run {
    /// Whether any rank computed.
    fn tick(&mut self) -> bool {
        let mut cells = Vec::new();
        for rank in &mut self.ranks {
            let ready = |action: &Action| {
                let room = rank.live < self.most || !matches!(action.step, Step::F(_));
                let needs = Fact::needed_by(*action, self.stages);
                room && needs.into_iter().all(|fact| self.done.contains(fact))
            };
            let next = if rank.row.front().is_some_and(ready) { &mut rank.row } else { &mut rank.owed };
            if let Some(cell) = next.pop_front() {
                rank.compute(cell);
                cells.push(cell);
            }
        }
        // Nobody has what another rank computes in this tick before its end.
        cells.iter().flat_map(|cell| Fact::given_by(*cell)).for_each(|fact| self.done.insert(fact));
        !cells.is_empty()
    }
}

impl Rank {
    fn compute(&mut self, cell: Action) {
        match cell.step {
            Step::F(_) => self.live += 1,
            Step::I(m) => self.owed.push_back(Action::new(cell.stage, Step::W(m))),
            Step::W(_) => self.live = self.live.saturating_sub(1),
            _ => {}
        }
        self.out.push(cell);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(most: usize) -> Vec<String> {
        let rows = ["0F0 0F1 0I0 0F2 0I1 0I2", "1F0 1I0 1F1 1I1 1F2 1I2"];
        let rows = rows.map(|row| row.split(' ').map(|cell| cell.parse().unwrap()).collect()).to_vec();
        let filled = filled(Shape { stages: 2, ranks: 2, microbatches: 3 }, rows, most);
        let text = |row: &Vec<Action>| row.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        filled.iter().map(text).collect()
    }

    #[test]
    fn a_weight_gradient_goes_where_its_rank_would_idle_or_has_no_room() {
        assert_eq!(rows(9), ["0F0 0F1 0I0 0F2 0I1 0W0 0I2 0W1 0W2", "1F0 1I0 1F1 1I1 1F2 1I2 1W0 1W1 1W2"]);
        assert_eq!(rows(2), ["0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2", "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2"]);
    }

    #[test]
    fn rows_that_have_too_little_room_end_early_instead_of_never() {
        assert_eq!(rows(1), ["0F0", "1F0 1I0 1W0"]);
    }
}
