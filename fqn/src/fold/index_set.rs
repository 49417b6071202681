//! [`IndexSet`]: sorted ranges of indices with the text form `0..3,7`.

use std::fmt;

/// A set of indices, kept as sorted, disjoint, non-adjacent inclusive ranges.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct IndexSet(Vec<(u32, u32)>);

impl IndexSet {
    /// Parses `0..3,7`; a lone number is a set of one. `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let range = |part: &str| match part.split_once("..") {
            Some((from, to)) => Some((super::index_of(from)?, super::index_of(to)?)).filter(|(a, b)| a <= b),
            None => super::index_of(part).map(|index| (index, index)),
        };
        let mut ranges = text.split(',').map(|part| range(part.trim())).collect::<Option<Vec<_>>>()?;
        ranges.sort_unstable();
        Some(Self::merged(ranges))
    }

    fn merged(sorted: Vec<(u32, u32)>) -> Self {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for (from, to) in sorted {
            match ranges.last_mut() {
                Some(last) if u64::from(from) <= u64::from(last.1) + 1 => last.1 = last.1.max(to),
                _ => ranges.push((from, to)),
            }
        }
        Self(ranges)
    }

    /// Whether `index` is in it.
    #[must_use]
    pub fn contains(&self, index: u32) -> bool {
        let after = self.0.partition_point(|&(from, _)| from <= index);
        after.checked_sub(1).and_then(|at| self.0.get(at)).is_some_and(|&(_, to)| index <= to)
    }

    /// Number of indices.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.iter().map(|&(from, to)| u64::from(to - from) + 1).sum()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Inclusive ranges in order.
    #[must_use]
    pub fn ranges(&self) -> &[(u32, u32)] {
        &self.0
    }
}

impl FromIterator<u32> for IndexSet {
    fn from_iter<T: IntoIterator<Item = u32>>(iter: T) -> Self {
        let mut sorted: Vec<_> = iter.into_iter().map(|index| (index, index)).collect();
        sorted.sort_unstable();
        Self::merged(sorted)
    }
}

/// `0..3,7`, without braces.
impl fmt::Display for IndexSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let range = |&(from, to): &(u32, u32)| match to - from {
            0 => from.to_string(),
            1 => format!("{from},{to}"),
            _ => format!("{from}..{to}"),
        };
        f.pad(&self.0.iter().map(range).collect::<Vec<_>>().join(","))
    }
}
