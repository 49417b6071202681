//! Collecting garbage: survey, delete what is due, sweep, condemn; and delete at once what needs no grace.
//!
//! ```text
//!  survey ─► delete what was condemned a grace period ago ─► survey again ─► sweep ─► condemn ─► durable ─► delete it, if there is no grace
//! ```
//!
//! What frees space comes first: a condemnation is a record, and on a full disk there is no room for one before something is gone. That may
//! take long, so what is swept and condemned is decided by what is there after it.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    collection::{Collected, Collection, GcOptions, Kind, Waiting},
    delete::{Failures, delete},
    found::{Found, up},
    marks::append,
    survey::{Folder, Needs, Standing},
    sweep::{Leftover, leftovers, sweep},
    times::Times,
};
use crate::{
    Place, Result,
    commit::{Action, CommitError, Condemn, DirName, Label, Log, LogOptions, Seq, Void},
    store::Root,
};

/// A moment of a collection.
#[derive(Debug)]
pub(super) enum Moment {
    /// What is due is deleted, and it is known what lies in the root after it; nothing is condemned.
    Surveyed,
    /// Everything that is garbage is condemned; none of it is deleted.
    Condemned,
    /// An object is deleted next.
    Deleting,
}

/// Condemns what nothing needs: directories of retired checkpoints, and of saves that were stopped. Deletes those that were condemned at
/// least a grace period ago: readers that opened a checkpoint before it went have that long to finish.
///
/// # Errors
/// `Conflict` when the incarnation of `run` has ended; the store's and the log's. What was condemned or deleted until then stays so. Where
/// something can't be deleted, everything else is done before the first of these failures is returned.
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
    let (found, mut left) = look(root, &log, options)?;
    let mut done = Collection::default();
    if found.is_nothing() && left.is_empty() {
        found.note_foreign(&mut done);
        return Ok(done);
    }
    let times = if found.has_ages() || !left.is_empty() {
        Times::of(&log, nonces.as_ref()).place(place)?
    } else {
        Times::unasked()
    };
    done.as_of_last_record = !times.is_present();
    let failures = Failures::of(root);
    let mut collector = Collector { root, options, times, found, done, failures, has_deleted: false };
    let before = log.state().condemned.clone();
    if collector.found.condemned && !options.dry_run {
        log.settle().place(place)?;
    }
    collector.delete_due(&before, &BTreeMap::new(), watch)?;
    if collector.has_deleted {
        log.refresh().place(place)?;
        (collector.found, left) = look(root, &log, options)?;
    }
    collector.done.swept = sweep(root, &left, options, &collector.times, &mut collector.failures)?;
    let Collector { found, times, done, failures, .. } = &mut collector;
    found.note_foreign(done);
    let wanted = found.garbage(log.state(), options, times, done);
    watch(Moment::Surveyed)?;
    let condemned = if options.dry_run {
        wanted.keys().cloned().collect()
    } else {
        condemn(&mut log, run, epoch, wanted.keys()).place(place)?
    };
    for directory in &condemned {
        let kind = wanted.get(directory).copied().unwrap_or(Kind::Retired);
        let bytes = failures.pass(found.bytes(root, directory))?.unwrap_or_default();
        done.condemned.push(Collected { directory: directory.clone(), kind, bytes });
    }
    watch(Moment::Condemned)?;
    let mut after = log.state().condemned.clone();
    if options.dry_run {
        // As if they were.
        let none = log.head().unwrap_or(Seq::FIRST);
        after.extend(condemned.iter().map(|dir| (dir.clone(), none)));
    } else {
        // What condemns may be another process's record, and not durable: a crash must not bring back a checkpoint without its bytes.
        log.settle().place(place)?;
    }
    after.retain(|dir, _| !before.contains_key(dir));
    let new: BTreeMap<DirName, Kind> =
        wanted.into_iter().filter(|(dir, _)| condemned.contains(dir)).collect();
    collector.delete_due(&after, &new, watch)?;
    let Collector { mut done, failures, .. } = collector;
    failures.first()?;
    done.bytes = done.bytes.saturating_add(done.swept.bytes);
    done.deleted.sort_by(|a, b| a.directory.cmp(&b.directory));
    Ok(done)
}

/// What lies in the root, and single files in it that stopped writers may have left.
fn look(root: &Root, log: &Log, options: &GcOptions) -> Result<(Found, Vec<Leftover>)> {
    let found = Found::look(root, log.state())?;
    let left = if options.sweep { leftovers(root, found.needed())? } else { Vec::new() };
    Ok((found, left))
}

/// A collection under way.
struct Collector<'a> {
    root: &'a Root,
    options: &'a GcOptions,
    times: Times,
    found: Found,
    done: Collection,
    failures: Failures<'a>,
    /// Whether a directory was deleted, or a part of one.
    has_deleted: bool,
}

impl Collector<'_> {
    /// Deletes condemned directories whose grace period is over, and notes the others. Those that are `new` were condemned just now: only a
    /// grace period of nothing is over at once.
    fn delete_due(
        &mut self,
        condemned: &BTreeMap<DirName, Seq>,
        new: &BTreeMap<DirName, Kind>,
        watch: &mut dyn FnMut(Moment) -> Result<()>,
    ) -> Result<()> {
        for (dir, &seq) in condemned {
            if self.found.has(dir) {
                let done = self.delete_if_due(dir, seq, new.get(dir).copied(), watch);
                self.failures.pass(done)?;
            }
        }
        Ok(())
    }

    fn delete_if_due(
        &mut self,
        dir: &DirName,
        seq: Seq,
        new: Option<Kind>,
        watch: &mut dyn FnMut(Moment) -> Result<()>,
    ) -> Result<()> {
        let age = self.times.age(seq).filter(|_| new.is_none()).unwrap_or_default();
        let directory = dir.clone();
        if age < self.options.grace {
            if new.is_none() {
                let bytes = self.found.bytes(self.root, dir)?;
                let seconds_left = up(self.options.grace.saturating_sub(age));
                self.done.waiting.push(Waiting { directory, condemned: seq, bytes, seconds_left });
            }
            return Ok(());
        }
        let (bytes, whole) = if self.options.dry_run {
            (self.found.bytes(self.root, dir)?, true)
        } else {
            self.has_deleted = true;
            let gone = delete(self.root, dir, &mut || watch(Moment::Deleting))?;
            (gone.bulk.bytes, gone.whole)
        };
        self.done.bytes = self.done.bytes.saturating_add(bytes);
        if whole {
            let kind = new.unwrap_or(Kind::Condemned);
            self.done.deleted.push(Collected { directory, kind, bytes });
        } else {
            let bytes = Folder::read(self.root, dir.as_str())?.bytes();
            self.done.waiting.push(Waiting { directory, condemned: seq, bytes, seconds_left: 0 });
        }
        Ok(())
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
