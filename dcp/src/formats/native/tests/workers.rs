//! Several workers write one plan: each its share, one commit, whatever the race.

use std::{num::NonZeroUsize, thread};

use super::*;
use crate::{
    Cancel, Committed, Error, ErrorKind, Result, Silent, Sink, Source,
    commit::{Action, Condemn, Log},
    engine::{CopyPlan, Ending, Report, RunOptions, Share, run_share, testing::MemSource},
    store::{Root, object_path},
};

fn of(root: &Root, worker: u32, workers: u32) -> NativeSink {
    let mut options = SinkOptions::new("main".parse().unwrap());
    options.share = Share::new(worker, workers).unwrap();
    NativeSink::new(root.clone(), options)
}

fn work(sink: &mut dyn Sink, source: &MemSource, plan: &CopyPlan) -> Result<(Ending, Report)> {
    let options = RunOptions { threads: NonZeroUsize::MIN, ..RunOptions::default() };
    run_share(source, sink, plan, &options, &Silent, &Cancel::new())
}

/// A plan of several files, that of large objects among them.
fn planned(source: &MemSource) -> CopyPlan {
    let mut plan = cut(source, 4);
    objects(&mut plan.spec);
    plan
}

fn committed(ending: &Ending) -> Option<u64> {
    match ending {
        Ending::Committed(Committed { sequence, .. }) => *sequence,
        Ending::Waiting { .. } => None,
    }
}

#[test]
fn the_last_to_finish_commits_what_one_process_would_have() {
    let (wholes, (stores, root)) = (wholes(), memory());
    let source = mem_source(&wholes);
    let plan = planned(&source);
    let (mut files, mut written) = (0, 0);
    for worker in [2, 0, 1] {
        let (ending, report) = work(&mut of(&root, worker, 3), &source, &plan).unwrap();
        (files, written) = (files + report.files, written + report.bytes_written);
        if worker == 1 {
            assert_eq!((committed(&ending), report.proven), (Some(1), wholes.len()));
        } else {
            assert!(matches!(ending, Ending::Waiting { missing } if missing > 0), "{ending:?}");
            assert_eq!((report.proven, report.fingerprints), (0, vec![]));
            assert_eq!(reopen(&stores, None).unwrap_err().kind(), ErrorKind::NotFound);
        }
    }
    let opened = reopen(&stores, None).unwrap();
    check(&opened, &wholes);
    assert_eq!(audit(&opened), []);
    let (other_stores, other) = memory();
    let (_, alone) = work(&mut sink(&other), &source, &plan).unwrap();
    assert_eq!((files, written), (alone.files, alone.bytes_written), "each file once, by one worker");
    let prints = |it: NativeSource| it.catalog().tensors.iter().map(|it| it.fingerprint).collect::<Vec<_>>();
    assert_eq!(prints(opened), prints(reopen(&other_stores, None).unwrap()));
}

#[test]
fn workers_that_finish_at_once_all_succeed_with_one_commit() {
    let source = mem_source(&wholes());
    let plan = planned(&source);
    for _ in 0..20 {
        let (stores, root) = memory();
        let endings = thread::scope(|scope| {
            let workers: Vec<_> = (0..4)
                .map(|worker| {
                    let (root, source, plan) = (&root, &source, &plan);
                    scope.spawn(move || work(&mut of(root, worker, 4), source, plan).unwrap().0)
                })
                .collect();
            workers.into_iter().map(|it| it.join().unwrap()).collect::<Vec<_>>()
        });
        let sequences: Vec<u64> = endings.iter().filter_map(committed).collect();
        assert!(!sequences.is_empty() && sequences.iter().all(|it| *it == 1), "{endings:?}");
        assert_eq!(Log::open(&root).unwrap().state().checkpoints.len(), 1);
        assert_eq!(audit(&reopen(&stores, None).unwrap()), []);
    }
}

#[test]
fn a_worker_that_comes_again_after_the_commit_finds_it() {
    let (source, (_, root)) = (mem_source(&wholes()), memory());
    let plan = planned(&source);
    for worker in 0..2 {
        work(&mut of(&root, worker, 2), &source, &plan).unwrap();
    }
    let (ending, report) = work(&mut of(&root, 0, 2), &source, &plan).unwrap();
    assert_eq!((committed(&ending), report.skipped_files, report.bytes_written), (Some(1), report.files, 0));
    assert_eq!(Log::open(&root).unwrap().state().checkpoints.len(), 1);
}

#[test]
fn what_workers_left_undone_is_finished_by_any_other_number_of_them() {
    let (wholes, (stores, root)) = (wholes(), memory());
    let source = mem_source(&wholes);
    let plan = planned(&source);
    work(&mut of(&root, 1, 3), &source, &plan).unwrap();
    let (ending, report) = work(&mut sink(&root), &source, &plan).unwrap();
    assert!(report.skipped_files > 0 && report.skipped_files < report.files, "{report:?}");
    assert_eq!(committed(&ending), Some(1));
    check(&reopen(&stores, None).unwrap(), &wholes);
}

#[test]
fn a_part_of_another_worker_that_lies_is_found_by_whoever_commits() {
    let (source, (stores, root)) = (mem_source(&wholes()), memory());
    let plan = planned(&source);
    work(&mut of(&root, 0, 2), &source, &plan).unwrap();
    let part = root.list(None).unwrap().into_iter().find(|it| it.path.as_ref().contains("parts/r")).unwrap();
    let mut told: serde_json::Value = serde_json::from_slice(&root.get(&part.path).unwrap()).unwrap();
    let sum = &mut told["done"]["sums"][0][1];
    *sum = serde_json::Value::from(sum.as_str().unwrap().replace(['0', '1'], "2"));
    root.delete(&part.path).unwrap();
    root.put_same(&object_path(part.path.as_ref()).unwrap(), told.to_string().into()).unwrap();
    let error: Error = work(&mut of(&root, 1, 2), &source, &plan).unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("fingerprint"), "{error}");
    assert_eq!(reopen(&stores, None).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn whoever_waits_in_a_folder_that_became_garbage_is_told() {
    let (source, (_, root)) = (mem_source(&wholes()), memory());
    let plan = planned(&source);
    let mut waiting = of(&root, 0, 2);
    let layout = waiting.layout(&plan.spec).unwrap();
    let all: Vec<usize> = (0..layout.files.len()).collect();
    assert_eq!(waiting.finished_by_others(&all).unwrap().len(), 0);
    let mut log = Log::open(&root).unwrap();
    let condemn = Action::Condemn(Condemn { directories: [waiting.attempt().unwrap().clone()].into() });
    let draft = log.draft(&"main".parse().unwrap(), condemn).unwrap();
    log.append(&draft).unwrap();
    let error = waiting.finished_by_others(&all).unwrap_err();
    assert!(error.kind() == ErrorKind::Conflict && error.to_string().contains("condemned"), "{error}");
    let (ending, _) = work(&mut of(&root, 0, 2), &source, &plan).unwrap();
    assert!(committed(&ending).is_none());
    let (ending, _) = work(&mut of(&root, 1, 2), &source, &plan).unwrap();
    assert_eq!(committed(&ending), Some(2), "in a folder of its own");
}
