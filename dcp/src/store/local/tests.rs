//! Tests of the folder as a store: durability, faults of the file system, links, unfinished files.

use std::os::unix::fs::symlink;

use super::super::name::object_path;
use super::super::nonce::SeededNonces;
use super::super::traced::{Fault, Traced};
use super::*;

struct Bench {
    store: LocalStore,
    trace: Arc<Mutex<Vec<String>>>,
    fault: Arc<Mutex<Option<Fault>>>,
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (trace, fault) = (Arc::default(), Arc::default());
        let disk = DiskFs::open(folder.path(), Links::Refuse).unwrap();
        let fs = Traced::new(disk, &trace, &fault);
        Self { store: LocalStore::over(fs, "root", Arc::new(SeededNonces::new(1))), trace, fault, folder }
    }

    fn fail(&self, on: &'static str, errno: Errno, happens: bool) {
        *self.fault.lock().unwrap() = Some(Fault { on, errno, happens });
    }

    fn trace(&self) -> Vec<String> {
        std::mem::take(&mut self.trace.lock().unwrap())
    }

    fn put(&self, name: &str) -> Result<()> {
        self.store.put_new(&at(name), [b"ab".as_ref(), b"c"])
    }

    fn blob(&self, name: &str) -> Result<()> {
        let blob = self.store.blob(&at(name), 3)?;
        blob.write_at(1, b"bc")?;
        blob.write_at(0, b"a")?;
        blob.finish()
    }

    /// The names in the folder, hidden ones too.
    fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        let mut ahead = vec![self.folder.path().to_owned()];
        while let Some(dir) = ahead.pop() {
            for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
                if entry.file_type().unwrap().is_dir() {
                    ahead.push(entry.path());
                } else {
                    names.push(entry.path().strip_prefix(self.folder.path()).unwrap().display().to_string());
                }
            }
        }
        names
    }
}

fn at(name: &str) -> ObjectPath {
    object_path(name).unwrap()
}

#[test]
fn an_object_is_synced_before_it_is_named_and_its_directories_after() {
    let bench = Bench::new();
    bench.put("a/b/x").unwrap();
    let expected = [
        "mkdir a",
        "syncdir /",
        "mkdir a/b",
        "syncdir /a",
        "create a/b/*",
        "write a/b/*",
        "write a/b/*",
        "write a/b/*",
        "sync a/b/*",
        "link a/b/* a/b/x",
        "unlink a/b/*",
        "syncdir /a/b",
    ];
    assert_eq!(bench.trace(), expected);
    bench.put("a/b/y").unwrap();
    let expected = [
        "create a/b/*",
        "write a/b/*",
        "write a/b/*",
        "write a/b/*",
        "sync a/b/*",
        "link a/b/* a/b/y",
        "unlink a/b/*",
        "syncdir /a/b",
    ];
    assert_eq!(bench.trace(), expected);
}

#[test]
fn a_directory_that_someone_else_made_is_synced_too() {
    let bench = Bench::new();
    std::fs::create_dir(bench.folder.path().join("a")).unwrap();
    bench.put("a/x").unwrap();
    assert_eq!(bench.trace()[..2], ["mkdir a", "syncdir /"]);
}

#[test]
fn a_blob_is_synced_before_it_is_named() {
    let bench = Bench::new();
    bench.blob("x").unwrap();
    let expected =
        ["create *", "reserve * 3", "write *", "write *", "sync *", "link * x", "unlink *", "syncdir /"];
    assert_eq!(bench.trace(), expected);
    assert_eq!(std::fs::read(bench.folder.path().join("x")).unwrap(), b"abc");
}

#[test]
fn settling_syncs_the_file_and_every_directory_up_to_the_root() {
    let bench = Bench::new();
    bench.put("a/b/x").unwrap();
    bench.trace();
    bench.store.settle(&at("a/b/x")).unwrap();
    assert_eq!(bench.trace(), ["open a/b/x", "sync a/b/x", "syncdir /a/b", "syncdir /a", "syncdir /"]);
    bench.fail("syncdir /a", Errno::IO, false);
    assert!(matches!(bench.store.settle(&at("a/b/x")), Err(StoreError::NotDurable { .. })));
}

#[test]
fn a_full_disk_is_named_and_leaves_nothing() {
    for errno in [Errno::NOSPC, Errno::DQUOT] {
        for on in ["mkdir", "create", "write", "sync *", "link", "reserve"] {
            let bench = Bench::new();
            bench.fail(on, errno, false);
            let name = if on == "mkdir" { "a/x" } else { "x" };
            let result = if on == "reserve" { bench.blob(name) } else { bench.put(name) };
            assert!(
                matches!(&result, Err(error @ StoreError::NoSpace { .. }) if !error.may_have_landed()),
                "{on}: {result:?}"
            );
            assert!(result.unwrap_err().to_string().contains("root/"));
            assert_eq!(bench.names(), [""; 0], "{on}");
            *bench.fault.lock().unwrap() = None;
            bench.put(name).unwrap();
        }
    }
}

