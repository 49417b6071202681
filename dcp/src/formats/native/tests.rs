//! The store as a whole: what was written is read back, and whatever happened in between is noticed and named.

mod coded;
mod cost;
mod damage;
mod golden;
mod workers;

use super::*;
use crate::{
    Cancel, Catalog, Encoding, Error, ErrorKind, FindingCode, ObjectEntry, PathPart, Progress, ReshardRule,
    Result, Severity, Silent, Source, TargetSpec,
    commit::{Action, DirName, Log, LogOptions, ManifestRef, Retire, Seq, Verified},
    digest::Sha256Digest,
    engine::{
        CopyPlan, Report, RunOptions, Verify, read_region, run,
        testing::{MemSource, Proof, Stored, Whole, grid, plan},
    },
    formats::{OpenOptions, Strictness},
    store::{ObjectPath, Root, Stores, counted::CountedStore, object_path},
};
use bytes::Bytes;
use fqn::{Dtype, Role};
use proptest::prelude::*;
use reshard::Region;
use std::{path::Path, sync::Arc};

fn sink(root: &Root) -> NativeSink {
    NativeSink::new(root.clone(), SinkOptions::new("main".parse().unwrap()))
}

fn save(root: &Root, source: &MemSource, plan: &CopyPlan) -> Result<(u64, Report)> {
    let (committed, report) =
        run(source, &mut sink(root), plan, &RunOptions::default(), &Silent, &Cancel::new())?;
    Ok((committed.sequence.unwrap(), report))
}

/// Tensors of several dtypes, uneven shards, moments, an empty tensor and a scalar.
fn wholes() -> Vec<Whole> {
    let mut moment = Whole::new("w", Dtype::F32, &[300, 7]);
    moment.entry.role = Role::ExpAvg;
    let mut step = Whole::new("w", Dtype::F32, &[]);
    step.entry.role = Role::Slot("step".into());
    vec![
        Whole::new("w", Dtype::BF16, &[300, 7]),
        moment,
        step,
        Whole::new("embed", Dtype::F8E8M0, &[11, 13]),
        Whole::new("c", Dtype::C64, &[5, 3, 2]),
        Whole::new("hollow", Dtype::F32, &[0, 4]),
        Whole::new("flag", Dtype::Bool, &[9]),
    ]
}

fn mem_source(wholes: &[Whole]) -> MemSource {
    let whole = |it: &Whole| (it.clone(), vec![Region::whole(&it.entry.shape).unwrap()], Stored::Packed);
    MemSource::new(&wholes.iter().map(whole).collect::<Vec<_>>(), 2, Proof::Blocks)
}

/// Each tensor cut into at most `parts` along its first two dimensions, one rank each.
fn cut(source: &MemSource, parts: u64) -> CopyPlan {
    let regions = source.catalog.registry.entries().iter().map(|entry| {
        let parts: Vec<u64> =
            entry.shape.iter().enumerate().map(|(dim, _)| if dim < 2 { parts } else { 1 }).collect();
        let regions = grid(&entry.shape, &parts).into_iter().zip(0_u32..);
        regions.map(|(region, rank)| (region, rank % 3)).collect()
    });
    let regions = regions.collect();
    let mut plan = plan(source, regions);
    plan.spec.step = Some(70);
    plan.spec.plan_digest = format!("{parts:064x}");
    plan
}

fn objects(spec: &mut TargetSpec) {
    let object = |key: &str, bytes: Vec<u8>| ObjectEntry {
        key: key.to_owned(),
        path: vec![PathPart::Key(key.to_owned())],
        encoding: Encoding::Json,
        bytes: Bytes::from(bytes),
        preview: None,
        reshard: ReshardRule::Global,
    };
    spec.objects = vec![
        object("small", b"{\"lr\":1}".to_vec()),
        object("large", (0..200_000_u32).map(|n| n.to_le_bytes()[0] ^ 0x5a).collect()),
        object("large too", vec![b' '; 70_000]),
    ];
}

