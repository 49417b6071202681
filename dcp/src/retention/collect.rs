//! Collecting garbage: survey, condemn, wait, delete.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, SystemTime},
};

use serde::Serialize;

use super::{
    delete::delete,
    marks::append,
    survey::{Bulk, Folder, Needs, Standing, folder_names},
    times::Times,
};
use crate::{
    Place, Result,
    commit::{Action, CommitError, Condemn, DirName, Label, Log, LogOptions, Seq, State, Void},
    formats::native::Whose,
    store::{PROBE, Root, StoreError},
};

/// How garbage is collected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GcOptions {
    /// How long readers of what was retired have to finish, from the condemnation on.
    pub grace: Duration,
    /// For how long nothing was written to what no record names, before it is taken for a stopped save.
    pub orphans_after: Duration,
    /// Whether a folder with a manifest that no record names counts as a stopped save too. It may be a whole checkpoint whose record was lost, or
    /// one that is being copied here, so this is for people to decide.
    pub sealed: bool,
    /// Whether single unfinished files and left probes that are as old are removed, wherever they lie. It takes a walk over the root.
    pub sweep: bool,
    /// Whether nothing is done.
    pub dry_run: bool,
}

impl GcOptions {
    /// A day: longer than any save takes, and any writer sleeps that shall go on.
    pub const ORPHANS_AFTER: Duration = Duration::from_secs(86_400);

    /// Everything, with this grace period.
    #[must_use]
    pub const fn after(grace: Duration) -> Self {
        Self { grace, orphans_after: Self::ORPHANS_AFTER, sealed: false, sweep: true, dry_run: false }
    }

    /// Directories only, as a trainer collects between its steps.
    #[must_use]
    pub const fn without_sweep(mut self) -> Self {
        self.sweep = false;
        self
    }
}

/// Why a directory is garbage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Its checkpoint was retired, and nothing else needs it.
    Retired,
    /// A save was stopped before its commit.
    Orphan,
    /// It was condemned before.
    Condemned,
}

/// A directory that was condemned or deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Collected {
    /// The directory.
    pub directory: DirName,
    /// Why.
    pub kind: Kind,
    /// Bytes in it.
    pub bytes: u64,
}

/// A condemned directory that is not deleted yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Waiting {
    /// The directory.
    pub directory: DirName,
    /// The record that condemned it.
    pub condemned: Seq,
    /// Bytes in it.
    pub bytes: u64,
    /// Seconds until it may be deleted.
    pub seconds_left: u64,
}

/// For how many of its periods a save that the present incarnation of a run may still commit is taken to sleep.
const SLEEPS: u32 = 7;

/// A folder that no record names and that is left alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Spared {
    /// The folder.
    pub folder: String,
    /// Bytes in it.
    pub bytes: u64,
    /// Seconds until it would be taken for a stopped save; none for what never is.
    pub seconds_left: Option<u64>,
    /// Whether it has a manifest: it may be a whole checkpoint.
    pub sealed: bool,
    /// The run that may still commit it: its present incarnation began it, and has not gone on beyond it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<Label>,
}

/// What a collection did, or would do.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Collection {
    /// Directories that were condemned now.
    pub condemned: Vec<Collected>,
    /// Condemned directories whose grace period is not over.
    pub waiting: Vec<Waiting>,
    /// Directories that were deleted.
    pub deleted: Vec<Collected>,
    /// Folders that no record names and that stay.
    pub spared: Vec<Spared>,
    /// Unfinished files and probes that were removed.
    pub swept: Bulk,
    /// Bytes of all that was deleted.
    pub bytes: u64,
    /// Whether ages are as of the last record only, because the store can't be written.
    pub as_of_last_record: bool,
}

/// A moment of a collection.
#[derive(Debug)]
pub(super) enum Moment {
    /// It is known what lies in the root; nothing is condemned.
    Surveyed,
    /// Everything that is garbage is condemned; nothing is deleted.
    Condemned,
    /// An object is deleted next.
    Deleting,
}

/// Condemns what nothing needs: directories of retired checkpoints, and of saves that were stopped. Deletes those that were condemned at
/// least a grace period ago: readers that opened a checkpoint before it went have that long to finish.
///
/// # Errors
/// `Conflict` when the incarnation of `run` has ended; the store's and the log's. What was condemned or deleted until then stays so.
pub fn collect(
    root: &Root,
    run: &Label,
    epoch: Option<u64>,
    options: &GcOptions,
    log: LogOptions,
) -> Result<Collection> {
    collect_watched(root, run, epoch, options, log, &mut |_| Ok(()))
}

