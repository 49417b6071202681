//! Originals that are damaged, retired or condemned: what is written anew, refused and told.

use super::*;

#[test]
fn a_base_that_is_retired_may_still_be_shared_and_one_that_is_condemned_may_not() {
    let (_folder, root) = folder();
    let wholes = wholes();
    saved(&root, &wholes, &plan(&wholes, "1x1x2", 1));
    saved(&root, &wholes, &plan(&wholes, "1x1x2", 2));
    for condemned in [false, true] {
        let first = *Log::open(&root).unwrap().state().checkpoints.first_key_value().unwrap().0;
        let shared = Sharing { least: 1, ..Sharing::with(first) };
        let step = 3 + u64::from(condemned);
        let plan = SavePlan::new(spec(&wholes, "1x1x2", step).sharing(shared)).unwrap();
        let session = Session::open(&root, &plan, SaveOptions::default()).unwrap();
        for rank in 0..2 {
            assert!(write_rank(&session, &wholes, rank).unwrap().shared > 0);
        }
        let dir = Log::open(&root).unwrap().state().checkpoints[&first].attempt.clone();
        append(&root, Action::Retire(Retire { checkpoint: first }));
        if !condemned {
            session.commit().unwrap();
            assert_holds(&newest(&root), &wholes);
            continue;
        }
        append(&root, Action::Condemn(Condemn { directories: BTreeSet::from([dir.clone()]) }));
        let error = session.commit().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(
            error.to_string().contains(dir.as_str()) && error.to_string().contains("condemned"),
            "{error}"
        );
        assert!(error.hint_text().unwrap().contains("sharing: None"));
        saved(&root, &wholes, &self::plan(&wholes, "1x1x2", step));
        assert_holds(&newest(&root), &wholes);
        // Whoever comes later finds it gone, says so once, and writes everything.
        let mut late = spec(&wholes, "1x1x2", 9).salted("late");
        late.sharing = Some(Sharing { least: 1, ..Sharing::with(first) });
        let (done, session) = saved(&root, &wholes, &SavePlan::new(late).unwrap());
        assert_eq!(found(&done), 0);
        let findings = session.findings();
        assert_eq!((findings.len(), findings[0].severity), (1, Severity::Warning));
        assert!(findings[0].message.contains("not there (any more)"), "{findings:?}");
        assert_holds(&newest(&root), &wholes);
    }
}

/// Notes what it is told of suspects.
#[derive(Debug, Default)]
struct Suspects(Mutex<Vec<String>>);

impl Watch for Suspects {
    fn at(&self, moment: Moment<'_>) -> Result<()> {
        if let Moment::Suspect { why, .. } = moment {
            self.0.lock().unwrap().push(why.to_owned());
        }
        Ok(())
    }
}

