//! Collecting when nothing else happens: what is garbage, what is not, and when it goes.

use super::{
    clocked::{LOCKED, Stage, stages},
    *,
};
use crate::{
    save::{
        Session,
        tests::{session, write_rank},
    },
    store::{LocalStore, ObjectPath, counted::CountedStore, object_path},
};
use std::sync::Arc;

fn put(root: &Root, name: &str, bytes: &'static [u8]) {
    assert!(matches!(
        root.put_create(&object_path(name).unwrap(), bytes.into()),
        Ok(crate::store::Put::Created)
    ));
}

/// A save of which only the first rank was done.
pub(crate) fn stopped(root: &Root, step: u64) -> Session {
    let stopped = session(root, &save_plan(&wholes(), "1x1x2", step));
    write_rank(&stopped, &wholes(), 0).unwrap();
    stopped
}

#[test]
fn bytes_go_in_two_steps_and_only_after_the_grace_period_by_the_clock_of_the_store() {
    for Stage { root, hands, .. } in stages() {
        saved(&root, 1..=3);
        assert_eq!(dirs(&root).len(), 3);
        retired(&root, 1);
        let options = GcOptions::after(DAY);
        let first = gc(&root, &options);
        assert_eq!((first.condemned.len(), first.deleted.len(), first.bytes), (2, 0, 0));
        assert!(first.condemned.iter().all(|it| it.kind == Kind::Retired && it.bytes > 500));
        hands.turn(23 * HOUR);
        let again = gc(&root, &options);
        assert_eq!((again.condemned.len(), again.waiting.len(), again.deleted.len()), (0, 2, 0));
        assert_eq!(again.waiting.iter().map(|it| it.seconds_left).collect::<Vec<_>>(), [3600, 3600]);
        assert_eq!(dirs(&root).len(), 3);
        hands.turn(HOUR);
        let tried = gc(&root, &GcOptions { dry_run: true, ..options });
        assert_eq!((tried.deleted.len(), dirs(&root).len()), (2, 3));
        let last = gc(&root, &options);
        assert_eq!((last.deleted.len(), dirs(&root).len()), (2, 1), "{last:?}");
        assert_eq!((last.bytes, &last.deleted), (tried.bytes, &tried.deleted));
        assert!(last.bytes > 1000);
        assert_eq!(gc(&root, &options), Collection::default());
        assert_holds(&Loader::newest(&root, &run()).unwrap(), &wholes());
        assert_eq!(newest_good(&root, &run(), Level::Full).unwrap().found.unwrap().step, 3);
        // The same plan is written again, elsewhere: what was condemned never comes back.
        saved(&root, 1..=1);
        assert_holds(&Loader::newest(&root, &run()).unwrap(), &wholes());
    }
}

#[test]
fn a_stopped_save_goes_after_a_period_without_a_write_and_what_is_not_ours_never() {
    for Stage { root, hands, .. } in stages() {
        saved(&root, 1..=1);
        drop(stopped(&root, 2));
        put(&root, "notes/todo.txt", b"mine");
        put(&root, "step-00000009-0123456789abcdef01234567/readme.txt", b"mine too");
        put(&root, "step-final/data/x", b"and this");
        put(&root, "loose.txt", b"and that");
        let options = GcOptions::after(Duration::ZERO);
        let young = gc(&root, &options);
        assert_eq!((young.condemned.len(), young.deleted.len()), (0, 0));
        let left: Vec<Option<u64>> = young.spared.iter().map(|it| it.seconds_left).collect();
        assert_eq!(left.iter().flatten().count(), 1, "{young:?}");
        assert_eq!(left.len(), 4);
        hands.turn(DAY);
        let old = gc(&root, &options);
        assert_eq!(old.deleted.iter().map(|it| it.kind).collect::<Vec<_>>(), [Kind::Orphan]);
        assert!(old.deleted[0].directory.as_str().starts_with("step-00000002-"));
        hands.turn(30 * DAY);
        assert_eq!(gc(&root, &options).spared.len(), 3);
        for name in ["notes/todo.txt", "step-final/data/x", "loose.txt"] {
            assert!(root.head(&object_path(name).unwrap()).is_ok(), "{name}");
        }
        assert_eq!(live(&root), [1]);
    }
}

#[test]
fn a_write_makes_a_stopped_save_young_again() {
    for Stage { root, hands, .. } in stages() {
        let first = stopped(&root, 1);
        hands.turn(20 * HOUR);
        write_rank(&first, &wholes(), 1).unwrap();
        hands.turn(20 * HOUR);
        assert_eq!(gc(&root, &GcOptions::after(Duration::ZERO)).deleted, []);
        first.commit().unwrap();
        assert_holds(&Loader::newest(&root, &run()).unwrap(), &wholes());
    }
}

