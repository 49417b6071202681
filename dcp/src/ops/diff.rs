//! [`diff`]: what changed between two checkpoints, whatever their formats, meshes and names.
//!
//! Tensors meet by id, or by the pairs that a caller's rename rules give. At level *hash* recorded fingerprints are
//! compared and no data is read; at level *values* both sides are read tile by tile, in bounded memory.
//!
//! Invariant: a tensor is called identical only if every bit was compared or both sides recorded equal fingerprints; where
//! neither can be done it is called unproven.

mod bits;
mod lanes;
mod stats;
mod wide;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    num::NonZeroUsize,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use fqn::{Entry, Role, TensorId, pattern::Pattern};
use reshard::{Region, flat};
use serde::Serialize;

pub use self::stats::Stats;
use self::stats::Sums;
use crate::{
    Cancel, Catalog, Error, Place, Progress, Result, Source, crew,
    engine::{
        Verify,
        gather::gather,
        reader::{Cursor, Reader},
        tensors::Tensors,
        threads, threads_in,
    },
};

/// How closely tensors are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Recorded fingerprints; no data is read.
    Hash,
    /// Every value.
    Values,
}

/// What is compared, and with what.
#[derive(Debug, Clone)]
pub struct DiffOptions {
    /// How closely.
    pub level: Level,
    /// Names of the first checkpoint that the second spells otherwise.
    pub renamed: HashMap<TensorId, TensorId>,
    /// Roles to compare; `None` for all of them.
    pub roles: Option<HashSet<Role>>,
    /// Names of the first checkpoint, or the second's where only that has them, to compare; `None` for all of them.
    pub names: Option<Pattern>,
    /// Threads that compare.
    pub threads: NonZeroUsize,
    /// Bytes of buffers and caches, a half each: fewer threads than are wanted work where it asks for it.
    pub max_memory: u64,
}

impl Default for DiffOptions {
    fn default() -> Self {
        Self {
            level: Level::Values,
            renamed: HashMap::new(),
            roles: None,
            names: None,
            threads: threads(&[]),
            max_memory: 512 << 20,
        }
    }
}

/// What became of a tensor or object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Only the first checkpoint has it.
    Removed,
    /// Only the second has it.
    Added,
    /// Values, dtype or shape differ.
    Changed,
    /// Nothing recorded tells, and data was not read.
    Unproven,
    /// Same values in other chunks.
    Moved,
    /// Same values, same chunks.
    Identical,
}

/// What became of one tensor.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TensorDiff {
    /// Its id, in the first checkpoint where that has it.
    pub id: TensorId,
    /// How the second spells it, where that differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renamed: Option<TensorId>,
    /// What became of it.
    pub status: Status,
    /// Dtype and shape in the first and the second, where they differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kinds: Option<[String; 2]>,
    /// How values differ, where they were read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stats: Option<Stats>,
}

/// What became of an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ObjectDiff {
    /// Its key.
    pub key: String,
    /// What became of it.
    pub status: Status,
    /// Its value as JSON in the first and the second, where it has such a form.
    pub values: [Option<serde_json::Value>; 2],
}

/// What changed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DiffReport {
    /// How closely tensors were looked at.
    pub level: Level,
    /// Every tensor, worst first.
    pub tensors: Vec<TensorDiff>,
    /// Every object, worst first.
    pub objects: Vec<ObjectDiff>,
    /// Bytes read from both.
    pub bytes: u64,
}

impl DiffReport {
    /// How many tensors have each status.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<Status, usize> {
        let mut counts = BTreeMap::new();
        for tensor in &self.tensors {
            *counts.entry(tensor.status).or_default() += 1;
        }
        counts
    }

    /// Whether both hold the same, however it lies.
    #[must_use]
    pub fn is_same(&self) -> bool {
        let same = |status| matches!(status, Status::Identical | Status::Moved);
        self.tensors.iter().all(|it| same(it.status)) && self.objects.iter().all(|it| same(it.status))
    }
}

/// Bytes of a tile of each side, which stay in the second level of a cache from reading to comparing.
const TILE: u64 = 128 << 10;

/// What a thread holds beside the caches: of each side a tile, a piece at hand and one on its way.
const PER_THREAD: u64 = 5 << 20;

