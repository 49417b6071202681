//! The Python reader, written from `dcp/FORMAT.md` alone, against stores that Rust wrote: same tensors, same fingerprints,
//! same checkpoints, and no damage unnoticed.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use dcp::{
    BlockRef, Catalog, Chunk, Chunks, Encoding, FileEntry, FileId, Format, Location, ObjectEntry, PathPart,
    ReshardRule,
    commit::{Action, Commit, Label, Log, ManifestRef, Record, fold},
    digest::{BlockLayout, Sha256Digest, table_of},
    fingerprint::FingerprintSum,
    manifest::{Manifest, ObjectPlace},
    save::{SaveOptions, SavePlan, SaveSpec, Session},
    store::{Root, Stores},
};
use fqn::{Dims, Dtype, Entry, Fqn, Registry, Role, Shape};
use proptest::{prelude::*, strategy::ValueTree};
use reshard::Region;
use serde_json::{Value, json};

const ATTEMPT: &str = "step-00000007-abc";

/// The interpreter that has numpy: given by `cargo xtask test`, else asked of `cargo xtask setup --python`.
fn python() -> PathBuf {
    if let Some(python) = std::env::var_os("CKPT_PYTHON") {
        return python.into();
    }
    let setup = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--package", "xtask", "--", "setup", "--python"])
        .output();
    let folder = String::from_utf8(setup.unwrap().stdout).unwrap();
    Path::new(folder.trim()).join("bin/python3")
}

fn reader() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("python/native_reader.py")
}

fn read(root: &Path) -> Output {
    Command::new(python()).arg(reader()).arg(root).arg("--fingerprints").output().unwrap()
}

/// A tensor to write: its elements, and the boxes that it is cut into.
struct Tensor {
    entry: Entry,
    bytes: Vec<u8>,
    boxes: Vec<Region>,
}

fn tensor(name: &str, dtype: Dtype, shape: &[u64], boxes: &[(&[u64], &[u64])]) -> Tensor {
    let entry = Entry::new(Fqn::new(name).unwrap(), Role::Param, dtype, Shape::new(shape));
    let len = usize::try_from(entry.bytes().unwrap()).unwrap();
    let seed = Sha256Digest::of(name.as_bytes());
    let bytes = (0..len).map(|n| seed.as_bytes()[n % 32] ^ (n / 32 % 251).to_le_bytes()[0]).collect();
    let boxes = boxes.iter().map(|(offsets, extents)| Region::new(offsets, extents).unwrap()).collect();
    Tensor { entry, bytes, boxes }
}

fn tensors() -> Vec<Tensor> {
    vec![
        tensor(
            "uneven",
            Dtype::F32,
            &[5, 7],
            &[(&[0, 0], &[3, 4]), (&[0, 4], &[3, 3]), (&[3, 0], &[2, 7]), (&[5, 0], &[0, 7])],
        ),
        tensor("large", Dtype::BF16, &[1500, 900], &[(&[0, 0], &[1500, 450]), (&[0, 450], &[1500, 450])]),
        tensor("scalar", Dtype::F64, &[], &[(&[], &[])]),
        tensor("empty", Dtype::U8, &[0, 3], &[]),
        tensor("complex", Dtype::C128, &[3, 2], &[(&[0, 0], &[3, 1]), (&[0, 1], &[3, 1])]),
        tensor("packed", Dtype::F4E2M1, &[4, 6], &[(&[0, 0], &[4, 2]), (&[0, 2], &[4, 4])]),
        tensor("deep", Dtype::I16, &[2, 3, 4], &[(&[0, 0, 0], &[2, 3, 2]), (&[0, 0, 2], &[2, 3, 2])]),
        tensor("flags", Dtype::Bool, &[9], &[(&[0], &[9])]),
    ]
}

