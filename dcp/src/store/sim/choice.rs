//! [`Choice`]: which of the pending changes a crash has kept.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
};

use super::content::{DURABLE, GARBAGE, LATEST, TORN, VARIANTS, ZEROS};
use super::disk::{Disk, Key};
use super::journal::Ino;
use super::turns::mixed;

/// Which of the pending changes a crash has kept. As text it is `all-17`, `corner-3` or `drawn-1f…`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Choice {
    /// One of all the combinations, by its number.
    All(u64),
    /// One that tells much: nothing kept, everything, names without data, one change alone, all but one, the changes up to some moment.
    Corner(u64),
    /// One that follows from a number.
    Drawn(u64),
}

/// A text that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is none of all-NUMBER, corner-NUMBER, drawn-NUMBER")]
pub struct NotAChoice(String);

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All(number) => write!(f, "all-{number}"),
            Self::Corner(number) => write!(f, "corner-{number}"),
            Self::Drawn(number) => write!(f, "drawn-{number}"),
        }
    }
}

impl FromStr for Choice {
    type Err = NotAChoice;

    fn from_str(text: &str) -> Result<Self, NotAChoice> {
        let wrong = || NotAChoice(text.to_owned());
        let (kind, number) = text.split_once('-').ok_or_else(wrong)?;
        let number = number.parse().map_err(|_| wrong())?;
        match kind {
            "all" => Ok(Self::All(number)),
            "corner" => Ok(Self::Corner(number)),
            "drawn" => Ok(Self::Drawn(number)),
            _ => Err(wrong()),
        }
    }
}

/// A choice, spelled out.
#[derive(Debug)]
pub(super) struct Picks<'d> {
    /// How many of a name's pending changes were kept.
    names: BTreeMap<&'d Key, usize>,
    /// Variants of contents.
    files: BTreeMap<Ino, u64>,
}

/// Corners with everything or nothing of the names.
const PLAIN: u64 = 6;

impl<'d> Picks<'d> {
    /// How many corners there are.
    pub(super) fn corners(disk: &Disk) -> u64 {
        let names = disk.pending_names();
        let dirs: BTreeSet<Ino> = names.iter().map(|(key, _)| key.0).collect();
        PLAIN + 2 * names.len() as u64 + 2 * moments(disk).len() as u64 + dirs.len() as u64
    }

    pub(super) fn of(disk: &'d Disk, choice: Choice) -> Self {
        match choice {
            Choice::All(number) => Self::numbered(disk, number),
            Choice::Corner(number) => Self::corner(disk, number),
            Choice::Drawn(seed) => Self::drawn(disk, seed),
        }
    }

    /// How many of a name's pending changes were kept.
    pub(super) fn name(&self, key: &Key) -> usize {
        self.names.get(key).copied().unwrap_or(0)
    }

    /// The variant of a file's content. Files that nobody reads are as they were written.
    pub(super) fn file(&self, ino: Ino) -> u64 {
        self.files.get(&ino).copied().unwrap_or(LATEST)
    }

    fn numbered(disk: &'d Disk, mut number: u64) -> Self {
        let mut digit = |base: u64| {
            let digit = number.checked_rem(base).unwrap_or(0);
            number = number.checked_div(base).unwrap_or(0);
            digit
        };
        let names = disk.pending_names().into_iter().map(|(key, slot)| {
            let values = slot.values();
            let at = usize::try_from(digit(values.len() as u64)).unwrap_or(0);
            (key, values.get(at).copied().unwrap_or(0))
        });
        let names = names.collect();
        let files = disk.pending_files().into_iter().map(|ino| (ino, digit(VARIANTS))).collect();
        Self { names, files }
    }

    fn corner(disk: &'d Disk, number: u64) -> Self {
        let names = disk.pending_names();
        let files = |variant: u64| disk.pending_files().into_iter().map(|ino| (ino, variant)).collect();
        let all = |kept: &dyn Fn(usize, &Key) -> bool| -> BTreeMap<&'d Key, usize> {
            let each = names.iter().enumerate();
            each.map(|(at, (key, slot))| (*key, if kept(at, key) { slot.pending.len() } else { 0 })).collect()
        };
        let plain =
            [(false, DURABLE), (true, LATEST), (true, DURABLE), (true, ZEROS), (true, GARBAGE), (true, TORN)];
        let mut rest = match usize::try_from(number).ok().and_then(|at| plain.get(at)) {
            Some((kept, variant)) => return Self { names: all(&|_, _| *kept), files: files(*variant) },
            None => number - PLAIN,
        };
        let count = names.len() as u64;
        for (lost, variant) in [(false, LATEST), (true, LATEST)] {
            if rest < count {
                return Self { names: all(&|at, _| (at as u64 == rest) != lost), files: files(variant) };
            }
            rest -= count;
        }
        let moments = moments(disk);
        for variant in [LATEST, ZEROS] {
            if let Some(moment) = usize::try_from(rest).ok().and_then(|at| moments.get(at)) {
                let until = |slot: &super::disk::Slot| slot.pending.partition_point(|(at, _)| at <= moment);
                let names = names.iter().map(|(key, slot)| (*key, until(slot))).collect();
                return Self { names, files: files(variant) };
            }
            rest -= moments.len() as u64;
        }
        let dirs: BTreeSet<Ino> = names.iter().map(|(key, _)| key.0).collect();
        let dir = usize::try_from(rest).ok().and_then(|at| dirs.into_iter().nth(at));
        Self { names: all(&|_, key| Some(key.0) == dir), files: files(LATEST) }
    }

    fn drawn(disk: &'d Disk, seed: u64) -> Self {
        let mut random = seed;
        let mut draw = |below: u64| {
            random = mixed(random);
            (random >> 16).checked_rem(below).unwrap_or(0)
        };
        // Few, half or most of the changes were kept.
        let bias = 1 + draw(3);
        let names = disk.pending_names().into_iter().map(|(key, slot)| {
            let some = draw(slot.pending.len() as u64 + 1);
            let kept = if draw(4) < bias { slot.pending.len() } else { usize::try_from(some).unwrap_or(0) };
            (key, kept)
        });
        let names = names.collect();
        let files = disk.pending_files().into_iter().map(|ino| {
            let corner = draw(VARIANTS);
            (
                ino,
                if draw(2) == 0 {
                    LATEST
                } else if draw(2) == 0 {
                    corner
                } else {
                    VARIANTS + draw(1 << 40)
                },
            )
        });
        Self { names, files: files.collect() }
    }
}

/// The operations that changed names and are pending, in order.
fn moments(disk: &Disk) -> Vec<usize> {
    let pending = disk.pending_names().into_iter().flat_map(|(_, slot)| slot.pending.iter().map(|it| it.0));
    pending.collect::<BTreeSet<_>>().into_iter().collect()
}