#[test]
fn age_counts_though_nothing_is_written_for_weeks() {
    for Stage { root, hands, .. } in stages() {
        saved(&root, 1..=2);
        hands.turn(10 * DAY);
        saved(&root, 3..=4);
        hands.turn(10 * DAY);
        let policy = |days: u32| Policy { within: Some(days * DAY), ..Policy::default() };
        let kept = |days| {
            let mut log = Log::open(&root).unwrap();
            let mut considered = consider(&mut log, None, &policy(days), &LogOptions::default()).unwrap();
            assert!(!considered.as_of_last_record);
            let decisions = considered.runs.remove(0).decisions;
            decisions.into_iter().filter(Decision::is_kept).map(|it| it.step).collect::<Vec<_>>()
        };
        assert_eq!(
            [kept(21), kept(20), kept(11), kept(9)],
            [vec![4, 3, 2, 1], vec![4, 3, 2, 1], vec![4, 3], vec![4]]
        );
    }
}

#[test]
fn unfinished_files_and_probes_are_swept_when_they_are_old() {
    for Stage { root, hands, folder } in stages() {
        saved(&root, 1..=1);
        put(&root, ".probe-left", b"time");
        let mut expected = 1;
        // A folder of the same clock, though not written by the store.
        if let Some(folder) = &folder {
            let local: &LocalStore = root.local().unwrap();
            std::mem::forget(local.blob(&ObjectPath::from("commits/x"), 10).unwrap());
            std::mem::forget(
                local.blob(&ObjectPath::from(format!("{}/data/x", dirs(&root)[0])), 10).unwrap(),
            );
            expected += 2;
            assert!(folder.path().exists());
        }
        let options = GcOptions::after(DAY);
        hands.turn(23 * HOUR);
        assert_eq!(gc(&root, &options).swept.objects, 0);
        hands.turn(HOUR);
        assert_eq!(gc(&root, &GcOptions { dry_run: true, ..options }).swept.objects, expected);
        assert_eq!(gc(&root, &options.without_sweep()).swept.objects, 0);
        assert_eq!(gc(&root, &options).swept.objects, expected);
        assert_eq!(gc(&root, &options).swept.objects, 0);
        assert_holds(&Loader::newest(&root, &run()).unwrap(), &wholes());
    }
}

#[test]
fn unfinished_files_of_a_save_that_is_spared_and_of_folders_of_others_stay() {
    for Stage { root, hands, folder } in stages().into_iter().filter(|stage| stage.folder.is_some()) {
        saved(&root, 1..=1);
        let spared = stopped(&root, 2);
        let sealed = "step-00000009-0123456789abcdef01234567";
        put(&root, &format!("{sealed}/manifest-{}.sqlite", "0".repeat(64)), b"perhaps a checkpoint");
        put(&root, "notes/todo.txt", b"mine");
        let begin = |path: String| {
            std::mem::forget(root.local().unwrap().blob(&ObjectPath::from(path), 10).unwrap());
        };
        hands.turn(30 * DAY);
        // Its files are old, and it was written to just now.
        begin(format!("{sealed}/data/x"));
        begin("notes/x".to_owned());
        hands.turn(DAY);
        begin(format!("{}/data/x", spared.attempt()));
        let done = gc(&root, &GcOptions::after(Duration::ZERO));
        assert_eq!((done.swept.objects, done.deleted.len()), (0, 0), "{done:?}");
        let left = |dir: &str| {
            let names = std::fs::read_dir(folder.as_ref().unwrap().path().join(dir)).unwrap();
            let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.filter(|name| name.starts_with(".staging-")).count()
        };
        assert_eq!(
            [left("notes"), left(&format!("{sealed}/data")), left(&format!("{}/data", spared.attempt()))],
            [1, 1, 1]
        );
    }
}