/// The packed bytes of a box, element by element; for dtypes narrower than a byte, byte by byte.
fn gathered(tensor: &Tensor, region: &Region) -> Vec<u8> {
    let bits = u64::from(tensor.entry.dtype.bits());
    let width = usize::try_from(bits.div_ceil(8)).unwrap();
    let scaled = |dims: &[u64]| {
        let mut dims = dims.to_vec();
        if let (true, Some(last)) = (bits < 8, dims.last_mut()) {
            *last = *last * bits / 8;
        }
        dims
    };
    let (shape, at, extent) =
        (scaled(&tensor.entry.shape), scaled(region.offsets()), scaled(region.extents()));
    let mut out = Vec::new();
    for element in 0..extent.iter().product::<u64>() {
        let (mut rest, mut index, mut stride) = (element, 0, 1);
        for axis in (0..shape.len()).rev() {
            index += (at[axis] + rest % extent[axis]) * stride;
            rest /= extent[axis];
            stride *= shape[axis];
        }
        let start = usize::try_from(index).unwrap() * width;
        out.extend(&tensor.bytes[start..start + width]);
    }
    out
}

/// A file with a header of its own and one chunk after another; every second tensor's chunks go to the second.
fn blobs(catalog: &mut Catalog) -> [Vec<u8>; 2] {
    let mut blobs = [b"header of the first".to_vec(), b"second".to_vec()];
    for (n, tensor) in tensors().into_iter().enumerate() {
        let file = n % 2;
        let (mut chunks, mut sum) = (Vec::new(), FingerprintSum::default());
        for region in &tensor.boxes {
            let bytes = gathered(&tensor, region);
            sum.add_region(tensor.entry.dtype, &tensor.entry.shape, region, &bytes).unwrap();
            let offset = blobs[file].len() as u64;
            let file = FileId(u32::try_from(file).unwrap());
            chunks.push(Chunk { region: region.clone(), file, offset, strides: None, record: None });
            blobs[usize::try_from(file.0).unwrap()].extend(bytes);
        }
        let fingerprint = Some(sum.finish(tensor.entry.dtype, &tensor.entry.shape));
        catalog.push(tensor.entry, Chunks { chunks: chunks.into(), fingerprint }).unwrap();
    }
    blobs
}

fn object(key: &str, bytes: &'static [u8]) -> ObjectEntry {
    let (path, bytes) = (vec![PathPart::Key(key.to_owned())], bytes.into());
    let (encoding, reshard) = (Encoding::Json, ReshardRule::Global);
    ObjectEntry { key: key.to_owned(), path, encoding, bytes, preview: None, reshard }
}

/// A committed store in `root`: two blobs, a foreign file with a transposed tensor, objects here and there.
fn write_store(root: &Path, foreign: &Path) -> Vec<PathBuf> {
    let store = Root::create(root.to_str().unwrap(), &Stores::new()).unwrap();
    let mut catalog = Catalog::new(Format::Native);
    let mut written = Vec::new();
    for (n, bytes) in blobs(&mut catalog).into_iter().enumerate() {
        let chunks = catalog.tensors.iter().flat_map(|it| &it.chunks).filter(|it| it.file.0 as usize == n);
        let layout = BlockLayout::new(bytes.len() as u64, chunks.map(|it| it.offset)).unwrap();
        let table = table_of(&bytes, layout, 2).unwrap();
        let [path, blocks] = [format!("data/{n}.safetensors"), format!("blocks/{n}.blocks")];
        for (name, bytes) in [(&path, bytes.clone()), (&blocks, table.encode())] {
            store.put_same(&format!("{ATTEMPT}/{name}").into(), bytes.into()).unwrap();
            written.push(root.join(ATTEMPT).join(name));
        }
        let (size, blocks) = (bytes.len() as u64, Some(BlockRef { path: blocks, root: table.root() }));
        catalog.files.push(FileEntry { path, location: Location::InStep, size, logical: None, blocks });
    }
    add_foreign(&mut catalog, foreign);
    catalog.objects = vec![object("small", b"{\"a\":1}"), object("large", b"")];
    let mut manifest = Manifest::new(catalog);
    manifest.objects[1] = ObjectPlace::File { file: FileId(0), offset: 10, len: 9 };
    let encoded = manifest.encode().unwrap();
    store.put_same(&format!("{ATTEMPT}/{}", encoded.name()).into(), encoded.bytes.clone()).unwrap();
    written.push(root.join(ATTEMPT).join(encoded.name()));
    let mut log = Log::open(&store).unwrap();
    let manifest = ManifestRef { sha256: encoded.digest, size: encoded.bytes.len() as u64 };
    let commit = Commit {
        step: 7,
        attempt: ATTEMPT.parse().unwrap(),
        manifest,
        directories: [].into(),
        metrics: Default::default(),
    };
    let run: Label = "run".parse().unwrap();
    let draft = log.draft(&run, Action::Commit(commit)).unwrap();
    written.push(root.join(log.append(&draft).unwrap().seq.path().to_string()));
    written
}

