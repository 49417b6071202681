//! [`Account`]: what a stage did in a step, counted and timed: live microbatches, times of its computations, how much of its
//! weight gradients a split backward could put off, the age of its weights.
//!
//! A microbatch is *live* on a stage from its F to the end of its B, or of its W. Between F and I (or B) it is *whole*: all
//! that backward needs is kept. Between I and W it is *queued*: inputs and output gradients of the linear layers are kept, to
//! which the literature gives a memory of its own (`M_W` beside `M_B`).

use std::{collections::BTreeSet, ops::Range, time::Duration};

use super::Recompute;
use crate::model::Model;

/// What a stage did in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Account {
    /// Time of forwards.
    pub forward: Duration,
    /// Time of gradients of inputs, what is computed again for them included.
    pub input: Duration,
    /// Time of weight gradients that were computed with those of the inputs.
    pub joined: Duration,
    /// Time of weight gradients that were put off to a W.
    pub split: Duration,
    /// Elements of the stage's parameters.
    pub elements: u64,
    /// Of those, the ones whose gradient an I leaves to its W.
    pub splittable: u64,
    /// Updates of the weights between a microbatch's forward and its backward, at most. Always 0: steps are synchronous.
    pub staleness: u64,
}

impl Account {
    /// Of a stage of these parts that did nothing yet; a parameter that several of them use counts once.
    #[must_use]
    pub fn of(model: &dyn Model, parts: &Range<usize>, recompute: &Recompute) -> Self {
        let mut account = Self::default();
        let mut counted = BTreeSet::new();
        for part in parts.clone() {
            for index in model.parts().get(part).map_or(&[][..], |spec| &spec.params) {
                let extents = model.params().get(*index).map_or(&[][..], |spec| &spec.shape);
                let elements = extents.iter().map(|extent| extent.unsigned_abs()).product::<u64>();
                if counted.insert(*index) {
                    account.elements += elements;
                    account.splittable += if recompute.splits(part) { elements } else { 0 };
                }
            }
        }
        account
    }

    /// The share of the parameters' elements that a split backward can put off.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    pub fn splittable_share(&self) -> f64 {
        if self.elements == 0 { 0.0 } else { self.splittable as f64 / self.elements as f64 }
    }

    /// The share of the time of weight gradients that was put off to a W.
    #[must_use]
    pub fn split_share(&self) -> f64 {
        let all = (self.joined + self.split).as_secs_f64();
        if all > 0.0 { self.split.as_secs_f64() / all } else { 0.0 }
    }
}

/// Microbatches that live on the stages of a rank: now, and at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Live {
    /// Between F and I or B, now.
    pub whole: usize,
    /// Between I and W, now.
    pub queued: usize,
    /// The most of both together.
    pub peak: usize,
    /// How many of those were whole when it came to that first.
    pub whole_at_peak: usize,
    /// The most whole ones.
    pub peak_whole: usize,
    /// The most queued ones.
    pub peak_queued: usize,
}

impl Live {
    /// F.
    pub(super) fn forward(&mut self) {
        self.whole += 1;
        self.measure();
    }

    /// B.
    pub(super) fn backward(&mut self) {
        self.whole = self.whole.saturating_sub(1);
    }

    /// I.
    pub(super) fn inputs(&mut self) {
        self.whole = self.whole.saturating_sub(1);
        self.queued += 1;
        self.measure();
    }

    /// W.
    pub(super) fn weights(&mut self) {
        self.queued = self.queued.saturating_sub(1);
    }

    fn measure(&mut self) {
        if self.whole + self.queued > self.peak {
            (self.peak, self.whole_at_peak) = (self.whole + self.queued, self.whole);
        }
        self.peak_whole = self.peak_whole.max(self.whole);
        self.peak_queued = self.peak_queued.max(self.queued);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_microbatch_lives_whole_until_its_gradient_is_passed_on_and_queued_until_its_weights_are_done() {
        let mut live = Live::default();
        live.forward();
        live.forward();
        live.inputs();
        live.forward();
        live.weights();
        live.backward();
        live.backward();
        let expected = Live { whole: 0, queued: 0, peak: 3, whole_at_peak: 2, peak_whole: 2, peak_queued: 1 };
        assert_eq!(live, expected);
    }

    #[test]
    fn shares_of_nothing_are_nothing() {
        let none = Account::default();
        assert!(none.splittable_share() == 0.0 && none.split_share() == 0.0);
        let half = Account {
            joined: Duration::from_millis(3),
            split: Duration::from_millis(1),
            elements: 8,
            splittable: 4,
            ..none
        };
        assert!(half.splittable_share() == 0.5 && half.split_share() == 0.25);
    }
}