#[test]
fn a_folder_of_others_that_cannot_be_read_stops_nothing() {
    for Stage { root, folder, .. } in stages() {
        saved(&root, 1..=2);
        retired(&root, 1);
        let Some(folder) = folder else { continue };
        std::fs::create_dir(folder.path().join(LOCKED)).unwrap();
        let done = gc(&root, &GcOptions::after(Duration::ZERO));
        assert_eq!(done.deleted.len(), 1);
        let spared: Vec<_> = done.spared.iter().map(|it| (it.folder.as_str(), it.bytes)).collect();
        assert_eq!(spared, [(LOCKED, None)]);
        let log = Log::open(&root).unwrap();
        let usage = usage(&log).unwrap();
        assert!(usage.unreadable[0].1.contains("permission denied"), "{:?}", usage.unreadable);
        assert_eq!((usage.foreign.len(), usage.checkpoints.len()), (1, 1));
        let survey = Survey::read(&root, log.state(), Foreign::Name).unwrap();
        assert_eq!((survey.folders.len(), survey.foreign.len()), (1, 1));
        let found = crate::ops::doctor::examine(&root, &LogOptions::default()).unwrap();
        assert!(found.findings.iter().any(|it| it.code == "foreign" && it.message.contains(LOCKED)));
    }
}

#[test]
fn what_cannot_be_deleted_is_told_at_the_end_and_stops_neither_deletions_nor_condemnations_nor_the_sweep() {
    for Stage { root, hands, .. } in stages() {
        saved(&root, 1..=4);
        retired(&root, 2);
        let options = GcOptions::after(HOUR);
        assert_eq!(gc(&root, &options).condemned.len(), 2);
        put(&root, ".probe-left-1", b"time");
        put(&root, ".probe-left-2", b"time");
        retired(&root, 1);
        let steps = || -> Vec<_> {
            dirs(&root).iter().map(|dir| dir.split('-').nth(1).unwrap().parse::<u64>().unwrap()).collect()
        };
        let probes = || root.list_dir(None).unwrap().objects.len();
        hands.hold(&["step-00000001-", ".probe-left-1"]);
        for left in [[1, 3, 4].as_slice(), &[1, 4]] {
            hands.turn(DAY);
            let error = collect(&root, &run(), None, &options, LogOptions::default()).unwrap_err();
            // Denied by a folder; a failure of any kind of another store.
            let kind = if root.local().is_some() { ErrorKind::Access } else { ErrorKind::Io };
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains("step-00000001-"), "the first of them: {error}");
            assert_eq!((steps().as_slice(), probes()), (left, 1));
            assert_eq!(Log::open(&root).unwrap().state().condemned.len(), 3);
        }
        hands.hold(&[]);
        let last = gc(&root, &options);
        assert_eq!((last.deleted.len(), last.swept.objects, steps(), probes()), (1, 1, vec![4], 0));
        assert_holds(&Loader::newest(&root, &run()).unwrap(), &wholes());
    }
}

#[test]
fn a_store_that_answers_nothing_any_more_is_not_asked_for_every_directory() {
    for Stage { root, hands, .. } in stages().into_iter().filter(|stage| stage.folder.is_none()) {
        saved(&root, 1..=4);
        retired(&root, 1);
        let options = GcOptions::after(HOUR);
        assert_eq!(gc(&root, &options).condemned.len(), 3);
        hands.turn(DAY);
        hands.leave();
        let error = collect(&root, &run(), None, &options, LogOptions::default()).unwrap_err();
        assert_eq!((error.kind(), hands.asked_in_vain()), (ErrorKind::Io, 1), "{error}");
    }
}

#[test]
fn a_directory_that_is_written_into_while_it_is_deleted_waits_for_the_next_time() {
    for Stage { root, hands, folder } in stages().into_iter().filter(|stage| stage.folder.is_some()) {
        assert!(folder.is_some());
        saved(&root, 1..=2);
        retired(&root, 1);
        hands.write_into_the_next();
        let done = gc(&root, &GcOptions::after(Duration::ZERO));
        assert_eq!((done.condemned.len(), done.deleted.len(), done.waiting.len()), (1, 0, 1), "{done:?}");
        assert_eq!(done.waiting[0].seconds_left, 0);
        let again = gc(&root, &GcOptions::after(Duration::ZERO));
        assert_eq!((again.deleted.len(), again.waiting.len(), dirs(&root).len()), (1, 0, 1));
    }
}

#[test]
fn a_dry_run_writes_nothing_where_no_age_matters() {
    let store = Arc::new(CountedStore::new(Arc::new(object_store::memory::InMemory::new())));
    let root = Root::from_store(store.clone(), "memory");
    saved(&root, 1..=2);
    retired(&root, 1);
    let dry = GcOptions { dry_run: true, ..GcOptions::after(Duration::ZERO) };
    drop(store.take());
    assert_eq!(gc(&root, &dry).deleted.len(), 1);
    let asked = || store.take().iter().filter(|it| it.contains(".probe-")).count();
    assert_eq!(asked(), 0);
    // How old a stopped save is only the store can tell, and only of an object that is put.
    drop(stopped(&root, 3));
    drop(store.take());
    assert_eq!(gc(&root, &dry).spared.len(), 1);
    assert!(asked() > 0);
    assert!(root.list_dir(None).unwrap().objects.is_empty(), "and removed");
}

