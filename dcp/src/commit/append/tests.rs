//! Tests of appending: faults, races, fencing.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use object_store::ObjectStore;
use object_store::memory::InMemory;

use super::super::clock::{Clock, Retry};
use super::super::fold::tests::{commit, dir, label, seq};
use super::super::log::LogOptions;
use super::super::record::Tag;
use super::super::state::Void;
use super::*;
use crate::store::faults::{Faults, FaultyStore};
use crate::store::{LocalStore, Root, SeededNonces};

/// A clock that stands still, and never makes a test wait.
#[derive(Debug, Default)]
pub(in super::super) struct Still(Mutex<Duration>);

impl Still {
    /// How long was waited, in all.
    pub(in super::super) fn paused(&self) -> Duration {
        *self.0.lock().unwrap()
    }
}

impl Clock for Still {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_000)
    }

    fn pause(&self, time: Duration) {
        *self.0.lock().unwrap() += time;
        std::thread::yield_now();
    }
}

pub(in super::super) fn options(seed: u64) -> LogOptions {
    let retry = Retry { tries: 12, ..Retry::default() };
    LogOptions {
        clock: Arc::new(Still::default()),
        nonces: Arc::new(SeededNonces::new(seed)),
        retry,
        writer: "test".to_owned(),
        hint_every: Some(Duration::ZERO),
    }
}

pub(in super::super) fn memory() -> Root {
    Root::from_store(Arc::new(InMemory::new()), "memory://test")
}

pub(in super::super) fn log(root: &Root, seed: u64) -> Log {
    Log::open_with(root, options(seed)).unwrap()
}

pub(in super::super) fn append(log: &mut Log, action: Action) -> Result<Committed> {
    let draft = log.draft(&label("main"), action)?;
    log.append(&draft)
}

/// The attempts of a log, by its records, after an audit that found nothing.
fn attempts(root: &Root) -> Vec<String> {
    let log = log(root, 999);
    let audit = log.audit().unwrap();
    assert!(audit.findings.is_empty() && audit.voids.is_empty(), "{audit:?}");
    let head = log.head().map_or(0, Seq::get);
    assert_eq!(audit.records, head);
    let records = (1..=head).map(|n| log.read(seq(n)).unwrap().unwrap().record);
    let attempts = records
        .filter_map(|r| if let Action::Commit(c) = r.action { Some(c.attempt.to_string()) } else { None });
    attempts.collect()
}

/// Opens it, however often a read fails.
fn reopened(root: &Root, seed: u64) -> Log {
    (0..100).find_map(|_| Log::open_with(root, options(seed)).ok()).unwrap()
}

/// Eight writers with fifty commits each: each must be in the log once.
fn race(roots: &[Root], clean: &Root) {
    std::thread::scope(|scope| {
        for (writer, root) in (0_u64..).zip(roots) {
            scope.spawn(move || {
                let mut log = reopened(root, writer);
                for n in 0..50 {
                    let draft = log.draft(&label("main"), commit(&format!("w{writer}-{n}"))).unwrap();
                    while let Err(error) = log.append(&draft) {
                        let store = matches!(error, CommitError::Unknown { .. } | CommitError::Store(_));
                        assert!(store, "{error:?}");
                    }
                }
            });
        }
    });
    let attempts = attempts(clean);
    let distinct: BTreeSet<_> = attempts.iter().collect();
    assert_eq!((attempts.len(), distinct.len()), (400, 400));
}

#[test]
fn eight_writers_in_a_folder_lose_nothing_and_write_nothing_twice() {
    let folder = tempfile::tempdir().unwrap();
    let roots: Vec<_> = (0..8).map(|_| Root::from_local(LocalStore::open(folder.path()).unwrap())).collect();
    race(&roots, &roots[0]);
}

#[test]
fn eight_writers_on_a_faulty_store_lose_nothing_and_write_nothing_twice() {
    for seed in 0..4 {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let faults = Faults {
            lost_answer: 100,
            conflict_with_itself: 50,
            false_conflict: 30,
            error_before: 50,
            late_landing: 50,
            not_found: 100,
            no_overwrite: 100,
            cut_body: 100,
            late_listing: 100,
            outage: 10,
        };
        let faulty: Vec<_> =
            (0..8).map(|n| Arc::new(FaultyStore::new(Arc::clone(&store), faults, seed * 8 + n))).collect();
        let roots: Vec<_> = faulty.iter().map(|f| Root::from_store(f.clone(), "faulty")).collect();
        race(&roots, &Root::from_store(store, "clean"));
        let injected: u64 = faulty.iter().map(|store| store.injected()).sum();
        assert!(injected > 200, "{injected} faults");
    }
}

