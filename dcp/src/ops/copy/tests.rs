//! Copies: need no other folder, hold what the source holds, go on where they were stopped, and refuse what is damaged.

use std::{
    collections::BTreeSet,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use fqn::Dtype;

use super::*;
use crate::{
    Silent,
    engine::testing::Whole,
    formats::{
        self, OpenOptions,
        native::{open, open_root},
    },
    load::Loader,
    ops::seal::{SealOptions, seal},
    retention::{GcOptions, collect, retire},
    save::{
        SaveOptions, SavePlan, Session, Sharing,
        tests::{
            assert_holds, memory, metrics, object, placed, plan as plan_of, refused, run, spec, wholes,
            write_rank,
        },
    },
    store::Stores,
};

fn folder() -> (tempfile::TempDir, Root) {
    let folder = tempfile::tempdir().unwrap();
    let root = Root::create(folder.path().to_str().unwrap(), &Stores::new()).unwrap();
    (folder, root)
}

fn save_by(root: &Root, wholes: &[Whole], plan: &SavePlan) {
    let session = Session::open(root, plan, SaveOptions::default()).unwrap();
    for rank in 0..plan.ranks() {
        write_rank(&session, wholes, rank).unwrap();
    }
    session.commit().unwrap();
}

/// A checkpoint of step 2 that shares most of its bytes with one of step 1 on another mesh.
fn shared(root: &Root) -> Vec<Whole> {
    let mut wholes = wholes();
    save_by(root, &wholes, &plan_of(&wholes, "4x1x2", 1));
    wholes[2].bytes[0] ^= 1;
    let objects = vec![object("cursor", b"{\"seen\":7}".to_vec()), object("large", vec![b' '; 70_000])];
    let mut spec = spec(&wholes, "2x1x1", 2).with_objects(objects);
    spec.extra.insert("note".to_owned(), "kept".into());
    spec.metrics = metrics(&[("loss", 0.5)]);
    spec.sharing = Some(Sharing { least: 1, ..Sharing::with_newest(root, &run()).unwrap().unwrap() });
    save_by(root, &wholes, &SavePlan::new(spec).unwrap());
    wholes
}

fn opened(root: &Root) -> NativeSource {
    open_root(&Stores::new(), root, None, OpenOptions::new()).unwrap()
}

fn copied(source: &NativeSource, root: &Root, options: &CopyOptions) -> Result<CopyReport> {
    copy(source, root, options, &RunOptions::default(), &Silent, &Cancel::new())
}

fn options() -> CopyOptions {
    CopyOptions { place: "run/a".to_owned(), ..CopyOptions::default() }
}

fn newest(root: &Root) -> Loader {
    Loader::newest(root, &run()).unwrap()
}

/// Files of a step's folder whose names hold a word.
fn files(folder: &Path, root: &Root, step: u64, part: &str) -> Vec<PathBuf> {
    let (listed, step) = (root.list(None).unwrap(), format!("step-{step:08}-"));
    let paths = listed.iter().map(|object| object.path.as_ref());
    paths
        .filter(|path| path.starts_with(&step) && path.contains(part))
        .map(|path| folder.join(path))
        .collect()
}

#[test]
fn a_copy_needs_no_other_folder_and_keeps_all_but_its_place_in_the_log() {
    let (from, to) = (folder(), memory());
    let wholes = shared(&from.1);
    let source = opened(&from.1);
    let planned = plan(&source, &to, &options()).unwrap();
    assert!(planned.shared_files > 0 && planned.before.is_none());
    assert_eq!(to.list(None).unwrap(), [], "a plan does nothing");
    let tagged = CopyOptions { tag: Some("best".parse().unwrap()), ..options() };
    let report = copied(&source, &to, &tagged).unwrap();
    assert_eq!((&report.plan, report.proven, report.files_kept), (&planned, wholes.len(), 0));
    assert_eq!(report.bytes_copied, planned.bytes);
    drop(from);

    let copy = newest(&to);
    assert_holds(&copy, &wholes);
    let facts = copy.commit().unwrap();
    assert_eq!((facts.step, facts.run.as_str(), facts.parent), (2, "main", None));
    assert_eq!(facts.metrics, metrics(&[("loss", 0.5)]));
    let (before, after) = (source.catalog(), copy.catalog());
    assert_eq!(
        (&before.registry, &before.objects, before.step),
        (&after.registry, &after.objects, after.step)
    );
    assert_eq!((&before.mesh, &before.extra), (&after.mesh, &after.extra));
    assert!(after.files.iter().all(|file| file.location == Location::InStep));
    let roots = |catalog: &Catalog| -> Vec<_> {
        catalog.files.iter().map(|file| (file.size, file.blocks.as_ref().map(|it| it.root))).collect()
    };
    assert_eq!(roots(before), roots(after), "blobs and tables are byte for byte the source's");
    for ((entry, a), (_, b)) in before.iter().zip(after.iter()) {
        assert_eq!(a, b, "{}", entry.id());
    }
    let log = Log::open(&to).unwrap();
    let (seq, checkpoint) = log.state().checkpoints.first_key_value().unwrap();
    assert_eq!(checkpoint.directories, BTreeSet::from([planned.folder.clone()]));
    assert_eq!(log.state().tags.values().collect::<Vec<_>>(), [seq]);
    let origin = opened(&to).origin().unwrap().clone();
    assert_eq!((origin.format, origin.place.as_str()), (crate::Format::Native, "run/a@seq:2"));
}

#[test]
fn compressed_files_are_copied_as_they_are_stored() {
    let (from, to) = (folder(), memory());
    let wholes = vec![
        placed(Whole::new("a", Dtype::F32, &[600, 400]).smooth(), "tp:1,dp:0"),
        placed(Whole::new("noise", Dtype::F32, &[300, 40]), "dp:0"),
    ];
    save_by(
        &from.1,
        &wholes,
        &SavePlan::new(spec(&wholes, "2x1x2", 2).coded("planes".parse().unwrap())).unwrap(),
    );
    let source = opened(&from.1);
    let report = copied(&source, &to, &options()).unwrap();
    assert_eq!(report.proven, 2);
    let copy = newest(&to);
    assert_holds(&copy, &wholes);
    let sizes = |catalog: &Catalog| -> Vec<_> {
        catalog
            .files
            .iter()
            .map(|file| (file.size, file.logical, file.blocks.as_ref().map(|it| it.root)))
            .collect()
    };
    assert_eq!(sizes(source.catalog()), sizes(copy.catalog()));
    assert!(copy.catalog().files.iter().any(crate::FileEntry::is_coded));
}

#[test]
fn a_copy_of_a_blob_of_which_only_one_of_many_boxes_is_shared_can_be_read() {
    let (from, to) = (folder(), folder());
    let mut wholes: Vec<Whole> =
        (0..60).map(|at| placed(Whole::new(&format!("t{at}"), Dtype::U8, &[90, 10]), "dp:0")).collect();
    save_by(&from.1, &wholes, &plan_of(&wholes, "1x1x1", 1));
    wholes.iter_mut().skip(1).for_each(|whole| whole.bytes[0] ^= 1);
    let mut spec = spec(&wholes, "1x1x1", 2);
    spec.sharing = Some(Sharing { least: 1, ..Sharing::with_newest(&from.1, &run()).unwrap().unwrap() });
    save_by(&from.1, &wholes, &SavePlan::new(spec).unwrap());
    let report = copied(&opened(&from.1), &to.1, &options()).unwrap();
    assert_eq!((report.plan.shared_files, report.proven), (1, 60));
    // Its block table has a block for each box of the first checkpoint, and chunks of one.
    assert_holds(&newest(&to.1), &wholes);
}

#[test]
fn a_copy_that_was_made_is_not_made_again() {
    let (from, to) = (folder(), folder());
    shared(&from.1);
    let source = opened(&from.1);
    let first = copied(&source, &to.1, &options()).unwrap();
    let listed = to.1.list(None).unwrap();
    let again = copied(&source, &to.1, &options()).unwrap();
    assert_eq!((again.plan.before, again.committed.sequence), (first.committed.sequence, Some(1)));
    assert_eq!((again.bytes_copied, to.1.list(None).unwrap()), (0, listed));
    let other = CopyOptions { run: Some("other".parse().unwrap()), ..options() };
    assert_eq!(copied(&source, &to.1, &other).unwrap().committed.sequence, Some(2));
}

/// Stops after so many bytes.
struct After(AtomicU64, Cancel);

impl Progress for After {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, bytes: u64) {
        if self.0.fetch_sub(bytes.min(self.0.load(Ordering::Relaxed)), Ordering::Relaxed) <= bytes {
            self.1.cancel();
        }
    }
    fn end(&self) {}
}

