//! Tests of what records amount to, and the records that other tests use.

use proptest::prelude::*;

use super::super::metrics::Finite;
use super::super::names::{DirName, Label};
use super::super::record::{
    Action, Commit, Condemn, Epoch, FORMAT, ManifestRef, Pin, Retire, RootId, Tag, Untag, Verified,
};
use super::*;
use crate::digest::Sha256Digest;
use crate::store::Nonce;

pub(in super::super) fn dir(name: &str) -> DirName {
    name.parse().unwrap()
}

pub(in super::super) fn label(name: &str) -> Label {
    name.parse().unwrap()
}

pub(in super::super) fn seq(number: u64) -> Seq {
    Seq::new(number).unwrap()
}

pub(in super::super) fn manifest() -> ManifestRef {
    ManifestRef { sha256: Sha256Digest::from_bytes([7; 32]), size: 1 }
}

pub(in super::super) fn commit(attempt: &str) -> Action {
    let (attempt, step) =
        (dir(attempt), attempt.rsplit('-').next().and_then(|s| s.parse().ok()).unwrap_or(0));
    let metrics = [(label("loss"), Finite::new(f64::from(u32::try_from(step).unwrap()) / 3.0).unwrap())];
    let (directories, metrics) =
        ([attempt.clone()].into(), metrics.into_iter().filter(|_| step % 3 > 0).collect());
    Action::Commit(Commit { step, manifest: manifest(), directories, attempt, metrics })
}

fn retire(number: u64) -> Action {
    Action::Retire(Retire { checkpoint: seq(number) })
}

fn condemn(name: &str) -> Action {
    Action::Condemn(Condemn { directories: [dir(name)].into() })
}

fn tag(name: &str, number: u64) -> Action {
    Action::Tag(Tag { name: label(name), checkpoint: seq(number) })
}

fn verified(number: u64, whole: bool) -> Action {
    Action::Verified(Verified { checkpoint: seq(number), whole })
}

fn pin(number: u64, held: bool) -> Action {
    Action::Pin(Pin { checkpoint: seq(number), held })
}

pub(in super::super) fn all_actions() -> Vec<Action> {
    let untag = Action::Untag(Untag { name: label("best") });
    let epoch = Action::Epoch(Epoch {});
    vec![
        commit("s-1"),
        retire(1),
        condemn("s-2"),
        tag("best", 1),
        untag,
        pin(1, true),
        verified(1, true),
        epoch,
    ]
}

pub(in super::super) fn record(number: u64, action: Action) -> Record {
    Record {
        format: FORMAT,
        must_understand: Vec::new(),
        root: RootId::new(Nonce::from_bits(9)),
        seq: seq(number),
        prev: (number > 1).then(|| Sha256Digest::from_bytes([7; 32])),
        nonce: Nonce::from_bits(u128::from(number)),
        writer: "test".to_owned(),
        time_ms: 0,
        run: label("main"),
        epoch: 0,
        parent: None,
        action,
        state: None,
    }
}

fn log(actions: impl IntoIterator<Item = Action>) -> Vec<Record> {
    (1..).zip(actions).map(|(number, action)| record(number, action)).collect()
}

fn voids(records: &[Record]) -> Vec<u64> {
    fold(records).voids.iter().map(|(seq, _)| seq.get()).collect()
}

#[test]
fn the_newest_is_the_one_committed_last_not_the_one_of_the_highest_step() {
    let fold = fold(&log([commit("step-900"), commit("step-1000"), commit("step-950")]));
    assert_eq!(fold.state.newest(&label("main")).map(|(seq, c)| (seq.get(), c.step)), Some((3, 950)));
    assert_eq!(fold.state.newest(&label("other")), None);
}

#[test]
fn the_line_falls_back_along_ancestors_and_over_retired_ones() {
    let mut records = log([commit("s-1"), commit("s-2"), commit("s-3"), commit("s-4"), retire(3)]);
    records[1].parent = Some(seq(1));
    records[2].parent = Some(seq(2));
    // The run was taken back to its first checkpoint by another incarnation.
    (records[3].parent, records[3].epoch, records[4].epoch) = (Some(seq(1)), 1, 1);
    let line = |records: &[Record]| {
        fold(records).state.line(&label("main")).map(|(seq, _)| seq.get()).collect::<Vec<_>>()
    };
    assert_eq!(line(&records), [4, 1]);
    assert_eq!(line(&records[..3]), [3, 2, 1]);
    let mut retired = log([commit("s-1"), commit("s-2"), commit("s-3"), retire(2)]);
    (retired[1].parent, retired[2].parent) = (Some(seq(1)), Some(seq(2)));
    assert_eq!(line(&retired), [3, 1]);
}

#[test]
fn a_commit_to_a_condemned_directory_is_void() {
    assert_eq!(voids(&log([condemn("s-1"), commit("s-1")])), [2]);
    let mut refers = log([condemn("s-1"), commit("s-2")]);
    if let Action::Commit(commit) = &mut refers[1].action {
        commit.directories.insert(dir("s-1"));
    }
    let fold = fold(&refers);
    assert!(matches!(&fold.voids[..], [(_, Void::Condemned { directory, .. })] if *directory == dir("s-1")));
    assert!(fold.state.checkpoints.is_empty());
}

#[test]
fn what_a_checkpoint_needs_cannot_be_condemned() {
    assert_eq!(voids(&log([commit("s-1"), condemn("s-1")])), [2]);
    assert_eq!(voids(&log([commit("s-1"), retire(1), condemn("s-1"), commit("s-1")])), [4]);
}