#[test]
fn a_lost_answer_is_neither_a_conflict_nor_a_second_record() {
    for faults in [
        Faults { lost_answer: 1000, ..Faults::default() },
        Faults { conflict_with_itself: 1000, ..Faults::default() },
        Faults { lost_answer: 500, not_found: 300, ..Faults::default() },
    ] {
        let store = Arc::new(InMemory::new());
        let mut log =
            log(&Root::from_store(Arc::new(FaultyStore::new(store.clone(), faults, 1)), "faulty"), 1);
        for n in 1..=100 {
            let committed = append(&mut log, commit(&format!("s-{n}"))).unwrap();
            assert_eq!(committed, Committed { seq: seq(n), before: false });
        }
        assert_eq!(attempts(&Root::from_store(store, "clean")).len(), 100);
    }
}

#[test]
fn a_store_that_never_answers_leaves_it_unknown_and_the_draft_is_found_later() {
    let store = Arc::new(InMemory::new());
    let mute = Faults { late_landing: 1000, ..Faults::default() };
    let faulty = Arc::new(FaultyStore::new(store.clone(), Faults { error_before: 1000, ..mute }, 1));
    let mut first = log(&Root::from_store(faulty, "faulty"), 1);
    let draft = first.draft(&label("main"), commit("s-1")).unwrap();
    assert!(matches!(first.append(&draft), Err(CommitError::Unknown { .. })));
    // It lands after all, and its writer reads on before it asks again.
    let clean = Root::from_store(store, "clean");
    let record = first.record_of(&draft).unwrap().encode().unwrap();
    clean.put_same(&Seq::FIRST.path(), record.into()).unwrap();
    first.refresh().unwrap();
    assert_eq!(first.append(&draft).unwrap(), Committed { seq: seq(1), before: true });
    assert_eq!(attempts(&clean), ["s-1"]);
}

#[test]
fn a_draft_in_doubt_stays_in_doubt_whatever_fails_next() {
    // All creates land and lose their answers, and whatever is read breaks off.
    let store = Arc::new(InMemory::new());
    let faults = Faults { lost_answer: 1000, cut_body: 1000, ..Faults::default() };
    let mut log = log(&Root::from_store(Arc::new(FaultyStore::new(store.clone(), faults, 1)), "faulty"), 1);
    let tag = Action::Pin(super::super::record::Pin { checkpoint: seq(1), held: true });
    for action in [commit("s-1"), tag] {
        let draft = log.draft(&label("main"), action).unwrap();
        for _ in 0..3 {
            // The record is there, so to say that nothing was written would be a lie.
            let appended = log.append(&draft);
            assert!(matches!(appended, Err(CommitError::Unknown { .. })), "{appended:?}");
        }
        log.root = Root::from_store(store.clone(), "clean");
        assert!(log.append(&draft).unwrap().before);
        log.root = Root::from_store(Arc::new(FaultyStore::new(store.clone(), faults, 2)), "faulty");
    }
    let clean = Root::from_store(store, "clean");
    assert_eq!(Log::open_with(&clean, options(3)).unwrap().head(), Some(seq(2)));
}

#[test]
fn what_lands_late_with_another_time_in_it_is_still_ours() {
    let root = memory();
    let mut log = log(&root, 1);
    let draft = log.draft(&label("main"), commit("s-1")).unwrap();
    let mut earlier = log.record_of(&draft).unwrap();
    earlier.time_ms -= 1;
    let bytes = earlier.encode().unwrap();
    root.put_same(&Seq::FIRST.path(), bytes.clone().into()).unwrap();
    let Holder::Ours(entry) =
        log.create(Seq::FIRST, &Bytes::from_static(b"later"), draft.nonce, false).unwrap()
    else {
        panic!("it is ours");
    };
    assert_eq!(entry.digest, Sha256Digest::of(&bytes));
    append(&mut log, commit("s-2")).unwrap();
    assert_eq!(attempts(&root), ["s-1", "s-2"]);
}

