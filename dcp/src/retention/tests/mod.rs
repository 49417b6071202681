//! Retention: the right ones stay, and bytes go only after the grace period, in two steps, whatever else happens at the same time.

mod clocked;
mod collect;
mod plan;
mod together;

use std::{num::NonZeroUsize, time::Duration};

pub(crate) use self::{clocked::stages, collect::stopped};
use super::*;
use crate::{
    ErrorKind,
    commit::{Action, Label, Log, LogOptions, Pin, Seq, Tag},
    load::{Level, Loader, newest_good},
    save::{
        SaveOptions, SavePlan, begin_epoch,
        tests::{assert_holds, memory, metrics, plan as save_plan, run, save, spec, wholes},
    },
    store::Root,
};

pub(super) const HOUR: Duration = Duration::from_secs(3600);
pub(super) const DAY: Duration = Duration::from_secs(86_400);

fn keep(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).unwrap()
}

pub(crate) fn saved(root: &Root, steps: std::ops::RangeInclusive<u64>) {
    for step in steps {
        save(root, &wholes(), &save_plan(&wholes(), "1x1x2", step));
    }
}

fn steps(of: &[(Seq, u64)]) -> Vec<u64> {
    of.iter().map(|(_, step)| *step).collect()
}

pub(super) fn live(root: &Root) -> Vec<u64> {
    Log::open(root).unwrap().state().checkpoints.values().map(|it| it.step).collect()
}

pub(super) fn append_action(root: &Root, action: Action) {
    let mut log = Log::open(root).unwrap();
    marks::append(&mut log, &run(), None, action).unwrap();
}

pub(super) fn seq(number: u64) -> Seq {
    Seq::new(number).unwrap()
}

pub(super) fn retired(root: &Root, count: usize) -> Retention {
    retire(root, &run(), None, keep(count), LogOptions::default()).unwrap()
}

pub(super) fn gc(root: &Root, options: &GcOptions) -> Collection {
    collect(root, &run(), None, options, LogOptions::default()).unwrap()
}

/// Directories in the root, but those of the store itself.
pub(super) fn dirs(root: &Root) -> Vec<String> {
    survey::folder_names(root).unwrap()
}

#[test]
fn the_newest_of_the_line_stay_and_what_is_held_stays_too() {
    let root = memory();
    saved(&root, 1..=6);
    append_action(&root, Action::Tag(Tag { name: "best".parse().unwrap(), checkpoint: seq(2) }));
    append_action(&root, Action::Pin(Pin { checkpoint: seq(3), held: true }));
    verified(&root, &run(), None, seq(4), true, LogOptions::default()).unwrap();
    assert_eq!(steps(&retired(&root, 2).retired), [1]);
    assert_eq!(live(&root), [2, 3, 4, 5, 6]);
    verified(&root, &run(), None, seq(6), true, LogOptions::default()).unwrap();
    assert_eq!(steps(&retired(&root, 2).retired), [4], "a newer one is verified now");
    assert_eq!(retired(&root, 9), Retention::default());
    let mut log = Log::open(&root).unwrap();
    assert_eq!(untag(&mut log, &"best".parse().unwrap()).unwrap(), Some(seq(2)));
    assert_eq!(untag(&mut log, &"best".parse().unwrap()).unwrap(), None);
    assert!(pin(&mut log, seq(3), false).unwrap() && !pin(&mut log, seq(3), false).unwrap());
    assert_eq!(steps(&retired(&root, 2).retired), [2, 3]);
}

