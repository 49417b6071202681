//! [`SimFs`]: the file system while it runs. What was done is seen at once by everybody, as on any machine that has not crashed.

use std::{
    collections::BTreeMap,
    fmt, io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use rustix::io::Errno;

use super::super::fs::{DirEntry, FileKind, FileStat, Fs, FsFile};
use super::journal::{Ino, Op};
use super::tree::{Content, Node, Tree};
use super::turns::{Turn, Turns};

/// The time at which counting begins, in seconds since 1970.
const BEGIN: u64 = 1_700_000_000;

/// A file system in memory, as one process has it. Handles of other processes come from [`Self::process`].
#[derive(Debug, Clone)]
pub struct SimFs {
    live: Arc<Mutex<Live>>,
    turn: Option<Arc<Turn>>,
    /// Changes that this process may still make before it is killed.
    left: Option<Arc<AtomicU64>>,
}

#[derive(Debug)]
struct Live {
    inodes: Vec<Inode>,
    journal: Vec<Op>,
    /// Changes so far: the clock.
    changes: u64,
}

#[derive(Debug)]
enum Inode {
    File { data: Vec<u8>, modified: u64, links: u64 },
    Dir(BTreeMap<Arc<str>, Ino>),
}

impl Default for SimFs {
    fn default() -> Self {
        Self::new()
    }
}

impl SimFs {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        let inodes = vec![Inode::Dir(BTreeMap::new())];
        let live = Live { inodes, journal: Vec::new(), changes: 0 };
        Self { live: Arc::new(Mutex::new(live)), turn: None, left: None }
    }

    /// What a crash left, mounted again: all of it is durable, and the journal is empty.
    #[must_use]
    pub fn mount(tree: &Tree) -> Self {
        let fs = Self::new();
        {
            let mut live = fs.lock();
            let mut known = BTreeMap::new();
            for (path, node) in tree.iter() {
                live.place(path, node, &mut known);
            }
        }
        fs
    }

    /// The same file system as another process has it, which acts when it is its turn.
    #[must_use]
    pub fn process(&self, turns: &Turns, process: usize) -> Self {
        Self { live: Arc::clone(&self.live), turn: Some(Arc::new(turns.process(process))), left: None }
    }

    /// The same file system as a process has it that is killed (not the machine: nothing is lost) before its `changes + 1`st change:
    /// from then on every call of it fails, and does nothing.
    #[must_use]
    pub fn killed_after(&self, changes: u64) -> Self {
        Self { left: Some(Arc::new(AtomicU64::new(changes))), ..self.clone() }
    }

    /// Whether this process was killed.
    #[must_use]
    pub fn is_killed(&self) -> bool {
        self.left.as_ref().is_some_and(|left| left.load(Ordering::Relaxed) == 0)
    }

    /// How many operations were done.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.lock().journal.len()
    }

    /// What was done so far.
    #[must_use]
    pub fn journal(&self) -> Vec<Op> {
        self.lock().journal.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call that changes nothing.
    fn look<T>(&self, look: impl FnOnce(&Live) -> io::Result<T>) -> io::Result<T> {
        self.wait(false);
        if self.is_killed() {
            return Err(killed());
        }
        look(&self.lock())
    }

    /// A call that changes something, or makes it durable.
    fn change<T>(&self, sync: bool, change: impl FnOnce(&mut Live) -> io::Result<T>) -> io::Result<T> {
        self.wait(sync);
        if self.is_killed() {
            return Err(killed());
        }
        let done = change(&mut self.lock())?;
        if let Some(left) = &self.left {
            left.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(done)
    }

    fn wait(&self, sync: bool) {
        if let Some(turn) = &self.turn {
            turn.take(sync);
        }
    }

    fn file(&self, ino: Ino) -> Arc<dyn FsFile> {
        Arc::new(SimFile { fs: self.clone(), ino })
    }
}

fn killed() -> io::Error {
    io::Error::other("this process was killed")
}

impl Live {
    fn inode(&self, ino: Ino) -> io::Result<&Inode> {
        usize::try_from(ino.0).ok().and_then(|at| self.inodes.get(at)).ok_or_else(|| Errno::IO.into())
    }

    fn inode_mut(&mut self, ino: Ino) -> io::Result<&mut Inode> {
        usize::try_from(ino.0).ok().and_then(|at| self.inodes.get_mut(at)).ok_or_else(|| Errno::IO.into())
    }

    fn add(&mut self, inode: Inode) -> io::Result<Ino> {
        let ino = Ino(u32::try_from(self.inodes.len()).map_err(|_| Errno::NOSPC)?);
        self.inodes.push(inode);
        Ok(ino)
    }

    fn done(&mut self, op: Op) {
        self.changes += 1;
        self.journal.push(op);
    }

    fn entries(&self, dir: Ino) -> io::Result<&BTreeMap<Arc<str>, Ino>> {
        match self.inode(dir)? {
            Inode::Dir(entries) => Ok(entries),
            Inode::File { .. } => Err(Errno::NOTDIR.into()),
        }
    }

    fn entries_mut(&mut self, dir: Ino) -> io::Result<&mut BTreeMap<Arc<str>, Ino>> {
        match self.inode_mut(dir)? {
            Inode::Dir(entries) => Ok(entries),
            Inode::File { .. } => Err(Errno::NOTDIR.into()),
        }
    }

    fn find(&self, path: &str) -> io::Result<Ino> {
        let mut at = Ino::ROOT;
        for segment in path.split('/').filter(|segment| !segment.is_empty()) {
            at = *self.entries(at)?.get(segment).ok_or(Errno::NOENT)?;
        }
        Ok(at)
    }

    /// The directory of a name, and its last segment.
    fn parent<'p>(&self, path: &'p str) -> io::Result<(Ino, &'p str)> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = self.find(dir)?;
        self.entries(dir)?;
        Ok((dir, name))
    }

    /// A name that is free.
    fn free<'p>(&self, path: &'p str) -> io::Result<(Ino, &'p str)> {
        let (dir, name) = self.parent(path)?;
        if self.entries(dir)?.contains_key(name) { Err(Errno::EXIST.into()) } else { Ok((dir, name)) }
    }

    fn name(&mut self, dir: Ino, name: &str, ino: Ino) -> io::Result<Arc<str>> {
        let name: Arc<str> = name.into();
        self.entries_mut(dir)?.insert(Arc::clone(&name), ino);
        Ok(name)
    }

    fn count_links(&mut self, file: Ino, by: i64) -> io::Result<()> {
        if let Inode::File { links, .. } = self.inode_mut(file)? {
            *links = links.saturating_add_signed(by);
        }
        Ok(())
    }

    /// The file of that name; a directory is an error.
    fn file(&self, path: &str, otherwise: Errno) -> io::Result<Ino> {
        let ino = self.find(path)?;
        match self.inode(ino)? {
            Inode::File { .. } => Ok(ino),
            Inode::Dir(_) => Err(otherwise.into()),
        }
    }

    fn stat(&self, ino: Ino) -> io::Result<FileStat> {
        let (kind, size, modified, links) = match self.inode(ino)? {
            Inode::File { data, modified, links } => (FileKind::File, data.len() as u64, *modified, *links),
            Inode::Dir(_) => (FileKind::Dir, 0, 0, 1),
        };
        let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(BEGIN) + Duration::from_millis(modified);
        Ok(FileStat { kind, size, modified, inode: u64::from(ino.0), links })
    }

    fn written(&mut self, file: Ino) -> io::Result<(&mut Vec<u8>, &mut u64)> {
        match self.inode_mut(file)? {
            Inode::File { data, modified, .. } => Ok((data, modified)),
            Inode::Dir(_) => Err(Errno::ISDIR.into()),
        }
    }

    /// Puts a name of a tree in its place. A name whose directory is not there would be one that nobody can reach.
    fn place(&mut self, path: &str, node: &Node, known: &mut BTreeMap<Ino, Ino>) {
        let Ok((dir, name)) = self.free(path) else { return };
        let placed = match node {
            Node::Dir => self.add(Inode::Dir(BTreeMap::new())),
            Node::File(file, content, modified) => match known.get(file) {
                Some(ino) => Ok(*ino),
                None => self.add(file_of(content, *modified)),
            },
        };
        let Ok(ino) = placed else { return };
        if let Node::File(file, _, modified) = node {
            known.insert(*file, ino);
            self.changes = self.changes.max(*modified);
        }
        drop(self.count_links(ino, 1));
        drop(self.name(dir, name, ino));
    }
}