#[test]
fn a_blob_of_which_a_write_failed_is_never_finished() {
    let bench = Bench::new();
    let blob = bench.store.blob(&at("x"), 3).unwrap();
    bench.fail("write", Errno::NOSPC, false);
    assert!(blob.write_at(0, b"abc").is_err());
    *bench.fault.lock().unwrap() = None;
    assert!(blob.finish().is_err());
    assert_eq!(bench.names(), [""; 0]);
}

#[test]
fn space_that_was_asked_for_ahead_is_no_content() {
    let bench = Bench::new();
    let write = |blob: Box<dyn BlobWriter>| {
        blob.write_at(0, b"abc").unwrap();
        blob.finish_at(3)
    };
    write(bench.store.blob_up_to(&at("d/x"), 10).unwrap()).unwrap();
    assert_eq!(bench.store.size(&at("d/x")).unwrap(), 3);
    let finished = write(bench.store.blob(&at("d/y"), 10).unwrap());
    assert!(matches!(&finished, Err(StoreError::Gap { range, .. }) if *range == (3..10)), "{finished:?}");
    assert!(bench.store.stat(&at("d/y")).is_err());
}

#[test]
fn a_failed_sync_is_no_success_and_tells_whether_something_landed() {
    let bench = Bench::new();
    bench.fail("sync *", Errno::IO, false);
    assert!(matches!(bench.put("x"), Err(StoreError::Io { .. })));
    assert_eq!(bench.names(), [""; 0]);
    bench.fail("syncdir", Errno::IO, false);
    let result = bench.put("x");
    assert!(
        matches!(&result, Err(error @ StoreError::NotDurable { .. }) if error.may_have_landed()),
        "{result:?}"
    );
    assert_eq!(bench.names(), ["x"]);
    assert!(matches!(bench.blob("y"), Err(StoreError::NotDurable { .. })));
}

#[test]
fn a_file_system_without_links_is_refused_with_the_reason() {
    for errno in [Errno::PERM, Errno::OPNOTSUPP, Errno::NOSYS] {
        let bench = Bench::new();
        bench.fail("link", errno, false);
        let error = bench.put("x").unwrap_err();
        assert!(
            matches!(&error, StoreError::Unsupported { reason, .. } if reason.contains("hard links")),
            "{error:?}"
        );
        assert_eq!(bench.names(), [""; 0]);
    }
}

#[test]
fn a_link_whose_answer_was_lost_is_known_by_the_file_itself() {
    for errno in [Errno::EXIST, Errno::IO, Errno::TIMEDOUT] {
        let bench = Bench::new();
        bench.fail("link", errno, true);
        bench.put("x").unwrap();
        assert_eq!(bench.names(), ["x"]);
    }
    let bench = Bench::new();
    std::fs::write(bench.folder.path().join("x"), b"other").unwrap();
    let staging = bench.store.staged("x", [b"abc".as_ref()]).unwrap();
    assert!(matches!(staging.publish_new(), Err(StoreError::AlreadyExists { .. })));
    assert_eq!(std::fs::read(bench.folder.path().join("x")).unwrap(), b"other");
}

#[test]
fn links_are_refused_wherever_they_are_in_a_name() {
    let (folder, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(outside.path().join("secret"), b"secret").unwrap();
    std::fs::write(folder.path().join("real"), b"real").unwrap();
    symlink(outside.path(), folder.path().join("dir")).unwrap();
    symlink(outside.path().join("secret"), folder.path().join("file")).unwrap();
    symlink("real", folder.path().join("inner")).unwrap();
    symlink("nowhere", folder.path().join("dangling")).unwrap();
    let store = LocalStore::open(folder.path()).unwrap();
    let refused = |result: Result<()>| matches!(result, Err(StoreError::Refused { .. }));
    for name in ["dir/secret", "file", "inner", "dangling"] {
        let path = at(name);
        assert!(refused(store.read_exact_at(&path, 0, &mut [0])), "read {name}");
        assert!(refused(store.stat(&path).map(drop)), "stat {name}");
        assert!(refused(store.remove(&path)), "remove {name}");
    }
    assert!(refused(store.put_new(&at("dir/new"), [])));
    assert!(refused(store.put_over(&at("dir/new"), [])));
    assert!(refused(store.blob(&at("dir/sub/new"), 1).map(drop)));
    assert!(matches!(store.put_new(&at("dangling"), []), Err(StoreError::AlreadyExists { .. })));
    let listed: Vec<_> = store.list_sorted(None).unwrap().iter().map(|l| l.path.to_string()).collect();
    assert_eq!(listed, ["real"]);
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
}

#[test]
fn a_link_is_replaced_and_not_written_through() {
    let (folder, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let secret = outside.path().join("secret");
    std::fs::write(&secret, b"secret").unwrap();
    symlink(&secret, folder.path().join("x")).unwrap();
    LocalStore::open(folder.path()).unwrap().put_over(&at("x"), [b"new".as_ref()]).unwrap();
    assert_eq!(std::fs::read(&secret).unwrap(), b"secret");
    assert_eq!(std::fs::read(folder.path().join("x")).unwrap(), b"new");
}

#[test]
fn a_foreign_folder_follows_links_and_cannot_be_written() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(blobs.path().join("0123"), b"weights").unwrap();
    symlink(blobs.path().join("0123"), folder.path().join("model.safetensors")).unwrap();
    let store = LocalStore::open_foreign(folder.path()).unwrap();
    let name = at("model.safetensors");
    assert_eq!(store.size(&name).unwrap(), 7);
    let listed = store.list_sorted(None).unwrap();
    assert_eq!(
        listed.iter().map(|l| (l.path.as_ref(), l.stat.size)).collect::<Vec<_>>(),
        [("model.safetensors", 7)]
    );
    for result in [
        store.put_new(&at("x"), []),
        store.put_over(&name, []),
        store.remove(&name),
        store.blob(&at("x"), 1).map(drop),
    ] {
        assert!(matches!(result, Err(StoreError::Refused { .. })), "{result:?}");
    }
}

#[test]
fn pipes_and_directories_are_no_objects_and_block_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    std::fs::create_dir(folder.path().join("dir")).unwrap();
    let store = LocalStore::open(folder.path()).unwrap();
    assert!(store.read_exact_at(&at("pipe"), 0, &mut [0]).is_err());
    assert!(matches!(store.stat(&at("pipe")), Err(StoreError::Refused { .. })));
    assert!(matches!(store.stat(&at("dir")), Err(StoreError::NotFound { .. })));
    assert!(store.list_sorted(None).unwrap().is_empty());
}

