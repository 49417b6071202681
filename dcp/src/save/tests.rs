//! Saving: what every rank wrote of a known tensor is committed once, whole, whatever the mesh; and whoever is missing, late,
//! fenced or different is named.

mod failures;
mod refused;
mod replicas;
mod sharing;

use super::*;
use crate::{
    Cancel, Catalog, Encoding, Error, ErrorKind, Format, ObjectEntry, PathPart, ReshardRule, Result, Silent,
    commit::{Finite, Label, Log, MOST_METRICS, Metrics},
    engine::testing::Whole,
    fingerprint::Fingerprint,
    load::Loader,
    ops::prepare::{Request, prepare},
    ops::verify::{VerifyOptions, verify},
    rank_state::RankScheme,
    store::{
        DiskFs, Links, LocalStore, Root, SeededNonces, Stores,
        traced::{Fault, Traced},
    },
};
use bytes::Bytes;
use fqn::{Dtype, Role};
use proptest::prelude::*;
use reshard::{Mesh, Region, strategies};
use rustix::io::Errno;
use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
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

#[test]
fn rules_for_state_of_data_ranks_are_saved_with_it_and_whoever_reshards_goes_by_them() {
    let (root, wholes) = (memory(), wholes());
    let values = (0..2_u64).map(|rank| ObjectEntry {
        reshard: ReshardRule::PerDataRank,
        ..object(
            &format!("cursor.dp_rank_{rank}"),
            format!("{{\"seen\":{},\"of\":2}}", rank + 4).into_bytes(),
        )
    });
    let scheme = RankScheme::from_flags(&["cursor.seen=sum", "cursor.of=ranks"]).unwrap();
    let spec =
        spec(&wholes, "2x1x1", 70).with_objects(values.collect()).with_rank_state(scheme.clone()).unwrap();
    save(&root, &wholes, &SavePlan::new(spec).unwrap());
    let loader = Loader::newest(&root, &run()).unwrap();
    assert_eq!(loader.catalog().rank_scheme().unwrap(), scheme);
    let request = Request { to: Some("3x1x2".parse().unwrap()), ..Request::new(Format::Native) };
    let prepared = prepare(loader.catalog(), &request).unwrap();
    let made: Vec<&[u8]> = prepared.copy.spec.objects.iter().map(|object| &object.bytes[..]).collect();
    assert_eq!(made, [&b"{\"seen\":3,\"of\":3}"[..]; 3]);
    assert_eq!(prepared.copy.spec.extra, loader.catalog().extra, "the rules go along");
    let mut hostile = loader.catalog().clone();
    hostile.extra.insert(Catalog::RANK_STATE.to_owned(), serde_json::json!([{"match": "a{", "how": "sum"}]));
    refused(prepare(&hostile, &request), ErrorKind::Corrupt, &["rules for state of data ranks"]);
}

#[test]
fn values_of_fewer_data_ranks_than_the_mesh_has_are_not_saved() {
    let value = |rank: u64| ObjectEntry {
        reshard: ReshardRule::PerDataRank,
        ..object(&format!("cursor.dp_rank_{rank}"), b"{}".to_vec())
    };
    let plan = |ranks: u64| {
        SavePlan::new(spec(&wholes(), "2x1x2", 70).with_objects((0..ranks).map(value).collect()))
    };
    plan(2).unwrap();
    for ranks in [1, 3, 4] {
        refused(plan(ranks), ErrorKind::Incompatible, &["cursor.dp_rank_*", "and the mesh has 2"]);
    }
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

fn plan_of_one(wholes: &[Whole]) -> SavePlan {
    plan(wholes, "1x1x1", 3)
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
