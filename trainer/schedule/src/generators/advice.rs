//! [`Advice`]: what is wasteful about numbers that a schedule can be made for. Data, so that a command can print it, sort
//! it, or put it into JSON; its text says what to take instead.

use std::fmt;

use super::{Generator, Shape};

/// A hint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// Not even a microbatch for each rank: some are never all at work.
    FewerThanRanks {
        /// Microbatches.
        microbatches: usize,
        /// Ranks.
        ranks: usize,
    },
    /// Less than twice as many microbatches as ranks.
    FewerThanTwice {
        /// Microbatches.
        microbatches: usize,
        /// Ranks.
        ranks: usize,
    },
    /// Less than four times as many: worth a try where memory allows it.
    FewerThanFourTimes {
        /// Microbatches.
        microbatches: usize,
        /// Ranks.
        ranks: usize,
    },
    /// Too few for the whole effect of a schedule that fills the start of the pipeline.
    FewerThanFill {
        /// The schedule.
        schedule: &'static str,
        /// Microbatches.
        microbatches: usize,
        /// What it needs: 2P − 1.
        needs: usize,
    },
    /// Rounds of an interleaved schedule that are longer than the ranks keep more activations alive.
    LongRounds {
        /// Microbatches of a round.
        round: usize,
        /// Ranks.
        ranks: usize,
        /// The nearest multiples of the ranks.
        nearest: [usize; 2],
    },
}

/// What to know about `shape` before it is run with `generator`; empty when nothing is.
#[must_use]
pub fn advice(generator: &dyn Generator, shape: Shape) -> Vec<Advice> {
    let Shape { ranks, microbatches, .. } = shape;
    if ranks < 2 {
        return Vec::new();
    }
    let few = match microbatches {
        few if few < ranks => Some(Advice::FewerThanRanks { microbatches, ranks }),
        few if few < 2 * ranks => Some(Advice::FewerThanTwice { microbatches, ranks }),
        few if few < 4 * ranks => Some(Advice::FewerThanFourTimes { microbatches, ranks }),
        _ => None,
    };
    few.into_iter().chain(generator.advice(shape)).collect()
}

/// For schedules whose whole effect needs 2P − 1 microbatches.
pub(super) fn fill(schedule: &'static str, shape: Shape) -> Vec<Advice> {
    let (microbatches, needs) = (shape.microbatches, (2 * shape.ranks).saturating_sub(1));
    let few = microbatches < needs;
    few.then_some(Advice::FewerThanFill { schedule, microbatches, needs }).into_iter().collect()
}

/// For schedules in rounds of `round` microbatches.
pub(super) fn rounds(round: usize, shape: Shape) -> Vec<Advice> {
    let Shape { ranks, microbatches, .. } = shape;
    let whole = microbatches / ranks.max(1) * ranks;
    let long = round > ranks;
    let nearest = [whole, whole + ranks];
    long.then_some(Advice::LongRounds { round, ranks, nearest }).into_iter().collect()
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FewerThanRanks { microbatches, ranks } => write!(
                f,
                "{microbatches} microbatches on {ranks} pipeline ranks never keep all of them at work: {}; take at least \
                 {}",
                idle(*microbatches, *ranks),
                2 * ranks
            ),
            Self::FewerThanTwice { microbatches, ranks } => write!(
                f,
                "{microbatches} microbatches on {ranks} pipeline ranks: {}; take at least {}",
                idle(*microbatches, *ranks),
                2 * ranks
            ),
            Self::FewerThanFourTimes { microbatches, ranks } => write!(
                f,
                "{microbatches} microbatches on {ranks} pipeline ranks: {}; {} are better where memory and the batch \
                 size allow them",
                idle(*microbatches, *ranks),
                4 * ranks
            ),
            Self::FewerThanFill { schedule, microbatches, needs } => write!(
                f,
                "{schedule} needs {needs} microbatches for its whole effect; {microbatches} leave a part of the start \
                 and the end idle"
            ),
            Self::LongRounds { round, ranks, nearest: [less, more] } => write!(
                f,
                "rounds are of {round} microbatches on {ranks} ranks, which keeps more activations alive than rounds of \
                 {ranks}; {less} or {more} microbatches make such"
            ),
        }
    }
}

/// What full backwards and one stage per rank leave idle: (P − 1)/(M + P − 1).
fn idle(microbatches: usize, ranks: usize) -> String {
    let percent = 100 * (ranks - 1) / (microbatches + ranks - 1);
    format!("GPipe and 1F1B idle about {percent} % of the time")
}