/// Compares two checkpoints.
///
/// # Errors
/// `Corrupt` (named) where a side's data is damaged or incomplete, `Cancelled`, and what the stores say.
pub fn diff(
    one: &dyn Source,
    other: &dyn Source,
    options: &DiffOptions,
    progress: &dyn Progress,
    cancel: &Cancel,
) -> Result<DiffReport> {
    let (a, b) = (one.catalog(), other.catalog());
    let (mut tensors, pairs) = matched(a, b, options);
    let cache = (options.max_memory / 4).max(2 << 20);
    let side = |source| Side {
        reader: Reader::shared(source, Verify::Records, cache),
        tensors: Tensors::new(source.catalog()),
    };
    let work = Work {
        sides: [side(one), side(other)],
        level: options.level,
        next: AtomicUsize::new(0),
        found: Mutex::default(),
    };
    let total = pairs.iter().filter_map(|(a, _)| a.entry.bytes()).sum();
    progress.begin("compare", if options.level == Level::Values { total } else { 0 });
    let threads = threads_in(options.max_memory / 2, PER_THREAD, options.threads);
    let outcome = work.all(&pairs, threads, progress, cancel);
    progress.end();
    outcome?;
    let bytes = work.sides.iter().map(|side| side.reader.counts().bytes).sum();
    tensors.extend(work.found.into_inner().unwrap_or_else(PoisonError::into_inner));
    tensors.sort_by(worst_first);
    Ok(DiffReport { level: options.level, tensors, objects: objects(a, b), bytes })
}

/// The model before the optimizer, whose moments and counters differ between any two steps and would bury it; within
/// each, the farthest apart first.
fn worst_first(a: &TensorDiff, b: &TensorDiff) -> std::cmp::Ordering {
    let distance = |it: &TensorDiff| it.stats.map_or(f64::INFINITY, |stats| stats.rel_l2);
    let rank = |it: &TensorDiff| match &it.id.role {
        role if role.is_model() => 0,
        Role::Slot(_) => 2,
        _ => 1,
    };
    let order = a.status.cmp(&b.status).then(rank(a).cmp(&rank(b)));
    let order = order.then(distance(b).total_cmp(&distance(a)));
    order.then_with(|| a.id.cmp(&b.id))
}

/// A tensor of one side.
#[derive(Debug, Clone, Copy)]
struct Placed<'c> {
    at: usize,
    entry: &'c Entry,
    catalog: &'c Catalog,
}

type Pairs<'c> = Vec<(Placed<'c>, Placed<'c>)>;

/// Tensors that only one side has, and those that meet.
fn matched<'c>(a: &'c Catalog, b: &'c Catalog, options: &DiffOptions) -> (Vec<TensorDiff>, Pairs<'c>) {
    let wanted = |entry: &Entry| {
        let named = options.names.as_ref().is_none_or(|names| names.matches(entry.fqn.as_str()));
        named && options.roles.as_ref().is_none_or(|roles| roles.contains(&entry.role))
    };
    let lone = |id, status| TensorDiff { id, renamed: None, status, kinds: None, stats: None };
    let (mut alone, mut pairs, mut met) = (Vec::new(), Vec::new(), HashSet::new());
    for (at, entry) in a.registry.entries().iter().enumerate().filter(|(_, entry)| wanted(entry)) {
        let id = entry.id();
        let name = options.renamed.get(&id).unwrap_or(&id);
        let there = b.registry.position(name).and_then(|at| Some((at, b.registry.entries().get(at)?)));
        match there {
            Some((to, other)) => {
                met.insert(to);
                pairs.push((Placed { at, entry, catalog: a }, Placed { at: to, entry: other, catalog: b }));
            }
            None => alone.push(lone(id, Status::Removed)),
        }
    }
    let rest =
        b.registry.entries().iter().enumerate().filter(|(at, entry)| wanted(entry) && !met.contains(at));
    alone.extend(rest.map(|(_, entry)| lone(entry.id(), Status::Added)));
    (alone, pairs)
}

#[derive(Debug)]
struct Side<'a> {
    reader: Reader<'a>,
    tensors: Tensors<'a>,
}

/// What threads share.
struct Work<'a> {
    sides: [Side<'a>; 2],
    level: Level,
    next: AtomicUsize,
    found: Mutex<Vec<TensorDiff>>,
}

