//! [`Spread`]: whether steps take about as long as each other.
//!
//! Invariant: a run whose steps vary is told of once, and again only after it was steady in between.

use std::collections::VecDeque;

/// Steps that are looked at: too few say nothing, too many hide what is new.
const WINDOW: usize = 20;
/// A spread above this is told of.
pub const MOST: f64 = 0.20;
/// Below this a run is steady again.
const STEADY: f64 = 0.10;

/// The spread of the last steps' times.
#[derive(Debug, Clone, Default)]
pub struct Spread {
    last: VecDeque<f64>,
    first_seen: bool,
    told: bool,
}

impl Spread {
    /// Takes the time of a step; the spread, if it is above [`MOST`] and was not told of yet. The first step, which sets
    /// everything up, is left out.
    pub fn push(&mut self, seconds: f64) -> Option<f64> {
        if !std::mem::replace(&mut self.first_seen, true) {
            return None;
        }
        self.last.push_back(seconds);
        if self.last.len() > WINDOW {
            self.last.pop_front();
        }
        let found = (self.last.len() == WINDOW).then(|| spread(self.last.iter().copied()))?;
        if found < STEADY {
            self.told = false;
        }
        (found > MOST && !std::mem::replace(&mut self.told, true)).then_some(found)
    }
}

/// How far times lie apart: (90th − 10th percentile) / median.
#[must_use]
pub fn spread(times: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = times.collect();
    sorted.sort_by(f64::total_cmp);
    let median = percentile(&sorted, 0.5);
    if median > 0.0 { (percentile(&sorted, 0.9) - percentile(&sorted, 0.1)) / median } else { 0.0 }
}

/// Of ascending values, the one that a `share` of them is not above (nearest rank); 0 of none.
#[must_use]
pub fn percentile(sorted: &[f64], share: f64) -> f64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and the length")]
    let rank = (share * sorted.len() as f64).ceil().max(1.0) as usize;
    sorted.get(rank - 1).or(sorted.last()).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_that_vary_are_told_of_once_and_again_after_a_steady_time() {
        let mut spread = Spread::default();
        let mut told = |varies: bool, count: usize| {
            (0..count).filter_map(|i| spread.push(if varies && i % 2 == 0 { 2.0 } else { 1.0 })).count()
        };
        assert_eq!(told(false, 30), 0);
        assert_eq!(told(true, 60), 1);
        assert_eq!(told(false, 30), 0);
        assert_eq!(told(true, 60), 1);
    }

    #[test]
    fn the_first_step_sets_things_up_and_does_not_count() {
        let mut spread = Spread::default();
        assert_eq!(
            std::iter::once(50.0).chain((0..40).map(|_| 1.0)).filter_map(|it| spread.push(it)).count(),
            0
        );
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        let found = [0.5, 0.9, 0.99, 1.0].map(|share| percentile(&values, share));
        assert!(
            found.iter().zip([50.0, 90.0, 99.0, 100.0]).all(|(a, b)| a.total_cmp(&b).is_eq()),
            "{found:?}"
        );
        assert_eq!(percentile(&[], 0.5).to_bits(), 0);
    }
}
