//! Saving: what every rank wrote of a known tensor is committed once, whole, whatever the mesh; and whoever is missing, late,
//! fenced or different is named.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use fqn::{Dtype, Role};
use proptest::prelude::*;
use reshard::{Mesh, Region, strategies};
use rustix::io::Errno;

use super::*;
use crate::{
    Cancel, Encoding, Error, ErrorKind, ObjectEntry, PathPart, ReshardRule, Result, Silent,
    commit::{Finite, Label, Log, MOST_METRICS, Metrics},
    engine::testing::Whole,
    fingerprint::Fingerprint,
    load::Loader,
    ops::verify::{VerifyOptions, verify},
    store::{
        DiskFs, Links, LocalStore, Root, SeededNonces, Stores,
        traced::{Fault, Traced},
    },
};

pub(crate) fn run() -> Label {
    "main".parse().unwrap()
}

pub(crate) fn memory() -> Root {
    Root::create("memory://run", &Stores::new()).unwrap()
}

pub(crate) fn placed(mut whole: Whole, rule: &str) -> Whole {
    whole.entry.placement = Some(rule.parse().unwrap());
    whole
}

/// A model in small: cut over tp and dp, replicated, of both ends, empty, a scalar, moments, narrow and wide elements.
pub(crate) fn wholes() -> Vec<Whole> {
    let mut moment = Whole::new("w", Dtype::F32, &[30, 7]);
    moment.entry.role = Role::ExpAvg;
    let mut step = Whole::new("w", Dtype::F32, &[]);
    step.entry.role = Role::Slot("step".into());
    vec![
        placed(Whole::new("embed", Dtype::F8E8M0, &[11, 13]), "tp:0,dp:0,pp:first+last"),
        placed(Whole::new("w", Dtype::BF16, &[30, 7]), "tp:1,dp:0"),
        placed(moment, "tp:0,dp:1"),
        placed(step, "replicate"),
        placed(Whole::new("c", Dtype::C64, &[5, 3, 2]), "dp:0"),
        placed(Whole::new("hollow", Dtype::F32, &[0, 4]), "dp:0"),
        placed(Whole::new("flag", Dtype::Bool, &[9]), "replicate"),
    ]
}

pub(crate) fn spec(wholes: &[Whole], mesh: &str, step: u64) -> SaveSpec {
    let mut registry = fqn::Registry::new();
    for whole in wholes {
        registry.push(whole.entry.clone()).unwrap();
    }
    SaveSpec::new(run(), registry, mesh.parse().unwrap(), step)
}

pub(crate) fn plan(wholes: &[Whole], mesh: &str, step: u64) -> SavePlan {
    SavePlan::new(spec(wholes, mesh, step)).unwrap()
}

pub(crate) fn session(root: &Root, plan: &SavePlan) -> Session {
    Session::open(root, plan, SaveOptions::default()).unwrap()
}

/// Writes what a rank has to write, last box first.
pub(crate) fn write_rank(session: &Session, wholes: &[Whole], rank: u32) -> Result<WriterDone> {
    let writer = session.writer(rank)?;
    let boxes: Vec<_> = session.plan().boxes_of(rank).collect();
    for (tensor, region) in boxes.into_iter().rev() {
        writer.put(tensor, region, &wholes[tensor].region(region))?;
    }
    writer.finish()
}

pub(crate) fn save(root: &Root, wholes: &[Whole], plan: &SavePlan) -> u64 {
    let session = session(root, plan);
    for rank in 0..plan.ranks() {
        write_rank(&session, wholes, rank).unwrap();
    }
    session.commit().unwrap().sequence.unwrap()
}

pub(crate) fn fingerprints(loader: &Loader) -> Vec<Option<Fingerprint>> {
    loader.catalog().tensors.iter().map(|chunks| chunks.fingerprint).collect()
}