pub(super) fn collect_watched(
    root: &Root,
    run: &Label,
    epoch: Option<u64>,
    options: &GcOptions,
    log: LogOptions,
    watch: &mut dyn FnMut(Moment) -> Result<()>,
) -> Result<Collection> {
    let place = root.display_name();
    let nonces = std::sync::Arc::clone(&log.nonces);
    let mut log = Log::open_with(root, log).place(place)?;
    // What is deleted is decided by the records alone.
    log.prove().place(place)?;
    let found = Found::look(root, log.state())?;
    let mut done = Collection::default();
    if found.is_nothing() && !options.sweep {
        return Ok(done);
    }
    let times = Times::of(&log, nonces.as_ref()).place(place)?;
    done.as_of_last_record = !times.is_present();
    let wanted = found.garbage(log.state(), options, &times, &mut done);
    watch(Moment::Surveyed)?;
    let condemned = if options.dry_run {
        wanted.keys().cloned().collect()
    } else {
        condemn(&mut log, run, epoch, wanted.keys()).place(place)?
    };
    for directory in &condemned {
        let kind = wanted.get(directory).copied().unwrap_or(Kind::Retired);
        let bytes = found.bytes(root, directory)?;
        done.condemned.push(Collected { directory: directory.clone(), kind, bytes });
    }
    watch(Moment::Condemned)?;
    if !options.dry_run {
        // What condemns may be another process's record, and not durable: a crash must not bring back a checkpoint without its bytes.
        log.settle().place(place)?;
    }
    let mut before = log.state().condemned.clone();
    if options.dry_run {
        // As if they were: only a grace period of nothing is over at once.
        let none = log.head().unwrap_or(Seq::FIRST);
        before.extend(condemned.iter().map(|dir| (dir.clone(), none)));
    }
    for (dir, seq) in before.into_iter().filter(|(dir, _)| found.there.contains(dir.as_str())) {
        let new = condemned.contains(&dir);
        let age = times.age(seq).filter(|_| !new).unwrap_or_default();
        if age >= options.grace {
            let kind = wanted.get(&dir).copied().unwrap_or(Kind::Condemned);
            let bytes = if options.dry_run {
                found.bytes(root, &dir)?
            } else {
                delete(root, &dir, &mut || watch(Moment::Deleting))?.bytes
            };
            done.bytes = done.bytes.saturating_add(bytes);
            done.deleted.push(Collected { directory: dir, kind, bytes });
        } else if !new {
            let (bytes, seconds_left) = (found.bytes(root, &dir)?, up(options.grace.saturating_sub(age)));
            done.waiting.push(Waiting { directory: dir, condemned: seq, bytes, seconds_left });
        }
    }
    if options.sweep {
        done.swept = sweep(root, options, &times)?;
        done.bytes = done.bytes.saturating_add(done.swept.bytes);
    }
    Ok(done)
}

/// What lies in the root, as far as it may be garbage.
#[derive(Debug, Default)]
struct Found {
    /// Names of all folders.
    there: BTreeSet<String>,
    /// Directories of retired checkpoints that nothing needs.
    retired: Vec<DirName>,
    /// Condemned directories that are there.
    condemned: bool,
    /// Folders that no record names.
    unnamed: BTreeMap<String, Unnamed>,
}

#[derive(Debug)]
struct Unnamed {
    folder: Folder,
    whose: Option<Whose>,
}

impl Found {
    fn look(root: &Root, state: &State) -> Result<Self> {
        let needs = Needs::of(state);
        let free = |dir: &&DirName| matches!(needs.standing(state, dir), Standing::Retired(_));
        let mut found =
            Self { retired: state.retired.keys().filter(free).cloned().collect(), ..Self::default() };
        for name in folder_names(root)? {
            let standing = name.parse().ok().map(|dir: DirName| needs.standing(state, &dir));
            match standing {
                Some(Standing::Condemned(_)) => found.condemned = true,
                Some(Standing::Needed(_) | Standing::Retired(_)) => {}
                Some(Standing::Unnamed) | None => {
                    let folder = Folder::read(root, &name)?;
                    let dir = name.parse::<DirName>().ok().filter(|_| folder.is_attempt(&name));
                    let whose = dir.map_or(Ok(None), |dir| Whose::get(root, &dir))?;
                    found.unnamed.insert(name.clone(), Unnamed { folder, whose });
                }
            }
            found.there.insert(name);
        }
        Ok(found)
    }

