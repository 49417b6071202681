//! Tests of the head hint: what it spares, and that it can be lost, stale or wrong without harm.

use std::sync::Arc;

use object_store::ObjectStore;
use object_store::memory::InMemory;

use super::super::append::tests::{append, log, memory, options};
use super::super::audit::HintCheck;
use super::super::error::CommitError;
use super::super::fold::tests::{commit, label, seq};
use super::super::log::{Log, LogOptions};
use super::super::record::{Action, Tag, Verified};
use super::*;
use crate::store::counted::CountedStore;
use crate::store::{LocalStore, Nonce};

pub(super) fn fill(root: &Root, commits: u64, seed: u64) {
    let mut log = log(root, seed);
    for n in 1..=commits {
        append(&mut log, commit(&format!("s-{n}"))).unwrap();
    }
}

pub(super) fn open(root: &Root) -> Result<Log, CommitError> {
    Log::open_with(root, options(77))
}

pub(super) fn found(root: &Root) -> Hint {
    match read(root).unwrap() {
        Found::Hint(hint) => *hint,
        other => panic!("{other:?}"),
    }
}

pub(super) fn put_hint(root: &Root, hint: &Hint) {
    let newest = hint.newest.as_deref().map(str::as_bytes);
    put(root, encode(hint.root, (hint.seq, hint.record), &hint.state, newest).unwrap());
}

/// Opens with whatever hint is there, and without: both must come to the same.
pub(super) fn assert_opens_as_without(root: &Root, what: &str) {
    let with = open(root).unwrap();
    let kept = root.get_opt(&path()).unwrap();
    if kept.is_some() {
        root.delete(&path()).unwrap();
    }
    let without = open(root).unwrap();
    assert_eq!((with.head(), with.state()), (without.head(), without.state()), "{what}");
    if let Some(kept) = kept {
        put(root, kept.to_vec());
    }
}

/// The same, with the log as it is in a store that counts.
fn counted(root: &Root) -> (Arc<CountedStore>, Root) {
    let store = Arc::new(CountedStore::new(Arc::clone(root.object_store())));
    let root = Root::from_store(store.clone(), "counted");
    (store, root)
}

#[test]
fn a_hint_is_read_as_it_was_written() {
    let root = memory();
    fill(&root, 3, 1);
    let hint = found(&root);
    assert_eq!((hint.seq, hint.state.checkpoints.len()), (seq(3), 3));
    assert_eq!(hint.newest, None, "the last record is read in any case");
    append(&mut log(&root, 2), Action::Verified(Verified { checkpoint: seq(3), whole: true })).unwrap();
    let hint = found(&root);
    assert_eq!(hint.newest().map(|(seq, _)| seq), Some(seq(3)));
    assert_eq!(hint.newest().unwrap().1, root.get(&seq(3).path()).unwrap());
}

#[test]
fn the_head_of_a_long_log_is_found_in_three_requests_and_its_newest_checkpoint_in_no_more() {
    let root = memory();
    fill(&root, 1_100, 1);
    let (store, counting) = counted(&root);
    let opened = open(&counting).unwrap();
    assert_eq!(opened.head(), Some(seq(1_100)));
    drop(opened.record(seq(1_100)).unwrap());
    let asked = store.take();
    let path = |n| format!("GET {}", seq(n).path());
    assert_eq!(asked, ["GET commits/head".to_owned(), path(1_100), path(1_101)]);
    // Also where the last record commits nothing.
    append(&mut log(&root, 2), Action::Tag(Tag { name: label("best"), checkpoint: seq(1) })).unwrap();
    let opened = open(&counting).unwrap();
    drop(opened.record(seq(1_100)).unwrap());
    assert_eq!(store.take().len(), 3);
    // Without the hint there are pages, and records since the last state.
    root.delete(&super::path()).unwrap();
    drop(open(&counting).unwrap());
    assert!(store.take().len() > 3);
}