fn check(source: &NativeSource, wholes: &[Whole]) {
    for (at, whole) in wholes.iter().enumerate() {
        let entry = &source.catalog().registry.entries()[at];
        assert_eq!(entry, &whole.entry);
        let all = Region::whole(&entry.shape).unwrap();
        assert_eq!(read_region(source, at, &all, Verify::Records).unwrap(), whole.bytes, "{}", entry.id());
    }
}

fn audit(source: &NativeSource) -> Vec<(Severity, FindingCode, Option<String>)> {
    source.audit().unwrap().into_iter().map(|found| (found.severity, found.code, found.file)).collect()
}

fn memory() -> (Stores, Root) {
    let stores = Stores::new();
    let root = Root::create("memory://run", &stores).unwrap();
    (stores, root)
}

fn reopen(stores: &Stores, revision: Option<&str>) -> Result<NativeSource> {
    open_in(stores, "memory://run", revision, OpenOptions::new())
}

/// Names of objects that contain `part`.
fn named(root: &Root, part: &str) -> Vec<ObjectPath> {
    root.list(None)
        .unwrap()
        .into_iter()
        .map(|it| it.path)
        .filter(|path| path.as_ref().contains(part))
        .collect()
}

#[test]
fn what_was_written_is_read_back_from_memory_and_from_disk() {
    let wholes = wholes();
    let source = mem_source(&wholes);
    let mut plan = cut(&source, 3);
    objects(&mut plan.spec);
    let folder = tempfile::tempdir().unwrap();
    let stores = Stores::new();
    for location in ["memory://run", folder.path().to_str().unwrap()] {
        let root = Root::create(location, &stores).unwrap();
        let (seq, report) = save(&root, &source, &plan).unwrap();
        assert_eq!((seq, report.proven), (1, wholes.len()));
        let opened = open_in(&stores, location, None, OpenOptions::new()).unwrap();
        check(&opened, &wholes);
        assert_eq!(opened.catalog().objects, plan.spec.objects);
        assert_eq!(opened.catalog().step, Some(70));
        assert_eq!(audit(&opened), []);
        let prints: Vec<_> = opened.catalog().tensors.iter().map(|it| it.fingerprint).collect();
        assert_eq!(prints, source.catalog.tensors.iter().map(|it| it.fingerprint).collect::<Vec<_>>());
        let facts = opened.facts();
        assert!(facts[0].1.starts_with("seq 1, 20"), "{facts:?}");
    }
}

#[test]
fn every_blob_is_a_plain_safetensors_file_that_explains_itself() {
    let source = mem_source(&wholes());
    let folder = tempfile::tempdir().unwrap();
    let root = Root::create(folder.path().to_str().unwrap(), &Stores::new()).unwrap();
    save(&root, &source, &cut(&source, 2)).unwrap();
    let blobs = named(&root, "data/");
    assert!(blobs.len() >= 3);
    for blob in blobs {
        let bytes = root.get(&blob).unwrap();
        let (_, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        let told: serde_json::Value =
            serde_json::from_str(&metadata.metadata().as_ref().unwrap()["ckpt"]).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        for (name, view) in tensors.tensors() {
            let about = &told["chunks"][&name];
            let id = format!("{}@{}", about["fqn"].as_str().unwrap(), about["role"].as_str().unwrap());
            let at = source
                .catalog
                .registry
                .entries()
                .iter()
                .position(|it| format!("{}@{}", it.fqn, it.role) == id);
            let dims = |key: &str| serde_json::from_value::<Vec<u64>>(about[key].clone()).unwrap();
            let region = Region::new(&dims("offsets"), &dims("extents")).unwrap();
            let expected = read_region(&source, at.unwrap(), &region, Verify::None).unwrap();
            assert_eq!(view.data(), expected, "{name}");
        }
    }
}

/// Wishes to stop once so many bytes were copied.
struct StopAfter(std::sync::atomic::AtomicI64, Cancel);

impl Progress for StopAfter {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, bytes: u64) {
        let bytes = i64::try_from(bytes).unwrap();
        if self.0.fetch_sub(bytes, std::sync::atomic::Ordering::SeqCst) < bytes {
            self.1.cancel();
        }
    }
    fn end(&self) {}
}