    fn is_nothing(&self) -> bool {
        self.retired.is_empty() && !self.condemned && self.unnamed.is_empty()
    }

    /// What is to be condemned, and why; what is left alone is noted.
    fn garbage(
        &self,
        state: &State,
        options: &GcOptions,
        times: &Times,
        done: &mut Collection,
    ) -> BTreeMap<DirName, Kind> {
        let mut garbage: BTreeMap<DirName, Kind> =
            self.retired.iter().map(|dir| (dir.clone(), Kind::Retired)).collect();
        for (name, Unnamed { folder, whose }) in &self.unnamed {
            // What has no time is young.
            let idle = folder.last_write.map(|time| times.since(time)).unwrap_or_default();
            let dir = name.parse::<DirName>().ok().filter(|_| folder.is_attempt(name));
            let run = whose.as_ref().filter(|whose| whose.is_present(state)).map(|whose| whose.run.clone());
            let periods = if run.is_some() { SLEEPS } else { 1 };
            let period = options.orphans_after.saturating_mul(periods);
            let left = dir.as_ref().map(|_| up(period.saturating_sub(idle)));
            let sealed = folder.has_manifest(name);
            match dir.filter(|_| idle >= period && (options.sealed || !sealed)) {
                Some(dir) => drop(garbage.insert(dir, Kind::Orphan)),
                None => done.spared.push(Spared {
                    folder: name.clone(),
                    bytes: folder.bytes(),
                    seconds_left: left.filter(|_| options.sealed || !sealed),
                    sealed,
                    run,
                }),
            }
        }
        garbage
    }

    fn bytes(&self, root: &Root, dir: &DirName) -> Result<u64> {
        match self.unnamed.get(dir.as_str()) {
            Some(it) => Ok(it.folder.bytes()),
            None if self.there.contains(dir.as_str()) => Ok(Folder::read(root, dir.as_str())?.bytes()),
            None => Ok(0),
        }
    }
}

/// Directories of one record: small enough to be read at once, many enough that a large root takes few records.
const BATCH: usize = 256;

/// Condemns what is still garbage when its record lands; returns what that is.
fn condemn<'d>(
    log: &mut Log,
    run: &Label,
    epoch: Option<u64>,
    wanted: impl Iterator<Item = &'d DirName>,
) -> Result<BTreeSet<DirName>, CommitError> {
    let (wanted, mut condemned) = (wanted.collect::<Vec<_>>(), BTreeSet::new());
    log.refresh()?;
    for batch in wanted.chunks(BATCH) {
        loop {
            let (state, needs) = (log.state(), Needs::of(log.state()));
            let free = |dir: &&DirName| {
                matches!(needs.standing(state, dir), Standing::Retired(_) | Standing::Unnamed)
            };
            let directories: BTreeSet<DirName> = batch.iter().copied().filter(free).cloned().collect();
            if directories.is_empty() {
                break;
            }
            match append(log, run, epoch, Action::Condemn(Condemn { directories: directories.clone() })) {
                Ok(()) => {
                    condemned.extend(directories);
                    break;
                }
                // A commit was faster, and is in the state by now: again, without what it needs.
                Err(CommitError::Rejected { void: Void::InUse { .. } }) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(condemned)
}

/// Removes unfinished files and probes that nobody has written to for long.
fn sweep(root: &Root, options: &GcOptions, times: &Times) -> Result<Bulk> {
    let mut swept = Bulk::default();
    let old = |time: SystemTime| times.since(time) >= options.orphans_after;
    if let Some(local) = root.local() {
        for node in local.tree(None)?.into_iter().filter(|node| node.unfinished && old(node.stat.modified)) {
            if !options.dry_run {
                local.remove_unfinished(&node.path)?;
            }
            swept.add(node.stat.size);
        }
    }
    let objects = root.list_dir(None)?.objects;
    for probe in objects.iter().filter(|it| it.path.as_ref().starts_with(PROBE) && old(it.modified)) {
        if !options.dry_run {
            match root.delete(&probe.path) {
                Ok(()) | Err(StoreError::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        swept.add(probe.size);
    }
    Ok(swept)
}

/// Whole seconds, begun ones included.
fn up(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}