/// A transposed tensor in a file that has no block table.
fn add_foreign(catalog: &mut Catalog, folder: &Path) {
    let bytes: Vec<u8> = (0..24).collect();
    fs::write(folder.join("t.bin"), &bytes).unwrap();
    let location =
        Location::External { base: folder.to_str().unwrap().to_owned(), etag: None, mtime_ns: None };
    catalog.files.push(FileEntry {
        path: "t.bin".to_owned(),
        location,
        size: 24,
        logical: None,
        blocks: None,
    });
    let entry = Entry::new(Fqn::new("transposed").unwrap(), Role::Buffer, Dtype::U16, Shape::new(&[2, 3]));
    let region = Region::whole(&entry.shape).unwrap();
    let chunk =
        Chunk { region, file: FileId(2), offset: 4, strides: Some(Dims::from_slice(&[1, 2])), record: None };
    catalog.push(entry, Chunks { chunks: vec![chunk].into(), fingerprint: None }).unwrap();
}

#[test]
fn python_recovers_every_tensor_object_and_fingerprint() {
    let (root, foreign) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_store(root.path(), foreign.path());
    let output = read(root.path());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    for tensor in tensors() {
        let (dtype, shape) = (tensor.entry.dtype, &tensor.entry.shape);
        let mut sum = FingerprintSum::default();
        sum.add_region(dtype, shape, &Region::whole(shape).unwrap(), &tensor.bytes).unwrap();
        let expected = json!([dtype, shape, Sha256Digest::of(&tensor.bytes), sum.finish(dtype, shape)]);
        assert_eq!(found["tensors"][format!("{}|param", tensor.entry.fqn)], expected, "{}", tensor.entry.fqn);
    }
    let transposed: Vec<u8> = [4, 8, 12, 6, 10, 14].into_iter().flat_map(|low| [low, low + 1]).collect();
    assert_eq!(found["tensors"]["transposed|buffer"][2], json!(Sha256Digest::of(&transposed)));
    assert_eq!(found["objects"]["small"], json!(Sha256Digest::of(b"{\"a\":1}")));
    assert_eq!(found["objects"]["large"], json!(Sha256Digest::of(b"the first")));
    assert_eq!(found["checkpoint"]["format"], "native");
}

#[test]
fn python_notices_a_flipped_bit_in_every_object() {
    let (root, foreign) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for path in write_store(root.path(), foreign.path()) {
        let good = fs::read(&path).unwrap();
        let mut bad = good.clone();
        bad[good.len() / 2] ^= 4;
        fs::write(&path, &bad).unwrap();
        let output = read(root.path());
        let told = String::from_utf8_lossy(&output.stderr);
        let words = ["have changed", "has changed", "is cut short or changed"];
        assert!(
            !output.status.success() && words.iter().any(|it| told.contains(it)),
            "{}: {told}",
            path.display()
        );
        fs::write(&path, &good).unwrap();
    }
    assert!(read(root.path()).status.success());
}

