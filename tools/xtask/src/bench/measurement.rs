//! What `tests/python/measured.py` says about a command, and what several runs of one come to.
//!
//! The median stands for a command, since one round that a neighbour on the machine disturbed does not move it; the
//! spread is told beside it. Of peaks of memory the largest counts.

use serde::{Deserialize, Serialize};

/// One run of a command.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Measured {
    /// Exit code.
    pub(super) code: i32,
    /// What it printed.
    pub(super) said: String,
    /// Wall time of the whole process.
    pub(super) seconds: f64,
    /// Processor time of all its threads, the kernel's part included.
    pub(super) processor: f64,
    /// Peak resident memory.
    pub(super) peak_bytes: u64,
}

impl Measured {
    /// From the JSON on the last line of `output`.
    pub(super) fn read(output: &[u8]) -> Result<Self, serde_json::Error> {
        let line = output.trim_ascii_end().rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
        serde_json::from_slice(line)
    }

    /// The time that the command printed last, which leaves out its start-up.
    pub(super) fn by_its_own_clock(&self) -> Option<f64> {
        self.said.lines().last()?.parse().ok()
    }
}

/// Numbers of several rounds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Spread {
    /// Half of the rounds are below it.
    pub(super) median: f64,
    /// The least.
    pub(super) least: f64,
    /// The most.
    pub(super) most: f64,
    /// All, in the order of rounds.
    pub(super) rounds: Vec<f64>,
}

impl Spread {
    pub(super) fn of(rounds: impl IntoIterator<Item = f64>) -> Self {
        let rounds: Vec<f64> = rounds.into_iter().collect();
        let mut sorted = rounds.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |at: usize| sorted.get(at).copied().unwrap_or(f64::NAN);
        let (low, high) = (at(sorted.len().saturating_sub(1) / 2), at(sorted.len() / 2));
        Self {
            median: f64::midpoint(low, high),
            least: at(0),
            most: sorted.last().copied().unwrap_or(f64::NAN),
            rounds,
        }
    }
}

/// Whole mebibytes, rounded up.
pub(super) const fn mebibytes(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_that_was_disturbed_does_not_move_the_median() {
        let odd = Spread::of([2.0, 9.0, 1.5]);
        assert_eq!((odd.median, odd.least, odd.most), (2.0, 1.5, 9.0));
        assert_eq!(odd.rounds, [2.0, 9.0, 1.5]);
        let even = Spread::of([4.0, 1.0, 3.0, 2.0]);
        assert!((even.median - 2.5).abs() < f64::EPSILON);
        assert!(Spread::of([]).median.is_nan());
    }

    #[test]
    fn the_last_line_is_read_whatever_comes_before_it() {
        let output = b"noise\n{\"code\": 0, \"said\": \"loaded\\n1.25\", \"seconds\": 3.5, \"processor\": 4, \"peak_bytes\": 9}\n";
        let measured = Measured::read(output).unwrap();
        assert_eq!(measured.by_its_own_clock(), Some(1.25));
        assert_eq!((measured.code, measured.peak_bytes), (0, 9));
    }
}
