//! Retention: the right ones stay, and bytes go only after the grace period, in two steps.

use std::{num::NonZeroUsize, time::Duration};

use super::*;
use crate::{
    ErrorKind,
    commit::{Pin, Tag},
    load::{Level, Loader, newest_good},
    save::{
        SaveOptions, SavePlan, begin_epoch,
        tests::{assert_holds, memory, plan, run, save, spec, wholes},
    },
    store::{Root, Stores},
};

fn keep(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).unwrap()
}

fn saved(root: &Root, steps: std::ops::RangeInclusive<u64>) {
    for step in steps {
        save(root, &wholes(), &plan(&wholes(), "1x1x2", step));
    }
}

fn steps(of: &[(Seq, u64)]) -> Vec<u64> {
    of.iter().map(|(_, step)| *step).collect()
}

fn live(root: &Root) -> Vec<u64> {
    Log::open(root).unwrap().state().checkpoints.values().map(|it| it.step).collect()
}

fn append_action(root: &Root, action: Action) {
    let mut log = Log::open(root).unwrap();
    append(&mut log, &run(), None, action).unwrap();
}

fn seq(number: u64) -> Seq {
    Seq::new(number).unwrap()
}

#[test]
fn the_newest_of_the_line_stay_and_what_is_held_stays_too() {
    let root = memory();
    saved(&root, 1..=6);
    append_action(&root, Action::Tag(Tag { name: "best".parse().unwrap(), checkpoint: seq(2) }));
    append_action(&root, Action::Pin(Pin { checkpoint: seq(3), held: true }));
    verified(&root, &run(), None, seq(4), true, LogOptions::default()).unwrap();
    let done = retire(&root, &run(), None, keep(2), LogOptions::default()).unwrap();
    assert_eq!((steps(&done.retired), steps(&done.held)), (vec![1], vec![2, 3, 4]));
    assert_eq!(live(&root), [2, 3, 4, 5, 6]);
    verified(&root, &run(), None, seq(6), true, LogOptions::default()).unwrap();
    let done = retire(&root, &run(), None, keep(2), LogOptions::default()).unwrap();
    assert_eq!(
        (steps(&done.retired), steps(&done.held)),
        (vec![4], vec![2, 3]),
        "a newer one is verified now"
    );
    let done = retire(&root, &run(), None, keep(9), LogOptions::default()).unwrap();
    assert_eq!(done, Retention::default());
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
fn bytes_go_in_two_steps_and_only_after_the_grace_period() {
    let folder = tempfile::tempdir().unwrap();
    for location in ["memory://run", folder.path().to_str().unwrap()] {
        let root = Root::create(location, &Stores::new()).unwrap();
        saved(&root, 1..=3);
        let dirs = |root: &Root| root.list_dir(None).unwrap().dirs.len();
        assert_eq!(dirs(&root), 4, "commits and three attempts");
        retire(&root, &run(), None, keep(1), LogOptions::default()).unwrap();
        let hour = Duration::from_secs(3600);
        let first = collect(&root, &run(), None, hour, LogOptions::default()).unwrap();
        assert_eq!((first.condemned.len(), first.deleted.len(), first.bytes), (2, 0, 0));
        let again = collect(&root, &run(), None, hour, LogOptions::default()).unwrap();
        assert_eq!((again.condemned.len(), again.waiting.len(), again.deleted.len()), (0, 2, 0));
        assert_eq!(dirs(&root), 4);
        let last = collect(&root, &run(), None, Duration::ZERO, LogOptions::default()).unwrap();
        assert_eq!((last.deleted.len(), dirs(&root)), (2, 2), "{last:?}");
        assert!(last.bytes > 1000);
        let nothing = collect(&root, &run(), None, Duration::ZERO, LogOptions::default()).unwrap();
        assert_eq!(nothing, Collection::default());
        assert_holds(&Loader::newest(&root, &run()).unwrap(), &wholes());
        assert_eq!(newest_good(&root, &run(), Level::Full).unwrap().found.unwrap().step, 3);
        // The same plan is written again, elsewhere: what was condemned never comes back.
        saved(&root, 1..=1);
        assert_holds(&Loader::newest(&root, &run()).unwrap(), &wholes());
    }
}

#[test]
fn a_folder_of_unfinished_files_and_half_deleted_ones_is_deleted_to_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let root = Root::create(folder.path().to_str().unwrap(), &Stores::new()).unwrap();
    saved(&root, 1..=2);
    retire(&root, &run(), None, keep(1), LogOptions::default()).unwrap();
    let first =
        root.list(None).unwrap().into_iter().find(|it| it.path.as_ref().contains("step-00000001")).unwrap();
    let dir = folder.path().join(first.path.as_ref().split('/').next().unwrap());
    std::fs::write(dir.join("data/.staging-00000000000000000000000000000000"), b"left behind").unwrap();
    root.delete(&first.path).unwrap();
    collect(&root, &run(), None, Duration::ZERO, LogOptions::default()).unwrap();
    assert!(!dir.exists());
    assert_holds(&Loader::newest(&root, &run()).unwrap(), &wholes());
}
