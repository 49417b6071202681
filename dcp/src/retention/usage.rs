//! [`usage()`]: what takes how much space in a root, to the byte: every object that the store lists is counted in one place.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::survey::{Bulk, Folder, Foreign, Standing, Survey};
use crate::{
    Location, Result,
    commit::{Checkpoint, Label, Log, Seq},
    manifest::Manifest,
    store::Root,
};

/// What a checkpoint takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckpointUsage {
    /// Its number.
    pub seq: Seq,
    /// Its run.
    pub run: Label,
    /// Its training step.
    pub step: u64,
    /// Objects that it alone refers to.
    pub own: Bulk,
    /// Objects that others refer to as well.
    pub shared: Bulk,
    /// Bytes that would be free if it alone were forgotten and collected.
    pub freed: u64,
}

/// What a folder takes that no checkpoint needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FolderUsage {
    /// The folder.
    pub folder: String,
    /// Objects and bytes.
    #[serde(flatten)]
    pub bulk: Bulk,
}

/// What a root takes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Usage {
    /// Each checkpoint, oldest first.
    pub checkpoints: Vec<CheckpointUsage>,
    /// Objects that several checkpoints refer to, counted once.
    pub shared: Bulk,
    /// Objects in folders that are needed, that no checkpoint refers to any more. They go with their folder.
    pub unreferenced: Bulk,
    /// Folders of retired checkpoints that nothing needs: the next collection condemns them.
    pub retired: Vec<FolderUsage>,
    /// Condemned folders that are still there.
    pub condemned: Vec<FolderUsage>,
    /// Folders of saves that are under way or were stopped.
    pub uncommitted: Vec<FolderUsage>,
    /// Folders that are no part of the store.
    pub foreign: Vec<FolderUsage>,
    /// The log, and the hint at its end.
    pub log: Bulk,
    /// Anything else in the root itself.
    pub others: Bulk,
    /// The sum of all of these: everything that the store lists, but for what could not be looked into.
    pub total: Bulk,
    /// Unfinished files, which the store does not list.
    pub unfinished: Bulk,
    /// Checkpoints whose manifest could not be read, and why: what they refer to elsewhere is not known.
    pub unread: Vec<(Seq, String)>,
    /// Folders that are no part of the store and could not be looked into, and why: nothing of them is counted.
    pub unreadable: Vec<(String, String)>,
}

/// Which checkpoints refer to an object.
type Users = BTreeMap<String, BTreeSet<Seq>>;

/// Adds up what lies in the root of a log.
///
/// # Errors
/// The store's. A manifest that can't be read is told of in the answer.
pub fn usage(log: &Log) -> Result<Usage> {
    let (root, state) = (log.root(), log.state());
    let survey = Survey::read(root, state, Foreign::Count)?;
    let mut usage = Usage { log: survey.log, ..Usage::default() };
    for it in &survey.foreign {
        let bulk = it.bulk.unwrap_or_default();
        usage.foreign.push(FolderUsage { folder: it.name.clone(), bulk });
        usage.unreadable.extend(it.unreadable.clone().map(|why| (it.name.clone(), why)));
    }
    survey.probes.iter().chain(&survey.others).for_each(|object| usage.others.add(object.size));
    survey.unfinished.iter().for_each(|file| usage.unfinished.add(file.bytes));
    let mut users = Users::new();
    let mut by_seq: BTreeMap<Seq, CheckpointUsage> = BTreeMap::new();
    for (&seq, checkpoint) in &state.checkpoints {
        match references(root, checkpoint) {
            Ok(names) => {
                for name in names {
                    users.entry(name).or_default().insert(seq);
                }
            }
            Err(error) => usage.unread.push((seq, error.to_string())),
        }
        let (run, step) = (checkpoint.run.clone(), checkpoint.step);
        let (own, shared) = Default::default();
        by_seq.insert(seq, CheckpointUsage { seq, run, step, own, shared, freed: 0 });
    }
    for (name, folder, standing) in survey.standings(state) {
        folder.unfinished.iter().for_each(|file| usage.unfinished.add(file.bytes));
        let listed = FolderUsage { folder: name.to_owned(), bulk: folder.bulk() };
        match standing {
            Standing::Needed(by) => needed(folder, &by, &users, &mut by_seq, &mut usage, name, log),
            Standing::Retired(_) => usage.retired.push(listed),
            Standing::Condemned(_) => usage.condemned.push(listed),
            Standing::Unnamed if folder.is_attempt(name) => usage.uncommitted.push(listed),
            Standing::Unnamed => usage.foreign.push(listed),
        }
    }
    usage.checkpoints = by_seq.into_values().collect();
    usage.total = survey.total();
    Ok(usage)
}

/// Counts the objects of a folder that checkpoints need.
fn needed(
    folder: &Folder,
    by: &[Seq],
    users: &Users,
    by_seq: &mut BTreeMap<Seq, CheckpointUsage>,
    usage: &mut Usage,
    name: &str,
    log: &Log,
) {
    if let [only] = by
        && let Some(checkpoint) = by_seq.get_mut(only)
    {
        checkpoint.freed = checkpoint.freed.saturating_add(folder.bulk().bytes);
    }
    // Notes of writers belong to the checkpoint that they wrote; so does everything of one whose manifest can't be read.
    let owner = by.iter().find(|seq| {
        log.state().checkpoints.get(seq).is_some_and(|checkpoint| checkpoint.attempt.as_str() == name)
    });
    let unread = by.iter().find(|seq| usage.unread.iter().any(|(it, _)| it == *seq));
    for object in &folder.objects {
        let of = users.get(object.path.as_ref());
        let parts = object.path.as_ref().strip_prefix(name).is_some_and(|rest| rest.starts_with("/parts/"));
        match of.map(|of| (of.len(), of)) {
            Some((1, of)) => of.iter().for_each(|seq| {
                by_seq.entry(*seq).and_modify(|it| it.own.add(object.size));
            }),
            Some((_, of)) => {
                usage.shared.add(object.size);
                of.iter().for_each(|seq| {
                    by_seq.entry(*seq).and_modify(|it| it.shared.add(object.size));
                });
            }
            None => match owner.filter(|_| parts).or(unread) {
                Some(seq) => drop(by_seq.entry(*seq).and_modify(|it| it.own.add(object.size))),
                None => usage.unreferenced.add(object.size),
            },
        }
    }
}

/// The objects that a checkpoint refers to: its manifest, and the files and block tables that this names in the root.
fn references(root: &Root, checkpoint: &Checkpoint) -> Result<BTreeSet<String>> {
    let path = checkpoint.manifest.path(&checkpoint.attempt);
    let (bytes, _) = root.get_at_most(&path, checkpoint.manifest.size)?;
    let manifest = Manifest::decode(&bytes, &checkpoint.manifest.sha256)?;
    let mut names = BTreeSet::from([path.as_ref().to_owned()]);
    let attempt = &checkpoint.attempt;
    for file in &manifest.catalog.files {
        let blocks = file.blocks.as_ref().map(|blocks| blocks.path.as_str());
        match file.location {
            Location::InStep => names.extend(
                [Some(file.path.as_str()), blocks].into_iter().flatten().map(|it| format!("{attempt}/{it}")),
            ),
            Location::InRoot => {
                names.extend([Some(file.path.as_str()), blocks].into_iter().flatten().map(str::to_owned));
            }
            Location::External { .. } => names.extend(blocks.map(|it| format!("{attempt}/{it}"))),
        }
    }
    Ok(names)
}
