//! [`Survey`]: what lies in a root, folder by folder, and what the log says of each.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::SystemTime,
};

use serde::Serialize;

use crate::{
    Result,
    commit::{DirName, Seq, State},
    formats::native::{is_attempt_name, is_attempt_object},
    manifest::manifest_digest,
    store::{FileKind, ObjectInfo, ObjectPath, PROBE, Root},
};

/// Folders of the store itself: the log, and hints that make it fast to read.
const RESERVED: [&str; 2] = ["commits", "heads"];

/// A number of objects, and their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Bulk {
    /// How many.
    pub objects: u64,
    /// Bytes of them.
    pub bytes: u64,
}

impl Bulk {
    /// Adds an object.
    pub const fn add(&mut self, bytes: u64) {
        self.objects += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Adds others.
    pub const fn extend(&mut self, other: Self) {
        self.objects += other.objects;
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// A folder right below the root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Folder {
    /// Its objects.
    pub objects: Vec<ObjectInfo>,
    /// Unfinished files in it, which only a local folder shows.
    pub unfinished: Vec<Unfinished>,
    /// When anything in it was last written, by the store.
    pub last_write: Option<SystemTime>,
    /// Whether it holds nothing but what an attempt holds.
    pub plain: bool,
}

/// A file that is being written, or whose writer was stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfinished {
    /// Its name below the root.
    pub path: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// When it was last written.
    pub modified: SystemTime,
}

/// What the log says of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Checkpoints need it.
    Needed(Vec<Seq>),
    /// Its checkpoint was retired, and nothing needs it.
    Retired(Seq),
    /// It was condemned by this record.
    Condemned(Seq),
    /// No record names it: the log's own, a save's that was not committed, or anything.
    Unnamed,
}

/// What lies in a root.
#[derive(Debug, Clone, Default)]
pub struct Survey {
    /// Folders, but those of the store itself.
    pub folders: BTreeMap<String, Folder>,
    /// The log.
    pub log: Bulk,
    /// Hints beside the log.
    pub hints: Bulk,
    /// Objects right in the root that ask the store something.
    pub probes: Vec<ObjectInfo>,
    /// Other objects right in the root.
    pub others: Vec<ObjectInfo>,
    /// Unfinished files that lie in none of the folders.
    pub unfinished: Vec<Unfinished>,
}

/// Who needs which folder: read once from a state.
#[derive(Debug, Clone, Default)]
pub(super) struct Needs<'s>(BTreeMap<&'s DirName, Vec<Seq>>);

impl<'s> Needs<'s> {
    pub(super) fn of(state: &'s State) -> Self {
        let mut needs: BTreeMap<&DirName, Vec<Seq>> = BTreeMap::new();
        for (seq, checkpoint) in &state.checkpoints {
            let dirs: BTreeSet<&DirName> =
                checkpoint.directories.iter().chain([&checkpoint.attempt]).collect();
            dirs.into_iter().for_each(|dir| needs.entry(dir).or_default().push(*seq));
        }
        Self(needs)
    }

    /// What the log says of a folder.
    pub(super) fn standing(&self, state: &State, dir: &DirName) -> Standing {
        if let Some(users) = self.0.get(dir) {
            return Standing::Needed(users.clone());
        }
        if let Some(seq) = state.condemned.get(dir) {
            return Standing::Condemned(*seq);
        }
        state.retired.get(dir).map_or(Standing::Unnamed, |seq| Standing::Retired(*seq))
    }
}

impl Folder {
    /// What is in one folder.
    ///
    /// # Errors
    /// The store's.
    pub fn read(root: &Root, dir: &str) -> Result<Self> {
        let prefix = ObjectPath::from(dir);
        let mut folder = Self { plain: true, ..Self::default() };
        for object in root.list(Some(&prefix))? {
            folder.take(dir, object);
        }
        if let Some(local) = root.local() {
            for node in local.tree(Some(&prefix))? {
                folder.wrote(node.stat.modified);
                match node.stat.kind {
                    FileKind::File if node.unfinished => folder.unfinished.push(Unfinished {
                        path: node.path,
                        bytes: node.stat.size,
                        modified: node.stat.modified,
                    }),
                    FileKind::File | FileKind::Dir => {}
                    FileKind::Symlink | FileKind::Other => folder.plain = false,
                }
            }
        }
        Ok(folder)
    }

    /// Whether it is what a save leaves that has no record: named and built as attempts are.
    #[must_use]
    pub fn is_attempt(&self, name: &str) -> bool {
        is_attempt_name(name) && self.plain
    }

