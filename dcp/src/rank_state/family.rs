//! [`Families`]: which objects are the values of one kind of state, one of each data rank, by their keys.

use std::collections::{BTreeMap, HashMap, HashSet, btree_map::Entry};

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
    /// Those whose key has several numbers, any of which may be the rank's.
    pub(crate) ambiguous: Vec<usize>,
}

/// Numbers in a key that are looked at.
const MOST_NUMBERS: usize = 8;

impl Families {
    /// Finds them. `ranks` is the number of data ranks that is said or recorded: where a key has several numbers, that one is the rank's
    /// with which the others of its kind are of so many.
    pub(crate) fn of(objects: &[ObjectEntry], ranks: Option<u64>) -> Self {
        let mut families = Self::default();
        let (mut sure, mut possible) = (Found::default(), Found::default());
        let mut unsure = Vec::new();
        let per_rank = |(_, object): &(usize, &ObjectEntry)| object.reshard == ReshardRule::PerDataRank;
        for (at, object) in objects.iter().enumerate().filter(per_rank) {
            let (word, places) = places(&object.key);
            match places.as_slice() {
                [] => families.nameless.push(at),
                [one] => {
                    let taken = !sure.add(&object.key, word, *one, at).1;
                    families.nameless.extend(taken.then_some(at));
                }
                several if several.len() > MOST_NUMBERS => families.ambiguous.push(at),
                several => {
                    let added = several.iter().map(|place| possible.add(&object.key, word, *place, at));
                    let kinds: Vec<usize> =
                        added.filter_map(|(kind, is_member)| is_member.then_some(kind)).collect();
                    unsure.push((at, kinds));
                }
            }
        }
        let agreed = || agreed(&sure.families);
        let whole: Vec<bool> = match ranks.or_else(agreed) {
            Some(ranks) => possible.families.iter().map(|it| it.ranks().ok() == Some(ranks)).collect(),
            None => Vec::new(),
        };
        let mut chosen = vec![false; possible.families.len()];
        let mut ambiguous: HashSet<usize> = families.ambiguous.drain(..).collect();
        for (at, kinds) in unsure {
            let mut fitting = kinds.iter().filter(|kind| whole.get(**kind) == Some(&true));
            match (fitting.next().and_then(|kind| chosen.get_mut(*kind)), fitting.next()) {
                (Some(chosen), None) => *chosen = true,
                _ => drop(ambiguous.insert(at)),
            }
        }
        families.all = sure.families;
        for family in
            possible.families.into_iter().zip(chosen).filter_map(|(it, chosen)| chosen.then_some(it))
        {
            // One that fits elsewhere too takes all others with it.
            if family.members.values().any(|at| ambiguous.contains(at)) {
                ambiguous.extend(family.members.values());
            } else {
                families.all.push(family);
            }
        }
        families.ambiguous = ambiguous.into_iter().collect();
        families.ambiguous.sort_unstable();
        families.all.sort_by_key(|family| family.members.values().min().copied());
        families
    }

    /// The number of data ranks that all of them are of; `None` where there are none, or they differ.
    pub(crate) fn ranks(&self) -> Option<u64> {
        agreed(&self.all)
    }
}

fn agreed(families: &[Family]) -> Option<u64> {
    let mut counts = families.iter().map(|family| family.ranks().ok());
    let first = counts.next()??;
    counts.all(|count| count == Some(first)).then_some(first)
}

/// Families in the order of their first members.
#[derive(Default)]
struct Found {
    families: Vec<Family>,
    /// By their keys without the rank, and where it was.
    at: HashMap<(usize, String), usize>,
}

impl Found {
    /// The position of the family of a key whose rank is at a place, and whether the object is now a member of it.
    fn add(
        &mut self,
        key: &str,
        word: &'static str,
        (at, rank): (usize, u64),
        object: usize,
    ) -> (usize, bool) {
        let family = Family::with(key, word, at);
        let next = self.families.len();
        let kind = *self.at.entry((at, family.key())).or_insert(next);
        if kind == next {
            self.families.push(family);
        }
        let members = self.families.get_mut(kind).map(|family| &mut family.members);
        let new = match members.map(|members| members.entry(rank)) {
            Some(Entry::Vacant(free)) => {
                free.insert(object);
                true
            }
            _ => false,
        };
        (kind, new)
    }
}