#[test]
fn records_of_an_ended_epoch_are_void_whatever_they_do() {
    let mut records = log([Action::Epoch(Epoch {}), commit("s-1"), retire(2), tag("x", 2), commit("s-2")]);
    records[0].epoch = 3;
    records[1].epoch = 3;
    (records[2].epoch, records[3].epoch) = (2, 2);
    records[4].epoch = 4;
    assert_eq!(voids(&records), [3, 4]);
    assert_eq!(fold(&records).state.epoch(&label("main")), 4);
    // An incarnation cannot begin twice.
    let mut twice = log([Action::Epoch(Epoch {}), Action::Epoch(Epoch {})]);
    (twice[0].epoch, twice[1].epoch) = (1, 1);
    assert_eq!(voids(&twice), [2]);
}

#[test]
fn two_writers_of_one_incarnation_are_told_apart_by_the_parent() {
    let mut records = log([commit("s-1"), commit("s-2"), commit("s-3")]);
    (records[1].parent, records[2].parent) = (Some(seq(1)), Some(seq(1)));
    let fold = fold(&records);
    assert!(matches!(&fold.voids[..], [(_, Void::Forked { tip, .. })] if *tip == seq(2)));
}

#[test]
fn an_attempt_is_committed_once_even_after_it_was_retired() {
    assert_eq!(voids(&log([commit("s-1"), commit("s-1")])), [2]);
    assert_eq!(voids(&log([commit("s-1"), retire(1), commit("s-1")])), [3]);
}

#[test]
fn what_is_tagged_pinned_or_the_newest_verified_is_not_retired() {
    assert_eq!(voids(&log([commit("s-1"), tag("best", 1), retire(1)])), [3]);
    assert_eq!(voids(&log([commit("s-1"), pin(1, true), retire(1), pin(1, false), retire(1)])), [3]);
    let verify = |more: Vec<Action>| {
        let first = [commit("s-1"), commit("s-2"), commit("s-3"), verified(1, true), verified(2, true)];
        voids(&log(first.into_iter().chain(more)))
    };
    assert_eq!(verify(vec![retire(2)]), [6]);
    assert_eq!(verify(vec![retire(1), retire(3)]), [0; 0]);
    assert_eq!(verify(vec![verified(2, false), retire(2), retire(1)]), [8]);
}

#[test]
fn a_tag_moves_and_is_taken_away() {
    let untag = || Action::Untag(Untag { name: label("best") });
    let records =
        log([commit("s-1"), commit("s-2"), tag("best", 1), tag("best", 2), retire(1), untag(), untag()]);
    assert_eq!(voids(&records), [7]);
    assert!(fold(&records).state.tags.is_empty());
    assert_eq!(voids(&log([tag("best", 1)])), [1]);
}

/// Any action on a few directories and checkpoints, so that they meet.
fn any_action() -> impl Strategy<Value = Action> {
    let number = || 1_u64..12;
    prop_oneof![
        4 => (0_u32..12).prop_map(|n| commit(&format!("s-{n}"))),
        2 => number().prop_map(retire),
        1 => (0_u32..12).prop_map(|n| condemn(&format!("s-{n}"))),
        1 => (0_u32..3, number()).prop_map(|(name, number)| tag(&format!("t{name}"), number)),
        1 => (0_u32..3).prop_map(|name| Action::Untag(Untag { name: label(&format!("t{name}")) })),
        1 => (number(), any::<bool>()).prop_map(|(number, held)| pin(number, held)),
        1 => (number(), any::<bool>()).prop_map(|(number, whole)| verified(number, whole)),
        1 => Just(Action::Epoch(Epoch {})),
    ]
}

fn any_log() -> impl Strategy<Value = Vec<Record>> {
    let one = (any_action(), 0_u32..2, 0_u64..3, proptest::option::of(1_u64..30));
    prop::collection::vec(one, 0..60).prop_map(|all| {
        let records = (1..).zip(all).map(|(number, (action, run, epoch, parent))| {
            let run = label(&format!("run{run}"));
            Record { run, epoch, parent: parent.map(seq), ..record(number, action) }
        });
        records.collect()
    })
}

proptest! {
    #[test]
    fn the_order_in_which_records_are_handed_over_does_not_matter(
        (records, shuffled) in any_log().prop_flat_map(|log| (Just(log.clone()), Just(log).prop_shuffle())),
    ) {
        prop_assert_eq!(fold(&records), fold(&shuffled));
    }

    #[test]
    fn folding_on_from_a_state_that_was_written_equals_folding_all(records in any_log(), cut in 0_usize..60) {
        let (first, rest) = records.split_at(cut.min(records.len()));
        let before = fold(first);
        let written = serde_json::to_string(&before.state).unwrap();
        let after = fold_from(serde_json::from_str(&written).unwrap(), rest);
        let all = fold(&records);
        prop_assert_eq!(&after.state, &all.state);
        prop_assert_eq!([before.voids, after.voids].concat(), all.voids);
    }

    #[test]
    fn nothing_that_exists_needs_what_is_condemned_or_points_nowhere(records in any_log()) {
        let state = fold(&records).state;
        for (at, checkpoint) in &state.checkpoints {
            prop_assert!(state.condemned.keys().all(|dir| !checkpoint.needs(dir)));
            prop_assert!(checkpoint.ancestor.is_none_or(|a| a < *at && state.checkpoints.contains_key(&a)));
        }
        prop_assert!(state.tags.values().all(|tagged| state.checkpoints.contains_key(tagged)));
    }
}