    /// Whether there is a manifest in it.
    #[must_use]
    pub fn has_manifest(&self, name: &str) -> bool {
        let within = |object: &ObjectInfo| {
            let rest = object.path.as_ref().strip_prefix(name).and_then(|rest| rest.strip_prefix('/'));
            rest.is_some_and(|rest| manifest_digest(rest).is_some())
        };
        self.objects.iter().any(within)
    }

    /// Objects and their bytes, without unfinished files.
    #[must_use]
    pub fn bulk(&self) -> Bulk {
        let mut bulk = Bulk::default();
        self.objects.iter().for_each(|object| bulk.add(object.size));
        bulk
    }

    /// Bytes of everything in it.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.unfinished.iter().fold(self.bulk().bytes, |sum, file| sum.saturating_add(file.bytes))
    }

    fn take(&mut self, dir: &str, object: ObjectInfo) {
        self.wrote(object.modified);
        let within = object.path.as_ref().strip_prefix(dir).and_then(|rest| rest.strip_prefix('/'));
        self.plain &= within.is_some_and(is_attempt_object);
        self.objects.push(object);
    }

    fn wrote(&mut self, time: SystemTime) {
        self.last_write = self.last_write.max(Some(time));
    }
}

impl Survey {
    /// Lists a whole root.
    ///
    /// # Errors
    /// The store's.
    pub fn read(root: &Root) -> Result<Self> {
        let mut survey = Self::default();
        for object in root.list(None)? {
            survey.take(object);
        }
        if let Some(local) = root.local() {
            for node in local.tree(None)? {
                survey.take_node(node);
            }
        }
        Ok(survey)
    }

    fn take(&mut self, object: ObjectInfo) {
        let name = object.path.as_ref();
        match name.split_once('/') {
            Some(("commits", _)) => self.log.add(object.size),
            Some(("heads", _)) => self.hints.add(object.size),
            Some((dir, _)) => {
                let dir = dir.to_owned();
                self.folder(&dir).take(&dir, object);
            }
            None if name.starts_with(PROBE) => self.probes.push(object),
            None => self.others.push(object),
        }
    }

    fn take_node(&mut self, node: crate::store::Node) {
        let (top, below) = match node.path.split_once('/') {
            Some((top, _)) => (top.to_owned(), true),
            None => (node.path.clone(), node.stat.kind == FileKind::Dir),
        };
        let in_folder = below && !RESERVED.contains(&top.as_str());
        if node.unfinished {
            let (bytes, modified) = (node.stat.size, node.stat.modified);
            let file = Unfinished { path: node.path, bytes, modified };
            if in_folder { &mut self.folder(&top).unfinished } else { &mut self.unfinished }.push(file);
        }
        if in_folder {
            let folder = self.folder(&top);
            folder.wrote(node.stat.modified);
            folder.plain &= matches!(node.stat.kind, FileKind::File | FileKind::Dir);
        }
    }

    fn folder(&mut self, dir: &str) -> &mut Folder {
        self.folders.entry(dir.to_owned()).or_insert_with(|| Folder { plain: true, ..Folder::default() })
    }

    /// Whether there is a folder that a save made: so it is with a root whose first save was stopped.
    #[must_use]
    pub fn has_attempts(&self) -> bool {
        self.folders.iter().any(|(name, folder)| folder.is_attempt(name))
    }

    /// Each folder, and what a log says of it.
    pub fn standings<'v>(&'v self, state: &State) -> Vec<(&'v str, &'v Folder, Standing)> {
        let needs = Needs::of(state);
        let each = self.folders.iter().map(|(name, folder)| {
            let standing = name.parse().map_or(Standing::Unnamed, |dir: DirName| needs.standing(state, &dir));
            (name.as_str(), folder, standing)
        });
        each.collect()
    }

    /// What the store lists of it: unfinished files are no objects.
    #[must_use]
    pub fn total(&self) -> Bulk {
        let mut total = self.log;
        total.extend(self.hints);
        self.probes.iter().chain(&self.others).for_each(|object| total.add(object.size));
        self.folders.values().for_each(|folder| total.extend(folder.bulk()));
        total
    }
}

/// Folders right below a root that are not the store's own.
///
/// # Errors
/// The store's.
pub(super) fn folder_names(root: &Root) -> Result<Vec<String>> {
    let listing = root.list_dir(None)?;
    let names = listing.dirs.iter().map(|dir| dir.as_ref().to_owned());
    Ok(names.filter(|name| !RESERVED.contains(&name.as_str())).collect())
}