fn any_action() -> impl Strategy<Value = Value> {
    let dir = || (0_u8..6).prop_map(|n| format!("step-{n}"));
    let of = || 1_u64..12;
    let name = || prop::sample::select(vec!["best", "last"]);
    prop_oneof![
        6 => (dir(), prop::collection::btree_set(dir(), 0..2)).prop_map(|(attempt, directories)| json!({ "commit": {
            "step": 1, "attempt": attempt, "directories": directories,
            "manifest": { "sha256": Sha256Digest::of(b""), "size": 1 },
        }})),
        3 => of().prop_map(|it| json!({ "retire": { "checkpoint": it } })),
        2 => prop::collection::btree_set(dir(), 1..2).prop_map(|it| json!({ "condemn": { "directories": it } })),
        1 => (name(), of()).prop_map(|(name, it)| json!({ "tag": { "name": name, "checkpoint": it } })),
        1 => name().prop_map(|name| json!({ "untag": { "name": name } })),
        1 => (of(), any::<bool>()).prop_map(|(it, held)| json!({ "pin": { "checkpoint": it, "held": held } })),
        2 => (of(), any::<bool>()).prop_map(|(it, whole)| json!({ "verified": { "checkpoint": it, "whole": whole } })),
        1 => Just(json!({ "epoch": {} })),
    ]
}

/// Logs of any records, valid and void, as both sides read them.
fn any_log() -> impl Strategy<Value = Vec<Record>> {
    let one = (prop::sample::select(vec!["a", "b"]), 0_u64..3, prop::option::of(1_u64..20), any_action());
    prop::collection::vec(one, 1..40).prop_map(|drafts| {
        let mut records: Vec<Record> = Vec::new();
        for (seq, (run, epoch, parent, action)) in (1_u64..).zip(drafts) {
            let prev = records.last().map(|it| Sha256Digest::of(&it.encode().unwrap()));
            let record = json!({
                "format": 1, "must_understand": [], "root": "0".repeat(32), "seq": seq, "prev": prev,
                "nonce": format!("{seq:032x}"), "writer": "test", "time_ms": 0, "run": run, "epoch": epoch,
                "parent": parent, "action": action,
            });
            records.push(serde_json::from_value(record).unwrap());
        }
        records
    })
}

#[test]
fn python_and_rust_agree_on_which_checkpoints_any_log_amounts_to() {
    let logs = tempfile::tempdir().unwrap();
    let mut expected = Vec::new();
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    for n in 0..200 {
        let records = any_log().new_tree(&mut runner).unwrap().current();
        for record in &records {
            let path = logs.path().join(n.to_string()).join(record.seq.path().to_string());
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, record.encode().unwrap()).unwrap();
        }
        expected.push(fold(&records).state.checkpoints.keys().map(|seq| seq.get()).collect::<Vec<_>>());
    }
    let script = "import sys, json; sys.path.insert(0, sys.argv[1]); import native_reader as r\n\
                  print(json.dumps([sorted(r.fold(r.records(f'{sys.argv[2]}/{n}'))) for n in range(200)]))";
    let output =
        Command::new(python()).args(["-c", script]).arg(reader().parent().unwrap()).arg(logs.path()).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Vec<Vec<u64>> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found, expected);
    assert!(expected.iter().any(|it| it.len() > 3) && expected.iter().any(Vec::is_empty));
}

/// The golden store is never regenerated, so this holds the reader to what was once promised.
#[test]
fn the_golden_stores_of_version_1_read_as_ever() {
    for name in ["native/v1", "native/v1_shared", "native/v1_coded"] {
        golden(&fixtures::path(name));
    }
}

fn golden(root: &Path) {
    let output = read(root);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let model: Value = serde_json::from_slice(&fs::read(root.with_extension("json")).unwrap()).unwrap();
    let newest = model["checkpoints"].as_array().unwrap().last().unwrap();
    let tensors = newest["tensors"].as_array().unwrap();
    assert!(!tensors.is_empty());
    assert_eq!(found["tensors"].as_object().unwrap().len(), tensors.len());
    for tensor in tensors {
        let name = |key: &str| tensor[key].as_str().unwrap();
        let read = &found["tensors"][format!("{}|{}", name("fqn"), name("role"))];
        let want = json!([tensor["dtype"], tensor["shape"], tensor["sha256"], tensor["fingerprint"]]);
        assert_eq!(*read, want, "{}", name("fqn"));
    }
}

