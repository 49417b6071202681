//! Stores whose clock a test turns: in memory, and a real folder. Their time has nothing to do with the machine's.

use std::{
    collections::HashMap,
    fmt, io,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream::BoxStream};
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, memory::InMemory,
};

use crate::store::{DirEntry, DiskFs, FileStat, Fs, FsFile, Links, LocalStore, ObjectPath, OsNonces, Root};

/// A clock that a test turns, and what else it does to a store.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hands {
    seconds: Arc<AtomicU64>,
    busy: Arc<AtomicBool>,
    /// What names begin with that nobody may delete.
    stuck: Arc<Mutex<Vec<&'static str>>>,
    /// Whether the store in memory answers nothing any more, and how often it was asked to delete something of a step since.
    away: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
}

/// A folder that nobody may look into.
pub(crate) const LOCKED: &str = "lost+found";

impl Hands {
    /// So many seconds from this machine's time.
    fn off(seconds: i64) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let seconds = Arc::new(AtomicU64::new(now.saturating_add_signed(seconds)));
        Self { seconds, ..Self::default() }
    }

    pub(crate) fn turn(&self, by: Duration) {
        self.seconds.fetch_add(by.as_secs(), Ordering::Relaxed);
    }

    /// The next directory that is removed is written into at this moment.
    pub(crate) fn write_into_the_next(&self) {
        self.busy.store(true, Ordering::Relaxed);
    }

    /// Nobody may delete what has a name that begins so.
    pub(crate) fn hold(&self, stuck: &[&'static str]) {
        *self.stuck.lock().unwrap() = stuck.to_vec();
    }

    /// From the next deletion of something of a step on, the store in memory answers nothing.
    pub(crate) fn leave(&self) {
        self.away.store(true, Ordering::Relaxed);
    }

    /// How often a store that answers nothing was asked to delete something of a step.
    pub(crate) fn asked_in_vain(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    fn holds(&self, path: &str) -> bool {
        self.stuck.lock().unwrap().iter().any(|start| path.starts_with(start))
    }

    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(self.seconds.load(Ordering::Relaxed))
    }
}

/// A root on a store with a clock of its own.
pub(crate) struct Stage {
    pub(crate) root: Root,
    pub(crate) hands: Hands,
    pub(crate) folder: Option<tempfile::TempDir>,
}

/// A store in memory and a folder, each with a clock that is an hour late and one that is an hour early.
pub(crate) fn stages() -> Vec<Stage> {
    let each =
        [-3600, 3600].into_iter().flat_map(|off| [in_memory(Hands::off(off)), in_folder(Hands::off(off))]);
    each.collect()
}

fn in_memory(hands: Hands) -> Stage {
    let store = Clocked { inner: InMemory::new(), hands: hands.clone(), written: Mutex::default() };
    Stage { root: Root::from_store(Arc::new(store), "memory"), hands, folder: None }
}

fn in_folder(hands: Hands) -> Stage {
    let folder = tempfile::tempdir().unwrap();
    let disk = DiskFs::open(folder.path(), Links::Refuse).unwrap();
    let fs = ClockedFs { disk, hands: hands.clone(), written: Arc::default() };
    let name = folder.path().to_str().unwrap();
    Stage {
        root: Root::from_local(LocalStore::over(fs, name, Arc::new(OsNonces))),
        hands,
        folder: Some(folder),
    }
}

#[derive(Debug)]
struct Clocked {
    inner: InMemory,
    hands: Hands,
    written: Mutex<HashMap<ObjectPath, SystemTime>>,
}

impl Clocked {
    fn stamp(&self, path: &ObjectPath) {
        self.written.lock().unwrap().insert(path.clone(), self.hands.now());
    }

    fn told(&self, mut meta: ObjectMeta) -> ObjectMeta {
        if let Some(time) = self.written.lock().unwrap().get(&meta.location) {
            meta.last_modified = (*time).into();
        }
        meta
    }
}

impl fmt::Display for Clocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clocked")
    }
}

#[async_trait]
impl ObjectStore for Clocked {
    async fn put_opts(&self, at: &ObjectPath, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let put = self.inner.put_opts(at, payload, opts).await?;
        self.stamp(at);
        Ok(put)
    }

    async fn put_multipart_opts(
        &self,
        at: &ObjectPath,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.stamp(at);
        self.inner.put_multipart_opts(at, opts).await
    }

