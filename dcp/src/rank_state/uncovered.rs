//! [`Uncovered`]: leaves of which no rule says what becomes of them: how many, and the first few, as text of bounded length.

use std::fmt::{self, Write};

use crate::bounded::Bounded;

/// Leaves that are shown.
const SHOWN: usize = 8;

/// Most characters of a path that are shown.
const PATH: usize = 200;

/// Leaves that no rule covers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Uncovered {
    /// All of them.
    pub(crate) count: usize,
    /// The first few.
    pub(crate) first: Vec<Leaf>,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Leaf {
    /// Its path, without the rank.
    pub(crate) path: String,
    /// Its value on the first rank, as text.
    pub(crate) value: String,
}

impl Uncovered {
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Counts a leaf, of which a text is made only where it is shown.
    pub(crate) fn note(&mut self, leaf: impl FnOnce() -> Leaf) {
        self.count = self.count.saturating_add(1);
        if self.first.len() < SHOWN {
            self.first.push(leaf());
        }
    }

    /// Those of another value too.
    pub(crate) fn append(&mut self, other: Self) {
        self.count = self.count.saturating_add(other.count);
        let room = SHOWN.saturating_sub(self.first.len());
        self.first.extend(other.first.into_iter().take(room));
    }
}

impl fmt::Display for Uncovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, leaf) in self.first.iter().enumerate() {
            write!(f, "{}{} = {}", if at == 0 { "" } else { "; " }, leaf.path, leaf.value)?;
        }
        match self.count.saturating_sub(self.first.len()) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

/// A path, joined by dots as far as it is shown.
pub(super) struct Joined<'p>(pub(super) &'p [String]);

impl fmt::Display for Joined<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Bounded::show(f, PATH, |text| {
            for (at, key) in self.0.iter().enumerate() {
                text.write_str(if at == 0 { "" } else { "." })?;
                text.write_str(key)?;
            }
            Ok(())
        })
    }
}