fn file_of(content: &Content, modified: u64) -> Inode {
    Inode::File { data: content.bytes().to_vec(), modified, links: 0 }
}

impl Fs for SimFs {
    fn open(&self, path: &str) -> io::Result<Arc<dyn FsFile>> {
        self.look(|live| live.file(path, Errno::NOENT)).map(|ino| self.file(ino))
    }

    fn create_new(&self, path: &str) -> io::Result<Arc<dyn FsFile>> {
        let made = self.change(false, |live| {
            let (dir, name) = live.free(path)?;
            let modified = live.changes;
            let file = live.add(Inode::File { data: Vec::new(), modified, links: 1 })?;
            let name = live.name(dir, name, file)?;
            live.done(Op::Create { dir, name, file });
            Ok(file)
        })?;
        Ok(self.file(made))
    }

    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        self.change(false, |live| {
            let file = live.file(from, Errno::PERM)?;
            let (dir, name) = live.free(to)?;
            let name = live.name(dir, name, file)?;
            live.count_links(file, 1)?;
            live.done(Op::Link { dir, name, file });
            Ok(())
        })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.change(false, |live| {
            let file = live.file(from, Errno::OPNOTSUPP)?;
            let ((from_dir, from), (to_dir, to)) = (live.parent(from)?, live.parent(to)?);
            if let Some(replaced) = live.entries(to_dir)?.get(to).copied() {
                if replaced == file {
                    return Ok(());
                }
                live.count_links(replaced, -1)?;
            }
            let from_name = live.entries_mut(from_dir)?.remove_entry(from).ok_or(Errno::NOENT)?.0;
            let to_name = live.name(to_dir, to, file)?;
            live.done(Op::Rename { from: (from_dir, from_name), to: (to_dir, to_name), file });
            Ok(())
        })
    }

    fn unlink(&self, path: &str) -> io::Result<()> {
        self.change(false, |live| {
            let file = live.file(path, Errno::ISDIR)?;
            let (dir, name) = live.parent(path)?;
            let name = live.entries_mut(dir)?.remove_entry(name).ok_or(Errno::NOENT)?.0;
            live.count_links(file, -1)?;
            live.done(Op::Unlink { dir, name });
            Ok(())
        })
    }

    fn mkdir(&self, path: &str) -> io::Result<()> {
        self.change(false, |live| {
            let (dir, name) = live.free(path)?;
            let made = live.add(Inode::Dir(BTreeMap::new()))?;
            let name = live.name(dir, name, made)?;
            live.done(Op::Mkdir { dir, name, made });
            Ok(())
        })
    }

    fn rmdir(&self, path: &str) -> io::Result<()> {
        self.change(false, |live| {
            let ino = live.find(path)?;
            if ino == Ino::ROOT || !live.entries(ino)?.is_empty() {
                return Err(Errno::NOTEMPTY.into());
            }
            let (dir, name) = live.parent(path)?;
            let name = live.entries_mut(dir)?.remove_entry(name).ok_or(Errno::NOENT)?.0;
            live.done(Op::Rmdir { dir, name });
            Ok(())
        })
    }

    fn fsync_dir(&self, path: &str) -> io::Result<()> {
        self.change(true, |live| {
            let dir = live.find(path)?;
            live.entries(dir)?;
            live.done(Op::SyncDir { dir });
            Ok(())
        })
    }

    fn read_dir(&self, path: &str) -> io::Result<Vec<DirEntry>> {
        self.look(|live| {
            let entries = live.entries(live.find(path)?)?;
            let each = entries.iter().map(|(name, ino)| {
                let kind =
                    if matches!(live.inode(*ino)?, Inode::Dir(_)) { FileKind::Dir } else { FileKind::File };
                Ok(DirEntry { name: name.to_string(), kind })
            });
            each.collect()
        })
    }

    fn stat(&self, path: &str) -> io::Result<FileStat> {
        self.look(|live| live.stat(live.find(path)?))
    }
}

