//! [`Tree`]: names beneath one directory, opened without leaving it.
//!
//! On Linux the kernel resolves beneath the root and without links (`openat2`); where it cannot, the segments are opened one after the
//! other, each without following links.

use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{self as sys, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::super::fs::FileKind;
use super::stat::file_kind;

/// Whether names may lead over symbolic links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Links {
    /// A link anywhere in a name is refused. What the native store asks for.
    Refuse,
    /// Links are followed, also out of the root. Only for reading folders that others wrote.
    Follow,
}

/// A directory, and how names beneath it are opened.
#[derive(Debug)]
pub(super) struct Tree {
    root: OwnedFd,
    links: Links,
    /// Whether the kernel has turned out not to know `openat2`.
    pub(super) walk: AtomicBool,
}

impl Tree {
    /// That below an existing directory.
    pub(super) fn open(root: &Path, links: Links) -> io::Result<Self> {
        let root = sys::open(root, DIR, Mode::empty())?;
        Ok(Self { root, links, walk: AtomicBool::new(false) })
    }

    /// Opens any name beneath the root.
    pub(super) fn at(&self, path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC;
        let path = if path.is_empty() { "." } else { path };
        if self.links == Links::Follow {
            return sys::openat(&self.root, path, flags, FILE_MODE);
        }
        #[cfg(target_os = "linux")]
        if !self.walk.load(Ordering::Relaxed) {
            match beneath(&self.root, path, flags) {
                Err(Errno::NOSYS) => self.walk.store(true, Ordering::Relaxed),
                // Old sandboxes answer so to calls that they do not know; the walk finds out whether it is meant.
                Err(Errno::PERM) => {}
                other => return other,
            }
        }
        walk(&self.root, path, flags)
    }

    /// The directory that holds a name, and its last segment.
    pub(super) fn parent<'p>(&self, path: &'p str) -> rustix::io::Result<(OwnedFd, &'p str)> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.at(dir, DIR)?, name))
    }

    pub(super) fn stat_flags(&self) -> AtFlags {
        if self.links == Links::Follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW }
    }

    pub(super) fn kind_of(&self, dir: &OwnedFd, name: &CStr, kind: sys::FileType) -> FileKind {
        let unclear =
            kind == sys::FileType::Unknown || (kind == sys::FileType::Symlink && self.links == Links::Follow);
        let kind = if unclear {
            sys::statat(dir, name, self.stat_flags())
                .map_or(kind, |stat| sys::FileType::from_raw_mode(stat.st_mode))
        } else {
            kind
        };
        file_kind(kind)
    }
}

pub(super) const DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const FILE_MODE: Mode = Mode::from_raw_mode(0o666);

#[cfg(target_os = "linux")]
fn beneath(root: &OwnedFd, path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    use sys::ResolveFlags as R;
    let resolve = R::BENEATH | R::NO_SYMLINKS | R::NO_MAGICLINKS;
    let mode = if flags.contains(OFlags::CREATE) { FILE_MODE } else { Mode::empty() };
    // The kernel asks for another try when a rename elsewhere raced with the resolution.
    let tries = (0..64).map(|_| sys::openat2(root, path, flags, mode, resolve));
    let mut tries = tries.skip_while(|result| matches!(result, Err(Errno::AGAIN | Errno::INTR)));
    tries.next().unwrap_or(Err(Errno::AGAIN))
}

/// Opens segment by segment, never following a link.
fn walk(root: &OwnedFd, path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let mut dir: Option<OwnedFd> = None;
    let mut segments = path.split('/').peekable();
    while let Some(segment) = segments.next() {
        if segment == ".." {
            return Err(Errno::XDEV);
        }
        let last = segments.peek().is_none();
        let how = if last { flags } else { DIR };
        let at = dir.as_ref().unwrap_or(root);
        let next = sys::openat(at, segment, how | OFlags::NOFOLLOW, FILE_MODE)
            .map_err(|error| name_link(at, segment, error))?;
        if last {
            return Ok(next);
        }
        dir = Some(next);
    }
    Err(Errno::NOENT)
}

/// A link where a directory is wanted is reported as "not a directory"; say what it is.
fn name_link(dir: &OwnedFd, segment: &str, error: Errno) -> Errno {
    let link = || {
        sys::statat(dir, segment, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|s| sys::FileType::from_raw_mode(s.st_mode).is_symlink())
    };
    if error == Errno::NOTDIR && link() { Errno::LOOP } else { error }
}
