//! [`Families`]: which objects are the values of one kind of state, one of each data rank, by their keys.

use std::collections::BTreeMap;

use crate::{Error, ObjectEntry, PathPart, ReshardRule, Result};

/// Words before a rank's number in a key, those that say more first. A number alone is a rank only in what is recorded as a value
/// of each data rank, and that alone is looked at here.
const WORDS: [&str; 4] = ["dp_rank_", "rank_", "rank", ""];

/// Values of each data rank that differ in the rank alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Family {
    /// Segments of the key before that of the rank.
    pub(crate) before: Vec<String>,
    /// What comes before the number: `dp_rank_`.
    word: &'static str,
    /// Segments after it.
    after: Vec<String>,
    /// By rank, the position among the objects.
    pub(crate) members: BTreeMap<u64, usize>,
}

/// All families of a checkpoint, and what is a value of a data rank but of none that its key names.
#[derive(Debug, Clone, Default)]
pub(crate) struct Families {
    /// In the order of their first members.
    pub(crate) all: Vec<Family>,
    /// Positions of objects whose key names no rank, or one that is taken.
    pub(crate) nameless: Vec<usize>,
}

impl Families {
    /// Finds them.
    pub(crate) fn of(objects: &[ObjectEntry]) -> Self {
        let mut families = Self::default();
        let per_rank = |(_, object): &(usize, &ObjectEntry)| object.reshard == ReshardRule::PerDataRank;
        for (at, object) in objects.iter().enumerate().filter(per_rank) {
            let Some((family, rank)) = named(&object.key) else {
                families.nameless.push(at);
                continue;
            };
            let known = families.all.iter().position(|it| it.is_kin(&family));
            let known = known.unwrap_or_else(|| {
                families.all.push(family);
                families.all.len() - 1
            });
            let members = families.all.get_mut(known).map(|family| &mut family.members);
            match members.map(|members| members.entry(rank)) {
                Some(std::collections::btree_map::Entry::Vacant(free)) => drop(free.insert(at)),
                _ => families.nameless.push(at),
            }
        }
        families
    }
}

/// The family of a key, without members, and the rank in it.
fn named(key: &str) -> Option<(Family, u64)> {
    let segments: Vec<&str> = key.split('.').collect();
    WORDS.iter().find_map(|word| {
        let of = |segment: &&str| rank_in(segment, word);
        let (at, rank) = segments.iter().enumerate().find_map(|(at, segment)| Some((at, of(segment)?)))?;
        let text = |part: &[&str]| part.iter().map(|segment| (*segment).to_owned()).collect();
        let (before, after) = (segments.get(..at)?, segments.get(at + 1..)?);
        Some((Family { before: text(before), word, after: text(after), members: BTreeMap::new() }, rank))
    })
}

/// The rank that a segment names, spelled as we would.
fn rank_in(segment: &str, word: &str) -> Option<u64> {
    let rank = segment.strip_prefix(word)?.parse::<u64>().ok()?;
    (segment == format!("{word}{rank}")).then_some(rank)
}

impl Family {
    fn is_kin(&self, other: &Self) -> bool {
        (&self.before, self.word, &self.after) == (&other.before, other.word, &other.after)
    }

    /// The path by which rules know it.
    pub(crate) fn path(&self) -> Vec<&str> {
        self.before.iter().chain(&self.after).map(String::as_str).collect()
    }

    /// The key of all of them, for people: `dataloader.dp_rank_*`.
    pub(crate) fn key(&self) -> String {
        self.key_with(&format!("{}*", self.word))
    }

    fn key_with(&self, segment: &str) -> String {
        let middle = [segment];
        let before = self.before.iter().map(String::as_str);
        before.chain(middle).chain(self.after.iter().map(String::as_str)).collect::<Vec<_>>().join(".")
    }

    /// Number of data ranks that it is of.
    ///
    /// # Errors
    /// `Incompatible` where ranks are missing.
    pub(crate) fn ranks(&self) -> Result<u64> {
        let last = self.members.keys().next_back().copied().unwrap_or(0);
        let count = self.members.len() as u64;
        match (0..count).find(|rank| !self.members.contains_key(rank)) {
            None => Ok(count),
            Some(missing) => Err(Error::incompatible(format!(
                "{}: there is a value of data rank {last} and none of data rank {missing}",
                self.key()
            ))
            .hint("--drop-per-rank leaves all of them out")),
        }
    }

    /// A member's value as that of another rank: key and path say so.
    ///
    /// # Errors
    /// `Incompatible` where the path does not name the rank as the key does.
    pub(crate) fn renamed(&self, object: ObjectEntry, of: u64, to: u64) -> Result<ObjectEntry> {
        let (old, new) = (format!("{}{of}", self.word), format!("{}{to}", self.word));
        let mut path = object.path.clone();
        let part = path.iter_mut().find_map(|part| match part {
            PathPart::Key(key) if key.split('.').any(|segment| segment == old) => Some(key),
            PathPart::Key(_) | PathPart::Index(_) => None,
        });
        let Some(part) = part else {
            return Err(Error::incompatible(format!(
                "{}: its nested path does not name the rank",
                object.key
            )));
        };
        let mut done = false;
        let swap = |segment: &str| {
            let here = !done && segment == old;
            done |= here;
            if here { new.clone() } else { segment.to_owned() }
        };
        *part = part.split('.').map(swap).collect::<Vec<_>>().join(".");
        Ok(ObjectEntry { key: self.key_with(&new), path, ..object })
    }
}
