//! What is told of places and of roots.

use std::sync::Arc;

use super::{root::LONG, *};
use crate::{
    Severity,
    commit::Log,
    retention::tests::{saved, stages, stopped},
    save::tests::memory,
    store::{Put, object_path},
};

fn codes(found: &Examination, severity: Severity) -> Vec<&'static str> {
    found.findings.iter().filter(|it| it.severity == severity).map(|it| it.code).collect()
}

#[test]
fn a_clock_that_is_off_is_told_and_nothing_else_is_wrong() {
    for stage in stages() {
        saved(&stage.root, 1..=2);
        let found = examine(&stage.root, &LogOptions::default()).unwrap();
        assert_eq!(codes(&found, Severity::Error), Vec::<&str>::new());
        assert!(codes(&found, Severity::Warning).contains(&"clock"), "{found:?}");
        let hour = found.clock_offset_ms.unwrap().unsigned_abs();
        assert!((3_590_000..3_610_000).contains(&hour), "{hour}");
        assert_eq!((found.records, found.checkpoints, found.worst()), (2, 2, None));
    }
}

#[test]
fn what_is_missing_is_an_error_and_what_was_stopped_long_ago_a_warning() {
    for stage in stages() {
        saved(&stage.root, 1..=1);
        drop(stopped(&stage.root, 2));
        let log = Log::open(&stage.root).unwrap();
        let checkpoint = log.state().checkpoints.values().next().unwrap().clone();
        stage.root.delete(&checkpoint.manifest.path(&checkpoint.attempt)).unwrap();
        stage.hands.turn(2 * LONG);
        let found = examine(&stage.root, &LogOptions::default()).unwrap();
        assert_eq!(codes(&found, Severity::Error), ["incomplete"]);
        assert!(codes(&found, Severity::Warning).contains(&"uncommitted"), "{found:?}");
        assert_eq!(found.worst(), Some(ErrorKind::Corrupt));
        stage.root.delete(&Seq::FIRST.path()).unwrap();
        let empty = examine(&stage.root, &LogOptions::default()).unwrap();
        assert_eq!((empty.records, empty.head), (0, None));
    }
}

#[test]
fn a_damaged_record_is_named_and_a_folder_of_something_else_refused() {
    let root = memory();
    saved(&root, 1..=3);
    let second = Seq::new(2).unwrap().path();
    root.delete(&second).unwrap();
    assert_eq!(root.put_create(&second, "{}".into()).unwrap(), Put::Created);
    let found = examine(&root, &LogOptions::default()).unwrap();
    assert!(codes(&found, Severity::Error).contains(&"log"), "{found:?}");
    assert!(found.findings[0].message.contains("00000000000000000002.json"), "{found:?}");
    let other = memory();
    let config = object_path("config.json").unwrap();
    assert_eq!(other.put_create(&config, "{}".into()).unwrap(), Put::Created);
    assert_eq!(examine(&other, &LogOptions::default()).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_folder_that_a_checkpoint_shares_and_that_is_gone_is_an_error() {
    let root = memory();
    saved(&root, 1..=2);
    let mut log = Log::open(&root).unwrap();
    let commit = crate::commit::Commit {
        step: 3,
        attempt: "step-00000003-0123456789abcdef01234567".parse().unwrap(),
        manifest: log.state().checkpoints.values().next().unwrap().manifest,
        directories: ["step-00000009-0123456789abcdef01234567".parse().unwrap()].into(),
        metrics: Default::default(),
    };
    let draft = log.draft(&"main".parse().unwrap(), crate::commit::Action::Commit(commit)).unwrap();
    log.append(&draft).unwrap();
    let found = examine(&root, &LogOptions::default()).unwrap();
    assert_eq!(codes(&found, Severity::Error), ["incomplete", "incomplete"]);
    assert!(found.findings[0].message.contains("step-00000009-"), "{found:?}");
}

#[test]
fn a_hint_that_is_wrong_is_told_and_harms_nobody() {
    let root = memory();
    saved(&root, 1..=2);
    let head = object_path("commits/head").unwrap();
    root.delete(&head).unwrap();
    assert_eq!(root.put_create(&head, "CKPTHEAD, or not".into()).unwrap(), Put::Created);
    let found = examine(&root, &LogOptions::default()).unwrap();
    assert_eq!((found.worst(), found.checkpoints), (None, 2));
    assert!(codes(&found, Severity::Warning).contains(&"hint"), "{found:?}");
}

#[test]
fn every_damaged_record_of_a_log_that_cannot_be_opened_is_told() {
    let root = memory();
    saved(&root, 1..=5);
    root.delete(&object_path("commits/head").unwrap()).unwrap();
    for number in [2, 4] {
        let path = Seq::new(number).unwrap().path();
        root.delete(&path).unwrap();
        assert_eq!(root.put_create(&path, "{}".into()).unwrap(), Put::Created);
    }
    let found = examine(&root, &LogOptions::default()).unwrap();
    let told: Vec<_> = found.findings.iter().filter(|it| it.code == "log").collect();
    for number in ["record 2:", "record 4:"] {
        assert!(told.iter().any(|it| it.message.contains(number)), "{number} {told:?}");
    }
    assert_eq!((found.records, found.head), (3, Seq::new(5).ok()));
}

#[test]
fn what_a_second_probe_said_stands_in_the_finding() {
    let store = crate::store::faults::FaultyStore::new(
        Arc::new(object_store::memory::InMemory::new()),
        crate::store::faults::Faults { error_before: 1000, ..Default::default() },
        1,
    );
    let mut found = Examination::default();
    found.probe(&Root::from_store(Arc::new(store), "faulty"));
    let [told] = found.findings.as_slice() else { panic!("{found:?}") };
    assert_eq!((told.code, told.severity), ("create", Severity::Error));
    assert!(told.message.contains("(tried "), "{told:?}");
}
