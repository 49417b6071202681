//! [`VRow`]: a row of a rank in a V: its first stage is on the way down to the last rank, its second one on the way back,
//! so that the last stage lies on rank 0. Each computation takes the next microbatch of its kind.

use std::collections::VecDeque;

use super::{super::Step, Action, Shape};

/// Which of a rank's two stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Stage r.
    Down,
    /// Stage 2P − 1 − r.
    Back,
}

/// One stage and its next microbatches.
#[derive(Debug, Clone, Copy)]
struct Lane {
    stage: usize,
    forwards: usize,
    backwards: usize,
}

/// A row as it grows.
#[derive(Debug)]
pub(super) struct VRow {
    down: Lane,
    back: Lane,
    /// Weight gradients that are owed, oldest first.
    owed: VecDeque<(Way, Action)>,
    row: Vec<Action>,
}

impl VRow {
    pub(super) fn new(shape: Shape, rank: usize) -> Self {
        let lane = |stage| Lane { stage, forwards: 0, backwards: 0 };
        let back = (2 * shape.ranks).saturating_sub(rank + 1);
        Self { down: lane(rank), back: lane(back), owed: VecDeque::new(), row: Vec::new() }
    }

    /// Forwards so far.
    pub(super) const fn forwards(&self, way: Way) -> usize {
        match way {
            Way::Down => self.down.forwards,
            Way::Back => self.back.forwards,
        }
    }

    /// A forward.
    pub(super) fn f(&mut self, way: Way) -> &mut Self {
        let (stage, microbatch) = self.next_forward(way);
        self.row.push(Action::new(stage, Step::F(microbatch)));
        self
    }

    /// An input gradient; its weight gradient is owed.
    pub(super) fn i(&mut self, way: Way) -> &mut Self {
        let (stage, microbatch) = self.next_backward(way);
        self.row.push(Action::new(stage, Step::I(microbatch)));
        self.owed.push_back((way, Action::new(stage, Step::W(microbatch))));
        self
    }

    /// The oldest weight gradient owed.
    pub(super) fn w(&mut self) -> &mut Self {
        let oldest = self.owed.pop_front();
        self.row.extend(oldest.map(|(_, action)| action));
        self
    }

    /// The oldest weight gradient owed on that way.
    pub(super) fn w_of(&mut self, way: Way) -> &mut Self {
        let at = self.owed.iter().position(|(owed, _)| *owed == way);
        let oldest = at.and_then(|at| self.owed.remove(at));
        self.row.extend(oldest.map(|(_, action)| action));
        self
    }

    /// A full backward.
    pub(super) fn b(&mut self, way: Way) -> &mut Self {
        let (stage, microbatch) = self.next_backward(way);
        self.row.push(Action::new(stage, Step::B(microbatch)));
        self
    }

    /// A forward one way and a full backward the other way, in one cell.
    pub(super) fn overlap(&mut self, forward: Way, backward: Way) -> &mut Self {
        let (forward, backward) = (self.next_forward(forward), self.next_backward(backward));
        self.row.push(Action::overlap(forward, backward));
        self
    }

    /// The row, once the weight gradients that are owed on the way back are done, then those on the way down.
    pub(super) fn done(mut self) -> Vec<Action> {
        for way in [Way::Back, Way::Down] {
            let owed = self.owed.iter().filter(|(owed, _)| *owed == way);
            self.row.extend(owed.map(|(_, action)| *action));
        }
        self.row
    }

    const fn lane(&mut self, way: Way) -> &mut Lane {
        match way {
            Way::Down => &mut self.down,
            Way::Back => &mut self.back,
        }
    }

    /// Stage and microbatch.
    const fn next_forward(&mut self, way: Way) -> (usize, usize) {
        let lane = self.lane(way);
        lane.forwards += 1;
        (lane.stage, lane.forwards - 1)
    }

    const fn next_backward(&mut self, way: Way) -> (usize, usize) {
        let lane = self.lane(way);
        lane.backwards += 1;
        (lane.stage, lane.backwards - 1)
    }
}
