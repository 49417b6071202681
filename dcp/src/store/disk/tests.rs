//! Tests of both ways of opening beneath a root: by the kernel, and segment by segment.

use std::os::unix::fs::symlink;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use super::stat::time;
use super::*;

/// The same folder, opened both ways.
fn both(root: &Path) -> [DiskFs; 2] {
    let walking = DiskFs::open(root, Links::Refuse).unwrap();
    walking.0.walk.store(true, Ordering::Relaxed);
    [DiskFs::open(root, Links::Refuse).unwrap(), walking]
}

fn errno<T>(result: io::Result<T>) -> Option<Errno> {
    result.err().and_then(|error| error.raw_os_error()).map(Errno::from_raw_os_error)
}

#[test]
fn both_ways_open_what_is_there() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("a/b")).unwrap();
    std::fs::write(folder.path().join("a/b/x"), b"abc").unwrap();
    for fs in both(folder.path()) {
        let mut buf = [0; 3];
        assert_eq!(fs.open("a/b/x").unwrap().read_at(&mut buf, 0).unwrap(), 3);
        assert_eq!(&buf, b"abc");
        assert_eq!(fs.stat("a/b").unwrap().kind, FileKind::Dir);
        assert_eq!(fs.stat("").unwrap().kind, FileKind::Dir);
        assert_eq!(fs.read_dir("a").unwrap(), [DirEntry { name: "b".to_owned(), kind: FileKind::Dir }]);
        assert_eq!(errno(fs.open("a/none/x")), Some(Errno::NOENT));
        assert_eq!(errno(fs.open("a/b/x/y")), Some(Errno::NOTDIR));
        fs.fsync_dir("").unwrap();
    }
}

#[test]
fn neither_way_follows_a_link_or_leaves_the_root() {
    let (folder, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::create_dir_all(folder.path().join("a")).unwrap();
    std::fs::write(outside.path().join("x"), b"abc").unwrap();
    symlink(outside.path(), folder.path().join("a/dir")).unwrap();
    symlink(outside.path().join("x"), folder.path().join("a/file")).unwrap();
    symlink("nowhere", folder.path().join("a/dangling")).unwrap();
    for fs in both(folder.path()) {
        for name in ["a/dir/x", "a/file", "a/dangling"] {
            assert_eq!(errno(fs.open(name)), Some(Errno::LOOP), "{name}");
        }
        assert_eq!(errno(fs.read_dir("a/dir")), Some(Errno::LOOP));
        assert_eq!(errno(fs.create_new("a/dir/new")), Some(Errno::LOOP));
        assert_eq!(errno(fs.create_new("a/dangling")), Some(Errno::EXIST));
        assert_eq!(errno(fs.mkdir("a/dir/new")), Some(Errno::LOOP));
        assert_eq!(errno(fs.unlink("a/dir/x")), Some(Errno::LOOP));
        for name in ["..", "../x", "a/../../x"] {
            assert_eq!(errno(fs.open(name)), Some(Errno::XDEV), "{name}");
        }
        assert_eq!(fs.stat("a/file").unwrap().kind, FileKind::Symlink);
    }
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
}

#[test]
fn a_root_is_made_with_those_above_it() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("a/b/c");
    DiskFs::create_root(&root).unwrap();
    DiskFs::create_root(&root).unwrap();
    assert!(root.is_dir());
    std::fs::write(folder.path().join("file"), b"").unwrap();
    assert!(DiskFs::create_root(&folder.path().join("file/x")).is_err());
}

#[test]
fn a_file_has_the_time_and_the_names_that_the_system_gives_it() {
    let folder = tempfile::tempdir().unwrap();
    let [fs, _] = both(folder.path());
    fs.create_new("x").unwrap().write_at(b"abc", 0).unwrap();
    fs.link("x", "y").unwrap();
    let (x, y) = (fs.stat("x").unwrap(), fs.open("y").unwrap().stat().unwrap());
    assert_eq!((x.inode, x.links, x.size), (y.inode, 2, 3));
    assert_eq!(x.modified, std::fs::metadata(folder.path().join("x")).unwrap().modified().unwrap());
    assert_eq!(time(-2, 500_000_000), SystemTime::UNIX_EPOCH - Duration::from_millis(1_500));
}
