//! Sharing: what is unchanged is not written again, whatever the mesh; what changed, is suspect or not there is; and whoever reads,
//! checks or collects finds shared bytes as if they were the checkpoint's own.

mod collected;
mod damage;
mod writers;

use super::*;
use crate::{
    Cancel, ErrorKind, FindingCode, Location, Result, Severity, Silent,
    commit::{Action, Condemn, DirName, Log, LogOptions, Retire, Seq},
    engine::testing::Whole,
    load::{Level, Loader, newest_good},
    ops::{
        diff::{DiffOptions, Level as DiffLevel, Status, diff},
        verify::{VerifyOptions, verify},
    },
    retention::{GcOptions, collect, retire},
    store::{Root, Stores},
};
use fqn::{Dtype, Role};
use proptest::prelude::*;
use reshard::{Region, strategies};
use std::{
    collections::BTreeSet,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
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

/// The blobs, or tables, of a step's folder.
fn files(folder: &Path, root: &Root, step: u64, part: &str) -> Vec<PathBuf> {
    let (listed, step) = (root.list(None).unwrap(), format!("step-{step:08}-"));
    let paths = listed.iter().map(|object| object.path.as_ref());
    let wanted = paths.filter(|path| path.starts_with(&step) && path.contains(part));
    wanted.map(|path| folder.join(path)).collect()
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
        placed(Whole::new("a", Dtype::F32, &[600, 400]).smooth(), "tp:1,dp:0"),
        placed(Whole::new("b", Dtype::BF16, &[600, 400]).smooth(), "dp:0"),
        placed(Whole::new("c", Dtype::F32, &[600, 400]).smooth(), "dp:0"),
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
            prop_assert_eq!(fingerprints(&newest(&root)), fingerprints(&newest(&alone)));
        }
    }
}
