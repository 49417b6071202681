//! The golden store of version 1: written once, never again, and read by every later version.
//!
//! `fixtures/native/v1` is a root with two checkpoints, a tag and a verification; `fixtures/native/v1.json` says what a right
//! reader finds in it. `v1_shared` is a root whose second checkpoint refers to the first's blobs, whole and in pieces. A change that makes this test fail breaks stores that people have.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use fqn::{Dtype, Role, Shape};
use reshard::Region;
use serde_json::{Value, json};

use super::super::{NativeSink, NativeSource, SinkOptions, open};
use crate::{
    Cancel, Encoding, Format, ObjectEntry, PathPart, ReshardRule, Silent, Source,
    commit::{Action, Clock, Log, LogOptions, Seq, Tag, Verified},
    digest::Sha256Digest,
    engine::{
        CopyPlan, RunOptions, Verify, read_region, run,
        testing::{MemSource, Proof, Stored, Whole, grid, plan},
    },
    fingerprint::FingerprintSum,
    manifest::Origin,
    ops::verify::{VerifyOptions, verify},
    save::{
        SaveOptions, SavePlan, Session, Sharing,
        tests::{spec, wholes, write_rank},
    },
    store::{Root, SeededNonces, Stores},
};

fn folder() -> PathBuf {
    folder_of("v1")
}

fn folder_of(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/native").join(name)
}

#[test]
fn the_golden_store_of_version_1_reads_and_verifies_as_it_did_when_it_was_written() {
    for folder in [folder(), folder_of("v1_shared")] {
        let expected: Value =
            serde_json::from_slice(&fs::read(folder.with_extension("json")).unwrap()).unwrap();
        assert_eq!(expected["checkpoints"].as_array().unwrap().len(), 2);
        for wanted in expected["checkpoints"].as_array().unwrap() {
            let revision = wanted["revision"].as_str().unwrap();
            let source = open(folder.to_str().unwrap(), Some(revision)).unwrap();
            assert_eq!(described(&source, revision), *wanted);
            let report = verify(&source, &VerifyOptions::default(), &Silent, &Cancel::new()).unwrap();
            assert_eq!(report.findings, [], "{revision}");
        }
    }
}

/// What a reader finds.
fn described(source: &NativeSource, revision: &str) -> Value {
    let catalog = source.catalog();
    let facts = source.commit().unwrap();
    let tensor = |(at, (entry, chunks)): (usize, (&fqn::Entry, &crate::Chunks))| {
        let whole = Region::whole(&entry.shape).unwrap();
        let bytes = read_region(source, at, &whole, Verify::Records).unwrap();
        json!({
            "fqn": entry.fqn, "role": entry.role, "dtype": entry.dtype, "shape": entry.shape,
            "placement": entry.placement, "chunks": chunks.chunks.len(), "fingerprint": chunks.fingerprint,
            "sha256": Sha256Digest::of(&bytes),
        })
    };
    let object = |object: &ObjectEntry| {
        json!({
            "key": object.key, "encoding": object.encoding, "reshard": object.reshard,
            "bytes": object.bytes.len(), "sha256": Sha256Digest::of(&object.bytes),
        })
    };
    json!({
        "revision": revision, "manifest": facts.manifest, "seq": facts.seq, "run": facts.run, "step": facts.step,
        "parent": facts.parent, "tags": facts.tags, "verified": facts.verified, "time_ms": facts.time_ms,
        "mesh": catalog.mesh.as_ref().map(ToString::to_string), "files": catalog.files.len(),
        "origin": source.origin(), "extra": catalog.extra,
        "tensors": catalog.iter().enumerate().map(tensor).collect::<Vec<_>>(),
        "objects": catalog.objects.iter().map(object).collect::<Vec<_>>(),
    })
}

/// A clock that stands still, so that a store depends on nothing but this page.
#[derive(Debug)]
struct Still;

impl Clock for Still {
    fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_795_986_187)
    }

    fn pause(&self, _: Duration) {}
}

fn log_options() -> LogOptions {
    let nonces = Arc::new(SeededNonces::new(1));
    LogOptions { clock: Arc::new(Still), nonces, writer: "ckpt 0.1.0".to_owned(), ..LogOptions::default() }
}