pub(crate) fn assert_holds(loader: &Loader, wholes: &[Whole]) {
    let report = verify(loader.source(), &VerifyOptions::default(), &Silent, &Cancel::new()).unwrap();
    assert_eq!(report.findings, []);
    assert_eq!(report.checksums.unproven_bytes, 0);
    let reader = loader.reader();
    for whole in wholes {
        let all = Region::whole(&whole.entry.shape).unwrap();
        assert_eq!(reader.read_vec(&whole.entry.id(), &all).unwrap(), whole.bytes, "{}", whole.entry.id());
    }
}

pub(crate) fn refused<T: std::fmt::Debug>(result: Result<T>, kind: ErrorKind, parts: &[&str]) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    for part in parts {
        assert!(error.to_string().contains(part), "{part:?} in {error}");
    }
}

pub(crate) fn object(key: &str, bytes: Vec<u8>) -> ObjectEntry {
    ObjectEntry {
        key: key.to_owned(),
        path: vec![PathPart::Key(key.to_owned())],
        encoding: Encoding::Json,
        bytes: Bytes::from(bytes),
        preview: None,
        reshard: ReshardRule::Global,
    }
}

#[test]
fn many_writers_make_one_checkpoint_that_any_mesh_reads() {
    let folder = tempfile::tempdir().unwrap();
    let root = Root::create(folder.path().to_str().unwrap(), &Stores::new()).unwrap();
    let wholes = wholes();
    let objects = vec![object("cursor", b"{\"seen\":7}".to_vec()), object("large", vec![b' '; 70_000])];
    let plan = SavePlan::new(spec(&wholes, "2x2x2", 70).with_objects(objects.clone())).unwrap();
    let session = session(&root, &plan);
    std::thread::scope(|scope| {
        for rank in 0..8 {
            let (session, wholes) = (session.clone(), &wholes);
            scope.spawn(move || write_rank(&session, wholes, rank).unwrap());
        }
    });
    assert!(session.missing().unwrap().is_empty());
    assert_eq!(
        Loader::newest(&root, &run()).unwrap_err().kind(),
        ErrorKind::NotFound,
        "nothing before the commit"
    );
    let committed = session.commit().unwrap();
    assert_eq!(committed.sequence, Some(1));
    assert_eq!(session.commit().unwrap().sequence, Some(1), "a second commit is the first");

    let loader = Loader::newest(&root, &run()).unwrap();
    assert_holds(&loader, &wholes);
    assert_eq!(loader.catalog().objects, objects);
    assert_eq!((loader.catalog().step, loader.commit().unwrap().step), (Some(70), 70));
    assert_eq!(loader.catalog().mesh, Some("2x2x2".parse().unwrap()));
    let alone = memory();
    save(&alone, &wholes, &self::plan(&wholes, "1x1x1", 70));
    assert_eq!(fingerprints(&loader), fingerprints(&Loader::newest(&alone, &run()).unwrap()));
}

