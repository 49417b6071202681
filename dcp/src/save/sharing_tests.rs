//! Sharing: what is unchanged is not written again, whatever the mesh; what changed, is suspect or not there is; and whoever reads,
//! checks or collects finds shared bytes as if they were the checkpoint's own.

use std::{
    collections::BTreeSet,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use fqn::{Dtype, Role};
use proptest::prelude::*;
use reshard::{Region, strategies};

use super::{
    tests::{
        assert_holds, memory, models, object, placed, plan, refused, run, save, spec, wholes, write_rank,
    },
    *,
};
use crate::{
    Cancel, ErrorKind, FindingCode, Location, Result, Severity, Silent,
    commit::{Action, Condemn, DirName, Log, LogOptions, Retire, Seq},
    engine::{coded::smooth, testing::Whole},
    load::{Level, Loader, newest_good},
    ops::{
        diff::{DiffOptions, Level as DiffLevel, Status, diff},
        verify::{VerifyOptions, verify},
    },
    retention::{GcOptions, collect, retire},
    store::{Root, Stores},
};

fn base(root: &Root) -> Sharing {
    Sharing { least: 1, ..Sharing::with_newest(root, &run()).unwrap().unwrap() }
}

/// A plan that may share everything with the newest checkpoint.
fn sharing(root: &Root, wholes: &[Whole], mesh: &str, step: u64) -> SavePlan {
    SavePlan::new(spec(wholes, mesh, step).sharing(base(root))).unwrap()
}

/// What all writers did, and the session after its commit.
fn saved(root: &Root, wholes: &[Whole], plan: &SavePlan) -> (Vec<WriterDone>, Session) {
    let session = Session::open(root, plan, SaveOptions::default()).unwrap();
    let done = (0..plan.ranks()).map(|rank| write_rank(&session, wholes, rank).unwrap()).collect();
    assert_eq!(session.missing().unwrap(), BTreeSet::new());
    session.commit().unwrap();
    (done, session)
}

fn written(done: &[WriterDone]) -> u64 {
    done.iter().map(|done| done.bytes).sum()
}

fn found(done: &[WriterDone]) -> u64 {
    done.iter().map(|done| done.shared_bytes).sum()
}

fn bytes(wholes: &[Whole]) -> u64 {
    wholes.iter().map(|whole| whole.bytes.len() as u64).sum()
}

fn newest(root: &Root) -> Loader {
    Loader::newest(root, &run()).unwrap()
}

fn directories(root: &Root) -> Vec<DirName> {
    let log = Log::open(root).unwrap();
    let (_, newest) = log.state().newest(&run()).unwrap();
    newest.directories.iter().cloned().collect()
}

fn folder() -> (tempfile::TempDir, Root) {
    let folder = tempfile::tempdir().unwrap();
    let root = Root::create(folder.path().to_str().unwrap(), &Stores::new()).unwrap();
    (folder, root)
}

fn change(whole: &mut Whole, at: usize) {
    whole.bytes[at] ^= 0x11;
}

fn append(root: &Root, action: Action) {
    let mut log = Log::open(root).unwrap();
    let draft = log.draft(&run(), action).unwrap();
    log.append(&draft).unwrap();
}

#[test]
fn a_frozen_backbone_is_written_once_in_five_steps() {
    let (_folder, root) = folder();
    let backbone = |name: &str| placed(Whole::new(name, Dtype::BF16, &[256, 1024]), "tp:1,dp:0");
    let mut wholes = vec![
        backbone("layers.0.wq"),
        backbone("layers.1.wq"),
        placed(Whole::new("head.w", Dtype::F32, &[64, 64]), "dp:0"),
    ];
    let frozen = (wholes[0].bytes.len() + wholes[1].bytes.len()) as u64;
    let first = saved(&root, &wholes, &plan(&wholes, "2x1x2", 1)).0;
    assert!(written(&first) > bytes(&wholes));
    let mut all = written(&first);
    for step in 2..=5 {
        change(&mut wholes[2], usize::try_from(step).unwrap());
        let of_backbone = base(&root).of_tensors(["layers.**".parse().unwrap()]).of_roles([Role::Param]);
        let plan = SavePlan::new(spec(&wholes, "2x1x2", step).sharing(of_backbone)).unwrap();
        let (done, session) = saved(&root, &wholes, &plan);
        assert_eq!(found(&done), frozen);
        assert_eq!(done.iter().map(|done| done.shared).sum::<usize>(), 8);
        assert!(written(&done) < wholes[2].bytes.len() as u64 + 4096, "{}", written(&done));
        assert_eq!(session.findings(), []);
        all += written(&done);
        assert_holds(&newest(&root), &wholes);
        assert_eq!(
            directories(&root).len(),
            2,
            "each refers to the first, none to another that refers to it"
        );
    }
    let stored: u64 = root.list(None).unwrap().iter().map(|object| object.size).sum();
    assert!(all < bytes(&wholes) + 5 * (wholes[2].bytes.len() as u64 + 4096), "{all}");
    assert!(stored < 2 * bytes(&wholes), "{stored}");
}

#[test]
fn what_is_unchanged_is_found_on_any_mesh() {
    let (_folder, root) = folder();
    let wholes = wholes();
    let first = SavePlan::new(spec(&wholes, "4x1x2", 1).with_objects(vec![object("large", vec![7; 70_000])]));
    saved(&root, &wholes, &first.unwrap());
    for (step, mesh) in [(2, "2x1x1"), (3, "8x1x1"), (4, "1x1x4"), (5, "3x2x1"), (6, "4x1x2")] {
        let (done, session) = saved(&root, &wholes, &sharing(&root, &wholes, mesh, step));
        assert_eq!((found(&done), session.findings()), (bytes(&wholes), Vec::new()), "{mesh}");
        let loader = newest(&root);
        assert_holds(&loader, &wholes);
        assert_eq!(directories(&root).len(), 2, "{mesh}");
        let files = &loader.catalog().files;
        assert!(files.iter().filter(|file| file.location == Location::InRoot).count() >= 1);
        for level in [Level::Quick, Level::Full] {
            let good = newest_good(&root, &run(), level).unwrap();
            assert!(good.skipped.is_empty() && good.found.unwrap().step == step);
        }
    }
}

#[test]
fn what_changed_was_renamed_cast_or_resized_is_written() {
    let (_folder, root) = folder();
    let mut wholes = vec![
        placed(Whole::new("same", Dtype::F32, &[40, 10]), "dp:0"),
        placed(Whole::new("one.bit", Dtype::F32, &[40, 10]), "dp:0"),
        placed(Whole::new("renamed", Dtype::F32, &[40, 10]), "dp:0"),
        placed(Whole::new("cast", Dtype::F32, &[40, 10]), "dp:0"),
        placed(Whole::new("reshaped", Dtype::F32, &[40, 10]), "dp:0"),
    ];
    saved(&root, &wholes, &plan(&wholes, "dp=2", 1));
    wholes[1].bytes[3] ^= 0x80;
    wholes[2].entry.fqn = "other".parse().unwrap();
    wholes[3].entry.dtype = Dtype::I32;
    wholes[4].entry.shape = fqn::Shape::new(&[20, 20]);
    let (done, _) = saved(&root, &wholes, &sharing(&root, &wholes, "dp=2", 2));
    // Of the tensor with one changed bit, the rank that has the other half finds it.
    assert_eq!(found(&done), 1600 + 800);
    assert_holds(&newest(&root), &wholes);
    for whole in &mut wholes {
        whole.bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
    }
    let (done, session) = saved(&root, &wholes, &sharing(&root, &wholes, "dp=2", 3));
    assert_eq!((found(&done), session.findings()), (0, Vec::new()));
    assert_holds(&newest(&root), &wholes);
    assert_eq!(directories(&root).len(), 1);
}

#[test]
fn small_boxes_are_written_unless_it_is_asked_otherwise() {
    let root = memory();
    let wholes = wholes();
    saved(&root, &wholes, &plan(&wholes, "1x1x1", 1));
    let newest = Sharing::with_newest(&root, &run()).unwrap().unwrap();
    let plan = SavePlan::new(spec(&wholes, "1x1x1", 2).sharing(newest)).unwrap();
    assert_eq!(found(&saved(&root, &wholes, &plan).0), 0);
    assert_eq!(Sharing::with_newest(&root, &"other".parse().unwrap()).unwrap(), None);
}

#[test]
fn replicas_are_compared_with_what_was_found_too() {
    for drift in [false, true] {
        let (root, wholes) = (memory(), wholes());
        saved(&root, &wholes, &plan(&wholes, "2x1x2", 1));
        let shared = spec(&wholes, "2x1x2", 2).sharing(base(&root)).comparing(Replicas::ALL);
        let plan = SavePlan::new(shared).unwrap();
        let session = Session::open(&root, &plan, SaveOptions::default()).unwrap();
        for rank in 0..4 {
            let writer = session.writer(rank).unwrap();
            for (tensor, region) in plan.boxes_of(rank) {
                writer.put(tensor, region, &wholes[tensor].region(region)).unwrap();
            }
            for (nth, (tensor, region)) in plan.replicas_of(rank).enumerate() {
                let mut bytes = wholes[tensor].region(&region);
                bytes[0] ^= u8::from(drift && rank == 3 && nth == 0);
                writer.hold(tensor, &region, &bytes).unwrap();
            }
            writer.finish().unwrap();
        }
        if drift {
            refused(session.commit(), ErrorKind::Corrupt, &["drifted apart"]);
        } else {
            session.commit().unwrap();
            assert_holds(&newest(&root), &wholes);
        }
    }
}

#[test]
fn a_stopped_save_goes_on_and_a_second_writer_must_have_the_same_bytes() {
    let (_folder, root) = folder();
    let mut wholes = wholes();
    saved(&root, &wholes, &plan(&wholes, "2x1x2", 1));
    change(&mut wholes[1], 5);
    let plan = sharing(&root, &wholes, "2x1x2", 2);
    let session = || Session::open(&root, &plan, SaveOptions::default()).unwrap();
    let done = write_rank(&session(), &wholes, 0).unwrap();
    assert!(done.shared > 0 && done.kept == 0);
    let before = root.list(None).unwrap();
    // Another process takes the rank over, having lost all it knew.
    let again = write_rank(&session(), &wholes, 0).unwrap();
    assert!(again.kept > 0 && again.shared == 0);
    assert_eq!(root.list(None).unwrap(), before, "what is there is not written again");
    // Two at once, the second slower: it wrote the same, and the first counts.
    let late = session();
    let writers = [late.writer(1).unwrap(), session().writer(1).unwrap()];
    for writer in writers {
        for (tensor, region) in plan.boxes_of(1) {
            writer.put(tensor, region, &wholes[tensor].region(region)).unwrap();
        }
        writer.finish().unwrap();
    }
    let writer = late.writer(1).unwrap();
    let (tensor, region) = plan.boxes_of(1).find(|(at, _)| wholes[*at].entry.shape.rank() == 2).unwrap();
    let mut other = wholes[tensor].region(region);
    other[0] ^= 1;
    refused(writer.put(tensor, region, &other), ErrorKind::Conflict, &["with other bytes"]);
    refused(writer.put(tensor, region, &other), ErrorKind::Incompatible, &["put before"]);
    refused(writer.finish(), ErrorKind::Incompatible, &["was not written"]);
    for rank in [2, 3] {
        write_rank(&late, &wholes, rank).unwrap();
    }
    late.commit().unwrap();
    assert_holds(&newest(&root), &wholes);
}

#[test]
fn two_writers_of_one_rank_that_disagree_are_found_out_by_the_second() {
    let (root, wholes) = (memory(), wholes());
    saved(&root, &wholes, &plan(&wholes, "1x1x1", 1));
    let plan = sharing(&root, &wholes, "1x1x1", 2);
    let session = || Session::open(&root, &plan, SaveOptions::default()).unwrap();
    let (one, two) = (session(), session());
    let (first, second) = (one.writer(0).unwrap(), two.writer(0).unwrap());
    let boxes: Vec<_> = plan.boxes_of(0).collect();
    for (tensor, region) in &boxes {
        first.put(*tensor, region, &wholes[*tensor].region(region)).unwrap();
    }
    first.finish().unwrap();
    let mut outcome = Ok(());
    for (tensor, region) in &boxes {
        let mut bytes = wholes[*tensor].region(region);
        bytes[0] ^= 1;
        outcome = outcome.and(second.put(*tensor, region, &bytes));
    }
    refused(outcome, ErrorKind::Conflict, &["with other bytes"]);
    refused(second.finish(), ErrorKind::Io, &["an earlier write of it failed"]);
    one.commit().unwrap();
    let loader = newest(&root);
    let findings = loader.check(Level::Full).unwrap();
    assert!(
        findings.iter().all(|it| it.code == FindingCode::OrphanFile),
        "the second's files are left: {findings:?}"
    );
    let whole = Region::whole(&wholes[1].entry.shape).unwrap();
    let read = loader.reader().read_vec(&wholes[1].entry.id(), &whole).unwrap();
    assert_eq!(read, wholes[1].bytes);
}

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

/// The blobs, or tables, of a step's folder.
fn files(folder: &Path, root: &Root, step: u64, part: &str) -> Vec<PathBuf> {
    let (listed, step) = (root.list(None).unwrap(), format!("step-{step:08}-"));
    let paths = listed.iter().map(|object| object.path.as_ref());
    let wanted = paths.filter(|path| path.starts_with(&step) && path.contains(part));
    wanted.map(|path| folder.join(path)).collect()
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
fn garbage_collection_keeps_what_a_live_checkpoint_refers_to_and_lets_go_of_it_after() {
    let (_folder, root) = folder();
    let mut wholes = wholes();
    saved(&root, &wholes, &plan(&wholes, "2x1x2", 1));
    for step in 2..=4 {
        change(&mut wholes[1], 0);
        saved(&root, &wholes, &sharing(&root, &wholes, "1x1x2", step));
    }
    let keep = |count: usize| NonZeroUsize::new(count).unwrap();
    let gc = || {
        retire(&root, &run(), None, keep(1), LogOptions::default()).unwrap();
        collect(&root, &run(), None, &GcOptions::after(Duration::ZERO), LogOptions::default()).unwrap();
        collect(&root, &run(), None, &GcOptions::after(Duration::ZERO), LogOptions::default()).unwrap();
    };
    gc();
    assert_holds(&newest(&root), &wholes);
    let steps = |root: &Root| -> BTreeSet<String> {
        let dirs = root.list_dir(None).unwrap().dirs;
        dirs.iter()
            .filter_map(|dir| dir.as_ref().get(..13).map(str::to_owned))
            .filter(|dir| dir.starts_with("step"))
            .collect()
    };
    let needed = directories(&root).len();
    assert_eq!(steps(&root).len(), needed);
    assert!(steps(&root).contains("step-00000001") && needed < 4, "{:?}", steps(&root));
    wholes.iter_mut().for_each(|whole| whole.bytes.iter_mut().for_each(|byte| *byte ^= 1));
    saved(&root, &wholes, &plan(&wholes, "1x1x1", 5));
    gc();
    assert_eq!(steps(&root), BTreeSet::from(["step-00000005".to_owned()]));
    assert_holds(&newest(&root), &wholes);
}

#[test]
fn comparing_finds_shared_tensors_identical_and_a_folder_alone_says_what_it_lacks() {
    let (folder, root) = folder();
    let mut wholes = wholes();
    save(&root, &wholes, &plan(&wholes, "2x1x2", 1));
    let first = newest(&root);
    change(&mut wholes[1], 0);
    saved(&root, &wholes, &sharing(&root, &wholes, "8x1x1", 2));
    let second = newest(&root);
    for level in [DiffLevel::Hash, DiffLevel::Values] {
        let options = DiffOptions { level, ..DiffOptions::default() };
        let report = diff(first.source(), second.source(), &options, &Silent, &Cancel::new()).unwrap();
        let changed = report
            .counts()
            .into_iter()
            .filter(|(status, _)| !matches!(status, Status::Identical | Status::Moved));
        assert_eq!(changed.map(|(_, count)| count).sum::<usize>(), 1, "{:?}", report.counts());
    }
    let step = files(folder.path(), &root, 2, "/manifest-").remove(0);
    let alone = tempfile::tempdir().unwrap();
    std::fs::copy(&step, alone.path().join(step.file_name().unwrap())).unwrap();
    let error = crate::formats::native::open(alone.path().to_str().unwrap(), None).unwrap_err();
    assert_eq!((error.kind(), error.hint_text()), (ErrorKind::NotFound, Some("open the root")));
    let opened = crate::formats::native::open(step.parent().unwrap().to_str().unwrap(), None).unwrap();
    assert!(opened.integrity().contains("files are shared with 1 other folders"), "{}", opened.integrity());
}

#[test]
fn the_digest_of_a_plan_covers_what_may_be_shared_and_with_what() {
    let wholes = wholes();
    let seq = |number| Seq::new(number).unwrap();
    let of = |sharing: Option<Sharing>| {
        let mut spec = spec(&wholes, "1x1x1", 1);
        spec.sharing = sharing;
        SavePlan::new(spec).unwrap().digest()
    };
    let all = [
        of(None),
        of(Some(Sharing::with(seq(1)))),
        of(Some(Sharing::with(seq(2)))),
        of(Some(Sharing::with(seq(1)).of_tensors(["w".parse().unwrap()]))),
        of(Some(Sharing::with(seq(1)).of_roles([Role::Param]))),
        of(Some(Sharing { least: 1, ..Sharing::with(seq(1)) })),
    ];
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
}

#[test]
fn compressed_blobs_are_shared_and_what_is_written_is_compressed_as_asked() {
    let (_folder, root) = folder();
    let mut wholes = vec![
        placed(smooth(Whole::new("a", Dtype::F32, &[600, 400])), "tp:1,dp:0"),
        placed(smooth(Whole::new("b", Dtype::BF16, &[600, 400])), "dp:0"),
        placed(smooth(Whole::new("c", Dtype::F32, &[600, 400])), "dp:0"),
    ];
    for (step, mesh, codecs) in [(1, "2x1x2", "planes"), (2, "3x1x1", "none"), (3, "1x1x4", "zstd")] {
        let mut spec = spec(&wholes, mesh, step).coded(codecs.parse().unwrap());
        if step > 1 {
            wholes[2].bytes[5] ^= 1;
            spec.sharing = Some(base(&root));
        }
        let (done, session) = saved(&root, &wholes, &SavePlan::new(spec).unwrap());
        assert_eq!(session.findings(), []);
        let unchanged = (wholes[0].bytes.len() + wholes[1].bytes.len()) as u64;
        assert!(step == 1 || (unchanged..bytes(&wholes)).contains(&found(&done)), "{}", found(&done));
        let loader = newest(&root);
        assert_holds(&loader, &wholes);
        let coded = |location: &Location| {
            let files = loader.catalog().files.iter().filter(|file| file.location == *location);
            files.filter(|file| file.is_coded()).count()
        };
        assert_eq!(
            (coded(&Location::InStep) > 0, coded(&Location::InRoot) > 0),
            (codecs != "none", step > 1)
        );
    }
}

#[test]
fn many_threads_put_large_and_small_boxes_of_one_group() {
    let root = memory();
    let mut wholes: Vec<Whole> = (0..40)
        .map(|at| placed(Whole::new(&format!("t{at}"), Dtype::U8, &[1000, 100 + at]), "dp:0"))
        .collect();
    wholes.push(placed(Whole::new("large", Dtype::F32, &[2300, 2000]), "dp:0"));
    saved(&root, &wholes, &plan(&wholes, "dp=1", 1));
    for whole in wholes.iter_mut().step_by(2) {
        change(whole, 7);
    }
    let plan = sharing(&root, &wholes, "dp=1", 2);
    let session = Session::open(&root, &plan, SaveOptions::default()).unwrap();
    let writer = session.writer(0).unwrap();
    let boxes: Vec<(usize, Region)> = plan.boxes_of(0).map(|(at, region)| (at, region.clone())).collect();
    std::thread::scope(|scope| {
        for part in boxes.chunks(6) {
            let (writer, wholes) = (&writer, &wholes);
            scope.spawn(move || {
                part.iter()
                    .for_each(|(at, region)| writer.put(*at, region, &wholes[*at].region(region)).unwrap());
            });
        }
    });
    let done = writer.finish().unwrap();
    assert_eq!((done.shared, done.files), (20, 2), "one blob of the large box, one of the small ones");
    session.commit().unwrap();
    assert_holds(&newest(&root), &wholes);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn whatever_changed_and_whatever_the_meshes_what_is_loaded_is_what_was_put(
        (mesh, wholes) in models(),
        others in prop::collection::vec(strategies::mesh(), 2),
        changes in prop::collection::vec((0..4_u8, any::<prop::sample::Index>()), 8),
    ) {
        prop_assume!(others.iter().all(|mesh| mesh.ranks() <= 64));
        let Ok(first) = SavePlan::new(spec(&wholes, &mesh.to_string(), 1)) else { return Ok(()) };
        let (root, mut wholes) = (memory(), wholes);
        saved(&root, &wholes, &first);
        let mut changes = changes.into_iter();
        for (mesh, step) in others.iter().zip(2..) {
            let mut same = 0;
            for whole in wholes.iter_mut().filter(|whole| !whole.bytes.is_empty()) {
                match changes.next() {
                    Some((0, at)) => { let at = at.index(whole.bytes.len()); change(whole, at) }
                    Some((1, _)) => whole.bytes.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1)),
                    _ => same += whole.bytes.len() as u64,
                }
            }
            let Ok(plan) = SavePlan::new(spec(&wholes, &mesh.to_string(), step).sharing(base(&root))) else { return Ok(()) };
            let (done, session) = saved(&root, &wholes, &plan);
            prop_assert!(found(&done) >= same, "{} of {same}", found(&done));
            prop_assert_eq!(session.findings(), []);
            assert_holds(&newest(&root), &wholes);
            let alone = memory();
            save(&alone, &wholes, &self::plan(&wholes, "1x1x1", 3));
            prop_assert_eq!(tests::fingerprints(&newest(&root)), tests::fingerprints(&newest(&alone)));
        }
    }
}