/// Every width of element, packed ones and ones that safetensors lacks, moments, a scalar, nothing at all.
fn tensors(step: u64) -> MemSource {
    let dtypes =
        [Dtype::F64, Dtype::F16, Dtype::F8E4M3FN, Dtype::F8E8M0, Dtype::C128, Dtype::I64, Dtype::Bool];
    let of_role = |role: Role, dtype: Dtype, shape: &[u64]| {
        let mut whole = Whole::new("layers.0.wq.weight", dtype, shape);
        whole.entry.role = role;
        whole
    };
    let mut wholes = vec![
        of_role(Role::Param, Dtype::BF16, &[37, 13]),
        of_role(Role::Master, Dtype::F32, &[37, 13]),
        of_role(Role::ExpAvg, Dtype::F32, &[37, 13]),
        of_role(Role::ExpAvgSq, Dtype::F32, &[37, 13]),
        of_role(Role::Slot("step".into()), Dtype::F32, &[]),
        Whole::new("hollow", Dtype::F32, &[0, 6]),
        Whole::new("packed", Dtype::U8, &[4, 6]),
    ];
    wholes.extend(dtypes.iter().map(|dtype| Whole::new(&format!("of.{dtype}"), *dtype, &[5, 3, 2])));
    for whole in &mut wholes {
        whole.bytes.iter_mut().for_each(|byte| *byte = byte.wrapping_add(u8::try_from(step).unwrap()));
        if whole.entry.shape.rank() == 2 {
            whole.entry.placement = Some("tp:1,dp:0".parse().unwrap());
        }
    }
    let stored = wholes.into_iter().map(|it| {
        let regions = vec![Region::whole(&it.entry.shape).unwrap()];
        (it, regions, Stored::Packed)
    });
    let mut source = MemSource::new(&stored.collect::<Vec<_>>(), 1, Proof::Nothing);
    pack(&mut source, 6);
    source
}

/// Makes a tensor of 4 × 6 bytes one of 4 × 8 elements of 6 bits.
fn pack(source: &mut MemSource, at: usize) {
    let shape = Shape::new(&[4, 8]);
    let narrow = |entry: &mut fqn::Entry| {
        if entry.fqn.as_str() == "packed" {
            (entry.dtype, entry.shape) = (Dtype::F6E2M3, shape.clone());
        }
    };
    source.catalog.registry.edit(narrow).unwrap();
    let whole = Region::whole(&shape).unwrap();
    let start = usize::try_from(source.catalog.tensors[at].chunks.get(0).unwrap().offset).unwrap();
    let mut sum = FingerprintSum::default();
    sum.add_region(Dtype::F6E2M3, &shape, &whole, &source.files[0][start..start + 24]).unwrap();
    source.catalog.tensors[at].fingerprint = Some(sum.finish(Dtype::F6E2M3, &shape));
    let chunks = &mut source.catalog.tensors[at].chunks;
    let chunk = crate::Chunk { region: whole, ..chunks.get(0).unwrap() };
    *chunks = vec![chunk].into();
}

/// Uneven shards over `parts` ranks: rows, then columns.
fn planned(source: &MemSource, step: u64, parts: [u64; 2]) -> CopyPlan {
    let regions = source.catalog.registry.entries().iter().map(|entry| {
        let cuts: Vec<u64> =
            entry.shape.iter().enumerate().map(|(dim, _)| *parts.get(dim).unwrap_or(&1)).collect();
        grid(&entry.shape, &cuts).into_iter().zip(0..).collect()
    });
    let mut plan = plan(source, regions.collect());
    plan.spec.step = Some(step);
    plan.spec.mesh = Some(format!("dp={},tp={}", parts[0], parts[1]).parse().unwrap());
    plan.spec.plan_digest = Sha256Digest::of(&step.to_le_bytes()).to_string();
    plan.spec.extra = serde_json::Map::from_iter([("note".to_owned(), json!("kept"))]);
    let object = |key: &str, encoding, reshard, bytes: Vec<u8>| ObjectEntry {
        key: key.to_owned(),
        path: vec![PathPart::Key("train".to_owned()), PathPart::Key(key.to_owned()), PathPart::Index(0)],
        encoding,
        bytes: Bytes::from(bytes),
        preview: Some(json!("a value")),
        reshard,
    };
    plan.spec.objects = vec![
        object("lr", Encoding::Json, ReshardRule::Global, b"0.0003".to_vec()),
        object("sampler", Encoding::Pickle, ReshardRule::PerDataRank, b"\x80\x04K\x07.".to_vec()),
        object(
            "rng",
            Encoding::TorchSave,
            ReshardRule::PerRank,
            (0..70_000_u32).map(|n| n.to_le_bytes()[0]).collect(),
        ),
    ];
    plan
}

/// Wrote the store, once. It refuses to write it again.
#[test]
#[ignore = "the golden store is there, and is never written again"]
fn the_golden_store_is_written_once() {
    assert!(!folder().exists(), "the golden store of version 1 never changes");
    let root = Root::create(folder().to_str().unwrap(), &Stores::new()).unwrap();
    let options = log_options();
    for (step, parts) in [(10, [2, 2]), (20, [3, 1])] {
        let source = tensors(step);
        let origin =
            Origin { format: Format::TorchDcp, variant: "made up".to_owned(), place: "run/step".to_owned() };
        let sink = SinkOptions {
            origin: Some(origin),
            log: options.clone(),
            ..SinkOptions::new("golden".parse().unwrap())
        };
        let mut sink = NativeSink::new(root.clone(), sink);
        let plan = planned(&source, step, parts);
        run(&source, &mut sink, &plan, &RunOptions::default(), &Silent, &Cancel::new()).unwrap();
    }
    let mut log = Log::open_with(&root, options).unwrap();
    let run = "golden".parse().unwrap();
    let (name, checkpoint) = ("best".parse().unwrap(), Seq::FIRST);
    for action in
        [Action::Tag(Tag { name, checkpoint }), Action::Verified(Verified { checkpoint, whole: true })]
    {
        let draft = log.draft(&run, action).unwrap();
        log.append(&draft).unwrap();
    }
    let checkpoints: Vec<Value> = ["seq:1", "seq:2"]
        .iter()
        .map(|revision| described(&open(folder().to_str().unwrap(), Some(revision)).unwrap(), revision))
        .collect();
    let text = serde_json::to_string_pretty(&json!({ "checkpoints": checkpoints })).unwrap() + "\n";
    fs::write(folder().with_extension("json"), text).unwrap();
}

