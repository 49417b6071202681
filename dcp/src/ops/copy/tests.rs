//! Copies: need no other folder, hold what the source holds, go on where they were stopped, and refuse what is damaged.

use std::{
    collections::BTreeSet,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use fqn::Dtype;

use super::*;
use crate::{
    ErrorKind, Silent,
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
    store::{
        DiskFs, Links, LocalStore, OsNonces, Stores,
        traced::{Fault, Traced},
    },
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

/// Commits another checkpoint at the moment when a copy begins its record.
#[derive(Debug)]
struct Meanwhile(Root, AtomicU64);

impl crate::store::Nonces for Meanwhile {
    fn draw(&self) -> Result<crate::store::Nonce, crate::store::StoreError> {
        let decided = self.0.list(None)?.iter().any(|it| it.path.as_ref().contains("/manifest-"));
        if decided && self.1.fetch_add(1, Ordering::Relaxed) == 0 {
            let wholes = wholes();
            save_by(&self.0, &wholes, &plan_of(&wholes, "1x1x1", 3));
        }
        OsNonces.draw()
    }
}

#[test]
fn a_copy_of_an_older_step_is_refused_though_a_newer_one_is_committed_only_as_its_record_is_begun() {
    let (from, to) = (folder(), memory());
    shared(&from.1);
    let meanwhile = Arc::new(Meanwhile(to.clone(), AtomicU64::new(0)));
    let log = LogOptions { nonces: meanwhile.clone(), ..LogOptions::default() };
    let copied = copied(&opened(&from.1), &to, &CopyOptions { log, ..options() });
    assert!(meanwhile.1.load(Ordering::Relaxed) > 0);
    refused(copied, ErrorKind::Conflict, &["run main is at step 3"]);
    assert_eq!(Log::open(&to).unwrap().head().map(Seq::get), Some(1));
    assert_eq!(newest(&to).commit().unwrap().step, 3);
}

/// Steps 10, 20, 30; then the run falls back to 20 and goes on with 25.
fn fallen_back(root: &Root) -> Vec<Whole> {
    let wholes = wholes();
    for step in [10, 20, 30] {
        save_by(root, &wholes, &plan_of(&wholes, "1x1x1", step));
    }
    let epoch = crate::save::begin_epoch(root, &run(), &SaveOptions::default()).unwrap();
    let mut spec = spec(&wholes, "1x1x1", 25).in_epoch(epoch);
    spec.parent = Some(Seq::new(2).unwrap());
    save_by(root, &wholes, &SavePlan::new(spec).unwrap());
    wholes
}

fn at(root: &Root, seq: u64) -> NativeSource {
    open_root(&Stores::new(), root, Some(&format!("seq:{seq}")), OpenOptions::new()).unwrap()
}

fn live(root: &Root) -> Vec<u64> {
    Log::open(root).unwrap().state().checkpoints.values().map(|it| it.step).collect()
}

#[test]
fn a_run_that_fell_back_is_copied_in_the_order_of_its_log_time_and_again() {
    let (from, to) = (memory(), memory());
    let wholes = fallen_back(&from);
    let all = || -> Vec<_> {
        let each = Log::open(&from).unwrap().state().checkpoints.keys().copied().collect::<Vec<_>>();
        each.into_iter().map(|seq| copied(&at(&from, seq.get()), &to, &options()).unwrap()).collect()
    };
    assert!(all().iter().all(|report| report.plan.before.is_none()));
    assert_eq!(live(&to), [10, 20, 30, 25]);
    assert!(all().iter().all(|report| report.plan.before.is_some()));
    save_by(&from, &wholes, &plan_of(&wholes, "1x1x1", 26));
    all();
    assert_eq!(live(&to), [10, 20, 30, 25, 26]);
    // What the run left behind is older than what it went on with, though its step is larger.
    let other = memory();
    copied(&at(&from, 5), &other, &options()).unwrap();
    let left = plan(&at(&from, 3), &other, &options()).unwrap_err();
    assert_eq!(left.kind(), ErrorKind::Conflict);
    assert!(left.to_string().contains("is a copy of record 5 of the source"), "{left}");
}

#[test]
fn a_place_in_the_log_is_known_of_what_the_source_has_forgotten() {
    let (from, to) = (memory(), memory());
    fallen_back(&from);
    copied(&at(&from, 3), &to, &options()).unwrap();
    retire(&from, &run(), None, NonZeroUsize::MIN, LogOptions::default()).unwrap();
    for _ in 0..2 {
        collect(&from, &run(), None, &GcOptions::after(Duration::ZERO), LogOptions::default()).unwrap();
    }
    assert_eq!(live(&from), [25]);
    copied(&at(&from, 5), &to, &options()).unwrap();
    assert_eq!(live(&to), [30, 25]);
}

#[test]
fn what_a_run_left_behind_does_not_follow_what_the_source_has_forgotten_of_how_it_went_on() {
    let (from, to) = (memory(), memory());
    let wholes = fallen_back(&from);
    retention::pin(&mut Log::open(&from).unwrap(), Seq::new(3).unwrap(), true).unwrap();
    save_by(&from, &wholes, &plan_of(&wholes, "1x1x1", 26));
    copied(&at(&from, 5), &to, &options()).unwrap();
    retire(&from, &run(), None, NonZeroUsize::MIN, LogOptions::default()).unwrap();
    for _ in 0..2 {
        // Retired first, condemned then.
        assert_eq!(live(&from), [30, 26]);
        // By its step it would follow; by its place in the log it must not.
        for refused in [plan(&at(&from, 3), &to, &options()).map(drop), {
            copied(&at(&from, 3), &to, &options()).map(drop)
        }] {
            let error = refused.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Conflict);
            assert!(error.to_string().contains("is a copy of record 5 of the source"), "{error}");
        }
        assert_eq!(live(&to), [25]);
        collect(&from, &run(), None, &GcOptions::after(Duration::ZERO), LogOptions::default()).unwrap();
    }
    copied(&at(&from, 7), &to, &options()).unwrap();
    assert_eq!(live(&to), [25, 26]);
}

#[test]
fn a_copy_that_is_forgotten_while_it_is_found_there_is_told_to_be_made_again() {
    let (from, to) = (memory(), memory());
    let wholes = wholes();
    for step in [1, 2] {
        save_by(&from, &wholes, &plan_of(&wholes, "1x1x1", step));
        copied(&at(&from, step), &to, &options()).unwrap();
    }
    let (source, options) = (at(&from, 1), options());
    let mut found = Copy::new(&source, &to, &options).unwrap();
    assert_eq!(found.plan.before, Some(1));
    assert_eq!(found.commit(&[]).unwrap().sequence, Some(1));
    retire(&to, &run(), None, NonZeroUsize::MIN, LogOptions::default()).unwrap();
    refused(found.commit(&[]), ErrorKind::Conflict, &["(record 1) was forgotten in the target meanwhile"]);
    collect(&to, &run(), None, &GcOptions::after(Duration::ZERO), LogOptions::default()).unwrap();
    refused(found.commit(&[]), ErrorKind::Conflict, &["(record 1) was forgotten in the target meanwhile"]);
    assert_eq!(live(&to), [2]);
}

#[test]
fn what_was_forgotten_in_the_target_is_left_out_where_that_is_wanted_and_a_stopped_copy_is_not() {
    let (from, to) = (memory(), memory());
    let wholes = wholes();
    for step in [1, 2, 3] {
        save_by(&from, &wholes, &plan_of(&wholes, "1x1x1", step));
        copied(&at(&from, step), &to, &options()).unwrap();
    }
    let leave = CopyOptions { leave_forgotten: true, ..options() };
    retire(&to, &run(), None, NonZeroUsize::MIN, LogOptions::default()).unwrap();
    for _ in 0..3 {
        let left = copied(&at(&from, 1), &to, &leave).unwrap();
        assert_eq!((left.plan.forgotten, left.committed.sequence, left.bytes_copied), (Some(1), None, 0));
        assert_eq!(copied(&at(&from, 3), &to, &leave).unwrap().committed.sequence, Some(3));
        refused(copied(&at(&from, 1), &to, &options()), ErrorKind::Conflict, &["record 3 of the source"]);
        // Retired first, condemned and deleted then: it is remembered all the same.
        collect(&to, &run(), None, &GcOptions::after(Duration::ZERO), LogOptions::default()).unwrap();
    }
    save_by(&from, &wholes, &plan_of(&wholes, "1x1x1", 4));
    let folder = plan(&at(&from, 4), &to, &leave).unwrap().folder;
    let mut log = Log::open(&to).unwrap();
    let condemn = crate::commit::Condemn { directories: [folder].into() };
    let draft = log.draft(&run(), crate::commit::Action::Condemn(condemn)).unwrap();
    log.append(&draft).unwrap();
    let again = copied(&at(&from, 4), &to, &leave).unwrap();
    assert_eq!((again.plan.forgotten, live(&to)), (None, vec![3, 4]));
}

#[test]
fn a_damaged_block_of_other_checkpoints_in_a_shared_file_is_told_as_such() {
    let (from, to) = (folder(), folder());
    shared(&from.1);
    let source = opened(&from.1);
    let catalog = source.catalog();
    // Of the tensor that was changed in step 2, the blob of step 1 holds bytes that only step 1 uses.
    let mut told = None;
    for (file, entry) in catalog.files.iter().enumerate().filter(|(_, it)| it.location == Location::InRoot) {
        let file = FileId(u32::try_from(file).unwrap());
        let table = source.blocks(file).unwrap().unwrap();
        let others = table.blocks().find(|block| {
            block.logical.start > 0
                && crate::engine::blame::affected(catalog, file, &block.logical).is_empty()
        });
        let Some(block) = others else { continue };
        let path = from.0.path().join(&entry.path);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[usize::try_from(block.stored.start).unwrap()] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        told = Some(copied(&opened(&from.1), &to.1, &options()).unwrap_err());
        break;
    }
    let error = told.unwrap();
    assert!(error.to_string().contains("this checkpoint has no tensor there"), "{error}");
    assert!(error.hint_text().unwrap().contains("ckpt convert"), "{error:?}");
}

#[test]
fn a_record_that_was_there_is_made_durable_before_the_copy_is_told_as_done() {
    let (from, to) = (folder(), folder());
    shared(&from.1);
    let source = opened(&from.1);
    copied(&source, &to.1, &options()).unwrap();
    let path = to.0.path();
    let fault = Fault { on: "syncdir /commits", errno: rustix::io::Errno::IO, happens: false };
    let disk = DiskFs::open(path, Links::Refuse).unwrap();
    let traced = Traced::new(disk, &Arc::default(), &Arc::new(Mutex::new(Some(fault))));
    let root = Root::from_local(LocalStore::over(traced, path.to_str().unwrap(), Arc::new(OsNonces)));
    let error = copied(&source, &root, &options()).unwrap_err();
    assert!(error.to_string().contains("did not confirm"), "{error}");
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
