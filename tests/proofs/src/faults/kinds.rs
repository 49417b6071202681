//! The faults: each changes one file, or exchanges two.

use std::fs;

use serde::Serialize;

use super::ground::{Ground, Kind, Object};
use crate::chance::Chance;
use crate::training::Outcome;

/// What is done to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Fault {
    BitFlip,
    Cut,
    Extended,
    SwappedFiles,
    SwappedBlocks,
    Stale,
    Missing,
    ZeroedPage,
    DuplicatedPage,
    Renamed,
}

/// All of them.
pub(crate) const FAULTS: [Fault; 10] = [
    Fault::BitFlip,
    Fault::Cut,
    Fault::Extended,
    Fault::SwappedFiles,
    Fault::SwappedBlocks,
    Fault::Stale,
    Fault::Missing,
    Fault::ZeroedPage,
    Fault::DuplicatedPage,
    Fault::Renamed,
];

const PAGE: usize = 4096;

/// What became of one path.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) path: String,
    /// Where it lay in the list of objects; none for a name that is new.
    pub(crate) object: Option<usize>,
    pub(crate) before: Option<Vec<u8>>,
    pub(crate) after: Option<Vec<u8>>,
}

impl Fault {
    /// The changes that it makes to an object; nothing where it would change nothing.
    pub(crate) fn of(self, ground: &Ground, at: usize, chance: &mut Chance) -> Option<Vec<Change>> {
        let object = ground.objects.get(at)?;
        let bytes = &object.bytes;
        let changed = |after: Vec<u8>| vec![change(object, at, Some(after))];
        let changes = match self {
            Self::BitFlip => {
                let mut after = bytes.clone();
                *after.get_mut(chance.index(bytes.len()))? ^= 1 << chance.below(8);
                changed(after)
            }
            Self::Cut => changed(bytes.get(..chance.index(bytes.len()))?.to_vec()),
            Self::Extended => {
                let more = 1 + chance.below(64);
                let end = (0..more).map(|_| chance.next().to_le_bytes()[0]);
                changed(bytes.iter().copied().chain(end).collect())
            }
            Self::SwappedFiles => {
                let other = other(ground, at, chance, |it| it.kind == object.kind)?;
                let with = ground.objects.get(other)?;
                vec![change(object, at, Some(with.bytes.clone())), change(with, other, Some(bytes.clone()))]
            }
            Self::Stale => {
                let older = |it: &Object| {
                    it.kind == object.kind
                        && it.of <= object.of
                        && same_role(it, object)
                        && it.path < object.path
                };
                let older = ground.objects.get(other(ground, at, chance, older)?)?;
                changed(older.bytes.clone())
            }
            Self::Missing => vec![change(object, at, None)],
            Self::Renamed => renamed(ground, object, at, chance),
            Self::SwappedBlocks | Self::ZeroedPage | Self::DuplicatedPage => {
                changed(self.within(bytes, chance)?)
            }
        };
        changes.iter().any(|it| it.before != it.after).then_some(changes)
    }

    /// Pages of one file.
    fn within(self, bytes: &[u8], chance: &mut Chance) -> Option<Vec<u8>> {
        let page = PAGE.min(bytes.len() / 4).max(1);
        let pages = bytes.len() / page;
        let (one, two) = (chance.index(pages) * page, chance.index(pages) * page);
        let (first, second) = (bytes.get(one..one + page)?.to_vec(), bytes.get(two..two + page)?.to_vec());
        let mut after = bytes.to_vec();
        let mut put =
            |at: usize, what: &[u8]| after.get_mut(at..at + page).map(|to| to.copy_from_slice(what));
        match self {
            Self::ZeroedPage => put(one, &vec![0; page])?,
            Self::DuplicatedPage => put(two, &first)?,
            _ => {
                put(one, &second)?;
                put(two, &first)?;
            }
        }
        Some(after)
    }
}

/// Whether two files could be taken for each other: by the beginning of their names.
fn same_role(one: &Object, other: &Object) -> bool {
    let role = |object: &Object| {
        let name = object.path.rsplit('/').next().unwrap_or_default();
        name.get(..11).unwrap_or(name).to_owned()
    };
    matches!(one.kind, Kind::Record | Kind::Manifest) || role(one) == role(other)
}

fn change(object: &Object, at: usize, after: Option<Vec<u8>>) -> Change {
    Change { path: object.path.clone(), object: Some(at), before: Some(object.bytes.clone()), after }
}

/// Another object, with other bytes.
fn other(ground: &Ground, at: usize, chance: &mut Chance, fits: impl Fn(&Object) -> bool) -> Option<usize> {
    let object = ground.objects.get(at)?;
    let all = ground.objects.iter().enumerate();
    let fitting: Vec<usize> =
        all.filter(|(n, it)| *n != at && it.bytes != object.bytes && fits(it)).map(|(n, _)| n).collect();
    chance.of(&fitting).copied()
}

/// Under another name: of a record either one that is no record's, or that of a later one.
fn renamed(ground: &Ground, object: &Object, at: usize, chance: &mut Chance) -> Vec<Change> {
    let records = ground.objects.iter().filter(|it| it.kind == Kind::Record).count() as u64;
    let name = match object.kind {
        Kind::Record if chance.below(2) == 0 => format!("commits/{:020}.json", records + 1 + chance.below(3)),
        _ => format!("{}.old", object.path),
    };
    vec![
        change(object, at, None),
        Change { path: name, object: None, before: None, after: Some(object.bytes.clone()) },
    ]
}

/// Carries changes out.
pub(crate) fn apply(ground: &Ground, changes: &[Change]) -> Outcome<()> {
    changes.iter().try_for_each(|it| set(ground, &it.path, it.after.as_deref()))
}

/// Takes them back.
pub(crate) fn undo(ground: &Ground, changes: &[Change]) -> Outcome<()> {
    changes.iter().try_for_each(|it| set(ground, &it.path, it.before.as_deref()))
}

fn set(ground: &Ground, path: &str, bytes: Option<&[u8]>) -> Outcome<()> {
    let file = ground.file(path);
    match bytes {
        Some(bytes) => fs::write(file, bytes)?,
        None if file.exists() => fs::remove_file(file)?,
        None => {}
    }
    Ok(())
}
