//! [`Subset`]: which part of a checkpoint's bytes is read, so that a large one can be verified a part a day.
//!
//! ```text
//!  units (blocks; whole records where CRC-32s are all there is), in the order of the files
//!   ├─ group 0: `of` units ─ a permutation of 0..of by (seed, 0) ─► unit k belongs to part permutation[k]
//!   ├─ group 1: …          ─ another one                        ─► …
//! ```
//!
//! Invariants: of any `of` units that follow on each other in a group each part has exactly one, so that a part meets every file and
//! every tensor of that many blocks; all `of` parts with one seed cover each unit exactly once; the same seed gives the same parts
//! on every machine.

use std::num::NonZeroU64;

use serde::Serialize;

/// A part of the bytes, so that a large checkpoint can be verified a part a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Subset {
    /// All of them.
    #[default]
    All,
    /// No payload at all: metadata only.
    Nothing,
    /// Some of several parts.
    Parts(Parts),
    /// The first of as few parts as it takes for one to have no more than about so many bytes; it has more than half of that many, unless there
    /// are fewer in all.
    Bytes {
        /// How many.
        bytes: NonZeroU64,
        /// Another seed gives other parts.
        seed: u64,
    },
}

/// Some of the parts that the units of a checkpoint fall into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Parts {
    /// The first of them, from 1.
    first: u64,
    /// How many follow on each other.
    count: u64,
    /// How many there are in all.
    of: u64,
    /// Another seed gives other parts.
    seed: u64,
}

/// Most parts: a permutation of them is held in memory.
const MOST: u64 = 1 << 20;

impl Parts {
    /// `count` parts from number `first` (from 1) of `of`; `None` where they are not all among these, or there are more than 2²⁰.
    #[must_use]
    pub const fn new(first: u64, count: u64, of: u64, seed: u64) -> Option<Self> {
        let fits = first >= 1 && count >= 1 && of <= MOST && count <= of && first - 1 <= of - count;
        if fits { Some(Self { first, count, of, seed }) } else { None }
    }

    /// Number of the first, from 1.
    #[must_use]
    pub const fn first(&self) -> u64 {
        self.first
    }

    /// How many.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// How many there are in all.
    #[must_use]
    pub const fn of(&self) -> u64 {
        self.of
    }
}

impl Subset {
    /// The parts that are meant, of a checkpoint with so many bytes; `None` for all or nothing.
    pub(super) fn parts(self, total: u64) -> Option<Parts> {
        match self {
            Self::All | Self::Nothing => None,
            Self::Parts(parts) => Some(parts),
            Self::Bytes { bytes, seed } => Parts::new(1, 1, total.div_ceil(bytes.get()).clamp(1, MOST), seed),
        }
    }
}

/// Tells of each unit, in order, whether it is among the parts that are wanted.
#[derive(Debug)]
pub(super) struct Chooser {
    subset: Subset,
    parts: Option<Parts>,
    /// Units so far.
    unit: u64,
    /// Part of each unit of the present group.
    group: Vec<u64>,
}

impl Chooser {
    pub(super) fn new(subset: Subset, total: u64) -> Self {
        Self { subset, parts: subset.parts(total), unit: 0, group: Vec::new() }
    }

    pub(super) fn next(&mut self) -> bool {
        let Some(parts) = self.parts else { return self.subset == Subset::All };
        let (group, at) = (self.unit / parts.of, self.unit % parts.of);
        if at == 0 {
            permute(&mut self.group, parts, group);
        }
        self.unit = self.unit.saturating_add(1);
        let part = usize::try_from(at).ok().and_then(|at| self.group.get(at)).copied();
        part.is_some_and(|part| part >= parts.first - 1 && part - (parts.first - 1) < parts.count)
    }
}

/// A permutation of the parts' numbers from 0: Fisher and Yates, driven by Splitmix64.
fn permute(out: &mut Vec<u64>, parts: Parts, group: u64) {
    out.clear();
    out.extend(0..parts.of);
    let mut state = parts.seed ^ group.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17);
    for last in (1..out.len()).rev() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        let other = usize::try_from(z % (last as u64 + 1)).unwrap_or(0);
        out.swap(last, other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(subset: Subset, total: u64, units: u64) -> Vec<u64> {
        let mut chooser = Chooser::new(subset, total);
        (0..units).filter(|_| chooser.next()).collect()
    }

    #[test]
    fn the_parts_of_one_seed_cover_each_unit_exactly_once_and_spread_evenly() {
        for (of, units) in [(1, 10), (7, 1000), (10, 3), (100, 12_345)] {
            let mut all = Vec::new();
            for first in 1..=of {
                let part = chosen(Subset::Parts(Parts::new(first, 1, of, 5).unwrap()), 0, units);
                let groups: Vec<u64> = part.iter().map(|unit| unit / of).collect();
                assert!(groups.is_sorted_by(|a, b| a < b), "one of each group");
                all.extend(part);
            }
            all.sort_unstable();
            assert_eq!(all, (0..units).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_seed_gives_the_same_part_each_time_and_another_one_another() {
        let part = |seed| chosen(Subset::Parts(Parts::new(3, 1, 7, seed).unwrap()), 0, 700);
        assert_eq!(part(0), part(0));
        assert_ne!(part(0), part(1));
        assert_eq!(part(0)[..5], [6, 12, 19, 26, 30], "frozen: a part must be the same in later versions");
    }

    #[test]
    fn several_parts_and_bytes_become_a_share() {
        let three = chosen(Subset::Parts(Parts::new(1, 3, 10, 0).unwrap()), 0, 1000);
        assert_eq!(three.len(), 300);
        let bytes = |bytes| Subset::Bytes { bytes: NonZeroU64::new(bytes).unwrap(), seed: 0 };
        assert_eq!(bytes(5).parts(12).map(|it| (it.first, it.count, it.of)), Some((1, 1, 3)));
        assert_eq!(bytes(50).parts(12).map(|it| it.of), Some(1));
        assert_eq!(bytes(1).parts(u64::MAX).map(|it| it.of), Some(MOST));
        assert_eq!(chosen(Subset::All, 9, 3).len() + chosen(Subset::Nothing, 9, 3).len(), 3);
        for bad in [(0, 1, 7), (8, 1, 7), (7, 2, 7), (1, 0, 7), (1, 1, 0), (1, 1, MOST + 1)] {
            assert_eq!(Parts::new(bad.0, bad.1, bad.2, 0), None, "{bad:?}");
        }
    }
}
