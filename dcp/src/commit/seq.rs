//! The sequence number of a record, and the object that holds it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::store::ObjectPath;

/// The place of a record in the log: 1 is the first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Seq(u64);

/// A number that no record can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not the number of a record: they begin at 1")]
pub struct NotASeq(u64);

const DIR: &str = "commits";
const DIGITS: usize = 20;

impl Seq {
    /// The first record.
    pub const FIRST: Self = Self(1);

    /// How many records lie between two that carry the folded state.
    pub const FOLD_EVERY: u64 = 64;

    /// The record of that number.
    ///
    /// # Errors
    /// For 0.
    pub const fn new(number: u64) -> Result<Self, NotASeq> {
        if number == 0 { Err(NotASeq(number)) } else { Ok(Self(number)) }
    }

    /// Its number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The record after it.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// Whether it carries the state before it.
    #[must_use]
    pub const fn carries_state(self) -> bool {
        self.0.is_multiple_of(Self::FOLD_EVERY)
    }

    /// The last record up to this one that carries the state.
    #[must_use]
    pub const fn last_with_state(self) -> Option<Self> {
        match self.0 - self.0 % Self::FOLD_EVERY {
            0 => None,
            number => Some(Self(number)),
        }
    }

    /// The directory of all records.
    #[must_use]
    pub fn dir() -> ObjectPath {
        ObjectPath::from(DIR)
    }

    /// The object that holds it.
    #[must_use]
    pub fn path(self) -> ObjectPath {
        ObjectPath::from(format!("{DIR}/{:0DIGITS$}.json", self.0))
    }

    /// The record that an object holds, if it holds one.
    #[must_use]
    pub fn of(path: &ObjectPath) -> Option<Self> {
        let digits = path.as_ref().strip_prefix(DIR)?.strip_prefix('/')?.strip_suffix(".json")?;
        let plain = digits.len() == DIGITS && digits.bytes().all(|b| b.is_ascii_digit());
        plain.then(|| digits.parse().ok()).flatten().and_then(|number| Self::new(number).ok())
    }
}

impl TryFrom<u64> for Seq {
    type Error = NotASeq;

    fn try_from(number: u64) -> Result<Self, NotASeq> {
        Self::new(number)
    }
}

impl From<Seq> for u64 {
    fn from(seq: Seq) -> Self {
        seq.0
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seq({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::object_path;

    #[test]
    fn a_record_is_found_again_by_the_name_of_its_object() {
        let seq = Seq::new(42).unwrap();
        assert_eq!(seq.path().as_ref(), "commits/00000000000000000042.json");
        assert_eq!(Seq::of(&seq.path()), Some(seq));
        let last = Seq::new(u64::MAX).unwrap();
        assert_eq!(Seq::of(&last.path()), Some(last));
    }

    #[test]
    fn other_names_are_no_records() {
        for name in [
            "commits/42.json",
            "commits/00000000000000000000.json",
            "commits/99999999999999999999.json",
            "commits/+0000000000000000042.json",
            "commits/00000000000000000042.json.bak",
            "x/00000000000000000042.json",
        ] {
            assert_eq!(Seq::of(&object_path(name).unwrap()), None, "{name}");
        }
    }

    #[test]
    fn every_64th_record_carries_the_state() {
        let with = |n| Seq::new(n).unwrap().last_with_state().map(Seq::get);
        assert_eq!(
            [with(1), with(63), with(64), with(65), with(128)],
            [None, None, Some(64), Some(64), Some(128)]
        );
        assert!(Seq::new(128).unwrap().carries_state() && !Seq::new(129).unwrap().carries_state());
    }
}
