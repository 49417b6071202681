//! Collecting while others save, commit, load, forget and collect: each order of what they do, by driving the real code to it.

use std::sync::{Arc, Mutex};

use super::{
    super::collect::{Moment, collect_watched},
    clocked::{Stage, stages},
    collect::stopped,
    *,
};
use crate::{
    Cancel, Error, Result,
    commit::Commit,
    engine::{
        self, RunOptions,
        testing::{MemSource, Proof, Stored, Whole, plan as plan_of},
    },
    formats::{
        OpenOptions,
        native::{self, NativeSink, SinkOptions},
    },
    save::{
        self, Session, Watch,
        tests::{session, write_rank},
    },
    store::Stores,
};

/// Collects, and does something else at a moment of it.
fn gc_with(root: &Root, options: &GcOptions, at: fn(&Moment) -> bool, mut other: impl FnMut()) -> Collection {
    let mut due = true;
    let watch = &mut |moment: Moment| {
        if due && at(&moment) {
            due = false;
            other();
        }
        Ok(())
    };
    let done = collect_watched(root, &run(), None, options, LogOptions::default(), watch).unwrap();
    assert!(!due, "the moment never came");
    done
}

fn surveyed(moment: &Moment) -> bool {
    matches!(moment, Moment::Surveyed)
}

fn condemned(moment: &Moment) -> bool {
    matches!(moment, Moment::Condemned)
}

fn deleting(moment: &Moment) -> bool {
    matches!(moment, Moment::Deleting)
}

const NOW: GcOptions = GcOptions::after(Duration::ZERO);

fn assert_condemned(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(error.to_string().contains("was condemned by record"), "{error}");
    assert!(
        error.hint_text().is_some() || error.to_string().contains("write the checkpoint again"),
        "{error:?}"
    );
}

#[test]
fn a_writer_that_slept_through_its_condemnation_is_told_and_what_it_writes_after_is_deleted_again() {
    for Stage { root, hands, .. } in stages() {
        saved(&root, 1..=1);
        let sleeper = stopped(&root, 2);
        hands.turn(25 * HOUR);
        let first = gc(&root, &GcOptions::after(HOUR));
        assert_eq!((first.condemned.len(), first.deleted.len()), (1, 0));
        // It wakes up before the deletion.
        write_rank(&sleeper, &wholes(), 1).unwrap();
        assert_condemned(&sleeper.commit().unwrap_err());
        hands.turn(HOUR);
        assert_eq!(gc(&root, &GcOptions::after(HOUR)).deleted.len(), 1);
        assert_eq!(dirs(&root).len(), 1);
        // And goes on after it.
        drop(write_rank(&sleeper, &wholes(), 0));
        drop(write_rank(&sleeper, &wholes(), 1));
        assert_eq!(dirs(&root).len(), 2);
        assert_condemned(&sleeper.commit().unwrap_err());
        assert_eq!(live(&root), [1]);
        let again = gc(&root, &GcOptions::after(HOUR));
        assert_eq!((again.condemned.len(), again.deleted.len()), (0, 1), "{again:?}");
        assert_eq!((dirs(&root).len(), again.deleted[0].kind), (1, Kind::Condemned));
        // A new session of the same plan writes elsewhere.
        saved(&root, 2..=2);
        assert_holds(&Loader::newest(&root, &run()).unwrap(), &wholes());
        assert_eq!(Log::open(&root).unwrap().audit().unwrap().voids, []);
    }
}

#[test]
fn a_save_that_the_present_incarnation_may_still_commit_sleeps_longer_than_one_of_an_earlier_or_one_that_was_passed()
 {
    for Stage { root, hands, .. } in stages() {
        let begun = |epoch, step| {
            let plan = SavePlan::new(spec(&wholes(), "1x1x2", step).in_epoch(epoch)).unwrap();
            let session = session(&root, &plan);
            write_rank(&session, &wholes(), 0).unwrap();
            session
        };
        let first = begin_epoch(&root, &run(), &SaveOptions::default()).unwrap();
        let replaced = begun(first, 1);
        let present = begin_epoch(&root, &run(), &SaveOptions::default()).unwrap();
        let (passed, sleeper) = (begun(present, 2), begun(present, 4));
        let next = begun(present, 3);
        write_rank(&next, &wholes(), 1).unwrap();
        next.commit().unwrap();
        hands.turn(6 * DAY);
        let done = gc(&root, &NOW);
        let gone: Vec<_> = done.deleted.iter().map(|it| it.directory.clone()).collect();
        let mut expected = vec![replaced.attempt().clone(), passed.attempt().clone()];
        expected.sort();
        assert_eq!(gone, expected, "{done:?}");
        assert_eq!(
            done.spared.iter().map(|it| (it.seconds_left, it.run.clone())).collect::<Vec<_>>(),
            [(Some(86_400), Some(run()))]
        );
        write_rank(&sleeper, &wholes(), 1).unwrap();
        sleeper.commit().unwrap();
        assert_eq!(live(&root), [3, 4]);
        drop(begun(present, 5));
        hands.turn(7 * DAY);
        assert_eq!(gc(&root, &NOW).deleted.len(), 1, "not for ever");
        assert_holds(&Loader::newest(&root, &run()).unwrap(), &wholes());
    }
}