#[test]
fn a_hint_that_is_missing_damaged_cut_or_newer_changes_nothing() {
    let root = memory();
    fill(&root, 70, 1);
    let good = root.get(&path()).unwrap();
    assert_opens_as_without(&root, "good");
    let mut bad: Vec<Vec<u8>> = vec![Vec::new(), vec![0; 10], b"CKPTHEAD".to_vec(), vec![0xff; 4096]];
    bad.extend((0..good.len()).step_by(41).map(|at| {
        let mut bytes = good.to_vec();
        bytes[at] ^= 1;
        bytes
    }));
    bad.extend((0..good.len()).step_by(97).map(|at| good[..at].to_vec()));
    // A later version, and claims that would need much memory, each with a right digest.
    for (at, value) in [(8, 2_u32), (16, 0x7fff_ffff), (12, 6 << 20)] {
        let mut bytes = good[..good.len() - DIGEST].to_vec();
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        let digest = Sha256Digest::of(&bytes);
        bytes.extend_from_slice(digest.as_bytes());
        bad.push(bytes);
    }
    for bytes in bad {
        put(&root, bytes);
        assert!(matches!(read(&root).unwrap(), Found::Unreadable(_)));
        assert_opens_as_without(&root, "unreadable");
    }
    let audit = open(&root).unwrap().audit().unwrap();
    assert!(audit.findings.is_empty());
    assert!(matches!(audit.hint, HintCheck::Bad(CommitError::BadHint { .. })), "{:?}", audit.hint);
}

#[test]
fn a_stale_hint_leads_to_the_head_however_stale() {
    let root = memory();
    fill(&root, 3, 1);
    let old = found(&root);
    for (n, more) in [(10_u64, 7), (67, 57), (68, 1), (300, 232)] {
        fill_more(&root, n - more + 1..=n);
        put_hint(&root, &old);
        let opened = open(&root).unwrap();
        assert_eq!(opened.head(), Some(seq(n)));
        assert_opens_as_without(&root, "stale");
        assert!(matches!(opened.audit().unwrap().hint, HintCheck::Good(at) if at == seq(3)));
    }
}

fn fill_more(root: &Root, numbers: std::ops::RangeInclusive<u64>) {
    let mut log = log(root, 1_000 + numbers.start());
    for n in numbers {
        append(&mut log, commit(&format!("s-{n}"))).unwrap();
    }
}

#[test]
fn a_hint_of_another_root_or_another_history_is_passed_over() {
    let (root, other) = (memory(), memory());
    fill(&root, 5, 1);
    fill(&other, 9, 2);
    put_hint(&root, &found(&other));
    assert_opens_as_without(&root, "of another root, with a larger number");
    let foreign = Hint { seq: seq(2), ..found(&other) };
    put_hint(&root, &foreign);
    assert_opens_as_without(&root, "of another root, with a number that is there");
    let audit = open(&root).unwrap().audit().unwrap();
    assert!(matches!(audit.hint, HintCheck::Bad(_)));
}

#[test]
fn a_hint_ahead_of_the_log_says_that_the_log_was_cut() {
    let folder = tempfile::tempdir().unwrap();
    let root = Root::from_local(LocalStore::open(folder.path()).unwrap());
    fill(&root, 5, 1);
    for n in [5, 4] {
        std::fs::remove_file(folder.path().join(seq(n).path().as_ref())).unwrap();
        let error = open(&root).unwrap_err();
        assert!(matches!(&error, CommitError::Cut { seq: at, .. } if *at == seq(5)), "{error}");
    }
    for n in [3, 2, 1] {
        std::fs::remove_file(folder.path().join(seq(n).path().as_ref())).unwrap();
    }
    assert!(matches!(open(&root), Err(CommitError::Cut { .. })), "no record came over");
}

#[test]
fn what_a_reader_passes_over_is_told_to_whoever_writes_and_by_an_audit() {
    for bytes in [None, Some(b"torn".as_slice())] {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::from_local(LocalStore::open(folder.path()).unwrap());
        fill(&root, 5, 1);
        let record = folder.path().join(seq(3).path().as_ref());
        std::fs::remove_file(&record).unwrap();
        if let Some(bytes) = bytes {
            std::fs::write(&record, bytes).unwrap();
        }
        // All that a reader needs is there.
        let mut log = open(&root).unwrap();
        assert_eq!(log.state().checkpoints.len(), 5);
        let error = append(&mut log, commit("s-6")).unwrap_err();
        assert!(matches!(error, CommitError::Incomplete { .. } | CommitError::Damaged { .. }), "{error}");
        assert_eq!(log.audit().unwrap().findings.len(), 1);
        assert!(root.get_opt(&seq(6).path()).unwrap().is_none());
    }
}

