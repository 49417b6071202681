//! The simulated file system: it behaves as one while it runs, and a crash loses exactly what was not synced.

use std::{collections::BTreeSet, sync::Arc};

use super::super::fs::{Fs, read_full};
use super::*;

fn crash(fs: &SimFs) -> Disk {
    let mut disk = Disk::new();
    fs.journal().iter().for_each(|op| disk.apply(op));
    disk
}

/// Every state, as `path=content` and `path/`.
fn states(fs: &SimFs) -> BTreeSet<String> {
    let disk = crash(fs);
    disk.choices(u64::MAX, 0, 0).into_iter().map(|choice| shown(&disk.state(choice))).collect()
}

fn shown(tree: &Tree) -> String {
    let shown = tree.iter().map(|(path, node)| match node {
        Node::Dir => format!("{path}/"),
        Node::File(_, content, _) => format!("{path}={}", String::from_utf8_lossy(content.bytes())),
    });
    shown.collect::<Vec<_>>().join(" ")
}

fn set(of: &[&str]) -> BTreeSet<String> {
    of.iter().map(|it| (*it).to_owned()).collect()
}

fn write(fs: &SimFs, path: &str, data: &[u8]) -> Arc<dyn super::super::fs::FsFile> {
    let file = fs.create_new(path).unwrap();
    file.write_at(data, 0).unwrap();
    file
}

#[test]
fn what_was_done_is_seen_at_once_and_errors_are_those_of_a_file_system() {
    let fs = SimFs::new();
    fs.mkdir("a").unwrap();
    let file = write(&fs, "a/x", b"abc");
    file.write_at(b"z", 5).unwrap();
    file.reserve(8).unwrap();
    let mut buf = [9; 16];
    assert_eq!(read_full(fs.open("a/x").unwrap().as_ref(), &mut buf, 1).unwrap(), 7);
    assert_eq!(buf[..7], *b"bc\0\0z\0\0");
    fs.link("a/x", "y").unwrap();
    assert_eq!((fs.stat("y").unwrap().links, fs.stat("y").unwrap().size), (2, 8));
    assert_eq!(fs.stat("y").unwrap().inode, fs.stat("a/x").unwrap().inode);
    let kinds = |error: std::io::Result<()>| error.unwrap_err().kind();
    assert_eq!(kinds(fs.link("a/x", "y")), std::io::ErrorKind::AlreadyExists);
    assert_eq!(kinds(fs.mkdir("a")), std::io::ErrorKind::AlreadyExists);
    assert_eq!(kinds(fs.unlink("b")), std::io::ErrorKind::NotFound);
    assert_eq!(kinds(fs.rmdir("a")), std::io::ErrorKind::DirectoryNotEmpty);
    assert_eq!(fs.read_dir("y").unwrap_err().kind(), std::io::ErrorKind::NotADirectory);
    assert_eq!(fs.open("a").unwrap_err().kind(), std::io::ErrorKind::NotFound);
    fs.unlink("a/x").unwrap();
    fs.rmdir("a").unwrap();
    assert_eq!(fs.stat("y").unwrap().links, 1);
    fs.rename("y", "z").unwrap();
    assert_eq!(fs.read_dir("").unwrap().len(), 1);
    assert_eq!(file.stat().unwrap().size, 8, "an open file stays what it was");
}

#[test]
fn a_name_without_a_sync_of_its_directory_may_be_lost_and_data_without_one_of_the_file() {
    let fs = SimFs::new();
    let file = write(&fs, "x", b"ab");
    file.fsync().unwrap();
    assert_eq!(states(&fs), set(&["", "x=ab"]), "the name is not durable, the data is");
    fs.fsync_dir("").unwrap();
    assert_eq!(states(&fs), set(&["x=ab"]));
    file.write_at(b"c", 2).unwrap();
    // The old length; the new one with the byte, with a zero, with what was there before.
    assert_eq!(states(&fs), set(&["x=ab", "x=abc", "x=ab\0", "x=ab\u{fffd}"]));
    file.fsync().unwrap();
    assert_eq!(states(&fs), set(&["x=abc"]));
}

#[test]
fn a_synced_name_of_unsynced_data_is_seen_without_it() {
    let fs = SimFs::new();
    write(&fs, "x", b"ab");
    fs.fsync_dir("").unwrap();
    let states = states(&fs);
    assert!(states.is_superset(&set(&["x=", "x=ab", "x=\0\0"])), "{states:?}");
}

#[test]
fn pending_changes_of_different_names_are_kept_in_any_subset() {
    let fs = SimFs::new();
    write(&fs, ".staging-1", b"ab").fsync().unwrap();
    fs.link(".staging-1", "x").unwrap();
    fs.unlink(".staging-1").unwrap();
    // The unlink without the link that came before it loses both names.
    assert_eq!(states(&fs), set(&["", "x=ab", ".staging-1=ab", ".staging-1=ab x=ab"]));
    assert_eq!(crash(&fs).combinations(), 4);
    fs.fsync_dir("").unwrap();
    assert_eq!(states(&fs), set(&["x=ab"]));
    fs.unlink("x").unwrap();
    assert_eq!(states(&fs), set(&["", "x=ab"]), "an unlink may come back");
}

#[test]
fn a_directory_is_lost_with_all_it_holds_unless_its_own_name_was_synced() {
    let fs = SimFs::new();
    fs.mkdir("a").unwrap();
    fs.mkdir("a/b").unwrap();
    write(&fs, "a/b/x", b"1").fsync().unwrap();
    fs.fsync_dir("a/b").unwrap();
    assert_eq!(crash(&fs).combinations(), 4);
    assert_eq!(states(&fs), set(&["", "a/", "a/ a/b/ a/b/x=1"]));
    fs.fsync_dir("a").unwrap();
    assert_eq!(states(&fs), set(&["", "a/ a/b/ a/b/x=1"]));
    fs.fsync_dir("").unwrap();
    assert_eq!(states(&fs), set(&["a/ a/b/ a/b/x=1"]));
}