/// Meshes of at most 64 ranks, and a few tensors whose rules fit any.
pub(crate) fn models() -> impl Strategy<Value = (Mesh, Vec<Whole>)> {
    let mesh = strategies::mesh().prop_filter("few ranks", |mesh| mesh.ranks() <= 64);
    let tensor = strategies::shape_and_rules(1)
        .prop_filter("few elements", |(shape, _)| shape.elements().is_some_and(|count| count <= 20_000));
    let dtype = prop::sample::select(vec![Dtype::F32, Dtype::BF16, Dtype::U8, Dtype::C128]);
    let tensors = prop::collection::vec((tensor, dtype), 1..5).prop_map(|tensors| {
        let whole = |(at, ((shape, mut rules), dtype)): (usize, ((fqn::Shape, Vec<_>), Dtype))| {
            let mut whole = Whole::new(&format!("t{at}"), dtype, &shape);
            whole.entry.placement = rules.pop();
            whole
        };
        tensors.into_iter().enumerate().map(whole).collect::<Vec<_>>()
    });
    (mesh, tensors)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn whatever_mesh_saves_the_whole_is_found_and_any_other_mesh_reads_its_boxes(
        (mesh, wholes) in models(), other in strategies::mesh(),
    ) {
        prop_assume!(other.ranks() <= 64);
        let of = |mesh: &Mesh| spec(&wholes, &mesh.to_string(), 3);
        // A rule may name two axes that a mesh maps to one; that is refused, and tested where it is made.
        let (Ok(plan), Ok(read)) = (SavePlan::new(of(&mesh)), SavePlan::new(of(&other))) else { return Ok(()) };
        let root = memory();
        save(&root, &wholes, &plan);
        let loader = Loader::newest(&root, &run()).unwrap();
        assert_holds(&loader, &wholes);
        let reader = loader.reader();
        for (tensor, region) in (0..read.ranks()).flat_map(|rank| read.boxes_of(rank)) {
            let found = reader.read_vec(&wholes[tensor].entry.id(), region).unwrap();
            prop_assert_eq!(found, wholes[tensor].region(region));
        }
        let alone = memory();
        save(&alone, &wholes, &plan_of_one(&wholes));
        prop_assert_eq!(fingerprints(&loader), fingerprints(&Loader::newest(&alone, &run()).unwrap()));
    }

    #[test]
    fn every_box_has_one_writer_who_holds_it((mesh, wholes) in models()) {
        let Ok(plan) = SavePlan::new(spec(&wholes, &mesh.to_string(), 3)) else { return Ok(()) };
        prop_assert_eq!(plan.digest(), SavePlan::new(spec(&wholes, &mesh.to_string(), 3)).unwrap().digest());
        for (at, whole) in wholes.iter().enumerate() {
            let boxes: Vec<Region> = (0..plan.ranks())
                .flat_map(|rank| plan.boxes_of(rank))
                .filter(|(tensor, _)| *tensor == at)
                .map(|(_, region)| region.clone())
                .collect();
            reshard::coverage::check(&whole.entry.shape, &boxes).unwrap();
        }
        let bytes: u64 = (0..plan.ranks()).map(|rank| plan.bytes_of(rank)).sum();
        prop_assert_eq!(bytes, wholes.iter().map(|whole| whole.bytes.len() as u64).sum::<u64>());
    }
}

#[test]
fn replicas_that_drifted_apart_are_named_and_make_no_checkpoint() {
    let (root, wholes) = (memory(), wholes());
    let of = |replicas| SavePlan::new(spec(&wholes, "2x2x2", 5).comparing(replicas)).unwrap();
    let plan = of(Replicas::ALL);
    let held: usize = (0..8).map(|rank| plan.replicas_of(rank).count()).sum();
    assert!(held > 20, "{held}");
    assert_eq!(of(Replicas::Off).replicas_of(3).count(), 0);
    let some: usize = (0..40)
        .map(|step| {
            let mut spec = spec(&wholes, "2x2x2", step);
            spec.replicas = Replicas::OneIn(4.try_into().unwrap());
            let plan = SavePlan::new(spec).unwrap();
            (0..8).map(|rank| plan.replicas_of(rank).count()).sum::<usize>()
        })
        .sum();
    assert!((held * 7..held * 13).contains(&some), "{some} of {}", held * 40);

    for drift in [false, true] {
        let spec = spec(&wholes, "2x2x2", 5).comparing(Replicas::ALL).salted(drift.to_string());
        let plan = SavePlan::new(spec).unwrap();
        let session = session(&root, &plan);
        let apart = plan.replicas_of(7).last().unwrap();
        for rank in 0..8 {
            let writer = session.writer(rank).unwrap();
            for (tensor, region) in plan.boxes_of(rank) {
                writer.put(tensor, region, &wholes[tensor].region(region)).unwrap();
            }
            for (tensor, region) in plan.replicas_of(rank).skip(1) {
                let mut bytes = wholes[tensor].region(&region);
                bytes[0] ^= u8::from(drift && rank == 7 && (tensor, &region) == (apart.0, &apart.1));
                writer.hold(tensor, &region, &bytes).unwrap();
                refused(writer.hold(tensor, &region, &bytes), ErrorKind::Incompatible, &["handed in before"]);
            }
            assert_eq!(session.missing().unwrap(), (rank..8).collect());
            if let Some((tensor, region)) = plan.replicas_of(rank).next() {
                if rank == 3 {
                    let name = wholes[tensor].entry.id().to_string();
                    refused(
                        writer.finish(),
                        ErrorKind::Incompatible,
                        &[&name, "a replica, was not handed in"],
                    );
                    hand_in(&session, &wholes, rank);
                    continue;
                }
                writer.hold(tensor, &region, &wholes[tensor].region(&region)).unwrap();
            }
            writer.finish().unwrap();
        }
        if drift {
            let name = format!("{}{} of rank 7", wholes[apart.0].entry.id(), apart.1);
            refused(session.commit(), ErrorKind::Corrupt, &["drifted apart", &name]);
        } else {
            session.commit().unwrap();
        }
    }
    assert_eq!(Log::open(&root).unwrap().head().map(crate::commit::Seq::get), Some(1));
}