#[test]
fn a_deletion_stopped_anywhere_leaves_nothing_that_looks_like_a_checkpoint_and_goes_on() {
    for Stage { root, folder, .. } in stages() {
        let mut stops = 0;
        loop {
            saved(&root, 1..=2);
            retired(&root, 1);
            let mut left = stops;
            let stopped = super::super::collect::collect_watched(
                &root,
                &run(),
                None,
                &GcOptions::after(Duration::ZERO),
                LogOptions::default(),
                &mut |moment| {
                    if matches!(moment, super::super::collect::Moment::Deleting) {
                        if left == 0 {
                            return Err(crate::Error::new(ErrorKind::Cancelled, "stopped"));
                        }
                        left -= 1;
                    }
                    Ok(())
                },
            );
            let condemned = Log::open(&root).unwrap().state().condemned.clone();
            for dir in dirs(&root).iter().filter(|dir| condemned.contains_key(&dir.parse().unwrap())) {
                let objects = root.list(Some(&ObjectPath::from(dir.as_str()))).unwrap();
                let has = |part: &str| objects.iter().any(|it| it.path.as_ref().contains(part));
                assert!(!has("manifest-") || stops == 0, "the manifest goes first: {objects:?}");
                assert!(!has("/parts/") || (has("/data/") && has("/blocks/")), "{objects:?}");
                if let Some(folder) = folder.as_ref().filter(|_| stops > 0) {
                    // A copy of what is there, opened by itself.
                    let alone = folder.path().join(dir);
                    let opened = crate::formats::native::open(alone.to_str().unwrap(), None);
                    assert!(opened.is_err(), "{dir} after {stops} objects");
                }
            }
            if stopped.is_ok() {
                break;
            }
            gc(&root, &GcOptions::after(Duration::ZERO));
            assert_eq!(dirs(&root).len(), 1);
            assert_holds(&Loader::newest(&root, &run()).unwrap(), &wholes());
            stops += 1;
        }
        assert!(stops > 5, "{stops}");
    }
}

#[test]
fn what_a_root_takes_adds_up_to_what_the_store_lists() {
    for Stage { root, hands, folder } in stages() {
        saved(&root, 1..=4);
        retired(&root, 3);
        gc(&root, &GcOptions::after(DAY));
        retired(&root, 2);
        drop(stopped(&root, 9));
        put(&root, "notes/todo.txt", b"mine");
        put(&root, "loose.txt", b"this");
        let newest = dirs(&root).into_iter().find(|dir| dir.starts_with("step-00000004-")).unwrap();
        let lost = format!("{newest}/data/r00000-0001-lost.safetensors");
        put(&root, &lost, b"a loser's blob");
        if folder.is_some() {
            std::mem::forget(root.local().unwrap().blob(&ObjectPath::from("commits/x"), 10).unwrap());
        }
        hands.turn(HOUR);
        let usage = usage(&Log::open(&root).unwrap()).unwrap();
        let listed: u64 = root.list(None).unwrap().iter().map(|it| it.size).sum();
        assert_eq!((usage.total.bytes, usage.total.objects), (listed, root.list(None).unwrap().len() as u64));
        let mut sum = usage.log;
        sum.extend(usage.others);
        sum.extend(usage.shared);
        sum.extend(usage.unreferenced);
        usage.checkpoints.iter().for_each(|it| sum.extend(it.own));
        for folders in [&usage.retired, &usage.condemned, &usage.uncommitted, &usage.foreign] {
            folders.iter().for_each(|it| sum.extend(it.bulk));
        }
        assert_eq!(sum, usage.total);
        assert_eq!(usage.checkpoints.iter().map(|it| it.step).collect::<Vec<_>>(), [3, 4]);
        assert_eq!(
            (usage.retired.len(), usage.condemned.len(), usage.uncommitted.len(), usage.foreign.len()),
            (1, 1, 1, 1)
        );
        assert_eq!((usage.unread.len(), usage.unreferenced.objects), (0, 1));
        assert_eq!(usage.unfinished.objects, u64::from(folder.is_some()));
        assert!(usage.checkpoints.iter().all(|it| it.own.bytes > 1000 && it.freed >= it.own.bytes));
    }
}