#[test]
fn a_rename_keeps_the_old_target_or_has_the_new_one() {
    let fs = SimFs::new();
    write(&fs, "x", b"old").fsync().unwrap();
    write(&fs, "t", b"new").fsync().unwrap();
    fs.fsync_dir("").unwrap();
    fs.rename("t", "x").unwrap();
    assert_eq!(states(&fs), set(&["t=new x=old", "t=new x=new", "x=old", "x=new"]));
}

#[test]
fn pages_are_written_back_one_by_one_and_torn_at_sectors() {
    let fs = SimFs::new();
    let file = write(&fs, "x", &[b'o'; 8192]);
    file.fsync().unwrap();
    fs.fsync_dir("").unwrap();
    file.write_at(&[b'n'; 8192], 0).unwrap();
    let disk = crash(&fs);
    let mut mixed_pages = 0;
    for n in 0..200 {
        let tree = disk.state(Choice::Drawn(n));
        let bytes = tree.file("x").unwrap();
        assert_eq!(bytes.len(), 8192);
        for page in bytes.chunks(4096) {
            for sector in page.chunks(512) {
                assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector is atomic");
            }
            let changes =
                page.chunks(512).zip(page.chunks(512).skip(1)).filter(|(a, b)| a[0] != b[0]).count();
            assert!(changes <= 1);
            mixed_pages += changes;
        }
    }
    assert!(mixed_pages > 20, "{mixed_pages}");
}

#[test]
fn corners_are_among_all_combinations_and_drawn_ones_too() {
    let fs = SimFs::new();
    fs.mkdir("a").unwrap();
    for name in ["a/x", "a/y", "z"] {
        write(&fs, name, b"1");
        fs.link(name, &format!("{name}2")).unwrap();
    }
    fs.rename("z", "a/z").unwrap();
    let (all, disk) = (states(&fs), crash(&fs));
    let names =
        |tree: &str| tree.split(' ').map(|it| it.split('=').next().unwrap().to_owned()).collect::<Vec<_>>();
    let all: BTreeSet<_> = all.iter().map(|it| names(it)).collect();
    let some = disk.choices(1, 500, 7);
    assert!(some.len() > 520 && some.iter().any(|it| matches!(it, Choice::Corner(_))));
    let found: BTreeSet<_> = some.iter().map(|choice| names(&shown(&disk.state(*choice)))).collect();
    assert!(found.is_subset(&all));
    assert!(found.len() * 2 > all.len(), "{} of {}", found.len(), all.len());
    for choice in some {
        assert_eq!(choice.to_string().parse(), Ok(choice));
    }
    assert!("corner".parse::<Choice>().is_err() && "some-1".parse::<Choice>().is_err());
}

#[test]
fn what_is_mounted_again_is_what_was_left_and_all_of_it_is_durable() {
    let fs = SimFs::new();
    fs.mkdir("a").unwrap();
    write(&fs, "a/x", b"1");
    fs.link("a/x", "y").unwrap();
    let tree = crash(&fs).state(Choice::Corner(1));
    let again = SimFs::mount(&tree);
    assert_eq!(again.stat("y").unwrap().links, 2);
    assert_eq!(again.stat("y").unwrap().inode, again.stat("a/x").unwrap().inode);
    let mut disk = Disk::of(&tree);
    assert_eq!((disk.combinations(), again.operations()), (1, 0));
    assert_eq!(disk.state(Choice::All(0)).fingerprint(), tree.fingerprint());
    again.unlink("a/x").unwrap();
    again.journal().iter().for_each(|op| disk.apply(op));
    assert_eq!(disk.combinations(), 2);
    assert_eq!(shown(&disk.state(Choice::All(1))), "a/ y=1");
}

#[test]
fn states_differ_by_names_and_by_content_but_not_by_that_of_unfinished_files() {
    let tree = |name: &str, data: &[u8]| {
        let fs = SimFs::new();
        write(&fs, name, data);
        crash(&fs).state(Choice::Corner(1)).fingerprint()
    };
    assert_ne!(tree("x", b"1"), tree("x", b"2"));
    assert_ne!(tree("x", b"1"), tree("y", b"1"));
    assert_eq!(tree(".staging-1", b"1"), tree(".staging-1", b"2"));
}

#[test]
fn the_same_seed_gives_the_same_order_and_another_one_another() {
    let run = |seed: u64| {
        let (fs, turns) = (SimFs::new(), Turns::new(3, seed));
        std::thread::scope(|scope| {
            for process in 0..3 {
                let fs = fs.process(&turns, process);
                scope.spawn(move || {
                    for n in 0..5 {
                        let file = write(&fs, &format!("{process}-{n}"), b"1");
                        file.fsync().unwrap();
                    }
                });
            }
        });
        fs.journal()
    };
    assert_eq!(run(3), run(3));
    assert_eq!(run(4), run(4));
    let orders: BTreeSet<String> = (0..8).map(|seed| format!("{:?}", run(seed))).collect();
    assert_eq!(orders.len(), 8);
}

#[test]
fn a_killed_process_does_nothing_more_and_loses_nothing() {
    let fs = SimFs::new();
    let process = fs.killed_after(2);
    let file = process.create_new("x").unwrap();
    file.write_at(b"1", 0).unwrap();
    assert!(process.is_killed() && file.write_at(b"2", 1).is_err() && file.fsync().is_err());
    assert!(process.unlink("x").is_err() && process.stat("x").is_err());
    assert_eq!((fs.stat("x").unwrap().size, fs.operations()), (1, 2));
}
