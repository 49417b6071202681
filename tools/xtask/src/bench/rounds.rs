//! Rounds: in each, every way has one turn, alone, and each begins with another way, so that a machine that slows down slows
//! all of them.

use std::collections::BTreeMap;

use super::figure::{Figure, Target};
use super::measurement::Spread;
use crate::error::Error;

/// One turn of one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) way: &'static str,
    /// From 0, the one that does not count.
    pub(super) round: usize,
    /// Whether it is the last of its round.
    pub(super) last: bool,
}

/// Seconds that ways took, in the order of rounds.
#[derive(Debug, Default)]
pub(super) struct Runs(BTreeMap<&'static str, Vec<f64>>);

impl Runs {
    /// One round that does not count, then `rounds` that do. `go` does a turn, and says how many seconds it took.
    pub(super) fn measure(
        rounds: usize,
        ways: &[&'static str],
        mut go: impl FnMut(Turn) -> Result<f64, Error>,
    ) -> Result<Self, Error> {
        let mut runs = Self::default();
        for round in 0..=rounds {
            for (at, way) in in_turn(ways, round).enumerate() {
                let seconds = go(Turn { way, round, last: at + 1 == ways.len() })?;
                if round > 0 {
                    runs.0.entry(way).or_default().push(seconds);
                }
            }
        }
        Ok(runs)
    }

    /// Adds what a way says of itself, of all rounds: that of the first does not count here either.
    pub(super) fn add(&mut self, way: &'static str, of_rounds: Vec<f64>) {
        self.0.insert(way, of_rounds.into_iter().skip(1).collect());
    }

    /// Seconds of a way.
    pub(super) fn seconds(&self, what: &str, way: &str) -> Figure {
        Figure::new(what, "s", Spread::of(self.of(way)), None)
    }

    /// The first's time over the second's, round by round.
    pub(super) fn ratio(&self, what: &str, (one, other): (&str, &str), target: Option<Target>) -> Figure {
        let ratios = self.of(one).zip(self.of(other)).map(|(one, other)| one / other);
        Figure::new(what, "times", Spread::of(ratios), target)
    }

    fn of(&self, way: &str) -> impl Iterator<Item = f64> {
        self.0.get(way).into_iter().flatten().copied()
    }
}

/// All ways, beginning with another in each round.
pub(super) fn in_turn<W>(ways: &[W], round: usize) -> impl Iterator<Item = &W> {
    ways.iter().cycle().skip(round % ways.len().max(1)).take(ways.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_has_all_ways_each_begins_with_another_and_the_first_does_not_count() {
        let mut seen = Vec::new();
        let mut runs = Runs::measure(2, &["a", "b"], |turn| {
            seen.push(turn);
            Ok(f64::from(u8::try_from(seen.len()).unwrap()))
        })
        .unwrap();
        let turn = |way, round, last| Turn { way, round, last };
        let expected = [("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2)];
        let expected = expected.iter().enumerate();
        assert_eq!(
            seen,
            expected.map(|(at, (way, round))| turn(way, *round, at % 2 == 1)).collect::<Vec<_>>()
        );
        assert_eq!(runs.seconds("a", "a").value.rounds, [4.0, 5.0]);
        assert_eq!(runs.seconds("b", "b").value.rounds, [3.0, 6.0]);
        assert_eq!(runs.ratio("b over a", ("b", "a"), None).value.rounds, [0.75, 1.2]);
        runs.add("c", vec![9.0, 1.0, 2.0]);
        assert_eq!(runs.seconds("c", "c").value.rounds, [1.0, 2.0]);
    }
}