#[test]
fn only_unfinished_files_that_are_old_are_swept() {
    let bench = Bench::new();
    bench.put("a/x").unwrap();
    let blob = bench.store.blob(&at("a/live"), 3).unwrap();
    let old = bench.folder.path().join("a/.staging-00000000000000000000000000000000");
    let file = std::fs::File::create(&old).unwrap();
    file.set_modified(std::time::SystemTime::now() - Duration::from_secs(7200)).unwrap();
    assert_eq!(bench.store.sweep(Duration::from_secs(3600)).unwrap(), 1);
    assert!(!old.exists());
    blob.write_at(0, b"abc").unwrap();
    blob.finish().unwrap();
    let mut names = bench.names();
    names.sort();
    assert_eq!(names, ["a/live", "a/x"]);
}

#[test]
fn a_writer_whose_unfinished_file_was_swept_gets_an_error() {
    let bench = Bench::new();
    let blob = bench.store.blob(&at("x"), 0).unwrap();
    assert_eq!(bench.store.sweep(Duration::ZERO).unwrap(), 1);
    assert!(blob.finish().is_err());
    assert_eq!(bench.names(), [""; 0]);
}

#[test]
fn more_files_are_read_than_are_kept_open() {
    let bench = Bench::new();
    for n in 0..300 {
        bench.store.put_new(&at(&format!("{n}")), [format!("{n:03}").as_bytes()]).unwrap();
    }
    for _ in 0..2 {
        for n in 0..300 {
            let mut buf = [0; 3];
            bench.store.read_exact_at(&at(&format!("{n}")), 0, &mut buf).unwrap();
            assert_eq!(buf, format!("{n:03}").as_bytes());
        }
    }
    bench.trace();
    bench.store.read_exact_at(&at("299"), 0, &mut [0]).unwrap();
    assert_eq!(bench.trace(), [""; 0]);
}

#[test]
fn a_file_that_was_opened_before_its_name_was_given_to_another_is_not_kept_open() {
    let bench = Bench::new();
    let (store, x) = (&bench.store, at("x"));
    let read = || {
        let mut buf = [0; 3];
        store.read_exact_at(&x, 0, &mut buf).map(|()| buf)
    };
    store.put_new(&x, [b"old".as_ref()]).unwrap();
    let slow = |meanwhile: &dyn Fn()| {
        let opened = store.inner.open.get("x", || {
            let old = store.open_file(&x);
            meanwhile();
            old
        });
        let mut buf = [0; 3];
        assert_eq!(opened.unwrap().read_at(&mut buf, 0).unwrap(), 3);
        buf
    };
    let old = slow(&|| store.put_over(&x, [b"new".as_ref()]).unwrap());
    assert_eq!((&old, &read().unwrap()), (b"old", b"new"));
    store.inner.open.forget("x");
    assert_eq!(&slow(&|| store.remove(&x).unwrap()), b"new");
    assert!(matches!(read(), Err(StoreError::NotFound { .. })));
}

#[test]
fn probes_that_were_stopped_are_swept_and_objects_are_not() {
    let bench = Bench::new();
    bench.put(".probe-00000000000000000000000000000001").unwrap();
    bench.put("a/.probe-is-no-probe-here").unwrap();
    assert_eq!(bench.store.sweep(Duration::from_secs(3600)).unwrap(), 0);
    assert_eq!(bench.store.sweep(Duration::ZERO).unwrap(), 1);
    assert_eq!(bench.names(), ["a/.probe-is-no-probe-here"]);
}
