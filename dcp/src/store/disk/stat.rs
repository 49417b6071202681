//! What the system tells of a file, as the store asks for it.

use std::time::{Duration, SystemTime};

use rustix::fs as sys;

use super::super::fs::{FileKind, FileStat};

pub(super) fn file_kind(kind: sys::FileType) -> FileKind {
    match kind {
        sys::FileType::RegularFile => FileKind::File,
        sys::FileType::Directory => FileKind::Dir,
        sys::FileType::Symlink => FileKind::Symlink,
        _ => FileKind::Other,
    }
}

/// The types of these fields differ from system to system, hence the conversions.
pub(super) fn file_stat(stat: &sys::Stat) -> FileStat {
    FileStat {
        kind: file_kind(sys::FileType::from_raw_mode(stat.st_mode)),
        size: u64::try_from(stat.st_size).unwrap_or(0),
        modified: time(stat.st_mtime, stat.st_mtime_nsec),
        inode: wide(stat.st_ino),
        links: wide(stat.st_nlink),
    }
}

fn wide(value: impl Into<u64>) -> u64 {
    value.into()
}

pub(super) fn time(seconds: impl Into<i64>, nanos: impl TryInto<u32>) -> SystemTime {
    let (seconds, nanos) = (seconds.into(), Duration::from_nanos(u64::from(nanos.try_into().unwrap_or(0))));
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let time = if seconds < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(whole)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(whole)
    };
    time.and_then(|time| time.checked_add(nanos)).unwrap_or(SystemTime::UNIX_EPOCH)
}