#[test]
fn a_commit_between_survey_and_condemnation_stands_and_the_rest_is_condemned() {
    for Stage { root, hands, .. } in stages() {
        drop(stopped(&root, 1));
        let late = stopped(&root, 2);
        write_rank(&late, &wholes(), 1).unwrap();
        hands.turn(2 * DAY);
        let done = gc_with(&root, &NOW, surveyed, || drop(late.commit().unwrap()));
        assert_eq!((done.condemned.len(), done.deleted.len()), (1, 1));
        assert_eq!((live(&root), dirs(&root).len()), (vec![2], 1));
        assert_holds(&Loader::newest(&root, &run()).unwrap(), &wholes());
        assert_eq!(Log::open(&root).unwrap().audit().unwrap().voids, []);
    }
}

#[test]
fn a_save_that_is_gone_on_with_during_a_long_deletion_is_not_condemned_after_it() {
    for Stage { root, hands, .. } in stages() {
        saved(&root, 1..=2);
        retired(&root, 1);
        assert_eq!(gc(&root, &GcOptions::after(HOUR)).condemned.len(), 1);
        let (passed, late) = (stopped(&root, 3), stopped(&root, 4));
        hands.turn(2 * DAY);
        let done = gc_with(&root, &NOW, deleting, || {
            write_rank(&late, &wholes(), 1).unwrap();
        });
        let kinds: Vec<_> = done.deleted.iter().map(|it| it.kind).collect();
        assert_eq!((done.condemned.len(), kinds), (1, vec![Kind::Condemned, Kind::Orphan]), "{done:?}");
        assert_eq!(done.condemned[0].directory, *passed.attempt());
        assert_eq!(done.spared.iter().map(|it| &it.folder).collect::<Vec<_>>(), [late.attempt().as_str()]);
        late.commit().unwrap();
        assert_eq!((live(&root), dirs(&root).len()), (vec![2, 4], 2));
        assert_holds(&Loader::newest(&root, &run()).unwrap(), &wholes());
        assert_eq!(Log::open(&root).unwrap().audit().unwrap().voids, []);
    }
}

/// Does something once the manifest is durable.
struct AtLanding(Mutex<Box<dyn FnMut() + Send>>);

impl std::fmt::Debug for AtLanding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AtLanding")
    }
}

impl Watch for AtLanding {
    fn at(&self, moment: save::Moment<'_>) -> Result<()> {
        if matches!(moment, save::Moment::Landed) {
            (self.0.lock().unwrap())();
        }
        Ok(())
    }
}

fn landing(root: &Root, step: u64, other: impl FnMut() + Send + 'static) -> Session {
    let options =
        SaveOptions { watch: Arc::new(AtLanding(Mutex::new(Box::new(other)))), ..SaveOptions::default() };
    let session = Session::open(root, &save_plan(&wholes(), "1x1x1", step), options).unwrap();
    write_rank(&session, &wholes(), 0).unwrap();
    session
}

#[test]
fn a_condemnation_between_manifest_and_record_makes_the_commit_void_and_nothing_is_half_there() {
    for Stage { root, hands, .. } in stages() {
        saved(&root, 1..=1);
        let (other, turned) = (root.clone(), hands.clone());
        let session = landing(&root, 2, move || {
            // Two days pass between the two puts.
            turned.turn(2 * DAY);
            assert_eq!(
                gc(&other, &GcOptions::after(HOUR)).condemned.len(),
                0,
                "it may be a whole checkpoint"
            );
            let sealed = GcOptions { sealed: true, ..GcOptions::after(HOUR) };
            assert_eq!(gc(&other, &sealed).condemned.len(), 1);
        });
        assert_condemned(&session.commit().unwrap_err());
        assert_eq!(live(&root), [1]);
        hands.turn(DAY);
        gc(&root, &GcOptions::after(HOUR));
        assert_eq!(dirs(&root).len(), 1);
        assert_eq!(Log::open(&root).unwrap().audit().unwrap().voids, []);
    }
}

#[test]
fn a_young_save_commits_whatever_is_collected_around_it() {
    for Stage { root, .. } in stages() {
        saved(&root, 1..=2);
        let other = root.clone();
        let session = landing(&root, 3, move || {
            retired(&other, 1);
            assert_eq!(gc(&other, &NOW).deleted.len(), 1);
        });
        session.commit().unwrap();
        assert_eq!(live(&root), [2, 3]);
        assert_holds(&Loader::newest(&root, &run()).unwrap(), &wholes());
    }
}