    async fn get_opts(&self, at: &ObjectPath, options: GetOptions) -> Result<GetResult> {
        if self.hands.asked_in_vain() > 0 {
            return Err(object_store::Error::Generic { store: "Clocked", source: "away".into() });
        }
        let mut got = self.inner.get_opts(at, options).await?;
        got.meta = self.told(got.meta);
        Ok(got)
    }

    async fn get_ranges(&self, at: &ObjectPath, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.inner.get_ranges(at, ranges).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<ObjectPath>>,
    ) -> BoxStream<'static, Result<ObjectPath>> {
        let hands = self.hands.clone();
        let held = move |path: ObjectPath| {
            let is_away = hands.away.load(Ordering::Relaxed) && path.as_ref().starts_with("step-");
            hands.asked.fetch_add(u64::from(is_away), Ordering::Relaxed);
            if is_away || hands.holds(path.as_ref()) {
                return Err(object_store::Error::Generic { store: "Clocked", source: "held".into() });
            }
            Ok(path)
        };
        self.inner.delete_stream(paths.map(move |path| path.and_then(&held)).boxed())
    }

    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, Result<ObjectMeta>> {
        let listed: Vec<_> = futures::executor::block_on(self.inner.list(prefix).collect());
        let told: Vec<_> = listed.into_iter().map(|meta| meta.map(|meta| self.told(meta))).collect();
        futures::stream::iter(told).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&ObjectPath>) -> Result<ListResult> {
        let mut listed = self.inner.list_with_delimiter(prefix).await?;
        listed.objects = listed.objects.into_iter().map(|meta| self.told(meta)).collect();
        Ok(listed)
    }

    async fn copy_opts(&self, from: &ObjectPath, to: &ObjectPath, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await?;
        self.stamp(to);
        Ok(())
    }
}

type Written = Arc<Mutex<HashMap<u64, SystemTime>>>;

/// The real file system, with other times.
#[derive(Debug)]
struct ClockedFs {
    disk: DiskFs,
    hands: Hands,
    /// By inode.
    written: Written,
}

#[derive(Debug)]
struct ClockedFile {
    file: Arc<dyn FsFile>,
    hands: Hands,
    written: Written,
}

fn told(written: &Written, mut stat: FileStat) -> FileStat {
    if let Some(time) = written.lock().unwrap().get(&stat.inode) {
        stat.modified = *time;
    }
    stat
}

impl ClockedFs {
    fn stamp(&self, inode: u64) {
        self.written.lock().unwrap().insert(inode, self.hands.now());
    }

    fn file(&self, file: Arc<dyn FsFile>) -> Arc<dyn FsFile> {
        Arc::new(ClockedFile { file, hands: self.hands.clone(), written: Arc::clone(&self.written) })
    }
}

impl Fs for ClockedFs {
    fn open(&self, path: &str) -> io::Result<Arc<dyn FsFile>> {
        self.disk.open(path).map(|file| self.file(file))
    }
    fn create_new(&self, path: &str) -> io::Result<Arc<dyn FsFile>> {
        let file = self.disk.create_new(path)?;
        self.stamp(file.stat()?.inode);
        Ok(self.file(file))
    }
    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.link(from, to)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn unlink(&self, path: &str) -> io::Result<()> {
        if self.hands.holds(path) {
            return Err(rustix::io::Errno::ACCESS.into());
        }
        self.disk.unlink(path)
    }
    fn mkdir(&self, path: &str) -> io::Result<()> {
        self.disk.mkdir(path)?;
        self.stamp(self.disk.stat(path)?.inode);
        Ok(())
    }
    fn rmdir(&self, path: &str) -> io::Result<()> {
        if self.hands.busy.swap(false, Ordering::Relaxed) {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        self.disk.rmdir(path)
    }
    fn fsync_dir(&self, path: &str) -> io::Result<()> {
        self.disk.fsync_dir(path)
    }
    fn read_dir(&self, path: &str) -> io::Result<Vec<DirEntry>> {
        if path == LOCKED {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        self.disk.read_dir(path)
    }
    fn stat(&self, path: &str) -> io::Result<FileStat> {
        self.disk.stat(path).map(|stat| told(&self.written, stat))
    }
}

impl FsFile for ClockedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<usize> {
        let inode = self.file.stat()?.inode;
        self.written.lock().unwrap().insert(inode, self.hands.now());
        self.file.write_at(data, offset)
    }
    fn reserve(&self, size: u64) -> io::Result<()> {
        self.file.reserve(size)
    }
    fn fsync(&self) -> io::Result<()> {
        self.file.fsync()
    }
    fn stat(&self) -> io::Result<FileStat> {
        self.file.stat().map(|stat| told(&self.written, stat))
    }
}
