//! Mutations: what the store would do if one of its syncs were missing, or two of its steps were swapped.
//!
//! They are made where the store meets the file system, and nowhere in the store: [`Mutated`] leaves an operation out, or holds it back until
//! another one is done. So the store believes that it did everything, and the crash finds what it did.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use dcp::store::{DirEntry, FileStat, Fs, FsFile, sim::SimFs};

use super::scenario::Scenario;

/// Kinds of objects of a native store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    Blob,
    Table,
    Part,
    Manifest,
    Record,
}

/// Kinds of directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dir {
    /// `commits/`
    Commits,
    /// The folder of an attempt.
    Attempt,
    /// `data/`, `blocks/`, `parts/` in it.
    Inner,
}

/// What is done wrongly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// Objects of a kind are not synced.
    NoFileSync(Kind),
    /// The directory is not synced once such an object has its name.
    NoNameSync(Kind),
    /// The directory above is not synced once such a directory was made.
    NoDirSync(Dir),
    /// What is found there, and perhaps not durable, is not made so.
    NoSettle(Kind),
    /// An object gets its name before it is synced.
    NameBeforeSync(Kind),
    /// Objects of the first kind are synced only once one of the second has its name, durably.
    SyncAfter(Kind, Kind),
    /// Objects of the first kind get their names only once one of the second has its own, durably.
    NameAfter(Kind, Kind),
    /// Directories are deleted before the record that condemns them is there.
    DeleteBeforeCondemn,
}

impl fmt::Display for Mutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |it: &Kind| format!("{it:?}").to_lowercase();
        match self {
            Self::NoFileSync(kind) => write!(f, "no fsync of the {}", of(kind)),
            Self::NoNameSync(kind) => write!(f, "no fsync of the {}'s directory", of(kind)),
            Self::NoDirSync(dir) => {
                let made = match dir {
                    Dir::Commits => "commits/",
                    Dir::Attempt => "a new attempt's folder",
                    Dir::Inner => "a new folder in an attempt's",
                };
                write!(f, "no fsync of the directory above {made}")
            }
            Self::NoSettle(kind) => write!(f, "a {} that was found is not made durable", of(kind)),
            Self::NameBeforeSync(kind) => write!(f, "the {} is named before it is synced", of(kind)),
            Self::SyncAfter(kind, other) => write!(f, "the {} is synced after the {}", of(kind), of(other)),
            Self::NameAfter(kind, other) => write!(f, "the {} before the {}", of(other), of(kind)),
            Self::DeleteBeforeCondemn => f.write_str("deleting before condemning"),
        }
    }
}

impl Mutation {
    /// The scenario that is likely to find it: tried first.
    pub(crate) const fn likely(self) -> Scenario {
        match self {
            Self::NoSettle(Kind::Table) => Scenario::SealContinued,
            Self::NoSettle(Kind::Part | Kind::Record) => Scenario::Continued,
            Self::DeleteBeforeCondemn => Scenario::Forget,
            Self::NoSettle(Kind::Manifest) | Self::NameBeforeSync(Kind::Blob | Kind::Table) => Scenario::Puts,
            _ => Scenario::Save,
        }
    }

    /// All of them.
    pub(crate) fn all() -> Vec<Self> {
        use Kind::{Blob, Manifest, Part, Record, Table};
        let kinds = [Blob, Table, Part, Manifest, Record];
        let mut all = Vec::new();
        all.extend(kinds.map(Self::NoFileSync));
        all.extend(kinds.map(Self::NoNameSync));
        all.extend([Dir::Commits, Dir::Attempt, Dir::Inner].map(Self::NoDirSync));
        all.extend([Table, Part, Manifest, Record].map(Self::NoSettle));
        all.extend(kinds.map(Self::NameBeforeSync));
        all.extend([
            Self::SyncAfter(Blob, Part),
            Self::SyncAfter(Blob, Manifest),
            Self::SyncAfter(Manifest, Record),
        ]);
        all.extend([
            Self::NameAfter(Blob, Part),
            Self::NameAfter(Table, Part),
            Self::NameAfter(Manifest, Record),
        ]);
        all.push(Self::DeleteBeforeCondemn);
        all
    }
}