#[test]
fn what_is_retired_during_a_collection_waits_for_the_next() {
    for Stage { root, .. } in stages() {
        saved(&root, 1..=3);
        retired(&root, 2);
        let done = gc_with(&root, &NOW, surveyed, || drop(retired(&root, 1)));
        assert_eq!((done.deleted.len(), dirs(&root).len()), (1, 2));
        assert_eq!((gc(&root, &NOW).deleted.len(), dirs(&root).len()), (1, 1));
        assert_holds(&Loader::newest(&root, &run()).unwrap(), &wholes());
    }
}

#[test]
fn two_collections_at_once_delete_everything_once() {
    for at in [surveyed, condemned, deleting] {
        for Stage { root, hands, .. } in stages() {
            saved(&root, 1..=3);
            drop(stopped(&root, 9));
            hands.turn(2 * DAY);
            retired(&root, 1);
            gc_with(&root, &NOW, at, || drop(gc(&root, &NOW)));
            assert_eq!((live(&root), dirs(&root).len()), (vec![3], 1));
            assert_holds(&Loader::newest(&root, &run()).unwrap(), &wholes());
            assert_eq!(Log::open(&root).unwrap().audit().unwrap().voids, []);
        }
    }
}

#[test]
fn a_reader_has_the_grace_period_and_one_that_takes_longer_fails_by_name() {
    for Stage { root, hands, .. } in stages() {
        saved(&root, 1..=1);
        let reader = Loader::newest(&root, &run()).unwrap();
        saved(&root, 2..=2);
        retired(&root, 1);
        let options = GcOptions::after(HOUR);
        gc(&root, &options);
        hands.turn(HOUR - Duration::from_secs(1));
        gc(&root, &options);
        assert_holds(&reader, &wholes());
        hands.turn(Duration::from_secs(1));
        let other = root.clone();
        // Midway through its deletion, too, a reader sees its own bytes or an error, never others.
        gc_with(&root, &options, deleting, || drop(Loader::newest(&other, &run()).unwrap()));
        let whole = &wholes()[1];
        let region = reshard::Region::whole(&whole.entry.shape).unwrap();
        let fresh = Root::from_store(Arc::clone(root.object_store()), "again");
        assert_eq!(dirs(&fresh).len(), 1);
        // A folder keeps open files readable; otherwise the missing blob is named.
        match reader.reader().read_vec(&whole.entry.id(), &region) {
            Ok(bytes) => assert!(root.local().is_some() && bytes == whole.bytes),
            Err(error) => assert!(error.to_string().contains("step-00000001-"), "{error}"),
        }
    }
}

#[test]
fn a_directory_that_another_checkpoint_refers_to_stays_until_that_goes_too() {
    for Stage { root, .. } in stages() {
        saved(&root, 1..=2);
        let state = Log::open(&root).unwrap().state().clone();
        let (one, two) = (&state.checkpoints[&seq(1)], &state.checkpoints[&seq(2)]);
        // A third refers to blobs of the first, and has the manifest of the second, which is all that the log looks at.
        let third = |attempt: &str| {
            Action::Commit(Commit {
                step: 3,
                attempt: attempt.parse().unwrap(),
                manifest: two.manifest,
                directories: [attempt.parse().unwrap(), one.attempt.clone()].into(),
                metrics: Default::default(),
            })
        };
        append_action(&root, third("step-00000003-0123456789abcdef01234567"));
        let first = one.attempt.clone();
        let has = |root: &Root| dirs(root).contains(&first.as_str().to_owned());
        let mut log = Log::open(&root).unwrap();
        marks::append(&mut log, &run(), None, Action::Retire(crate::commit::Retire { checkpoint: seq(1) }))
            .unwrap();
        let done = gc(&root, &NOW);
        assert!(done.deleted.is_empty() && has(&root), "{done:?}");
        let usage = usage(&Log::open(&root).unwrap()).unwrap();
        assert!(usage.retired.is_empty() && usage.unread.len() == 1, "{usage:?}");
        marks::append(&mut log, &run(), None, Action::Retire(crate::commit::Retire { checkpoint: seq(3) }))
            .unwrap();
        // A reference that comes with the condemnation under way is refused: the directory is as good as gone.
        gc_with(&root, &NOW, condemned, || {
            let mut log = Log::open(&root).unwrap();
            let error =
                marks::append(&mut log, &run(), None, third("step-00000004-0123456789abcdef01234567"));
            assert_condemned(&Error::from(error.unwrap_err()));
        });
        assert!(!has(&root));
        assert_eq!(live(&root), [2]);
    }
}