#[test]
fn a_stopped_run_goes_on_where_it_stopped_and_never_reuses_an_unfinished_name() {
    let tensors: Vec<Whole> =
        (0..4).map(|at| Whole::new(&format!("t{at}"), Dtype::F32, &[700, 1000])).collect();
    let source = mem_source(&tensors);
    let mut plan = cut(&source, 1);
    for (tensor, rank) in plan.spec.tensors.iter_mut().zip(0..) {
        tensor.regions[0].1 = rank;
    }
    let (stores, root) = memory();
    let cancel = Cancel::new();
    let stop = StopAfter(6_000_000.into(), cancel.clone());
    let one = RunOptions { threads: std::num::NonZeroUsize::MIN, ..RunOptions::default() };
    let mut first = sink(&root);
    let stopped = run(&source, &mut first, &plan, &one, &stop, &cancel).unwrap_err();
    assert_eq!(stopped.kind(), ErrorKind::Cancelled);
    assert_eq!(reopen(&stores, None).unwrap_err().kind(), ErrorKind::NotFound);
    let parts = named(&root, "parts/");
    assert!(!parts.is_empty() && parts.len() < 4, "{parts:?}");

    let mut second = sink(&root);
    let (_, report) = run(&source, &mut second, &plan, &one, &Silent, &Cancel::new()).unwrap();
    assert_eq!(report.skipped_files, parts.len());
    assert_eq!(first.attempt(), second.attempt());
    let opened = reopen(&stores, None).unwrap();
    check(&opened, &tensors);
    assert_eq!(audit(&opened), []);
    let before: Vec<String> =
        parts.iter().map(|path| String::from_utf8(root.get(path).unwrap().to_vec()).unwrap()).collect();
    let kept =
        opened.catalog().files.iter().filter(|file| before.iter().any(|part| part.contains(&file.path)));
    assert_eq!(kept.count(), parts.len());
}

#[test]
fn a_plan_that_was_committed_is_not_committed_again() {
    let (wholes, (stores, root)) = (wholes(), memory());
    let source = mem_source(&wholes);
    let plan = cut(&source, 2);
    assert_eq!(save(&root, &source, &plan).unwrap().0, 1);
    let before = root.list(None).unwrap();
    let (seq, report) = save(&root, &source, &plan).unwrap();
    assert_eq!((seq, report.bytes_read), (1, 0));
    assert_eq!(root.list(None).unwrap(), before);

    for part in named(&root, "parts/") {
        root.delete(&part).unwrap();
    }
    let error = save(&root, &source, &plan).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.hint_text().unwrap().contains("seq:1"));

    let mut log = Log::open(&root).unwrap();
    let run = "main".parse().unwrap();
    let retire = log.draft(&run, Action::Retire(Retire { checkpoint: Seq::FIRST })).unwrap();
    log.append(&retire).unwrap();
    assert_eq!(save(&root, &source, &plan).unwrap().0, 3, "what was retired is written again, elsewhere");
    check(&reopen(&stores, Some("seq:3")).unwrap(), &wholes);
}