/// The word with which a key names its rank, and each segment that may be it, with the rank.
fn places(key: &str) -> (&'static str, Vec<(usize, u64)>) {
    let with = |word: &&'static str| {
        let of = |(at, segment): (usize, &str)| Some((at, rank_in(segment, word)?));
        let found: Vec<_> = key.split('.').enumerate().filter_map(of).take(MOST_NUMBERS + 1).collect();
        (!found.is_empty()).then_some((*word, found))
    };
    WORDS.iter().find_map(with).unwrap_or_default()
}

/// The rank that a segment names, spelled as we would.
fn rank_in(segment: &str, word: &str) -> Option<u64> {
    let rank = segment.strip_prefix(word)?.parse::<u64>().ok()?;
    (segment == format!("{word}{rank}")).then_some(rank)
}

impl Family {
    /// That of a key whose rank is in one of its segments, without members.
    fn with(key: &str, word: &'static str, at: usize) -> Self {
        let mut before: Vec<String> = key.split('.').map(str::to_owned).collect();
        let after = before.split_off(at.saturating_add(1).min(before.len()));
        before.truncate(at);
        Self { before, word, after, members: BTreeMap::new() }
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
            .hint(format!(
                "--drop-per-rank leaves all of them out where no rule is about them; --rank-state '{}=drop' does anyway",
                self.path().join(".")
            ))),
        }
    }

    /// Whether it is of so many data ranks as something else says.
    ///
    /// # Errors
    /// `Incompatible` where it is not, or ranks are missing.
    pub(crate) fn must_be_of(&self, ranks: u64, says: &str) -> Result<()> {
        let found = self.ranks()?;
        if found == ranks {
            return Ok(());
        }
        let values = if found == 1 { "1 data rank".to_owned() } else { format!("{found} data ranks") };
        Err(Error::incompatible(format!("{} has the values of {values}, and {says} {ranks}", self.key())))
    }

    /// A member's value as that of another rank: key and path say so.
    ///
    /// # Errors
    /// `Incompatible` where the path does not name the rank as the key does.
    pub(crate) fn renamed(&self, object: ObjectEntry, of: u64, to: u64) -> Result<ObjectEntry> {
        let (old, new) = (format!("{}{of}", self.word), format!("{}{to}", self.word));
        let mut path = object.path.clone();
        let mut at = 0;
        // Where both have as many segments, the rank is in the same one of both.
        let own = (segments(&path) == self.before.len() + self.after.len() + 1).then_some(self.before.len());
        let mut places = Vec::new();
        for (nth, part) in path.iter().enumerate() {
            match part {
                PathPart::Key(key) => {
                    for (within, segment) in key.split('.').enumerate() {
                        if segment == old && own.is_none_or(|own| own == at) {
                            places.push((nth, within));
                        }
                        at += 1;
                    }
                }
                PathPart::Index(_) => at += 1,
            }
        }
        let [(nth, within)] = places.as_slice() else {
            let key = &object.key;
            return Err(Error::incompatible(format!("{key}: its nested path does not name the rank")));
        };
        if let Some(PathPart::Key(part)) = path.get_mut(*nth) {
            let swap =
                |(at, segment): (usize, &str)| if at == *within { new.clone() } else { segment.to_owned() };
            *part = part.split('.').enumerate().map(swap).collect::<Vec<_>>().join(".");
        }
        Ok(ObjectEntry { key: self.key_with(&new), path, ..object })
    }
}

/// Segments of a path, whose keys may have several.
fn segments(path: &[PathPart]) -> usize {
    let count = |part: &PathPart| if let PathPart::Key(key) = part { key.split('.').count() } else { 1 };
    path.iter().map(count).sum()
}