/// The tensors as a run of so many ranks saves them from memory, each rank its own boxes, compressed as said.
fn save_from_memory(root: &Path, ranks: u32, codecs: &str) {
    let store = Root::create(root.to_str().unwrap(), &Stores::new()).unwrap();
    let mut registry = Registry::new();
    let tensors = tensors();
    for tensor in &tensors {
        let mut entry = tensor.entry.clone();
        let rule = if entry.shape.rank() == 0 { "replicate" } else { "dp:0" };
        entry.placement = Some(rule.parse().unwrap());
        registry.push(entry).unwrap();
    }
    let mesh = format!("dp={ranks}").parse().unwrap();
    let objects = vec![object("small", b"{\"a\":1}"), object("large", &[b' '; 70_000])];
    let spec = SaveSpec::new("main".parse().unwrap(), registry, mesh, 7).with_objects(objects);
    let spec = spec.coded(codecs.parse().unwrap());
    let plan = SavePlan::new(spec).unwrap();
    let session = Session::open(&store, &plan, SaveOptions::default()).unwrap();
    for rank in 0..plan.ranks() {
        let writer = session.writer(rank).unwrap();
        for (at, region) in plan.boxes_of(rank) {
            writer.put(at, region, &gathered(&tensors[at], region)).unwrap();
        }
        writer.finish().unwrap();
    }
    session.commit().unwrap();
}

#[test]
fn python_reads_what_the_ranks_of_a_run_saved_compressed_or_not() {
    for (codecs, features) in
        [("none", json!([])), ("zstd", json!(["coded-blocks"])), ("planes", json!(["coded-blocks"]))]
    {
        let root = tempfile::tempdir().unwrap();
        save_from_memory(root.path(), 3, codecs);
        let output = read(root.path());
        assert!(output.status.success(), "{codecs}: {}", String::from_utf8_lossy(&output.stderr));
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(found["features"], features);
        same_as_saved(&found);
    }
}

#[test]
fn python_notices_a_flipped_bit_in_a_compressed_blob() {
    let root = tempfile::tempdir().unwrap();
    save_from_memory(root.path(), 1, "planes");
    let steps = fs::read_dir(root.path()).unwrap().map(|it| it.unwrap().path());
    let step = steps.into_iter().find(|it| it.join("data").is_dir()).unwrap();
    let mut coded = 0;
    for path in fs::read_dir(step.join("data")).unwrap().map(|it| it.unwrap().path()) {
        coded += u32::from(path.extension().is_some_and(|it| it == "coded"));
        let good = fs::read(&path).unwrap();
        let mut bad = good.clone();
        bad[good.len() - 3] ^= 4;
        fs::write(&path, &bad).unwrap();
        let output = read(root.path());
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && told.contains("have changed"), "{}: {told}", path.display());
        fs::write(&path, &good).unwrap();
    }
    assert!(coded > 0);
}

/// What Python read is what [`save_from_memory`] saved.
fn same_as_saved(found: &Value) {
    for tensor in tensors() {
        let (dtype, shape) = (tensor.entry.dtype, &tensor.entry.shape);
        let mut sum = FingerprintSum::default();
        sum.add_region(dtype, shape, &Region::whole(shape).unwrap(), &tensor.bytes).unwrap();
        let expected = json!([dtype, shape, Sha256Digest::of(&tensor.bytes), sum.finish(dtype, shape)]);
        assert_eq!(found["tensors"][format!("{}|param", tensor.entry.fqn)], expected, "{}", tensor.entry.fqn);
    }
    assert_eq!(found["objects"]["small"], json!(Sha256Digest::of(b"{\"a\":1}")));
    assert_eq!(found["objects"]["large"], json!(Sha256Digest::of(&[b' '; 70_000])));
}