#[test]
fn a_reference_that_comes_before_the_condemnation_saves_the_directory() {
    for Stage { root, .. } in stages() {
        saved(&root, 1..=2);
        let state = Log::open(&root).unwrap().state().clone();
        let (one, two) = (state.checkpoints[&seq(1)].attempt.clone(), state.checkpoints[&seq(2)].manifest);
        retired(&root, 1);
        let attempt = "step-00000003-0123456789abcdef01234567";
        let done = gc_with(&root, &NOW, surveyed, || {
            let (directories, metrics) = ([attempt.parse().unwrap(), one.clone()].into(), Default::default());
            append_action(
                &root,
                Action::Commit(Commit {
                    step: 3,
                    attempt: attempt.parse().unwrap(),
                    manifest: two,
                    directories,
                    metrics,
                }),
            );
        });
        assert!(done.condemned.is_empty() && done.deleted.is_empty(), "{done:?}");
        assert!(dirs(&root).contains(&one.as_str().to_owned()));
        assert_eq!(Log::open(&root).unwrap().audit().unwrap().voids, []);
    }
}

#[test]
fn an_incarnation_that_was_replaced_condemns_nothing() {
    let root = memory();
    saved(&root, 1..=2);
    retired(&root, 1);
    let epoch = begin_epoch(&root, &run(), &SaveOptions::default()).unwrap();
    begin_epoch(&root, &run(), &SaveOptions::default()).unwrap();
    let error = collect(&root, &run(), Some(epoch), &NOW, LogOptions::default()).unwrap_err();
    assert_eq!((error.kind(), dirs(&root).len()), (ErrorKind::Conflict, 2));
    let other = session(&root, &save_plan(&wholes(), "1x1x1", 5));
    write_rank(&other, &wholes(), 0).unwrap();
}

/// Does something when the first bytes have moved.
struct AtFirst<F>(Mutex<Option<F>>);

impl<F: FnOnce() + Send> crate::Progress for AtFirst<F> {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {
        let due = self.0.lock().unwrap().take();
        due.into_iter().for_each(|other| other());
    }
    fn end(&self) {}
}

/// Writes a checkpoint of the root once more, in one piece, as `ckpt reshard` does within a root.
fn reshard(root: &Root, number: u64, other: impl FnOnce() + Send) -> Result<u64> {
    let region = |whole: &Whole| reshard::Region::whole(&whole.entry.shape).unwrap();
    let wholes: Vec<_> = wholes().into_iter().map(|it| (region(&it), it)).collect();
    let packed = wholes.iter().map(|(region, it)| (it.clone(), vec![region.clone()], Stored::Packed));
    let memory = MemSource::new(&packed.collect::<Vec<_>>(), 1, Proof::Blocks);
    let mut copy = plan_of(&memory, wholes.into_iter().map(|(region, _)| vec![(region, 0)]).collect());
    copy.spec.step = Some(70);
    let revision = format!("seq:{number}");
    let source = native::open_root(&Stores::new(), root, Some(&revision), OpenOptions::new())?;
    let mut sink = NativeSink::new(root.clone(), SinkOptions::new(run()));
    let watched = AtFirst(Mutex::new(Some(other)));
    let done = engine::run(&source, &mut sink, &copy, &RunOptions::default(), &watched, &Cancel::new());
    assert!(watched.0.lock().unwrap().is_none(), "nothing moved");
    Ok(done?.0.sequence.unwrap())
}

#[test]
fn a_reshard_within_the_root_is_not_disturbed_by_what_is_collected_around_it() {
    for Stage { root, .. } in stages() {
        saved(&root, 1..=3);
        let committed = reshard(&root, 1, || {
            retired(&root, 1);
            // Its source is condemned, and has its grace period; its own folder is young.
            let done = gc(&root, &GcOptions::after(HOUR));
            assert_eq!((done.condemned.len(), done.deleted.len()), (2, 0));
        });
        assert!(committed.is_ok(), "{committed:?}");
        assert_eq!(live(&root), [3, 70]);
        gc(&root, &NOW);
        assert_holds(&Loader::newest(&root, &run()).unwrap(), &wholes());
        assert_eq!(Log::open(&root).unwrap().audit().unwrap().voids, []);
    }
}

#[test]
fn a_reshard_whose_source_is_deleted_under_it_fails_or_is_whole_and_never_between() {
    for Stage { root, .. } in stages() {
        saved(&root, 1..=2);
        let outcome = reshard(&root, 1, || {
            retired(&root, 1);
            assert_eq!(gc(&root, &NOW).deleted.len(), 1);
        });
        let newest = Loader::newest(&root, &run()).unwrap();
        match outcome {
            Ok(_) => assert_eq!(live(&root), [2, 70]),
            Err(error) => {
                assert!(error.to_string().contains("step-00000001-"), "{error}");
                assert_eq!(live(&root), [2]);
            }
        }
        assert_holds(&newest, &wholes());
    }
}