/// Wrote the store whose second checkpoint shares the first's blobs, once.
#[test]
#[ignore = "the golden store is there, and is never written again"]
fn the_golden_store_that_shares_is_written_once() {
    let folder = folder_of("v1_shared");
    assert!(!folder.exists(), "the golden store of version 1 never changes");
    let root = Root::create(folder.to_str().unwrap(), &Stores::new()).unwrap();
    let options = SaveOptions { log: log_options(), ..SaveOptions::default() };
    let mut wholes = wholes();
    for (step, mesh) in [(1, "2x1x2"), (2, "1x1x4")] {
        let mut spec = spec(&wholes, mesh, step);
        if step == 2 {
            spec.sharing = Some(Sharing { least: 1, ..Sharing::with(Seq::FIRST) });
        }
        let plan = SavePlan::new(spec).unwrap();
        let session = Session::open(&root, &plan, options.clone()).unwrap();
        for rank in 0..plan.ranks() {
            write_rank(&session, &wholes, rank).unwrap();
        }
        session.commit().unwrap();
        wholes[2].bytes.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
    }
    let checkpoints: Vec<Value> = ["seq:1", "seq:2"]
        .iter()
        .map(|revision| described(&open(folder.to_str().unwrap(), Some(revision)).unwrap(), revision))
        .collect();
    let text = serde_json::to_string_pretty(&json!({ "checkpoints": checkpoints })).unwrap() + "\n";
    fs::write(folder.with_extension("json"), text).unwrap();
}

/// The golden store with compressed blocks: `fixtures/native/v1_coded`, a checkpoint of every width of planes.
fn coded_folder() -> PathBuf {
    folder().with_file_name("v1_coded")
}

#[test]
fn the_golden_store_of_compressed_blocks_reads_and_verifies_as_it_did_when_it_was_written() {
    let expected: Value =
        serde_json::from_slice(&fs::read(coded_folder().with_extension("json")).unwrap()).unwrap();
    let source = open(coded_folder().to_str().unwrap(), None).unwrap();
    assert_eq!(described(&source, "seq:1"), expected["checkpoints"][0]);
    assert!(source.catalog().files.iter().filter(|file| file.is_coded()).count() >= 4);
    let report = verify(&source, &VerifyOptions::default(), &Silent, &Cancel::new()).unwrap();
    assert_eq!(report.findings, []);
}

/// Wrote the store, once. It refuses to write it again.
#[test]
#[ignore = "the golden store is there, and is never written again"]
fn the_golden_store_of_compressed_blocks_is_written_once() {
    assert!(!coded_folder().exists(), "the golden store of version 1 never changes");
    let root = Root::create(coded_folder().to_str().unwrap(), &Stores::new()).unwrap();
    let of = |name: &str, role: Role, dtype: Dtype, shape: &[u64]| {
        let mut whole = Whole::new(name, dtype, shape).smooth();
        whole.entry.role = role;
        (whole.clone(), vec![Region::whole(&whole.entry.shape).unwrap()], Stored::Packed)
    };
    let source = MemSource::new(
        &[
            of("w", Role::Param, Dtype::BF16, &[48, 31]),
            of("w", Role::ExpAvg, Dtype::F32, &[48, 31]),
            of("w", Role::ExpAvgSq, Dtype::F64, &[48, 31]),
            of("bytes", Role::Buffer, Dtype::U8, &[60, 21]),
            of("scalar", Role::Buffer, Dtype::F32, &[]),
        ],
        1,
        Proof::Nothing,
    );
    let mut plan = planned(&source, 30, [1, 2]);
    plan.spec.codecs = "planes".parse().unwrap();
    let sink = SinkOptions { log: log_options(), ..SinkOptions::new("golden".parse().unwrap()) };
    let mut sink = NativeSink::new(root, sink);
    run(&source, &mut sink, &plan, &RunOptions::default(), &Silent, &Cancel::new()).unwrap();
    let written = open(coded_folder().to_str().unwrap(), None).unwrap();
    let text =
        serde_json::to_string_pretty(&json!({ "checkpoints": [described(&written, "seq:1")] })).unwrap();
    fs::write(coded_folder().with_extension("json"), text + "\n").unwrap();
}