#[test]
fn two_writers_of_one_plan_commit_it_once_and_of_two_plans_both() {
    let (wholes, (stores, root)) = (wholes(), memory());
    let source = mem_source(&wholes);
    let plans = [cut(&source, 2), cut(&source, 2), cut(&source, 3)];
    let saved: Vec<u64> = std::thread::scope(|scope| {
        let writers: Vec<_> =
            plans.iter().map(|plan| scope.spawn(|| save(&root, &source, plan).unwrap().0)).collect();
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    assert_eq!(saved[0], saved[1]);
    assert_ne!(saved[0], saved[2]);
    let log = Log::open(&root).unwrap();
    assert_eq!(log.state().checkpoints.len(), 2);
    for revision in ["seq:1", "seq:2", "latest"] {
        let opened = reopen(&stores, Some(revision)).unwrap();
        check(&opened, &wholes);
        assert!(audit(&opened).iter().all(|(severity, ..)| *severity < Severity::Error));
    }
}

#[test]
fn parts_of_another_plan_stop_a_run_before_it_writes() {
    let (wholes, (_, root)) = (wholes(), memory());
    let source = mem_source(&wholes);
    let plan = cut(&source, 2);
    let mut first = sink(&root);
    crate::Sink::layout(&mut first, &plan.spec).unwrap();
    let dir = first.attempt().unwrap().clone();
    let part = object_path(&format!("{dir}/parts/r00000-0000.json")).unwrap();
    let _ = root.put_create(&part, Bytes::from_static(b"{}")).unwrap();
    let error = save(&root, &source, &plan).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("parts/r00000-0000.json"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn any_cut_gives_the_same_fingerprints_and_bytes(parts in 1_u64..6, again in 1_u64..6) {
        let (wholes, (stores, root)) = (wholes(), memory());
        let source = mem_source(&wholes);
        save(&root, &source, &cut(&source, parts)).unwrap();
        let first = reopen(&stores, None).unwrap();
        let regions = cut(&source, again).spec.tensors.into_iter().map(|it| it.regions).collect();
        let mut plan = plan(&source, regions);
        plan.spec.plan_digest = format!("{:064x}", again + 100);
        run(&first, &mut sink(&root), &plan, &RunOptions::default(), &Silent, &Cancel::new()).unwrap();
        let second = reopen(&stores, None).unwrap();
        check(&second, &wholes);
        let prints = |source: &NativeSource| source.catalog().tensors.iter().map(|it| it.fingerprint).collect::<Vec<_>>();
        prop_assert_eq!(prints(&first), prints(&second));
    }
}

#[test]
fn the_newest_of_many_commits_opens_in_four_requests() {
    let (stores, root) = memory();
    let options = LogOptions { hint_every: None, ..LogOptions::default() };
    let mut log = Log::open_with(&root, options).unwrap();
    for n in 0..1_200 {
        let attempt: DirName = format!("step-{n}-made-up").parse().unwrap();
        let manifest = ManifestRef { sha256: Sha256Digest::of(b"none"), size: 4 };
        let commit = serde_json::from_value(serde_json::json!({
            "step": n, "attempt": attempt, "manifest": manifest, "directories": [attempt],
        }));
        let draft = log.draft(&"main".parse().unwrap(), Action::Commit(commit.unwrap())).unwrap();
        log.append(&draft).unwrap();
    }
    let source = mem_source(&wholes());
    let (seq, _) = save(&root, &source, &cut(&source, 2)).unwrap();
    let counted = Arc::new(CountedStore::new(Arc::clone(root.object_store())));
    let counting = Root::from_store(counted.clone(), "counted");
    let open = || {
        let opened = open_root(&stores, &counting, None, OpenOptions::new()).unwrap();
        assert_eq!(opened.commit().unwrap().seq.get(), seq);
        counted.take()
    };
    let asked = open();
    assert_eq!(asked.len(), 4, "{asked:?}");
    // Also where later records are about something else.
    let mut log = Log::open(&root).unwrap();
    let verified = Verified { checkpoint: Seq::new(seq).unwrap(), whole: true };
    let draft = log.draft(&"main".parse().unwrap(), Action::Verified(verified)).unwrap();
    log.append(&draft).unwrap();
    assert_eq!(open().len(), 4);
    drop(crate::load::Loader::newest(&counting, &"main".parse().unwrap()).unwrap());
    assert_eq!(counted.take().len(), 4);
    // Without the hint it takes more, and comes to the same.
    root.delete(&object_path("commits/head").unwrap()).unwrap();
    assert!(open().len() > 4);
}