#[test]
fn an_error_that_is_certain_ends_the_append_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = log(&Root::from_local(LocalStore::open_foreign(folder.path()).unwrap()), 1);
    let appended = append(&mut log, commit("s-1"));
    assert!(matches!(appended, Err(CommitError::Store(StoreError::Refused { .. }))), "{appended:?}");
}

#[test]
fn workers_that_commit_one_attempt_all_succeed_with_one_record() {
    let root = memory();
    let committed: Vec<_> =
        (0..4).map(|worker| append(&mut log(&root, worker), commit("s-1")).unwrap()).collect();
    assert!(committed.iter().all(|c| c.seq == seq(1)));
    assert_eq!(committed.iter().filter(|c| !c.before).count(), 1);
}

#[test]
fn an_incarnation_that_was_replaced_is_fenced() {
    let root = memory();
    let (mut old, mut new) = (log(&root, 1), log(&root, 2));
    let run = label("main");
    assert_eq!(old.begin_epoch(&run).unwrap(), 1);
    let stale = old.draft(&run, commit("s-1")).unwrap().in_epoch(1);
    assert_eq!(new.begin_epoch(&run).unwrap(), 2);
    let fenced = old.append(&stale);
    assert!(
        matches!(fenced, Err(CommitError::Rejected { void: Void::Fenced { epoch: 1, current: 2, .. } })),
        "{fenced:?}"
    );
    assert_eq!(attempts(&root), [""; 0]);
    // A person's tag is for whatever incarnation there is.
    append(&mut new, commit("s-2")).unwrap();
    append(&mut old, Action::Tag(Tag { name: label("best"), checkpoint: seq(3) })).unwrap();
}

#[test]
fn a_second_writer_of_one_incarnation_is_stopped_by_its_parent() {
    let root = memory();
    let (mut first, mut second) = (log(&root, 1), log(&root, 2));
    let begin = append(&mut first, commit("s-1")).unwrap().seq;
    let next = |log: &Log, attempt| log.draft(&label("main"), commit(attempt)).unwrap().after(Some(begin));
    let (one, two) = (next(&first, "s-2"), next(&second, "s-2b"));
    first.append(&one).unwrap();
    let forked = second.append(&two);
    assert!(matches!(forked, Err(CommitError::Rejected { void: Void::Forked { .. } })), "{forked:?}");
}

#[test]
fn a_commit_to_what_was_condemned_meanwhile_is_not_written() {
    let root = memory();
    let (mut trainer, mut collector) = (log(&root, 1), log(&root, 2));
    let draft = trainer.draft(&label("main"), commit("s-1")).unwrap();
    let condemn = super::super::record::Condemn { directories: [dir("s-1")].into() };
    append(&mut collector, Action::Condemn(condemn)).unwrap();
    let appended = trainer.append(&draft);
    assert!(matches!(appended, Err(CommitError::Rejected { void: Void::Condemned { .. } })), "{appended:?}");
}

#[test]
fn a_draft_that_is_tied_to_the_newest_checkpoint_is_not_written_behind_another() {
    let root = memory();
    let (mut first, mut second) = (log(&root, 1), log(&root, 2));
    let tied =
        |log: &Log, name: &str, newest| log.draft(&label("main"), commit(name)).unwrap().while_newest(newest);
    let old = tied(&first, "old", None);
    assert_eq!(first.append(&old).unwrap().seq, seq(1));
    // Another commits between the decision and the record.
    let behind = tied(&first, "behind", Some(seq(1)));
    append(&mut second, commit("live")).unwrap();
    match first.append(&behind) {
        Err(CommitError::Passed { expected, newest, .. }) => {
            assert_eq!((expected, newest), (Some(seq(1)), Some(seq(2))));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(attempts(&root), ["old", "live"]);
    // Records of other kinds and other runs are no matter.
    let other = second.draft(&label("other"), commit("other")).unwrap();
    second.append(&other).unwrap();
    append(&mut second, Action::Tag(Tag { name: label("best"), checkpoint: seq(2) })).unwrap();
    let next = tied(&first, "next", Some(seq(2)));
    assert_eq!(first.append(&next).unwrap(), Committed { seq: seq(5), before: false });
    assert!(first.append(&next).unwrap().before, "what is there is there, whatever came after");
}
