//! Deleting a directory so that what is left of it, whenever that stops, is never taken for a checkpoint.
//!
//! ```text
//!  manifest-*.sqlite ─ durable ─► parts/ ─ durable ─► blocks/, data/, anything else, unfinished files, directories
//! ```
//!
//! Without its manifest no reader opens a directory as a checkpoint, so it can be neither sealed nor committed any more, wherever it was copied
//! to. Parts are next: they name blobs, and whoever goes on with a save believes them; so at no moment there is a part without its blob.

use super::survey::Bulk;
use crate::{
    Error, ErrorKind, Result,
    commit::{DirName, Seq},
    manifest::manifest_digest,
    store::{ObjectPath, Root, StoreError},
};

/// What a deletion did.
#[derive(Debug, Default)]
pub(super) struct Deleted {
    /// What is gone.
    pub(super) bulk: Bulk,
    /// Whether that is all of it: somebody may write into the directory at this moment. It stays condemned, and goes the next time.
    pub(super) whole: bool,
}

/// Deletes everything below a condemned directory, and the directory. What is gone already is no error.
///
/// # Errors
/// The store's, and what `watch` says, which is called before each object is deleted.
pub(super) fn delete(root: &Root, dir: &DirName, watch: &mut dyn FnMut() -> Result<()>) -> Result<Deleted> {
    let prefix = ObjectPath::from(dir.as_str());
    let mut objects = root.list(Some(&prefix))?;
    objects.sort_by_key(|object| rank(dir, &object.path));
    let mut bulk = Bulk::default();
    let mut phase = Rank::Manifest;
    for object in &objects {
        let next = rank(dir, &object.path);
        if next != phase {
            settle(root, dir, next)?;
            phase = next;
        }
        watch()?;
        match root.delete(&object.path) {
            Ok(()) => bulk.add(object.size),
            Err(StoreError::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let rest = remove_rest(root, &prefix)?;
    bulk.bytes = bulk.bytes.saturating_add(rest.unwrap_or_default());
    Ok(Deleted { bulk, whole: rest.is_some() })
}

/// What could not be deleted: it stops nothing else, and is told at the end.
#[derive(Debug)]
pub(super) struct Failures<'r> {
    root: &'r Root,
    first: Option<Error>,
}

impl<'r> Failures<'r> {
    pub(super) const fn of(root: &'r Root) -> Self {
        Self { root, first: None }
    }

    /// What was done; nothing where it failed, and others may not.
    ///
    /// # Errors
    /// What stops a collection; and what others would fail by as well, after as long a wait: failures of a store that answers nothing.
    pub(super) fn pass<T>(&mut self, done: Result<T>) -> Result<Option<T>> {
        match done {
            Ok(done) => Ok(Some(done)),
            Err(error) if self.is_about_one(&error) => {
                self.first.get_or_insert(error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn is_about_one(&self, error: &Error) -> bool {
        let stops = matches!(error.kind(), ErrorKind::Cancelled | ErrorKind::Internal);
        !stops && self.root.get_opt(&Seq::FIRST.path()).is_ok()
    }

    /// # Errors
    /// The first of them.
    pub(super) fn first(self) -> Result<()> {
        self.first.map_or(Ok(()), Err)
    }
}

/// When an object goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Manifest,
    Part,
    Rest,
}

fn rank(dir: &DirName, path: &ObjectPath) -> Rank {
    let within = path.as_ref().strip_prefix(dir.as_str()).and_then(|rest| rest.strip_prefix('/'));
    match within.unwrap_or_default() {
        name if manifest_digest(name).is_some() => Rank::Manifest,
        name if name.starts_with("parts/") => Rank::Part,
        _ => Rank::Rest,
    }
}

/// Makes durable that what goes before `next` is gone: a file system may confirm the removal of one name before that of an earlier one. An
/// earlier try may have removed it, so this does not depend on what was removed now.
fn settle(root: &Root, dir: &DirName, next: Rank) -> Result<()> {
    let Some(local) = root.local() else { return Ok(()) };
    local.settle_names(&ObjectPath::from(dir.as_str()))?;
    if next == Rank::Rest {
        local.settle_names(&ObjectPath::from(format!("{dir}/parts")))?;
    }
    Ok(())
}

/// Unfinished files, and directories; a store without directories has neither. Nothing where a directory was written into meanwhile.
fn remove_rest(root: &Root, prefix: &ObjectPath) -> Result<Option<u64>> {
    let Some(local) = root.local() else { return Ok(Some(0)) };
    match local.remove_all(prefix) {
        Err(StoreError::Io { source, .. })
            if source
                .downcast_ref::<std::io::Error>()
                .is_some_and(|error| error.kind() == std::io::ErrorKind::DirectoryNotEmpty) =>
        {
            Ok(None)
        }
        other => Ok(Some(other?)),
    }
}