/// The kind of an object, by its directory: unfinished files lie where the finished ones will.
fn kind_of(path: &str) -> Option<Kind> {
    let dir = above(path);
    match dir.rsplit('/').next()? {
        "data" => Some(Kind::Blob),
        "blocks" => Some(Kind::Table),
        "parts" => Some(Kind::Part),
        "commits" => Some(Kind::Record),
        attempt if attempt.starts_with("step-") => Some(Kind::Manifest),
        _ => None,
    }
}

fn dir_of(path: &str) -> Dir {
    match path {
        "commits" => Dir::Commits,
        inner if inner.contains('/') => Dir::Inner,
        _ => Dir::Attempt,
    }
}

fn above(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(dir, _)| dir)
}

/// The file system as one process of a wrong store uses it.
#[derive(Debug, Clone)]
pub(crate) struct Mutated {
    fs: SimFs,
    mutation: Option<Mutation>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// Directories with a name whose sync is still to come, and the kind of it.
    named: BTreeMap<String, Kind>,
    /// A directory that was made just now.
    made: Option<String>,
    /// Whether the syncs that come are those of settling something of the mutation's kind.
    settling: bool,
    /// Files whose sync is held back, by the name they had.
    unsynced: BTreeMap<String, Arc<dyn FsFile>>,
    /// Names that are held back: the one to come, and the one that the file has.
    unnamed: BTreeMap<String, String>,
    /// Names of unfinished files that had to stay.
    kept: BTreeSet<String>,
}

