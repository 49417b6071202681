//! [`Owners`]: the ranks that hold a shard.

use smallvec::SmallVec;

use super::Cut;

/// The ranks that hold a shard: a product of axis choices, never a list.
#[derive(Debug, PartialEq, Eq)]
pub struct Owners {
    /// Per axis: extent, and the choice.
    axes: SmallVec<[(u64, Choice); 4]>,
}

/// Which coordinates of an axis hold something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    Any,
    At(u64),
    /// Two, the lower one first.
    Pair(u64, u64),
}

/// By slices, as `Region`'s.
impl Clone for Owners {
    fn clone(&self) -> Self {
        Self { axes: SmallVec::from_slice(&self.axes) }
    }
}

impl Owners {
    /// Ranks of a mesh whose axes have these extents and choices.
    pub(super) fn new(axes: impl Iterator<Item = (u64, Choice)>) -> Self {
        Self { axes: axes.collect() }
    }

    /// Fixes the coordinates of cutting axes.
    pub(super) fn choose(&mut self, cuts: &[Cut], at: &[u64]) {
        for (cut, index) in cuts.iter().zip(at) {
            let mut left = *index;
            for &(axis, extent) in cut.axes.iter().rev() {
                if let Some((_, choice)) = self.axes.get_mut(axis) {
                    *choice = Choice::At(left % extent);
                }
                left /= extent;
            }
        }
    }

    /// The lowest rank.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.axes.iter().fold(0, |rank, &(extent, choice)| rank * extent + choice.nth(0))
    }

    /// Number of ranks.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.axes.iter().map(|&(extent, choice)| choice.count(extent)).product()
    }

    /// Whether there are none: never, for a shard.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether `rank` is among them.
    #[must_use]
    pub fn contains(&self, rank: u64) -> bool {
        let mut left = rank;
        let mut inside = true;
        for &(extent, choice) in self.axes.iter().rev() {
            inside &= choice.has(left % extent);
            left /= extent;
        }
        inside && left == 0
    }

    /// The ranks, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.len()).map(|nth| {
            let (mut left, mut rank, mut step) = (nth, 0, 1);
            for &(extent, choice) in self.axes.iter().rev() {
                let count = choice.count(extent);
                rank += choice.nth(left % count) * step;
                left /= count;
                step *= extent;
            }
            rank
        })
    }
}

impl Choice {
    /// These two, which may be one.
    pub(super) const fn both(one: u64, other: u64) -> Self {
        if one == other {
            return Self::At(one);
        }
        if one < other { Self::Pair(one, other) } else { Self::Pair(other, one) }
    }

    const fn count(self, extent: u64) -> u64 {
        match self {
            Self::Any => extent,
            Self::At(_) => 1,
            Self::Pair(..) => 2,
        }
    }

    const fn nth(self, nth: u64) -> u64 {
        match self {
            Self::Any => nth,
            Self::At(at) => at,
            Self::Pair(low, high) => {
                if nth == 0 {
                    low
                } else {
                    high
                }
            }
        }
    }

    pub(super) const fn has(self, coord: u64) -> bool {
        match self {
            Self::Any => true,
            Self::At(at) => coord == at,
            Self::Pair(low, high) => coord == low || coord == high,
        }
    }
}