/// Writes and hands in all that a rank has.
fn hand_in(session: &Session, wholes: &[Whole], rank: u32) {
    let (writer, plan) = (session.writer(rank).unwrap(), session.plan());
    for (tensor, region) in plan.boxes_of(rank) {
        writer.put(tensor, region, &wholes[tensor].region(region)).unwrap();
    }
    for (tensor, region) in plan.replicas_of(rank) {
        writer.hold(tensor, &region, &wholes[tensor].region(&region)).unwrap();
    }
    writer.finish().unwrap();
}

fn plan_of_one(wholes: &[Whole]) -> SavePlan {
    plan(wholes, "1x1x1", 3)
}

#[test]
fn a_rank_that_has_not_finished_is_named_and_nothing_is_visible_without_it() {
    let (root, wholes) = (memory(), wholes());
    let plan = plan(&wholes, "2x1x2", 5);
    let session = session(&root, &plan);
    assert_eq!(session.missing().unwrap(), BTreeSet::from([0, 1, 2, 3]));
    for rank in [0, 2] {
        write_rank(&session, &wholes, rank).unwrap();
    }
    assert_eq!(session.missing().unwrap(), BTreeSet::from([1, 3]));
    refused(session.commit(), ErrorKind::Conflict, &["ranks 1, 3", "no part"]);
    refused(Loader::newest(&root, &run()), ErrorKind::NotFound, &["no checkpoint of run main"]);
    write_rank(&session, &wholes, 1).unwrap();
    refused(session.commit(), ErrorKind::Conflict, &["rank 3"]);
    write_rank(&session, &wholes, 3).unwrap();
    session.commit().unwrap();
    assert_holds(&Loader::newest(&root, &run()).unwrap(), &wholes);
}

