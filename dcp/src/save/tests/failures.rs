//! Saves that are stopped at any moment, and disks that refuse: the error surfaces, and the checkpoint before it stays.

use super::*;

/// Writes moments down, and fails at one.
#[derive(Debug, Default)]
struct Tale {
    told: Mutex<Vec<String>>,
    fail: Option<&'static str>,
    most: AtomicU64,
}

impl Watch for Tale {
    fn at(&self, moment: Moment<'_>) -> Result<()> {
        let word = match moment {
            Moment::Wrote { done, total, .. } => {
                let before = self.most.swap(done, Ordering::Relaxed);
                assert!(done > before && done - before <= 1 << 20 && done <= total);
                "wrote"
            }
            Moment::FileDone { path, .. } => {
                assert!(path.starts_with("data/r00000-"), "{path}");
                "file"
            }
            Moment::Checked => "checked",
            Moment::Landed => "landed",
            Moment::Suspect { .. } => "suspect",
        };
        let mut told = self.told.lock().unwrap();
        if told.last().is_none_or(|last| last != word) {
            told.push(word.to_owned());
        }
        match self.fail {
            Some(fail) if fail == word => {
                Err(Error::new(ErrorKind::Cancelled, format!("stopped when {word}")))
            }
            _ => Ok(()),
        }
    }
}

#[test]
fn a_save_that_is_stopped_at_any_moment_shows_nothing_and_the_next_try_goes_on() {
    let wholes = vec![placed(Whole::new("w", Dtype::F32, &[900, 1000]), "dp:0")];
    let plan = plan(&wholes, "dp=1", 5);
    let moments = ["wrote", "file", "checked", "landed"];
    for fail in moments {
        let root = memory();
        let tale = Arc::new(Tale { fail: Some(fail), ..Tale::default() });
        let options = SaveOptions { watch: tale.clone(), ..SaveOptions::default() };
        let stopped = Session::open(&root, &plan, options).unwrap();
        let outcome = write_rank(&stopped, &wholes, 0).and_then(|_| stopped.commit());
        refused(outcome, ErrorKind::Cancelled, &[fail]);
        refused(Loader::newest(&root, &run()), ErrorKind::NotFound, &["main"]);
        let tale = Arc::new(Tale::default());
        let session =
            Session::open(&root, &plan, SaveOptions { watch: tale.clone(), ..SaveOptions::default() })
                .unwrap();
        let done = write_rank(&session, &wholes, 0).unwrap();
        session.commit().unwrap();
        assert_holds(&Loader::newest(&root, &run()).unwrap(), &wholes);
        // The part is there from the moment that it was told of.
        let kept = fail != "wrote";
        assert_eq!(done.kept == 1, kept);
        let told = tale.told.lock().unwrap().clone();
        let expected: Vec<&str> = moments.into_iter().filter(|it| !(kept && *it == "file")).collect();
        assert_eq!(told, expected);
    }
}

/// A root whose file system fails where a test wants it.
fn failing() -> (tempfile::TempDir, Root, Arc<Mutex<Option<Fault>>>) {
    let folder = tempfile::tempdir().unwrap();
    let (trace, fault) = (Arc::default(), Arc::default());
    let disk = DiskFs::open(folder.path(), Links::Refuse).unwrap();
    let fs = Traced::new(disk, &trace, &fault);
    let root = Root::from_local(LocalStore::over(fs, "root", Arc::new(SeededNonces::new(1))));
    (folder, root, fault)
}

#[test]
fn whatever_the_disk_refuses_surfaces_and_leaves_the_checkpoint_before_it() {
    let wholes = wholes();
    for (on, errno) in [
        ("mkdir step-00000002", Errno::ACCESS),
        ("create step-00000002", Errno::MFILE),
        ("reserve step-00000002", Errno::NOSPC),
        ("write step-00000002", Errno::IO),
        ("sync step-00000002", Errno::IO),
        ("link step-00000002", Errno::IO),
        ("syncdir /step-00000002", Errno::IO),
        ("create commits", Errno::NOSPC),
        ("write commits", Errno::NOSPC),
        ("sync commits", Errno::IO),
    ] {
        // A link that happened is there, whatever was said of it: the store looks, and goes on.
        let outcomes: &[bool] = if on.starts_with("link") { &[false] } else { &[false, true] };
        for &happens in outcomes {
            let (_folder, root, fault) = failing();
            save(&root, &wholes, &plan(&wholes, "1x1x2", 1));
            let second = session(&root, &plan(&wholes, "1x1x2", 2));
            *fault.lock().unwrap() = Some(Fault { on, errno, happens });
            let write = |rank| write_rank(&second, &wholes, rank).map(drop);
            let outcome = write(0).and_then(|()| write(1)).and_then(|()| second.commit().map(drop));
            let error = outcome.unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Io | ErrorKind::Access), "{on}: {error}");
            *fault.lock().unwrap() = None;
            let loader = Loader::newest(&root, &run()).unwrap();
            assert_eq!(loader.commit().unwrap().step, 1, "{on}");
            assert_holds(&loader, &wholes);
            let salted = SavePlan::new(spec(&wholes, "1x1x2", 2).salted("again")).unwrap();
            save(&root, &wholes, &salted);
            assert_holds(&Loader::newest(&root, &run()).unwrap(), &wholes);
        }
    }
}

#[test]
fn a_record_that_may_not_last_is_an_error_and_the_next_commit_settles_it() {
    let (_folder, root, fault) = failing();
    let (wholes, record) = (wholes(), "commits/00000000000000000001.json");
    let (mine, theirs) = {
        let plan = plan(&wholes, "1x1x2", 2);
        (session(&root, &plan), session(&root, &plan))
    };
    for rank in 0..2 {
        write_rank(&mine, &wholes, rank).unwrap();
    }
    *fault.lock().unwrap() = Some(Fault { on: "syncdir /commits", errno: Errno::IO, happens: false });
    refused(mine.commit(), ErrorKind::Io, &[record]);
    // It can be seen, but nobody takes it for committed, and nothing is written after it.
    refused(theirs.commit(), ErrorKind::Io, &[record]);
    let next = session(&root, &plan(&wholes, "1x1x1", 3));
    write_rank(&next, &wholes, 0).unwrap();
    refused(next.commit(), ErrorKind::Io, &[record]);
    assert_eq!(Log::open(&root).unwrap().head().unwrap().get(), 1);
    *fault.lock().unwrap() = None;
    assert_eq!(mine.commit().unwrap().sequence, Some(1));
    assert_eq!(theirs.commit().unwrap().sequence, Some(1));
    assert_eq!(next.commit().unwrap().sequence, Some(2));
    assert_eq!(Loader::newest(&root, &run()).unwrap().commit().unwrap().step, 3);
}

#[test]
fn a_writer_that_is_dropped_leaves_no_unfinished_file() {
    let folder = tempfile::tempdir().unwrap();
    let root = Root::create(folder.path().to_str().unwrap(), &Stores::new()).unwrap();
    let wholes = wholes();
    let session = session(&root, &plan(&wholes, "1x1x1", 2));
    let writer = session.writer(0).unwrap();
    let (tensor, region) = session.plan().boxes_of(0).next().unwrap();
    writer.put(tensor, region, &wholes[tensor].region(region)).unwrap();
    let staged = || root.local().unwrap().sweep(std::time::Duration::ZERO).unwrap();
    drop(writer);
    assert_eq!(staged(), 0);
    assert_eq!(root.list(None).unwrap(), []);
}