#[test]
fn a_stopped_copy_shows_nothing_and_goes_on_with_what_is_finished() {
    let (from, to) = (folder(), folder());
    let wholes = shared(&from.1);
    let source = opened(&from.1);
    let cancel = Cancel::new();
    let one = RunOptions { threads: NonZeroUsize::MIN, ..RunOptions::default() };
    let first = source.catalog().files[0].size + source.catalog().files[1].size;
    let stopped =
        copy(&source, &to.1, &options(), &one, &After(AtomicU64::new(first), cancel.clone()), &cancel);
    refused(stopped, ErrorKind::Cancelled, &["stopped"]);
    refused(Loader::newest(&to.1, &run()), ErrorKind::NotFound, &["no checkpoint"]);
    let kept = files(to.0.path(), &to.1, 2, "/data/");
    assert_eq!(kept.len(), 2);
    let report = copied(&source, &to.1, &options()).unwrap();
    assert_eq!((report.files_kept, report.proven), (2, wholes.len()));
    assert!(report.bytes_copied < report.plan.bytes);
    assert!(kept.iter().all(|path| path.exists()));
    assert_holds(&newest(&to.1), &wholes);
}

#[test]
fn a_damaged_source_is_refused_by_name_and_nothing_is_visible() {
    let (from, to) = (folder(), folder());
    let wholes = vec![
        placed(Whole::new("a", Dtype::F32, &[300, 200]), "dp:0"),
        placed(Whole::new("b", Dtype::F32, &[300, 200]), "dp:0"),
    ];
    save_by(&from.1, &wholes, &plan_of(&wholes, "dp=1", 2));
    let source = opened(&from.1);
    let blob = files(from.0.path(), &from.1, 2, "/data/").remove(0);
    let mut bytes = std::fs::read(&blob).unwrap();
    let at = bytes.len() - 9;
    bytes[at] ^= 2;
    std::fs::write(&blob, &bytes).unwrap();
    refused(
        copied(&source, &to.1, &options()),
        ErrorKind::Corrupt,
        &["block", "it holds b [0..300, 0..200]"],
    );
    std::fs::write(&blob, &bytes[..at]).unwrap();
    assert_eq!(copied(&source, &to.1, &options()).unwrap_err().kind(), ErrorKind::Corrupt);
    std::fs::remove_file(&blob).unwrap();
    // A root keeps files open that it has read: only another one finds that the name is gone.
    let source = open(from.0.path().to_str().unwrap(), None).unwrap();
    refused(copied(&source, &to.1, &options()), ErrorKind::NotFound, &["/data/r00000"]);
    refused(Loader::newest(&to.1, &run()), ErrorKind::NotFound, &["no checkpoint"]);
}