#[test]
fn a_box_that_is_missing_given_twice_or_not_the_ranks_own_is_refused_by_name() {
    let (root, wholes) = (memory(), vec![placed(Whole::new("w", Dtype::F32, &[8, 4]), "dp:0")]);
    let session = session(&root, &plan(&wholes, "dp=2", 5));
    let writer = session.writer(1).unwrap();
    let (own, other) = (Region::new(&[4, 0], &[4, 4]).unwrap(), Region::new(&[0, 0], &[4, 4]).unwrap());
    let bytes = wholes[0].region(&own);
    refused(writer.put(0, &own, &bytes[1..]), ErrorKind::Incompatible, &["w[4..8, 0..4]", "63 bytes", "64"]);
    refused(
        writer.put(0, &other, &bytes),
        ErrorKind::Incompatible,
        &["w[0..4, 0..4]", "rank 0 writes this box"],
    );
    let half = Region::new(&[4, 0], &[2, 4]).unwrap();
    refused(writer.put(0, &half, &bytes[..32]), ErrorKind::Incompatible, &["no such box"]);
    refused(writer.put(1, &own, &bytes), ErrorKind::Incompatible, &["tensor 1"]);
    refused(writer.finish(), ErrorKind::Incompatible, &["rank 1", "w[4..8, 0..4] was not written"]);
    assert_eq!(session.missing().unwrap().len(), 2);
    let writer = session.writer(1).unwrap();
    writer.put(0, &own, &bytes).unwrap();
    refused(writer.put(0, &own, &bytes), ErrorKind::Incompatible, &["w[4..8, 0..4]", "put before"]);
    writer.finish().unwrap();
    refused(session.writer(2), ErrorKind::Incompatible, &["rank 2", "2 ranks"]);
}

#[test]
fn sessions_that_commit_at_once_make_one_record() {
    let folder = tempfile::tempdir().unwrap();
    let wholes = wholes();
    let plan = plan(&wholes, "2x1x2", 5);
    let open = || Root::create(folder.path().to_str().unwrap(), &Stores::new()).unwrap();
    let sessions: Vec<Session> = (0..4).map(|_| session(&open(), &plan)).collect();
    for (rank, session) in (0..).zip(&sessions) {
        write_rank(session, &wholes, rank).unwrap();
    }
    let found: Vec<_> = std::thread::scope(|scope| {
        let all: Vec<_> = sessions.iter().map(|it| scope.spawn(|| it.commit().unwrap().sequence)).collect();
        all.into_iter().map(|it| it.join().unwrap()).collect()
    });
    assert_eq!(found, [Some(1); 4]);
    assert_eq!(Log::open(&open()).unwrap().head().map(|seq| seq.get()), Some(1));
}

#[test]
fn a_second_incarnation_fences_the_first_at_the_beginning_and_at_the_end() {
    let (root, wholes, options) = (memory(), wholes(), SaveOptions::default());
    let first = begin_epoch(&root, &run(), &options).unwrap();
    let of = |epoch, step| SavePlan::new(spec(&wholes, "2x1x1", step).in_epoch(epoch)).unwrap();
    save(&root, &wholes, &of(first, 1));
    let late = session(&root, &of(first, 2));
    for rank in 0..2 {
        write_rank(&late, &wholes, rank).unwrap();
    }
    let second = begin_epoch(&root, &run(), &options).unwrap();
    assert_eq!((first, second), (1, 2));
    refused(late.commit(), ErrorKind::Conflict, &["epoch 2", "another incarnation"]);
    refused(Session::open(&root, &of(first, 3), options), ErrorKind::Conflict, &["epoch 2"]);
    let again = of(second, 2);
    assert_ne!(again.digest(), of(first, 2).digest(), "two incarnations never share a folder");
    save(&root, &wholes, &again);
    let line: Vec<u64> = Log::open(&root).unwrap().state().line(&run()).map(|(_, it)| it.step).collect();
    assert_eq!(line, [2, 1], "the second incarnation goes on from the first's newest");
}

#[test]
fn an_incarnation_that_fell_back_goes_on_from_what_it_resumed_from_and_then_from_its_own() {
    let (root, wholes) = (memory(), wholes());
    let saved: Vec<u64> = (1..4).map(|step| save(&root, &wholes, &plan(&wholes, "1x1x1", step))).collect();
    let epoch = begin_epoch(&root, &run(), &SaveOptions::default()).unwrap();
    for step in [2, 3] {
        let mut spec = spec(&wholes, "1x1x1", step).in_epoch(epoch);
        spec.parent = Some(crate::commit::Seq::new(saved[0]).unwrap());
        save(&root, &wholes, &SavePlan::new(spec).unwrap());
    }
    let log = Log::open(&root).unwrap();
    let line: Vec<_> = log.state().line(&run()).map(|(seq, it)| (seq.get(), it.step)).collect();
    assert_eq!(line, [(6, 3), (5, 2), (1, 1)]);
}

