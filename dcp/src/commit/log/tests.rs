//! Tests of reading a log, whole, copied in part, and mixed.

use std::path::Path;

use super::super::append::tests::{Still, append, memory, options};
use super::super::fold::tests::{commit, label, seq};
use super::super::fold::{fold, fold_from};
use super::*;
use crate::store::LocalStore;

/// Without hints: what a log alone tells.
fn log(root: &Root, seed: u64) -> Log {
    Log::open_with(root, LogOptions { hint_every: None, ..options(seed) }).unwrap()
}

/// A root in a folder with so many commits.
fn folder(commits: u64, seed: u64) -> (tempfile::TempDir, Root) {
    let folder = tempfile::tempdir().unwrap();
    let root = Root::from_local(LocalStore::open(folder.path()).unwrap());
    let mut log = log(&root, seed);
    for n in 1..=commits {
        append(&mut log, commit(&format!("s-{n}"))).unwrap();
    }
    (folder, root)
}

fn file(folder: &Path, number: u64) -> std::path::PathBuf {
    folder.join(seq(number).path().as_ref())
}

fn open(root: &Root) -> Result<Log> {
    Log::open_with(root, options(77))
}

fn records(log: &Log) -> Vec<Record> {
    let head = log.head().map_or(0, Seq::get);
    (1..=head).map(|n| log.read(seq(n)).unwrap().unwrap().record).collect()
}

#[test]
fn a_root_without_a_log_has_an_empty_one() {
    let log = log(&memory(), 1);
    assert_eq!((log.head(), log.root_id()), (None, None));
    assert_eq!(*log.state(), State::default());
    assert!(log.audit().unwrap().findings.is_empty());
}

#[test]
fn every_64th_record_carries_the_state_and_readers_begin_there() {
    let (kept, root) = folder(130, 1);
    let log = open(&root).unwrap();
    let all = records(&log);
    assert_eq!(*log.state(), fold(&all).state);
    let carrying: Vec<_> = all.iter().filter(|r| r.state.is_some()).map(|r| r.seq.get()).collect();
    assert_eq!(carrying, [64, 128]);
    for at in [64_usize, 128] {
        let carried = all[at - 1].state.clone().unwrap();
        assert_eq!(carried, fold(&all[..at - 1]).state);
        assert_eq!(fold_from(carried, &all[at - 1..]).state, *log.state());
    }
    // What lies before the last state is not read: not even damage there is seen, except by an audit.
    std::fs::write(file(kept.path(), 100), b"x").unwrap();
    assert_eq!(open(&root).unwrap().state(), log.state());
    let findings = log.audit().unwrap().findings;
    assert!(
        matches!(&findings[..], [f] if f.seq == seq(100) && matches!(f.error, CommitError::Damaged { .. })),
        "{findings:?}"
    );
}

#[test]
fn a_reader_that_refreshes_sees_what_one_that_opens_sees() {
    let root = memory();
    let (mut reader, mut writer) = (log(&root, 1), log(&root, 2));
    for n in 1..=70 {
        append(&mut writer, commit(&format!("s-{n}"))).unwrap();
        if n % 7 == 0 {
            reader.refresh().unwrap();
            assert_eq!((reader.head(), reader.state()), (writer.head(), writer.state()));
        }
    }
    assert_eq!(open(&root).unwrap().state(), writer.state());
    assert_eq!(reader.root_id(), writer.root_id());
}

#[test]
fn a_damaged_record_is_named() {
    let (kept, root) = folder(5, 1);
    let path = file(kept.path(), 3);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[40] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let error = open(&root).unwrap_err();
    assert!(
        matches!(error, CommitError::Damaged { .. }) && error.to_string().contains("0003.json"),
        "{error}"
    );
    std::fs::write(&path, b"").unwrap();
    assert!(matches!(open(&root), Err(CommitError::Damaged { .. })));
}

#[test]
fn a_copy_with_a_record_missing_is_incomplete() {
    let (kept, root) = folder(5, 1);
    let whole = open(&root).unwrap();
    std::fs::remove_file(file(kept.path(), 3)).unwrap();
    let error = open(&root).unwrap_err();
    assert!(
        matches!(&error, CommitError::Incomplete { path, later } if path.contains("0003.json") && *later == seq(5)),
        "{error}"
    );
    let findings = whole.audit().unwrap().findings;
    assert!(
        matches!(&findings[..], [f] if f.seq == seq(3) && matches!(f.error, CommitError::Incomplete { .. }))
    );
}

