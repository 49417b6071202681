//! Each word, on a store of which something is missing, cut, changed or foreign. `cargo xtask copies` tries all stops of all copies.

use std::path::{Path, PathBuf};

use super::*;
use crate::{
    save::tests::{plan, save, wholes},
    store::Root,
};

/// A root of two checkpoints; its folder, the one of step 2, and what a file is called.
fn saved(folder: &Path) -> PathBuf {
    let root = Root::create(folder.to_str().unwrap(), &Stores::new()).unwrap();
    for step in 1..=2 {
        save(&root, &wholes(), &plan(&wholes(), "2x1x1", step));
    }
    step(folder, 2)
}

fn step(folder: &Path, step: u64) -> PathBuf {
    named(folder, &format!("step-{step:08}"))
}

fn named(folder: &Path, part: &str) -> PathBuf {
    let mut entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.find(|path| path.to_str().unwrap().contains(part)).unwrap()
}

fn word(place: &Path) -> Standing {
    let judged =
        judge(&Stores::new(), place.to_str().unwrap(), None, OpenOptions::new(), &VerifyOptions::default())
            .unwrap();
    assert_eq!(judged.why.is_none(), judged.standing <= Standing::Sealed, "{judged:?}");
    judged.standing
}

fn cut(path: &Path) {
    let bytes = std::fs::read(path).unwrap();
    std::fs::write(path, &bytes[..bytes.len() - 3]).unwrap();
}

fn flip(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_whole_root_is_committed_and_a_step_taken_out_of_it_is_sealed() {
    let folder = tempfile::tempdir().unwrap();
    let newest = saved(folder.path());
    assert_eq!(word(folder.path()), Standing::Committed);
    assert_eq!(word(&newest), Standing::Committed, "its root stands above it");
    let alone = folder.path().join("alone");
    std::fs::rename(&newest, &alone).unwrap();
    std::fs::rename(folder.path().join("commits"), folder.path().join("elsewhere")).unwrap();
    assert_eq!(word(&alone), Standing::Sealed);
}

#[test]
fn whatever_is_missing_or_cut_makes_a_checkpoint_incomplete() {
    for (part, name) in [("data", "r00001"), ("blocks", "r00000"), ("", "manifest-")] {
        for damage in [cut as fn(&Path), |path| std::fs::remove_file(path).unwrap()] {
            let folder = tempfile::tempdir().unwrap();
            let newest = saved(folder.path());
            damage(&named(&newest.join(part), name));
            assert_eq!(word(folder.path()), Standing::Incomplete, "{part} {name}");
            std::fs::remove_dir_all(folder.path().join("commits")).unwrap();
            assert_eq!(word(&newest), Standing::Incomplete, "{part} {name}, alone");
            assert_eq!(word(folder.path()), Standing::Incomplete, "a root without its log");
        }
    }
}

#[test]
fn a_log_is_incomplete_with_a_hole_or_a_cut_record_and_whole_without_its_last() {
    let folder = tempfile::tempdir().unwrap();
    let newest = saved(folder.path());
    let record = |number: u64| folder.path().join(format!("commits/{number:020}.json"));
    let (first, second) = (std::fs::read(record(1)).unwrap(), std::fs::read(record(2)).unwrap());
    cut(&record(2));
    assert_eq!(word(folder.path()), Standing::Incomplete);
    std::fs::remove_file(record(2)).unwrap();
    assert_eq!(word(folder.path()), Standing::Incomplete, "the hint tells of a record");
    std::fs::remove_file(folder.path().join("commits/head")).unwrap();
    assert_eq!(word(folder.path()), Standing::Committed, "a valid shorter log");
    assert_eq!(word(&newest), Standing::Sealed, "its record was lost");
    std::fs::write(record(2), &second).unwrap();
    std::fs::remove_file(record(1)).unwrap();
    assert_eq!(word(folder.path()), Standing::Incomplete);
    std::fs::write(record(1), &first).unwrap();
    flip(&record(1));
    assert_eq!(word(folder.path()), Standing::Damaged);
}

#[test]
fn other_bytes_are_damage_and_another_roots_record_makes_a_mixture() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let newest = saved(folder.path());
    saved(other.path());
    let blob = named(&newest.join("data"), "r00000");
    let good = std::fs::read(&blob).unwrap();
    flip(&blob);
    assert_eq!(word(folder.path()), Standing::Damaged);
    std::fs::write(&blob, good).unwrap();
    let second = "commits/00000000000000000002.json";
    std::fs::copy(other.path().join(second), folder.path().join(second)).unwrap();
    assert_eq!(word(folder.path()), Standing::Mixed);
}

#[test]
fn an_attempt_that_was_stopped_is_incomplete_and_a_folder_of_nothing_is_no_store() {
    let folder = tempfile::tempdir().unwrap();
    let newest = saved(folder.path());
    std::fs::remove_dir_all(folder.path().join("commits")).unwrap();
    std::fs::remove_file(named(&newest, "manifest-")).unwrap();
    assert_eq!(word(&newest), Standing::Incomplete);
    let empty = tempfile::tempdir().unwrap();
    let error = judge(
        &Stores::new(),
        empty.path().to_str().unwrap(),
        None,
        OpenOptions::new(),
        &VerifyOptions::default(),
    )
    .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}
