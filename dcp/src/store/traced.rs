//! [`Traced`]: the real file system for tests, which writes down what it is asked for, and fails where a test wants it.

use std::io;
use std::sync::{Arc, Mutex};

use rustix::io::Errno;

use super::disk::DiskFs;
use super::fs::{DirEntry, FileStat, Fs, FsFile};

/// The real file system, with what it is asked for written down, and faults where a test wants them.
#[derive(Debug)]
pub(crate) struct Traced {
    disk: DiskFs,
    trace: Arc<Mutex<Vec<String>>>,
    fault: Arc<Mutex<Option<Fault>>>,
}

/// An operation that fails (those whose line in the trace begins so), and whether it happens all the same.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    pub(crate) on: &'static str,
    pub(crate) errno: Errno,
    pub(crate) happens: bool,
}

#[derive(Debug)]
struct TracedFile {
    path: String,
    file: Arc<dyn FsFile>,
    trace: Arc<Mutex<Vec<String>>>,
    fault: Arc<Mutex<Option<Fault>>>,
}

/// Names of staging files differ; what matters is where they are.
fn plain(path: &str) -> String {
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
    let name = if name.starts_with(".staging-") { "*" } else { name };
    if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") }
}

fn step<T>(
    trace: &Mutex<Vec<String>>,
    fault: &Mutex<Option<Fault>>,
    line: String,
    run: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    let fault = fault.lock().unwrap().clone().filter(|fault| line.starts_with(fault.on));
    trace.lock().unwrap().push(line);
    match fault {
        None => run(),
        Some(fault) => {
            if fault.happens {
                run()?;
            }
            Err(fault.errno.into())
        }
    }
}

impl Traced {
    /// The file system of `disk`; its operations go to `trace`, its faults come from `fault`.
    pub(crate) fn new(
        disk: DiskFs,
        trace: &Arc<Mutex<Vec<String>>>,
        fault: &Arc<Mutex<Option<Fault>>>,
    ) -> Self {
        Self { disk, trace: Arc::clone(trace), fault: Arc::clone(fault) }
    }

    fn step<T>(&self, line: String, run: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        step(&self.trace, &self.fault, line, run)
    }

    fn file(&self, path: &str, file: Arc<dyn FsFile>) -> Arc<dyn FsFile> {
        let (trace, fault) = (Arc::clone(&self.trace), Arc::clone(&self.fault));
        Arc::new(TracedFile { path: plain(path), file, trace, fault })
    }
}

impl Fs for Traced {
    fn open(&self, path: &str) -> io::Result<Arc<dyn FsFile>> {
        self.step(format!("open {}", plain(path)), || self.disk.open(path)).map(|file| self.file(path, file))
    }
    fn create_new(&self, path: &str) -> io::Result<Arc<dyn FsFile>> {
        self.step(format!("create {}", plain(path)), || self.disk.create_new(path))
            .map(|file| self.file(path, file))
    }
    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        self.step(format!("link {} {to}", plain(from)), || self.disk.link(from, to))
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.step(format!("rename {} {to}", plain(from)), || self.disk.rename(from, to))
    }
    fn unlink(&self, path: &str) -> io::Result<()> {
        self.step(format!("unlink {}", plain(path)), || self.disk.unlink(path))
    }
    fn mkdir(&self, path: &str) -> io::Result<()> {
        self.step(format!("mkdir {path}"), || self.disk.mkdir(path))
    }
    fn rmdir(&self, path: &str) -> io::Result<()> {
        self.step(format!("rmdir {path}"), || self.disk.rmdir(path))
    }
    fn fsync_dir(&self, path: &str) -> io::Result<()> {
        self.step(format!("syncdir /{path}"), || self.disk.fsync_dir(path))
    }
    fn read_dir(&self, path: &str) -> io::Result<Vec<DirEntry>> {
        self.disk.read_dir(path)
    }
    fn stat(&self, path: &str) -> io::Result<FileStat> {
        self.disk.stat(path)
    }
}

impl FsFile for TracedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<usize> {
        // A byte at a time at first, as a file system may do it.
        let data = if offset == 0 { data.get(..1).unwrap_or(data) } else { data };
        step(&self.trace, &self.fault, format!("write {}", self.path), || self.file.write_at(data, offset))
    }
    fn reserve(&self, size: u64) -> io::Result<()> {
        step(&self.trace, &self.fault, format!("reserve {} {size}", self.path), || self.file.reserve(size))
    }
    fn fsync(&self) -> io::Result<()> {
        step(&self.trace, &self.fault, format!("sync {}", self.path), || self.file.fsync())
    }
    fn stat(&self) -> io::Result<FileStat> {
        self.file.stat()
    }
}