/// An open file.
struct SimFile {
    fs: SimFs,
    ino: Ino,
}

impl fmt::Debug for SimFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SimFile").field(&self.ino).finish()
    }
}

impl FsFile for SimFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.fs.look(|live| {
            let Inode::File { data, .. } = live.inode(self.ino)? else { return Err(Errno::ISDIR.into()) };
            let rest = usize::try_from(offset).ok().and_then(|at| data.get(at..)).unwrap_or_default();
            let n = rest.len().min(buf.len());
            buf.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
            Ok(n)
        })
    }

    fn write_at(&self, written: &[u8], offset: u64) -> io::Result<usize> {
        self.fs.change(false, |live| {
            let now = live.changes;
            let (data, modified) = live.written(self.ino)?;
            overwrite(data, offset, written)?;
            *modified = now;
            live.done(Op::Write { file: self.ino, offset, data: written.into() });
            Ok(written.len())
        })
    }

    fn reserve(&self, size: u64) -> io::Result<()> {
        self.fs.change(false, |live| {
            let (data, _) = live.written(self.ino)?;
            lengthen(data, size)?;
            live.done(Op::Reserve { file: self.ino, size });
            Ok(())
        })
    }

    fn fsync(&self) -> io::Result<()> {
        self.fs.change(true, |live| {
            live.done(Op::SyncFile { file: self.ino });
            Ok(())
        })
    }

    fn stat(&self) -> io::Result<FileStat> {
        self.fs.look(|live| live.stat(self.ino))
    }
}

/// Makes a file so long at least, with zeros.
pub(super) fn lengthen(data: &mut Vec<u8>, size: u64) -> io::Result<()> {
    let size = usize::try_from(size).map_err(|_| Errno::FBIG)?;
    if data.len() < size {
        data.resize(size, 0);
    }
    Ok(())
}

/// Writes bytes at an offset; a gap before it is zeros.
pub(super) fn overwrite(data: &mut Vec<u8>, offset: u64, written: &[u8]) -> io::Result<()> {
    let end = offset.checked_add(written.len() as u64).ok_or(Errno::FBIG)?;
    lengthen(data, end)?;
    let start = usize::try_from(offset).map_err(|_| Errno::FBIG)?;
    data.iter_mut().skip(start).zip(written).for_each(|(to, from)| *to = *from);
    Ok(())
}