#[test]
fn a_fingerprint_that_is_not_that_of_the_bytes_is_refused() {
    let (from, to) = (folder(), folder());
    shared(&from.1);
    let mut source = opened(&from.1);
    source.lie(0);
    refused(copied(&source, &to.1, &options()), ErrorKind::Corrupt, &["embed", "recorded is"]);
    assert_eq!(Log::open(&to.1).unwrap().head(), None);
}

#[test]
fn an_older_checkpoint_does_not_become_what_a_run_resumes_from() {
    let (from, to) = (folder(), folder());
    let wholes = shared(&from.1);
    save_by(&to.1, &wholes, &plan_of(&wholes, "1x1x1", 3));
    let source = opened(&from.1);
    let error = plan(&source, &to.1, &options()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains("run main is at step 3"), "{error}");
    refused(copied(&source, &to.1, &options()), ErrorKind::Conflict, &["step 2"]);
    let aside = CopyOptions { run: Some("archive".parse().unwrap()), ..options() };
    copied(&source, &to.1, &aside).unwrap();
    assert_eq!(newest(&to.1).commit().unwrap().step, 3);
    assert_holds(&Loader::newest(&to.1, &"archive".parse().unwrap()).unwrap(), &wholes);
}

#[test]
fn a_copy_in_its_own_root_outlives_what_it_was_copied_from() {
    let (_folder, root) = folder();
    let wholes = shared(&root);
    copied(&opened(&root), &root, &options()).unwrap();
    retire(&root, &run(), None, NonZeroUsize::MIN, LogOptions::default()).unwrap();
    for _ in 0..2 {
        collect(&root, &run(), None, &GcOptions::after(Duration::ZERO), LogOptions::default()).unwrap();
    }
    let steps = root.list_dir(None).unwrap().dirs;
    assert_eq!(steps.iter().filter(|dir| dir.as_ref().starts_with("step-")).count(), 1);
    assert_holds(&newest(&root), &wholes);
}

#[test]
fn a_sealed_checkpoint_is_copied_with_its_files_and_a_folder_alone_needs_a_run() {
    for name in ["torch_dcp/fsdp2_tp2", "hf/llama_sharded"] {
        let (sealed, to) = (folder(), folder());
        let path = fixtures::path(name);
        let foreign = formats::open(&path, OpenOptions::new()).unwrap();
        let of = SealOptions::new(path.to_str().unwrap(), run());
        seal(&*foreign, &sealed.1, &of, &RunOptions::default(), &Silent, &Cancel::new()).unwrap();
        let source = opened(&sealed.1);
        let report = copied(&source, &to.1, &options()).unwrap();
        assert!(report.plan.sealed_files > 0, "{name}");
        let copy = newest(&to.1);
        assert!(copy.catalog().files.iter().all(|file| file.location == Location::InStep));
        assert!(copy.check(crate::load::Level::Full).unwrap().is_empty(), "{name}");
        assert_eq!(copy.catalog().registry, source.catalog().registry);
    }
    let (from, to) = (folder(), folder());
    let wholes = wholes();
    save_by(&from.1, &wholes, &plan_of(&wholes, "1x1x2", 2));
    let step = files(from.0.path(), &from.1, 2, "/manifest-").remove(0);
    std::fs::remove_dir_all(from.0.path().join("commits")).unwrap();
    let alone = open(step.parent().unwrap().to_str().unwrap(), None).unwrap();
    refused(copied(&alone, &to.1, &options()), ErrorKind::Incompatible, &["which run"]);
    let with = CopyOptions { run: Some(run()), ..options() };
    copied(&alone, &to.1, &with).unwrap();
    assert_holds(&newest(&to.1), &wholes);
}