impl Work<'_> {
    fn all(&self, pairs: &Pairs<'_>, threads: usize, progress: &dyn Progress, cancel: &Cancel) -> Result<()> {
        crew::work(threads, || self.serve(pairs, progress, cancel))
    }

    fn serve(&self, pairs: &Pairs<'_>, progress: &dyn Progress, cancel: &Cancel) -> Result<()> {
        while let Some((a, b)) = pairs.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            let found = cancel.check().and_then(|()| self.pair(a, b, progress, cancel));
            if found.is_err() {
                self.next.store(pairs.len(), Ordering::Relaxed);
            }
            self.found.lock().unwrap_or_else(PoisonError::into_inner).push(found?);
        }
        Ok(())
    }

    fn pair(
        &self,
        a: &Placed<'_>,
        b: &Placed<'_>,
        progress: &dyn Progress,
        cancel: &Cancel,
    ) -> Result<TensorDiff> {
        let id = a.entry.id();
        let renamed = Some(b.entry.id()).filter(|name| *name != id);
        let kind = |entry: &Entry| format!("{} {}", entry.dtype, entry.shape);
        let same_kind = a.entry.dtype == b.entry.dtype && a.entry.shape == b.entry.shape;
        let kinds = (!same_kind).then(|| [kind(a.entry), kind(b.entry)]);
        let stats = match self.level {
            Level::Values if a.entry.shape == b.entry.shape => {
                Some(self.values(a, b, progress, cancel).place(&id)?)
            }
            _ => None,
        };
        let equal = match (&stats, same_kind) {
            (_, false) => Some(false),
            (Some(stats), true) => Some(stats.differing == 0),
            (None, true) => {
                let print = |side: &Placed<'_>| {
                    side.catalog.tensors.get(side.at).and_then(|chunks| chunks.fingerprint)
                };
                print(a).zip(print(b)).map(|(a, b)| a == b)
            }
        };
        let status = match equal {
            None => Status::Unproven,
            Some(false) => Status::Changed,
            Some(true) if regions(a) == regions(b) => Status::Identical,
            Some(true) => Status::Moved,
        };
        Ok(TensorDiff { id, renamed, status, kinds, stats })
    }

    /// Reads both tensors, which have one shape, tile by tile.
    fn values(
        &self,
        a: &Placed<'_>,
        b: &Placed<'_>,
        progress: &dyn Progress,
        cancel: &Cancel,
    ) -> Result<Stats> {
        let mut sums = Sums::default();
        let [one, other] = &self.sides;
        let (ta, tb) = (one.tensors.get(a.at)?, other.tensors.get(b.at)?);
        ta.covered().map_err(|error| error.at(a.entry.id()))?;
        tb.covered().map_err(|error| error.at(b.entry.id()))?;
        let (mut ca, mut cb) = (Cursor::new(&one.reader), Cursor::new(&other.reader));
        if ta.grid.shape != tb.grid.shape {
            // Elements narrower than a byte on one side only: nothing to compute with.
            return Err(Error::unsupported(format!(
                "{} is not compared with {}",
                a.entry.dtype, b.entry.dtype
            )));
        }
        let whole = Region::whole(&ta.grid.shape).map_err(|error| Error::corrupt(error.to_string()))?;
        let (mut left, mut right, mut first) = (Vec::new(), Vec::new(), 0);
        for tile in flat::tiles(&whole, TILE / ta.grid.width.max(tb.grid.width)) {
            cancel.check()?;
            left.resize(usize::try_from(ta.grid.bytes_of(&tile)).unwrap_or_default(), 0);
            right.resize(usize::try_from(tb.grid.bytes_of(&tile)).unwrap_or_default(), 0);
            gather(&mut ca, &ta, &tile, &mut left)?;
            gather(&mut cb, &tb, &tile, &mut right)?;
            sums.add(first, (a.entry.dtype, &left), (b.entry.dtype, &right));
            first += tile.elements();
            progress.advance(left.len() as u64);
        }
        Ok(sums.finish(Some(a.entry.dtype).filter(|dtype| *dtype == b.entry.dtype)))
    }
}

/// The boxes of a tensor, sorted.
fn regions(side: &Placed<'_>) -> Vec<Region> {
    let chunks = side.catalog.tensors.get(side.at);
    let mut regions: Vec<Region> = chunks.into_iter().flat_map(|chunks| chunks.chunks.regions()).collect();
    regions.sort_unstable();
    regions
}

fn objects(a: &Catalog, b: &Catalog) -> Vec<ObjectDiff> {
    let mut keys: BTreeMap<&str, [Option<&crate::ObjectEntry>; 2]> = BTreeMap::new();
    for (side, catalog) in [a, b].into_iter().enumerate() {
        for object in &catalog.objects {
            if let Some(slot) = keys.entry(&object.key).or_default().get_mut(side) {
                *slot = Some(object);
            }
        }
    }
    let mut found: Vec<ObjectDiff> = keys
        .into_iter()
        .map(|(key, [a, b])| {
            let status = match (a, b) {
                (Some(a), Some(b)) if same(a, b) => Status::Identical,
                (Some(_), Some(_)) => Status::Changed,
                (Some(_), None) => Status::Removed,
                _ => Status::Added,
            };
            let values = [a, b].map(|side| side.and_then(|object| object.preview.clone()));
            ObjectDiff { key: key.to_owned(), status, values }
        })
        .collect();
    found.sort_by(|a, b| a.status.cmp(&b.status).then_with(|| a.key.cmp(&b.key)));
    found
}

/// Equal bytes of one encoding, or equal values where both have a form as JSON: formats encode one value differently.
fn same(a: &crate::ObjectEntry, b: &crate::ObjectEntry) -> bool {
    if a.encoding == b.encoding && a.bytes == b.bytes {
        return true;
    }
    a.encoding != b.encoding && a.preview.is_some() && a.preview == b.preview
}

#[cfg(test)]
mod tests;