#[test]
fn what_is_tagged_between_a_plan_and_its_execution_is_held() {
    let root = memory();
    saved(&root, 1..=4);
    let mut log = Log::open(&root).unwrap();
    let considered = consider(&mut log, None, &Policy::last(keep(1)), &LogOptions::default()).unwrap();
    let plan = &considered.runs[0];
    assert_eq!(plan.going().map(|it| it.step).collect::<Vec<_>>(), [3, 2, 1]);
    let mut other = Log::open(&root).unwrap();
    assert_eq!(tag(&mut other, &"good".parse().unwrap(), seq(1)).unwrap(), None);
    retire(&root, &run(), None, keep(2), LogOptions::default()).unwrap();
    let done = forget(&mut log, plan, None).unwrap();
    assert_eq!(
        (steps(&done.retired), steps(&done.held)),
        (vec![3], vec![1]),
        "step 2 was retired by another"
    );
    assert_eq!(live(&root), [1, 4]);
    let error = tag(&mut other, &"gone".parse().unwrap(), seq(2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
}

#[test]
fn other_runs_stay_and_what_the_run_left_beside_its_line_goes_in_its_turn() {
    let (root, options) = (memory(), SaveOptions::default());
    saved(&root, 1..=3);
    let mut other = spec(&wholes(), "1x1x1", 1);
    other.run = "other".parse().unwrap();
    save(&root, &wholes(), &SavePlan::new(other).unwrap());
    // A new incarnation falls back to step 2: step 3 is left beside the line.
    let epoch = begin_epoch(&root, &run(), &options).unwrap();
    let again = |step| {
        let mut spec = spec(&wholes(), "1x1x2", step).in_epoch(epoch);
        spec.parent = Some(seq(2));
        save(&root, &wholes(), &SavePlan::new(spec).unwrap());
    };
    again(3);
    let done = retire(&root, &run(), Some(epoch), keep(2), LogOptions::default()).unwrap();
    assert_eq!(steps(&done.retired), [1], "step 3 of before is newer than the oldest that is kept");
    again(4);
    let done = retire(&root, &run(), Some(epoch), keep(2), LogOptions::default()).unwrap();
    assert_eq!(steps(&done.retired), [2, 3]);
    assert_eq!(live(&root), [1, 3, 4]);

    begin_epoch(&root, &run(), &options).unwrap();
    let error = retire(&root, &run(), Some(epoch), keep(1), LogOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert_eq!(live(&root), [1, 3, 4]);
}

#[test]
fn the_best_stay_and_a_metric_that_nobody_measured_is_refused_with_those_that_were() {
    let root = memory();
    for (step, loss) in [(1, 0.5), (2, 0.1), (3, 0.4), (4, 0.2), (5, 0.9)] {
        let spec = spec(&wholes(), "1x1x1", step).with_metrics(metrics(&[("loss", loss)]));
        save(&root, &wholes(), &SavePlan::new(spec).unwrap());
    }
    let policy = |best: &str| Policy { best: vec![best.parse().unwrap()], ..Policy::default() };
    let mut log = Log::open(&root).unwrap();
    let error = consider(&mut log, None, &policy("los:min:2"), &LogOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    assert!(error.to_string().contains("los") && error.hint_text().unwrap().contains("loss"), "{error}");
    let error = consider(&mut log, None, &Policy::default(), &LogOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    let unknown: Label = "other".parse().unwrap();
    let error = consider(&mut log, Some(&unknown), &policy("loss:min"), &LogOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let considered = consider(&mut log, Some(&run()), &policy("loss:min:2"), &LogOptions::default()).unwrap();
    forget(&mut log, &considered.runs[0], None).unwrap();
    assert_eq!(live(&root), [2, 4, 5]);
    let reasons: Vec<String> =
        considered.runs[0].decisions[1].stays.iter().map(ToString::to_string).collect();
    assert_eq!(reasons, ["2 of the best 2 by loss min (0.2)"]);
}

#[test]
fn the_history_tells_each_record_and_why_some_are_void() {
    let root = memory();
    saved(&root, 1..=2);
    let log = Log::open(&root).unwrap();
    // A writer that breaks the rules: it retires what is not there.
    let mut record = log.read(seq(2)).unwrap().unwrap().record;
    let (digest, nonce) = (log.read(seq(2)).unwrap().unwrap().digest, crate::store::Nonce::from_bits(77));
    (record.seq, record.prev, record.nonce, record.parent) = (seq(3), Some(digest), nonce, None);
    record.action = Action::Retire(crate::commit::Retire { checkpoint: seq(9) });
    assert!(matches!(
        root.put_create(&seq(3).path(), record.encode().unwrap().into()),
        Ok(crate::store::Put::Created)
    ));
    for _ in 0..130 {
        begin_epoch(&root, &run(), &SaveOptions::default()).unwrap();
    }
    let log = Log::open(&root).unwrap();
    let all = history(&log, usize::MAX).unwrap();
    assert_eq!(all.len(), 133);
    assert!(all.iter().rev().zip(1..).all(|(event, number)| event.record.seq == seq(number)));
    let voids: Vec<_> = all.iter().filter(|it| it.void.is_some()).map(|it| it.record.seq.get()).collect();
    assert_eq!(voids, [3]);
    for limit in [0, 1, 5, 64, 65, 130, 133, 200] {
        assert_eq!(history(&log, limit).unwrap(), all[..limit.min(133)], "{limit}");
    }
    assert_eq!(history(&Log::open(&memory()).unwrap(), 5).unwrap(), []);
}