fn flip(path: &Path, back: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    let at = bytes.len() - back;
    bytes[at] ^= 4;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_damaged_original_is_never_referred_to_and_its_damage_is_told() {
    type Damage = fn(&Path, &Root);
    let damages: [(&str, Damage, FindingCode); 4] = [
        (
            "a flipped bit",
            |folder, root| flip(&files(folder, root, 1, "/data/")[0], 5),
            FindingCode::BlockMismatch,
        ),
        (
            "a blob that is gone",
            |folder, root| std::fs::remove_file(&files(folder, root, 1, "/data/")[0]).unwrap(),
            FindingCode::MissingFile,
        ),
        (
            "another table",
            |folder, root| flip(&files(folder, root, 1, "/blocks/")[0], 5),
            FindingCode::BlockMismatch,
        ),
        (
            "no manifest",
            |folder, root| std::fs::remove_file(&files(folder, root, 1, "/manifest-")[0]).unwrap(),
            FindingCode::Other,
        ),
    ];
    for (what, damage, code) in damages {
        let (folder, root) = folder();
        let wholes = vec![
            placed(Whole::new("a", Dtype::F32, &[300, 200]), "dp:0"),
            placed(Whole::new("b", Dtype::F32, &[300, 200]), "dp:0"),
        ];
        saved(&root, &wholes, &plan(&wholes, "dp=2", 1));
        damage(folder.path(), &root);
        let suspects = Arc::new(Suspects::default());
        let options = SaveOptions { watch: suspects.clone(), ..SaveOptions::default() };
        let plan = sharing(&root, &wholes, "dp=2", 2);
        let session = Session::open(&root, &plan, options).unwrap();
        let done: Vec<_> = (0..2).map(|rank| write_rank(&session, &wholes, rank).unwrap()).collect();
        session.commit().unwrap();
        assert_holds(&newest(&root), &wholes);
        let findings = session.findings();
        assert!(!findings.is_empty(), "{what}");
        assert!(
            findings.iter().all(|it| it.severity == Severity::Warning && it.code == code),
            "{what}: {findings:?}"
        );
        assert_eq!(suspects.0.lock().unwrap().len(), findings.len());
        if code == FindingCode::BlockMismatch && what == "a flipped bit" {
            assert_eq!(findings.len(), 1, "one box lies there: {findings:?}");
            let told = &suspects.0.lock().unwrap()[0];
            assert!(told.starts_with("b[0..150, 0..200] can't be shared, and is written anew"), "{told}");
            assert_eq!(found(&done), bytes(&wholes) - wholes[1].bytes.len() as u64 / 2);
        }
        if code == FindingCode::Other {
            assert_eq!((findings.len(), found(&done)), (1, 0));
        }
    }
}

#[test]
fn what_happens_to_a_blob_after_it_was_referred_to_is_found_before_the_commit_or_named_after_it() {
    for late in [false, true] {
        let (folder, root) = folder();
        let wholes = vec![
            placed(Whole::new("changes", Dtype::F32, &[300, 200]), "dp:0"),
            placed(Whole::new("stays", Dtype::F32, &[300, 200]), "dp:0"),
        ];
        saved(&root, &wholes, &plan(&wholes, "dp=1", 1));
        let mut after = wholes.clone();
        after[0].bytes.iter_mut().for_each(|byte| *byte ^= 1);
        let plan = sharing(&root, &after, "dp=1", 2);
        let session = Session::open(&root, &plan, SaveOptions::default()).unwrap();
        write_rank(&session, &after, 0).unwrap();
        let blob = files(folder.path(), &root, 1, "/data/").remove(0);
        if !late {
            let bytes = std::fs::read(&blob).unwrap();
            std::fs::write(&blob, &bytes[..bytes.len() - 1]).unwrap();
            refused(session.commit(), ErrorKind::Corrupt, &["r00000-s0000", "when it was referred to"]);
            std::fs::remove_file(&blob).unwrap();
            refused(session.commit(), ErrorKind::NotFound, &["r00000-s0000"]);
            continue;
        }
        session.commit().unwrap();
        // Damage of what only the other checkpoint has is not this one's; the chunk that it refers to is.
        flip(&blob, 240_000 + 7);
        let report =
            verify(newest(&root).source(), &VerifyOptions::default(), &Silent, &Cancel::new()).unwrap();
        assert_eq!(report.findings, []);
        flip(&blob, 200 * 4 + 3);
        let report =
            verify(newest(&root).source(), &VerifyOptions::default(), &Silent, &Cancel::new()).unwrap();
        let [finding] = report.findings.as_slice() else { panic!("{:?}", report.findings) };
        assert_eq!(finding.tensor.as_ref().unwrap().to_string(), "stays");
        assert_eq!(finding.range.as_deref(), Some("[0..300, 0..200]"));
        assert!(finding.file.as_deref().unwrap().starts_with("step-00000001-"), "{finding:?}");
        let good = newest_good(&root, &run(), Level::Full).unwrap();
        assert_eq!((good.found, good.skipped.len()), (None, 2), "both have it");
        assert_eq!(newest_good(&root, &run(), Level::Quick).unwrap().found.unwrap().step, 2);
    }
}

#[test]
fn what_an_earlier_writer_noted_is_read_again_before_another_goes_on() {
    // Of the first checkpoint's blob the half that is referred to, and the blob of what changed.
    for (step, back, damaged) in [(1, 7, false), (1, 240_000 + 7, true), (2, 7, true)] {
        let (folder, root) = folder();
        let mut wholes = vec![
            placed(Whole::new("stays", Dtype::F32, &[300, 200]), "dp:0"),
            placed(Whole::new("changes", Dtype::F32, &[300, 200]), "dp:0"),
        ];
        saved(&root, &wholes, &plan(&wholes, "dp=1", 1));
        change(&mut wholes[1], 5);
        let plan = sharing(&root, &wholes, "dp=1", 2);
        let session = || Session::open(&root, &plan, SaveOptions::default()).unwrap();
        write_rank(&session(), &wholes, 0).unwrap();
        flip(&files(folder.path(), &root, step, "/data/")[0], back);
        let again = session().writer(0);
        if damaged {
            let error = again.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            assert!(error.to_string().contains("damaged since"), "{error}");
            assert!(error.hint_text().unwrap().contains("and run again"), "{:?}", error.hint_text());
        } else {
            drop(again.unwrap());
            assert_eq!(write_rank(&session(), &wholes, 0).unwrap().kept, 1);
        }
    }
}
