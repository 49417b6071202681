//! [`Disk`]: what is durable at some moment, and what is pending; and the states that a crash may make of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::choice::{Choice, Picks};
use super::content::{Change, FileSlot, VARIANTS};
use super::journal::{Ino, Op};
use super::tree::{Node, Tree, is_unfinished};
use super::turns::mixed;

/// A name in a directory.
pub(super) type Key = (Ino, Arc<str>);

/// One name: what it stands for durably, and what it has stood for since, with the operation that made it so.
#[derive(Debug, Clone, Default)]
pub(super) struct Slot {
    pub(super) durable: Option<Ino>,
    pub(super) pending: Vec<(usize, Option<Ino>)>,
}

/// What is durable after some operations, and what is pending. See the module for what a crash may make of it.
#[derive(Debug, Clone, Default)]
pub struct Disk {
    pub(super) names: BTreeMap<Key, Slot>,
    dirs: BTreeSet<Ino>,
    files: BTreeMap<Ino, FileSlot>,
    applied: usize,
}

impl Slot {
    /// What the name may stand for, each once: the place in the pending changes (0 for the durable value) that makes it so.
    pub(super) fn values(&self) -> Vec<usize> {
        let mut seen = BTreeSet::from([self.durable]);
        let later = self.pending.iter().enumerate().filter(|(_, (_, value))| seen.insert(*value));
        std::iter::once(0).chain(later.map(|(at, _)| at + 1)).collect()
    }

    fn value(&self, pick: usize) -> Option<Ino> {
        match pick.checked_sub(1) {
            None => self.durable,
            Some(at) => self.pending.get(at).map_or(self.durable, |(_, value)| *value),
        }
    }
}

impl Disk {
    /// A disk with nothing on it.
    #[must_use]
    pub fn new() -> Self {
        Self { dirs: BTreeSet::from([Ino::ROOT]), ..Self::default() }
    }

    /// The disk of what was mounted: all of it is durable. The inodes are those that [`super::SimFs::mount`] gives.
    #[must_use]
    pub fn of(tree: &Tree) -> Self {
        let (mut disk, mut paths, mut known) =
            (Self::new(), BTreeMap::from([("", Ino::ROOT)]), BTreeMap::new());
        let mut next = 1_u32;
        for (path, node) in tree.iter() {
            let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
            let Some(dir) = paths.get(dir).copied() else { continue };
            let mut fresh = || {
                next += 1;
                Ino(next - 1)
            };
            let ino = match node {
                Node::Dir => fresh(),
                Node::File(file, ..) => *known.entry(*file).or_insert_with(fresh),
            };
            match node {
                Node::Dir => drop((paths.insert(path, ino), disk.dirs.insert(ino))),
                Node::File(_, content, modified) => {
                    let slot =
                        FileSlot { durable: content.clone(), pending: Vec::new(), modified: *modified };
                    disk.files.insert(ino, slot);
                }
            }
            disk.names.insert((dir, name.into()), Slot { durable: Some(ino), pending: Vec::new() });
        }
        disk
    }

    /// Takes in the next operation.
    pub fn apply(&mut self, op: &Op) {
        self.applied += 1;
        let now = self.applied;
        let mut named = |dir: Ino, name: &Arc<str>, value: Option<Ino>| {
            self.names.entry((dir, Arc::clone(name))).or_default().pending.push((now, value));
        };
        match op {
            Op::Create { dir, name, file } => {
                named(*dir, name, Some(*file));
                self.files.insert(*file, FileSlot { modified: now as u64, ..FileSlot::default() });
            }
            Op::Link { dir, name, file } => named(*dir, name, Some(*file)),
            Op::Unlink { dir, name } | Op::Rmdir { dir, name } => named(*dir, name, None),
            Op::Rename { from, to, file } => {
                named(from.0, &from.1, None);
                named(to.0, &to.1, Some(*file));
            }
            Op::Mkdir { dir, name, made } => {
                named(*dir, name, Some(*made));
                self.dirs.insert(*made);
            }
            Op::Write { file, offset, data } => {
                self.changed(*file, Change::Write { offset: *offset, data: Arc::clone(data) });
            }
            Op::Reserve { file, size } => self.changed(*file, Change::Reserve(*size)),
            Op::SyncFile { file } => self.files.entry(*file).or_default().sync(),
            Op::SyncDir { dir } => self.sync_dir(*dir),
        }
    }

    fn changed(&mut self, file: Ino, change: Change) {
        let slot = self.files.entry(file).or_default();
        slot.pending.push(change);
        slot.modified = self.applied as u64;
    }

    fn sync_dir(&mut self, dir: Ino) {
        self.names.retain(|(of, _), slot| {
            if *of == dir
                && let Some((_, value)) = slot.pending.last()
            {
                slot.durable = *value;
                slot.pending.clear();
            }
            slot.durable.is_some() || !slot.pending.is_empty()
        });
    }

    /// The names with pending changes.
    pub(super) fn pending_names(&self) -> Vec<(&Key, &Slot)> {
        self.names.iter().filter(|(_, slot)| !slot.pending.is_empty()).collect()
    }

    /// The files with pending changes that may be found under a name which is not that of an unfinished file.
    pub(super) fn pending_files(&self) -> Vec<Ino> {
        let is_pending = |ino: &Ino| self.files.get(ino).is_some_and(|slot| !slot.pending.is_empty());
        let named = self.names.iter().filter(|((_, name), _)| !is_unfinished(name));
        let values =
            named.flat_map(|(_, slot)| slot.pending.iter().filter_map(|it| it.1).chain(slot.durable));
        values.filter(is_pending).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// How many combinations of what may have become durable there are. Different ones may be the same state.
    #[must_use]
    pub fn combinations(&self) -> u64 {
        let names = self.pending_names().into_iter().map(|(_, slot)| slot.values().len() as u64);
        let files = self.pending_files().into_iter().map(|_| VARIANTS);
        names.chain(files).fold(1, u64::saturating_mul)
    }

    /// Which of them to look at: all, where they are at most so many; else the telling ones, and some that are drawn.
    #[must_use]
    pub fn choices(&self, most: u64, drawn: u64, seed: u64) -> Vec<Choice> {
        match self.combinations() {
            all if all <= most => (0..all).map(Choice::All).collect(),
            _ => {
                let corners = (0..Picks::corners(self)).map(Choice::Corner);
                corners.chain((0..drawn).map(|n| Choice::Drawn(mixed(seed ^ mixed(n))))).collect()
            }
        }
    }

    /// The state that a choice leaves.
    #[must_use]
    pub fn state(&self, choice: Choice) -> Tree {
        let picks = Picks::of(self, choice);
        let mut children: BTreeMap<Ino, Vec<(&str, Ino)>> = BTreeMap::new();
        for (key, slot) in &self.names {
            if let Some(ino) = slot.value(picks.name(key)) {
                children.entry(key.0).or_default().push((&key.1, ino));
            }
        }
        let (mut tree, mut ahead) = (BTreeMap::new(), vec![(String::new(), Ino::ROOT)]);
        while let Some((path, dir)) = ahead.pop() {
            for (name, ino) in children.get(&dir).into_iter().flatten() {
                let path = if path.is_empty() { (*name).to_owned() } else { format!("{path}/{name}") };
                if self.dirs.contains(ino) {
                    tree.insert(path.clone(), Node::Dir);
                    ahead.push((path, *ino));
                } else if let Some(slot) = self.files.get(ino) {
                    let node = Node::File(*ino, slot.content(picks.file(*ino)), slot.modified);
                    tree.insert(path, node);
                }
            }
        }
        Tree(tree)
    }
}