#[test]
fn a_lying_hint_misleads_no_writer() {
    let root = memory();
    fill(&root, 62, 1);
    let mut hint = found(&root);
    // It hides a checkpoint, and a condemned directory might be made up as well.
    hint.state.checkpoints.remove(&seq(7));
    hint.state.condemned.insert("s-70".parse().unwrap(), seq(1));
    put_hint(&root, &hint);
    assert!(matches!(open(&root).unwrap().audit().unwrap().hint, HintCheck::Bad(_)));
    let mut writer = open(&root).unwrap();
    append(&mut writer, commit("s-70")).unwrap();
    // The next record carries the state.
    append(&mut writer, commit("s-71")).unwrap();
    let audit = open(&root).unwrap().audit().unwrap();
    assert!(audit.findings.is_empty() && audit.voids.is_empty(), "{audit:?}");
    assert!(writer.state().checkpoints.contains_key(&seq(7)));
    // Whoever deletes asks for proof.
    put_hint(&root, &hint);
    let mut collector = open(&root).unwrap();
    collector.prove().unwrap();
    assert_eq!(collector.state(), writer.state());
}

#[test]
fn a_reader_whose_hint_lied_is_told_by_the_next_state() {
    let root = memory();
    fill(&root, 62, 1);
    let mut hint = found(&root);
    hint.state.checkpoints.remove(&seq(7));
    put_hint(&root, &hint);
    let mut reader = open(&root).unwrap();
    fill_more(&root, 63..=64);
    assert!(matches!(reader.refresh(), Err(CommitError::Mixed { .. })));
    // One that opens anew is told at once, and goes by the log.
    put_hint(&root, &hint);
    assert!(open(&root).unwrap().state().checkpoints.contains_key(&seq(7)));
}

#[test]
fn a_handle_that_is_dropped_within_an_async_task_does_no_harm() {
    let root = memory();
    let options = LogOptions { hint_every: Some(std::time::Duration::from_secs(3600)), ..options(1) };
    let mut writer = Log::open_with(&root, options).unwrap();
    for n in 1..=2 {
        append(&mut writer, commit(&format!("s-{n}"))).unwrap();
    }
    futures::executor::block_on(async { drop(writer) });
    assert_eq!(found(&root).seq, seq(1), "there the store cannot be waited for");
    assert_eq!(open(&root).unwrap().head(), Some(seq(2)));
}

#[test]
fn a_handle_puts_one_hint_a_while_and_its_last_when_it_is_dropped() {
    let root = memory();
    let options = LogOptions { hint_every: Some(std::time::Duration::from_secs(3600)), ..options(1) };
    let mut writer = Log::open_with(&root, options).unwrap();
    for n in 1..=10 {
        append(&mut writer, commit(&format!("s-{n}"))).unwrap();
        assert_eq!(found(&root).seq, seq(1));
    }
    drop(writer);
    assert_eq!(found(&root).seq, seq(10));
    // One without hints puts none.
    let mut silent = Log::open_with(&root, LogOptions { hint_every: None, ..self::options(2) }).unwrap();
    append(&mut silent, commit("s-11")).unwrap();
    drop(silent);
    assert_eq!(found(&root).seq, seq(10));
}

#[test]
fn a_store_that_takes_no_hint_takes_records() {
    let store = Arc::new(crate::store::faults::FaultyStore::new(
        Arc::new(InMemory::new()) as Arc<dyn ObjectStore>,
        crate::store::faults::Faults { no_overwrite: 1000, ..Default::default() },
        1,
    ));
    let root = Root::from_store(store, "faulty");
    fill(&root, 5, 1);
    assert!(matches!(read(&root).unwrap(), Found::Nothing));
    assert_eq!(open(&root).unwrap().head(), Some(seq(5)));
}

#[test]
fn a_hint_needs_little_room() {
    let root = memory();
    fill(&root, 300, 1);
    let (hint, json) =
        (root.get(&path()).unwrap(), serde_json::to_vec(open(&root).unwrap().state()).unwrap());
    assert_eq!(found(&root).state, *open(&root).unwrap().state());
    assert!(hint.len() * 3 < json.len(), "{} of {}", hint.len(), json.len());
    assert_ne!(RootId::new(Nonce::from_bits(1)), found(&root).root);
}
