//! [`Paired`]: the order that 1F1B, its interleaved form and the zero-bubble forms of both share: some forwards to warm
//! up, then a forward and a backward in turns, then the backwards that are left. Where the backward is split, weight
//! gradients follow in the order of the input gradients, a number of them behind.
//!
//! With several stages on a rank, microbatches are taken in rounds: all of a round through the rank's first stage, then
//! through its second one, and so on; backwards in the same rounds from the last stage to the first.

use super::{super::Step, Action, Shape};

/// One rank's row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Paired {
    shape: Shape,
    rank: usize,
    /// Forwards before the first backward.
    warm: usize,
    /// How many input gradients a weight gradient is behind; `None` for full backwards.
    behind: Option<usize>,
}

impl Paired {
    /// `hops` more forwards to warm up for each rank that follows, over those that the last rank needs to have its last
    /// stage at work.
    pub(super) fn new(shape: Shape, rank: usize, hops: usize) -> Self {
        let following = shape.ranks.saturating_sub(rank + 1);
        let warm = shape.per_rank().saturating_sub(1) * round(shape) + hops * following;
        Self { shape, rank, warm: warm.min(shape.per_rank() * shape.microbatches), behind: None }
    }

    /// Splits backwards; weight gradients stay `behind` input gradients back.
    pub(super) const fn split(self, behind: usize) -> Self {
        Self { behind: Some(behind), ..self }
    }

    /// The row.
    pub(super) fn row(self) -> Vec<Action> {
        let turns = self.shape.per_rank() * self.shape.microbatches;
        let mut row: Vec<_> = (0..self.warm).map(|turn| self.forward(turn)).collect();
        for turn in 0..turns {
            row.extend((self.warm + turn < turns).then(|| self.forward(self.warm + turn)));
            row.push(self.backward(turn, if self.behind.is_some() { Step::I } else { Step::B }));
            let weights = self.behind.and_then(|behind| turn.checked_sub(behind));
            row.extend(weights.map(|turn| self.backward(turn, Step::W)));
        }
        let left = self.behind.map_or(turns, |behind| turns.saturating_sub(behind));
        row.extend((left..turns).map(|turn| self.backward(turn, Step::W)));
        row
    }

    fn forward(&self, turn: usize) -> Action {
        let (chunk, microbatch) = self.turn(turn);
        Action::new(chunk * self.shape.ranks + self.rank, Step::F(microbatch))
    }

    fn backward(&self, turn: usize, step: fn(usize) -> Step) -> Action {
        let (chunk, microbatch) = self.turn(turn);
        let chunk = self.shape.per_rank().saturating_sub(chunk + 1);
        Action::new(chunk * self.shape.ranks + self.rank, step(microbatch))
    }

    /// Which of the rank's stages a turn is for, counted in the direction of the pass, and which microbatch.
    fn turn(&self, turn: usize) -> (usize, usize) {
        let (round, stages) = (round(self.shape), self.shape.per_rank().max(1));
        (turn / round % stages, turn / (round * stages) * round + turn % round)
    }
}

/// Rounds of a step: as many as there are whole multiples of the ranks in the microbatches, at least one.
pub(super) fn rounds(shape: Shape) -> usize {
    shape.microbatches.checked_div(shape.ranks).unwrap_or(0).max(1)
}

/// Microbatches of a round.
pub(super) fn round(shape: Shape) -> usize {
    (shape.microbatches / rounds(shape)).max(1)
}