#[test]
fn a_copy_that_was_stopped_before_the_end_is_an_older_state() {
    let (kept, root) = folder(70, 1);
    for n in (1..=70).rev() {
        let log = open(&root).unwrap();
        assert_eq!(log.state().newest(&label("main")).map(|(seq, _)| seq), Some(seq(n)));
        std::fs::remove_file(file(kept.path(), n)).unwrap();
    }
    assert_eq!(open(&root).unwrap().head(), None);
}

#[test]
fn a_record_of_another_root_or_another_history_is_mixed() {
    let ((kept, root), (other, _)) = (folder(5, 1), folder(5, 2));
    std::fs::copy(file(other.path(), 3), file(kept.path(), 3)).unwrap();
    let error = open(&root).unwrap_err();
    assert!(matches!(&error, CommitError::Mixed { reason, .. } if reason.contains("of root")), "{error}");

    // The same root, copied before its third record and gone on with differently.
    let ((kept, root), (fork, forked)) = (folder(2, 1), folder(0, 3));
    std::fs::create_dir(fork.path().join("commits")).unwrap();
    for n in 1..=2 {
        std::fs::copy(file(kept.path(), n), file(fork.path(), n)).unwrap();
    }
    for (root, seed) in [(&root, 4), (&forked, 5)] {
        let mut log = log(root, seed);
        append(&mut log, commit("s-3")).unwrap();
        append(&mut log, commit("s-4")).unwrap();
    }
    std::fs::copy(file(fork.path(), 3), file(kept.path(), 3)).unwrap();
    let error = open(&root).unwrap_err();
    assert!(matches!(&error, CommitError::Mixed { path, .. } if path.contains("0004.json")), "{error}");
}

#[test]
fn a_record_under_another_number_is_mixed() {
    let (kept, root) = folder(3, 1);
    std::fs::copy(file(kept.path(), 2), file(kept.path(), 4)).unwrap();
    let error = open(&root).unwrap_err();
    assert!(matches!(&error, CommitError::Mixed { reason, .. } if reason.contains("record 2")), "{error}");
}

#[test]
fn an_audit_goes_on_after_what_is_wrong() {
    let (kept, root) = folder(70, 1);
    let whole = open(&root).unwrap();
    std::fs::remove_file(file(kept.path(), 10)).unwrap();
    std::fs::write(file(kept.path(), 20), b"torn").unwrap();
    std::fs::copy(file(kept.path(), 29), file(kept.path(), 30)).unwrap();
    let audit = whole.audit().unwrap();
    let seen: Vec<_> = audit.findings.iter().map(|f| f.seq.get()).collect();
    assert_eq!(seen, [10, 20, 30, 31], "{:?}", audit.findings);
    assert_eq!((audit.head, audit.records), (Some(seq(70)), 68));
}

#[test]
fn an_audit_ends_at_the_last_number_that_there_is() {
    let (kept, root) = folder(2, 1);
    let whole = open(&root).unwrap();
    std::fs::write(file(kept.path(), u64::MAX), b"anything").unwrap();
    let audit = whole.audit().unwrap();
    let damaged = audit.findings.iter().filter(|f| matches!(f.error, CommitError::Damaged { .. })).count();
    assert_eq!((damaged, audit.head), (1, Some(seq(2))));
    assert_eq!(audit.findings.last().unwrap().seq, seq(u64::MAX));
}

#[test]
fn an_audit_waits_for_missing_records_once_however_many_are_missing() {
    let (kept, root) = folder(40, 1);
    (3..40).step_by(2).for_each(|n| std::fs::remove_file(file(kept.path(), n)).unwrap());
    let clock = Arc::new(Still::default());
    let options = LogOptions { clock: clock.clone(), ..options(7) };
    let audit = Log::audit_at(&root, options.clone()).unwrap();
    assert_eq!(
        audit.findings.iter().filter(|f| matches!(f.error, CommitError::Incomplete { .. })).count(),
        19
    );
    let once = (0..).map_while(|done| options.retry.pause_after(done)).sum::<Duration>();
    assert_eq!(clock.paused(), once);
}

#[test]
fn a_link_in_place_of_a_record_is_refused() {
    let (kept, root) = folder(2, 1);
    std::os::unix::fs::symlink("/etc/hostname", file(kept.path(), 3)).unwrap();
    assert!(matches!(open(&root), Err(CommitError::Store(StoreError::Refused { .. }))));
}