#[test]
fn the_same_plan_goes_on_where_it_was_stopped_and_only_with_the_same_bytes() {
    let (root, wholes) = (memory(), wholes());
    let plan = plan(&wholes, "2x1x2", 5);
    let done = write_rank(&session(&root, &plan), &wholes, 1).unwrap();
    assert_eq!((done.kept, done.files), (0, 1));
    let before = root.list(None).unwrap();
    let again = session(&root, &plan);
    let kept = write_rank(&again, &wholes, 1).unwrap();
    assert_eq!((kept.kept, kept.bytes), (1, done.bytes));
    assert_eq!(root.list(None).unwrap(), before, "what is there is not written again");

    let writer = again.writer(1).unwrap();
    let (tensor, region) = plan.boxes_of(1).next().unwrap();
    let mut other = wholes[tensor].region(region);
    other[0] ^= 1;
    refused(writer.put(tensor, region, &other), ErrorKind::Conflict, &["with other bytes"]);
    for rank in [0, 2, 3] {
        write_rank(&again, &wholes, rank).unwrap();
    }
    again.commit().unwrap();
    assert_holds(&Loader::newest(&root, &run()).unwrap(), &wholes);
    let salted = SavePlan::new(spec(&wholes, "2x1x2", 5).salted("2")).unwrap();
    assert_ne!(session(&root, &salted).attempt(), again.attempt());
}

#[test]
fn two_writers_of_one_rank_agree_or_the_second_is_refused() {
    let wholes = vec![placed(Whole::new("w", Dtype::F32, &[8, 4]), "dp:0")];
    let changed = vec![placed(Whole::new("x", Dtype::F32, &[8, 4]), "dp:0")];
    let plan = plan(&wholes, "dp=2", 5);
    for (second, good) in [(&wholes, true), (&changed, false)] {
        let root = memory();
        let (a, b) = (session(&root, &plan), session(&root, &plan));
        // Both begin before either is done, so neither sees the other's part.
        let (first, other) = (a.writer(0).unwrap(), b.writer(0).unwrap());
        let (tensor, region) = plan.boxes_of(0).next().unwrap();
        first.put(tensor, region, &wholes[0].region(region)).unwrap();
        first.finish().unwrap();
        let put =
            other.put(tensor, region, &second[0].region(region)).and_then(|()| other.finish().map(drop));
        if good {
            put.unwrap();
        } else {
            refused(put, ErrorKind::Conflict, &["with other bytes"]);
        }
    }
}

#[test]
fn a_plan_that_was_committed_and_lost_its_parts_is_not_written_again() {
    let (root, wholes) = (memory(), wholes());
    let plan = plan(&wholes, "1x1x1", 5);
    save(&root, &wholes, &plan);
    for object in root.list(None).unwrap().into_iter().filter(|it| it.path.as_ref().contains("/parts/")) {
        root.delete(&object.path).unwrap();
    }
    refused(session(&root, &plan).writer(0), ErrorKind::Conflict, &["committed already, as record 1"]);
}

#[test]
fn tensors_without_a_rule_and_boxes_that_cut_bytes_are_refused_before_anything_is_written() {
    let bare = vec![Whole::new("w", Dtype::F32, &[8])];
    refused(SavePlan::new(spec(&bare, "dp=2", 1)), ErrorKind::Incompatible, &["no placement rule covers w"]);
    let mut packed = Whole::new("p", Dtype::U8, &[2, 3]);
    packed.entry.dtype = Dtype::F4E2M1;
    packed.entry.shape = fqn::Shape::new(&[2, 6]);
    let packed = vec![placed(packed, "dp:1")];
    SavePlan::new(spec(&packed, "dp=3", 1)).unwrap();
    refused(SavePlan::new(spec(&packed, "dp=2", 1)), ErrorKind::Incompatible, &["p: ", "byte boundaries"]);
}