impl Mutated {
    pub(crate) fn new(fs: SimFs, mutation: Option<Mutation>) -> Self {
        Self { fs, mutation, state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a name that is held back can be found meanwhile.
    fn found(&self, path: &str) -> String {
        self.state().unnamed.get(path).cloned().unwrap_or_else(|| path.to_owned())
    }

    fn holds_name(&self, from: &str, to: &str) -> io::Result<bool> {
        match self.mutation {
            Some(Mutation::NameAfter(kind, _)) => Ok(kind_of(to) == Some(kind)),
            Some(Mutation::DeleteBeforeCondemn) if kind_of(to) == Some(Kind::Record) => {
                let file = self.fs.open(from)?;
                let mut bytes = vec![0; usize::try_from(file.stat()?.size).unwrap_or(0)];
                file.read_at(&mut bytes, 0)?;
                Ok(String::from_utf8_lossy(&bytes).contains("\"condemn\""))
            }
            _ => Ok(false),
        }
    }

    /// Does what was held back.
    fn release(&self) -> io::Result<()> {
        let (unsynced, unnamed) = {
            let mut state = self.state();
            (std::mem::take(&mut state.unsynced), std::mem::take(&mut state.unnamed))
        };
        for file in unsynced.values() {
            file.fsync()?;
        }
        for (to, from) in &unnamed {
            self.fs.link(from, to)?;
            if self.state().kept.remove(from) {
                self.fs.unlink(from)?;
            }
            self.fs.fsync_dir(above(to))?;
        }
        Ok(())
    }

    /// Whether a sync of a directory is left out.
    fn leaves_out(&self, path: &str) -> bool {
        let mut state = self.state();
        let (named, made) = (state.named.get(path).copied(), state.made.take());
        let settling = state.settling;
        state.settling &= !path.is_empty();
        match self.mutation {
            Some(Mutation::NoNameSync(kind)) => named == Some(kind),
            Some(Mutation::NoDirSync(dir)) => made.is_some_and(|it| above(&it) == path && dir_of(&it) == dir),
            Some(Mutation::NoSettle(_)) => settling,
            _ => state.unnamed.keys().any(|to| above(to) == path),
        }
    }

    fn wrapped(&self, path: &str, file: Arc<dyn FsFile>, is_new: bool) -> Arc<dyn FsFile> {
        Arc::new(MutatedFile { fs: self.clone(), path: path.to_owned(), file, is_new })
    }
}

impl Fs for Mutated {
    fn open(&self, path: &str) -> io::Result<Arc<dyn FsFile>> {
        self.fs.open(&self.found(path)).map(|file| self.wrapped(path, file, false))
    }

    fn create_new(&self, path: &str) -> io::Result<Arc<dyn FsFile>> {
        self.fs.create_new(path).map(|file| self.wrapped(path, file, true))
    }

    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        if self.holds_name(from, to)? {
            self.state().unnamed.insert(to.to_owned(), from.to_owned());
            return Ok(());
        }
        self.fs.link(from, to)?;
        if let Some(Mutation::NameBeforeSync(_)) = self.mutation
            && let Some(file) = { self.state().unsynced.remove(from) }
        {
            file.fsync()?;
        }
        if let Some(kind) = kind_of(to) {
            self.state().named.insert(above(to).to_owned(), kind);
        }
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.fs.rename(from, to)
    }

    fn unlink(&self, path: &str) -> io::Result<()> {
        let held = { self.state().unnamed.values().any(|from| from == path) };
        if held {
            self.state().kept.insert(path.to_owned());
            return Ok(());
        }
        self.fs.unlink(path)
    }

    fn mkdir(&self, path: &str) -> io::Result<()> {
        let made = self.fs.mkdir(path);
        self.state().made = Some(path.to_owned());
        made
    }

    fn rmdir(&self, path: &str) -> io::Result<()> {
        self.fs.rmdir(path)?;
        if self.mutation == Some(Mutation::DeleteBeforeCondemn) && !path.contains('/') {
            self.release()
        } else {
            Ok(())
        }
    }

    fn fsync_dir(&self, path: &str) -> io::Result<()> {
        if self.leaves_out(path) {
            self.state().named.remove(path);
            return Ok(());
        }
        self.fs.fsync_dir(path)?;
        let named = self.state().named.remove(path);
        match self.mutation {
            Some(Mutation::SyncAfter(_, until) | Mutation::NameAfter(_, until)) if named == Some(until) => {
                self.release()
            }
            _ => Ok(()),
        }
    }

    fn read_dir(&self, path: &str) -> io::Result<Vec<DirEntry>> {
        self.fs.read_dir(path)
    }

    fn stat(&self, path: &str) -> io::Result<FileStat> {
        self.fs.stat(&self.found(path))
    }
}

#[derive(Debug)]
struct MutatedFile {
    fs: Mutated,
    path: String,
    file: Arc<dyn FsFile>,
    /// Whether this process made it.
    is_new: bool,
}

impl FsFile for MutatedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<usize> {
        self.file.write_at(data, offset)
    }

    fn reserve(&self, size: u64) -> io::Result<()> {
        self.file.reserve(size)
    }

    fn fsync(&self) -> io::Result<()> {
        let kind = kind_of(&self.path);
        match self.fs.mutation {
            Some(Mutation::NoFileSync(it)) if kind == Some(it) && self.is_new => Ok(()),
            Some(Mutation::NoSettle(it)) if kind == Some(it) && !self.is_new => {
                self.fs.state().settling = true;
                Ok(())
            }
            Some(Mutation::NameBeforeSync(it) | Mutation::SyncAfter(it, _))
                if kind == Some(it) && self.is_new =>
            {
                self.fs.state().unsynced.insert(self.path.clone(), Arc::clone(&self.file));
                Ok(())
            }
            _ => self.file.fsync(),
        }
    }

    fn stat(&self) -> io::Result<FileStat> {
        self.file.stat()
    }
}
