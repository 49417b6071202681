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
    store::{FileKind, LocalStore, Node, ObjectInfo, ObjectPath, PROBE, Root},
};

/// The folder of the log.
const LOG: &str = "commits";

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

    /// Of these objects.
    fn of(objects: &[ObjectInfo]) -> Self {
        let mut bulk = Self::default();
        objects.iter().for_each(|object| bulk.add(object.size));
        bulk
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

impl Unfinished {
    fn of(node: Node) -> Self {
        Self { path: node.path, bytes: node.stat.size, modified: node.stat.modified }
    }
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
    /// No record names it: a save's that was not committed, or anything.
    Unnamed,
}

/// A folder right below the root that is somebody else's: it is not named as attempts are, and no record names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignFolder {
    /// Its name.
    pub name: String,
    /// What is in it; nothing where nobody looked.
    pub bulk: Option<Bulk>,
    /// Why it could not be looked into.
    pub unreadable: Option<String>,
}

/// What to do about the folders of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Foreign {
    /// Tell that they are there. A store that lists everything at once tells their sizes too.
    Name,
    /// Look into them as well; one that can't be read is told of.
    Count,
}

/// What lies in a root.
#[derive(Debug, Clone, Default)]
pub struct Survey {
    /// Folders that are named as attempts are, or that records name.
    pub folders: BTreeMap<String, Folder>,
    /// Folders of others.
    pub foreign: Vec<ForeignFolder>,
    /// The log, and the hint at its end.
    pub log: Bulk,
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
                    FileKind::File if node.unfinished => folder.unfinished.push(Unfinished::of(node)),
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
        Bulk::of(&self.objects)
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
    /// What lies in a root. Only what is the store's own is looked into, and what `foreign` says.
    ///
    /// # Errors
    /// The store's.
    pub fn read(root: &Root, state: &State, foreign: Foreign) -> Result<Self> {
        let (needs, mut survey) = (Needs::of(state), Self::default());
        let own = |name: &str| {
            let named = |dir: DirName| needs.standing(state, &dir) != Standing::Unnamed;
            is_attempt_name(name) || name.parse().is_ok_and(named)
        };
        match root.local() {
            Some(local) => survey.walk(root, local, &own, foreign)?,
            None => survey.split(root.list(None)?, &own),
        }
        Ok(survey)
    }

    /// A folder is walked part by part, so that what is somebody else's is not entered.
    fn walk(
        &mut self,
        root: &Root,
        local: &LocalStore,
        own: &dyn Fn(&str) -> bool,
        foreign: Foreign,
    ) -> Result<()> {
        let top = root.list_dir(None)?;
        top.objects.into_iter().for_each(|object| self.take_top(object));
        let log = ObjectPath::from(LOG);
        root.list(Some(&log))?.iter().for_each(|object| self.log.add(object.size));
        let around = local.level(None)?.into_iter().chain(local.tree(Some(&log))?);
        self.unfinished.extend(around.filter(|node| node.unfinished).map(Unfinished::of));
        for dir in top.dirs.iter().filter(|dir| dir.as_ref() != LOG) {
            let name = dir.as_ref().to_owned();
            if own(&name) {
                let folder = Folder::read(root, &name)?;
                self.folders.insert(name, folder);
                continue;
            }
            let looked = (foreign == Foreign::Count).then(|| root.list(Some(dir))).transpose();
            let (bulk, unreadable) = match looked {
                Ok(objects) => (objects.map(|objects| Bulk::of(&objects)), None),
                Err(error) => (None, Some(error.to_string())),
            };
            self.foreign.push(ForeignFolder { name, bulk, unreadable });
        }
        Ok(())
    }

    /// Other stores list everything at once.
    fn split(&mut self, objects: Vec<ObjectInfo>, own: &dyn Fn(&str) -> bool) {
        let mut foreign: BTreeMap<String, Bulk> = BTreeMap::new();
        for object in objects {
            match object.path.as_ref().split_once('/') {
                Some((LOG, _)) => self.log.add(object.size),
                Some((dir, _)) if own(dir) => {
                    let dir = dir.to_owned();
                    let folder = self.folders.entry(dir.clone());
                    folder.or_insert_with(|| Folder { plain: true, ..Folder::default() }).take(&dir, object);
                }
                Some((dir, _)) => foreign.entry(dir.to_owned()).or_default().add(object.size),
                None => self.take_top(object),
            }
        }
        let each = foreign.into_iter();
        self.foreign.extend(each.map(|(name, bulk)| ForeignFolder {
            name,
            bulk: Some(bulk),
            unreadable: None,
        }));
    }

    fn take_top(&mut self, object: ObjectInfo) {
        let probe = object.path.as_ref().starts_with(PROBE);
        if probe { &mut self.probes } else { &mut self.others }.push(object);
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

    /// What the store lists of it, as far as it was looked into: unfinished files are no objects.
    #[must_use]
    pub fn total(&self) -> Bulk {
        let mut total = self.log;
        self.foreign.iter().filter_map(|it| it.bulk).for_each(|bulk| total.extend(bulk));
        self.probes.iter().chain(&self.others).for_each(|object| total.add(object.size));
        self.folders.values().for_each(|folder| total.extend(folder.bulk()));
        total
    }
}

/// Whether a root has a folder that a save made: so it is with one whose first save was stopped.
///
/// # Errors
/// The store's.
pub fn has_attempts(root: &Root) -> Result<bool> {
    for name in folder_names(root)?.iter().filter(|name| is_attempt_name(name)) {
        if Folder::read(root, name)?.is_attempt(name) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Folders right below a root, but that of the log.
///
/// # Errors
/// The store's.
pub(super) fn folder_names(root: &Root) -> Result<Vec<String>> {
    let listing = root.list_dir(None)?;
    let names = listing.dirs.iter().map(|dir| dir.as_ref().to_owned());
    Ok(names.filter(|name| name != LOG).collect())
}