#[test]
fn the_digest_of_a_plan_covers_all_that_it_depends_on() {
    let wholes = wholes();
    let base = || spec(&wholes, "2x1x2", 5);
    let changed = |change: &dyn Fn(&mut SaveSpec)| {
        let mut spec = base();
        change(&mut spec);
        SavePlan::new(spec).unwrap().digest()
    };
    let changes: [&dyn Fn(&mut SaveSpec); 9] = [
        &|_| {},
        &|spec| spec.step = 6,
        &|spec| spec.salt = "1".to_owned(),
        &|spec| spec.epoch = Some(1),
        &|spec| spec.run = "other".parse().unwrap(),
        &|spec| spec.mesh = "1x1x4".parse().unwrap(),
        &|spec| spec.objects = vec![object("a", b"1".to_vec())],
        &|spec| spec.objects = vec![object("a", b"2".to_vec())],
        &|spec| drop(spec.extra.insert("seed".to_owned(), 1.into())),
    ];
    let digests: BTreeSet<_> = changes.iter().map(|change| changed(change)).collect();
    assert_eq!(digests.len(), changes.len());
    assert_eq!(changed(&|_| {}), changed(&|_| {}));
    let measured = |spec: &mut SaveSpec| spec.metrics = metrics(&[("loss", 0.1)]);
    assert_eq!(
        changed(&measured),
        changed(&|_| {}),
        "ranks may measure differently and write one checkpoint"
    );
}

pub(crate) fn metrics(of: &[(&str, f64)]) -> Metrics {
    of.iter().map(|(name, value)| (name.parse().unwrap(), Finite::new(*value).unwrap())).collect()
}

#[test]
fn what_was_measured_is_in_the_record_and_stays_in_the_state() {
    let root = memory();
    let measured = metrics(&[("loss", 2.0 / 3.0), ("eval/accuracy", -0.0)]);
    let plan = SavePlan::new(spec(&wholes(), "1x1x2", 1).with_metrics(measured.clone())).unwrap();
    save(&root, &wholes(), &plan);
    let of =
        |root: &Root| Log::open(root).unwrap().state().checkpoints.values().next().unwrap().metrics.clone();
    assert_eq!(of(&root), measured);
    // Behind record 64 the log is read from the state that it carries.
    for _ in 0..66 {
        begin_epoch(&root, &run(), &SaveOptions::default()).unwrap();
    }
    assert_eq!(of(&root), measured);
    let many = (0..=MOST_METRICS).map(|n| (format!("m{n}").parse().unwrap(), Finite::new(0.0).unwrap()));
    let error = SavePlan::new(spec(&wholes(), "1x1x2", 2).with_metrics(many.collect())).unwrap_err();
    assert!(error.to_string().contains("33 metrics"), "{error}");
}

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

#[test]
fn sixty_four_writers_on_threads_share_one_session() {
    let folder = tempfile::tempdir().unwrap();
    let root = Root::create(folder.path().to_str().unwrap(), &Stores::new()).unwrap();
    let wholes: Vec<Whole> =
        (0..6).map(|at| placed(Whole::new(&format!("t{at}"), Dtype::F32, &[130, 40]), "tp:0,dp:1")).collect();
    let plan = plan(&wholes, "4x2x8", 9);
    let session = session(&root, &plan);
    std::thread::scope(|scope| {
        for rank in 0..plan.ranks() {
            let (session, wholes) = (session.clone(), &wholes);
            scope.spawn(move || write_rank(&session, wholes, rank).unwrap());
        }
    });
    session.commit().unwrap();
    assert_holds(&Loader::newest(&root, &run()).unwrap(), &wholes);
}
