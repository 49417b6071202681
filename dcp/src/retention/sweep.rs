//! Single files that a stopped writer left behind: unfinished ones, and probes.
//!
//! Looked for right in the root, in the folder of the log, and in folders that checkpoints need. Any other folder goes as a whole or not at
//! all: a save that is spared keeps its unfinished files, and what is somebody else's is not entered.

use std::time::SystemTime;

use super::{collection::GcOptions, delete::Failures, survey::Bulk, times::Times};
use crate::{
    Result,
    commit::{DirName, Seq},
    store::{LocalStore, ObjectPath, PROBE, Root, StoreError},
};

/// A file that a stopped writer may have left.
#[derive(Debug)]
pub(super) struct Leftover {
    path: Left,
    bytes: u64,
    modified: SystemTime,
}

#[derive(Debug)]
enum Left {
    Unfinished(String),
    Probe(ObjectPath),
}

/// Finds them, whatever their age.
///
/// # Errors
/// The store's.
pub(super) fn leftovers<'d>(root: &Root, needed: impl Iterator<Item = &'d DirName>) -> Result<Vec<Leftover>> {
    let mut found = Vec::new();
    if let Some(local) = root.local() {
        let dirs = [Seq::dir()].into_iter().chain(needed.map(|dir| ObjectPath::from(dir.as_str())));
        let nodes = dirs.map(|dir| local.tree(Some(&dir))).chain([local.level(None)]);
        for nodes in nodes {
            let unfinished = nodes?.into_iter().filter(|node| node.unfinished);
            found.extend(unfinished.map(|node| Leftover {
                path: Left::Unfinished(node.path),
                bytes: node.stat.size,
                modified: node.stat.modified,
            }));
        }
    }
    let objects = root.list_dir(None)?.objects.into_iter();
    found.extend(objects.filter(|it| it.path.as_ref().starts_with(PROBE)).map(|it| Leftover {
        path: Left::Probe(it.path),
        bytes: it.size,
        modified: it.modified,
    }));
    Ok(found)
}

/// Removes those that nobody has written to for long.
///
/// # Errors
/// The store's, but those that `failures` takes.
pub(super) fn sweep(
    root: &Root,
    left: &[Leftover],
    options: &GcOptions,
    times: &Times,
    failures: &mut Failures<'_>,
) -> Result<Bulk> {
    let mut swept = Bulk::default();
    for it in left.iter().filter(|it| times.since(it.modified) >= options.orphans_after) {
        let removed = if options.dry_run { Ok(()) } else { remove(root, &it.path) };
        if failures.pass(removed)?.is_some() {
            swept.add(it.bytes);
        }
    }
    Ok(swept)
}

fn remove(root: &Root, left: &Left) -> Result<()> {
    let removed = match left {
        Left::Unfinished(path) => {
            root.local().map_or(Ok(()), |local: &LocalStore| local.remove_unfinished(path))
        }
        Left::Probe(path) => root.delete(path),
    };
    match removed {
        Ok(()) | Err(StoreError::NotFound { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
