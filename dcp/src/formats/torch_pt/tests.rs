//! Round trips through the engine, files made to be wrong, and what the fixtures of `torch.save` are known to hold.

use std::{collections::BTreeMap, path::Path};

use fqn::{Dtype, Entry, Fqn, Role, Shape, TensorId};
use reshard::Region;

use super::{
    super::{
        OpenOptions, Strictness, open,
        tests::{check_objects, check_tensors, gather, spec_of, write},
        torch_dcp::DcpSink,
    },
    PtSink, PtSource,
};
use crate::{
    Catalog, Encoding, ErrorKind, FindingCode, Format, ObjectEntry, PathPart, ReshardRule, Severity, Sink,
    Source, TargetSpec, TargetTensor, formats::torch_dcp::Structure,
};

fn fixture(name: &str) -> PtSource {
    PtSource::open(&fixtures::path(name), OpenOptions::new())
        .unwrap_or_else(|error| panic!("{name}: {error:?}"))
}

fn archives() -> Vec<String> {
    fixtures::all().into_iter().filter(|name| name.starts_with("pt/")).collect()
}

/// Key, path and contents of every tensor.
fn contents(source: &dyn Source) -> BTreeMap<String, (Vec<serde_json::Value>, Vec<u8>)> {
    let entries = source.catalog().registry.entries().iter().enumerate();
    let one = |(at, entry): (usize, &Entry)| {
        let alias = entry.alias(super::ALIAS).unwrap();
        (alias.key.clone(), (alias.path.clone(), gather(source, at)))
    };
    entries.map(one).collect()
}

#[test]
fn every_archive_written_again_holds_the_same_at_the_same_places() {
    let mut written = 0;
    for name in archives() {
        let source = fixture(&name);
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("out.pt");
        let left = write(&source, &mut PtSink::new(&target), spec_of(source.catalog(), 2), Format::Pt);
        assert!(left.is_empty());
        let back = PtSource::open(&target, OpenOptions::new()).unwrap();
        let expected = fixtures::expected(&name);
        check_tensors(&name, &back, &expected);
        check_objects(&name, back.catalog(), &expected);
        assert_eq!(contents(&source), contents(&back), "{name}");
        assert_eq!(source.catalog().objects, back.catalog().objects, "{name}");
        for key in ["pt.containers", "pt.parameters"] {
            assert_eq!(source.catalog().extra.get(key), back.catalog().extra.get(key), "{name} {key}");
        }
        let findings = back.audit().unwrap();
        assert!(findings.iter().all(|finding| finding.severity == Severity::Note), "{name}: {findings:?}");
        written += 1;
    }
    assert_eq!(written, 8);
}

#[test]
fn every_checksum_that_is_written_is_right_also_over_several_boxes() {
    for name in archives() {
        let source = fixture(&name);
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("out.pt");
        write(&source, &mut PtSink::new(&target), spec_of(source.catalog(), 2), Format::Pt);
        let bytes = bytes::Bytes::from(std::fs::read(&target).unwrap());
        let archive = crate::torch::Archive::open(std::sync::Arc::new(bytes)).unwrap();
        for record in archive.records() {
            archive.check(record, |_| ()).unwrap_or_else(|error| panic!("{name} {}: {error}", record.name));
        }
    }
}

#[test]
fn real_optimizer_state_by_index_belongs_to_the_parameters_of_the_model() {
    let source = fixture("pt/training.pt");
    let registry = &source.catalog().registry;
    for name in ["0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"] {
        for role in [Role::Param, Role::ExpAvg, Role::ExpAvgSq] {
            let id = TensorId { fqn: Fqn::new(name).unwrap(), role };
            assert!(registry.position(&id).is_some(), "{id}");
        }
    }
    let moment = TensorId { fqn: Fqn::new("1.bias").unwrap(), role: Role::ExpAvgSq };
    assert_eq!(registry.get(&moment).unwrap().alias("pt").unwrap().key, "optimizer.state.3.exp_avg_sq");
}

#[test]
fn names_of_one_storage_are_tied_and_other_views_are_not() {
    let tied = |name: &str| -> Vec<(String, Option<String>)> {
        let source = fixture(name);
        let entries = source.catalog().registry.entries().iter();
        entries.map(|e| (e.fqn.to_string(), e.tie.as_ref().map(ToString::to_string))).collect()
    };
    let embedding = Some("model.embed_tokens.weight".to_owned());
    let of = tied("pt/tied.pt").into_iter().collect::<BTreeMap<_, _>>();
    assert_eq!((&of["lm_head.weight"], &of["model.embed_tokens.weight"]), (&embedding, &embedding));
    assert_eq!(of["model.norm.weight"], None);
    let views = tied("pt/views.pt");
    let groups: Vec<&str> =
        views.iter().filter(|(_, tie)| tie.is_some()).map(|(name, _)| name.as_str()).collect();
    assert_eq!(groups, ["base", "alias"]);
}

#[test]
fn a_view_is_read_by_its_strides_and_nothing_is_copied_to_open_it() {
    let source = fixture("pt/views.pt");
    let of = |name: &str| {
        let id = TensorId { fqn: Fqn::new(name).unwrap(), role: Role::Param };
        let at = source.catalog().registry.position(&id).unwrap();
        source.catalog().tensors[at].chunks.get(0).unwrap()
    };
    assert_eq!(of("expanded").strides.as_deref(), Some(&[0, 1][..]));
    assert_eq!(of("transposed").strides.as_deref(), Some(&[1, 4][..]));
    assert_eq!((of("base").strides, of("row").strides), (None, None));
    assert_eq!(of("row").offset - of("base").offset, 32);
}

#[test]
fn one_ranks_file_is_its_box_of_the_whole_and_says_that_others_are_missing() {
    let source = fixture("pt/dtensor/rank_1.pt");
    let catalog = source.catalog();
    let rows = catalog.iter().find(|(entry, _)| entry.fqn.as_str() == "rows").unwrap();
    assert_eq!(&*rows.0.shape, &[5, 3]);
    assert_eq!(rows.1.chunks.get(0).unwrap().region, Region::new(&[3, 0], &[2, 3]).unwrap());
    assert_eq!(rows.0.placement.as_ref().unwrap().to_string(), "tp:0");
    assert_eq!(catalog.mesh.as_ref().unwrap().axes()[0].1, 2);
    let missing =
        |f: &crate::Finding| f.code == FindingCode::MissingFile && f.message.contains("1 of the 2 ranks");
    assert!(source.audit().unwrap().iter().any(missing));
}

#[test]
fn the_files_of_all_ranks_are_one_checkpoint_without_gaps_and_with_each_replica_once() {
    let source = fixture("pt/dtensor");
    for (entry, chunks) in source.catalog().iter() {
        let elements: u64 = chunks.chunks.iter().map(|chunk| chunk.region.elements()).sum();
        assert_eq!(Some(elements), entry.shape.elements(), "{}", entry.fqn);
        let expected = if ["rows", "columns"].contains(&entry.fqn.as_str()) { 2 } else { 1 };
        assert_eq!(chunks.chunks.len(), expected, "{}", entry.fqn);
    }
}

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (from, to) in files {
        std::fs::copy(fixtures::path(from), dir.path().join(to)).unwrap();
    }
    dir
}

#[test]
fn a_folder_of_unrelated_archives_is_refused_and_names_them() {
    let dir = folder(&[("pt/tied.pt", "a.pt"), ("pt/views.pt", "b.pt")]);
    let error = open(dir.path(), OpenOptions::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    assert!(error.to_string().contains("a.pt, b.pt"), "{error}");
    let alone = folder(&[("pt/tied.pt", "a.pt")]);
    assert_eq!(open(alone.path(), OpenOptions::new()).unwrap().catalog().registry.len(), 3);
}

#[test]
fn a_missing_rank_is_a_warning_and_a_damaged_one_is_named() {
    let dir = folder(&[("pt/dtensor/rank_0.pt", "rank_0.pt"), ("pt/dtensor/rank_1.pt", "rank_1.pt")]);
    let path = dir.path().join("rank_1.pt");
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let error = PtSource::open(dir.path(), OpenOptions::new()).unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("rank_1.pt"), "{error}");
    let lenient = OpenOptions::new().strictness(Strictness::Lenient);
    let findings = PtSource::open(dir.path(), lenient).unwrap().audit().unwrap();
    let worst = findings.iter().find(|finding| finding.severity == Severity::Error).unwrap();
    assert_eq!(worst.file.as_deref(), Some("rank_1.pt"));
}

#[test]
fn ranks_that_disagree_on_what_they_should_share_are_named() {
    let dir = folder(&[("pt/dtensor/rank_0.pt", "rank_0.pt"), ("pt/dtensor/rank_1.pt", "rank_1.pt")]);
    let source = PtSource::open(dir.path(), OpenOptions::new()).unwrap();
    let plain = source.catalog().iter().find(|(entry, _)| entry.fqn.as_str() == "plain").unwrap();
    let crc = plain.1.chunks.get(0).unwrap().record.unwrap().crc32;
    let path = dir.path().join("rank_1.pt");
    let mut bytes = std::fs::read(&path).unwrap();
    // Another checksum is what a file with another value would have.
    for at in 0..bytes.len() - 4 {
        if bytes[at..at + 4] == crc.to_le_bytes() {
            bytes[at] ^= 1;
        }
    }
    std::fs::write(&path, bytes).unwrap();
    let findings = PtSource::open(dir.path(), OpenOptions::new()).unwrap().audit().unwrap();
    let named = |f: &crate::Finding| f.code == FindingCode::Overlap && f.message.contains("plain");
    assert!(findings.iter().any(named), "{findings:?}");
}

#[test]
fn a_rank_beside_a_file_without_parts_is_no_checkpoint_of_ranks() {
    let dir = folder(&[("pt/dtensor/rank_0.pt", "rank_0.pt"), ("pt/tied.pt", "rank_1.pt")]);
    let error = PtSource::open(dir.path(), OpenOptions::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible);
}

fn archive(pickle: Vec<u8>, storages: &[u64], payloads: &[Vec<u8>]) -> Vec<u8> {
    let layout = crate::torch::ArchiveLayout::new("archive", pickle.into(), storages).unwrap();
    let mut out = vec![0; usize::try_from(layout.total_len()).unwrap()];
    let crcs: Vec<u32> = payloads.iter().map(|bytes| crc32fast::hash(bytes)).collect();
    let payloads = layout.payload_offsets().zip(payloads.iter().map(|bytes| bytes.clone().into()));
    for (offset, bytes) in layout.head().into_iter().chain(payloads).chain(layout.tail(&crcs).unwrap()) {
        let at = usize::try_from(offset).unwrap();
        out[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    out
}

/// Opens the archive of a pickle without storages.
fn open_pickle(pickle: &[u8]) -> crate::Result<PtSource> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.pt");
    std::fs::write(&path, archive(pickle.to_vec(), &[], &[])).unwrap();
    PtSource::open(&path, OpenOptions::new())
}

#[test]
fn a_top_level_value_of_any_kind_is_one_leaf() {
    let source = open_pickle(b"\x80\x02K\x07.").unwrap();
    let object = &source.catalog().objects[0];
    assert_eq!((object.key.as_str(), object.path.len()), ("tensor", 0));
    assert_eq!(object.preview, Some(7.into()));
    let list = open_pickle(b"\x80\x02](K\x01}X\x01\x00\x00\x00aK\x02se.").unwrap();
    let keys: Vec<&str> = list.catalog().objects.iter().map(|object| object.key.as_str()).collect();
    assert_eq!(keys, ["0", "1.a"]);
}

#[test]
fn one_dict_referred_to_a_million_times_is_refused_before_it_fills_memory() {
    // Ten lists, each of which holds the one before it ten times; at the bottom a dict of one value.
    let mut pickle = b"\x80\x02}X\x01\x00\x00\x00aK\x01sq\x00".to_vec();
    for level in 0..7_u8 {
        pickle.extend(b"0](");
        pickle.extend([b'h', level].repeat(10));
        pickle.extend([b'e', b'q', level + 1]);
    }
    pickle.push(b'.');
    let error = open_pickle(&pickle).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

#[test]
fn keys_that_steer_a_terminal_are_refused_and_a_key_that_comes_twice_has_its_last_value() {
    let error = open_pickle(b"\x80\x02}X\x02\x00\x00\x00a\x1bK\x01s.").unwrap_err();
    assert!(error.to_string().contains("\\u{1b}"), "{error}");
    let twice = open_pickle(b"\x80\x02}(X\x01\x00\x00\x00aK\x01X\x01\x00\x00\x00aK\x02u.").unwrap();
    assert_eq!(twice.catalog().objects.len(), 1);
    assert_eq!(twice.catalog().objects[0].preview, Some(2.into()));
}

#[test]
fn a_whole_module_is_refused_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.pt");
    let mut composer = crate::torch::Composer::new();
    let tensor = composer.tensor(Dtype::F32, &Shape::new(&[1]), false).unwrap();
    let arena = composer.arena();
    let (class, none) = (arena.global("my.model", "Net"), arena.tuple(&[]));
    let module = arena.new_object(class, none);
    let key = arena.str("weight");
    let state = arena.dict(&[(key, tensor)]);
    arena.set_state(module, state);
    let (arena, storages) = composer.into_parts();
    let pickle = crate::pickle::write(&arena.finish(module).unwrap(), crate::pickle::Protocol::V2).unwrap();
    std::fs::write(&path, archive(pickle, &storages, &[vec![0; 4]])).unwrap();
    let error = PtSource::open(&path, OpenOptions::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("my.model.Net"), "{error}");
    assert!(error.hint_text().unwrap().contains("state_dict"));
}

#[test]
fn every_bad_archive_is_refused_as_it_must_be() {
    let mut met = 0;
    for case in fixtures::hostile().into_iter().filter(|case| case.name.ends_with(".pt")) {
        met += 1;
        let path = fixtures::path(&case.name);
        if case.at == "verify" {
            assert_flip_is_found(&path, &case.names);
            continue;
        }
        for opened in
            [PtSource::open(&path, OpenOptions::new()).map(drop), open(&path, OpenOptions::new()).map(drop)]
        {
            let error = opened.expect_err(&case.name);
            let wanted = match case.refusal {
                fixtures::Refusal::NotACheckpoint => ErrorKind::NotFound,
                fixtures::Refusal::Corrupt => ErrorKind::Corrupt,
                fixtures::Refusal::Unsupported => ErrorKind::Unsupported,
            };
            assert_eq!(error.kind(), wanted, "{}: {error}", case.name);
            assert!(case.names.iter().all(|word| error.to_string().contains(word)), "{}: {error}", case.name);
        }
    }
    assert_eq!(met, 7);
}

/// The record that the catalog gives for the tensor does not match its bytes.
fn assert_flip_is_found(path: &Path, names: &[String]) {
    let source = PtSource::open(path, OpenOptions::new()).unwrap();
    let mut found = Vec::new();
    for (entry, chunks) in source.catalog().iter() {
        for chunk in &chunks.chunks {
            let record = chunk.record.unwrap();
            let mut bytes = vec![0; usize::try_from(record.len).unwrap()];
            source.read_exact_at(chunk.file, record.offset, &mut bytes).unwrap();
            if crc32fast::hash(&bytes) != record.crc32 {
                found.push(entry.fqn.to_string());
            }
        }
    }
    assert_eq!(found, names);
}

#[test]
fn what_is_wrong_with_single_tensors_is_listed_when_lenient() {
    for (name, words) in
        [("hostile/missing_record.pt", "does not have"), ("hostile/short_record.pt", "bytes")]
    {
        let lenient = OpenOptions::new().strictness(Strictness::Lenient);
        let source = PtSource::open(&fixtures::path(name), lenient).unwrap();
        let errors: Vec<_> =
            source.audit().unwrap().into_iter().filter(|f| f.severity == Severity::Error).collect();
        assert!(errors.iter().any(|finding| finding.message.contains(words)), "{name}: {errors:?}");
        assert!(source.catalog().tensors.iter().any(|chunks| chunks.chunks.is_empty()), "{name}");
    }
}

/// `pytorch_model.bin` in two shards with an index, made of the fixture.
fn sharded_bin(edit: impl FnOnce(&mut serde_json::Value)) -> tempfile::TempDir {
    let source = open(&fixtures::path("hf/llama_bin"), OpenOptions::new()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let whole = spec_of(source.catalog(), 1);
    let half = whole.tensors.len() / 2;
    let mut map = serde_json::Map::new();
    for (n, tensors) in
        [whole.tensors[..half].to_vec(), whole.tensors[half..].to_vec()].into_iter().enumerate()
    {
        let name = format!("pytorch_model-0000{}-of-00002.bin", n + 1);
        map.extend(tensors.iter().map(|tensor| (tensor.entry.fqn.to_string(), name.clone().into())));
        let spec = TargetSpec { tensors, ..whole.clone() };
        write(source.as_ref(), &mut PtSink::new(&dir.path().join(name)), spec, Format::Pt);
    }
    let total = source.catalog().tensor_bytes();
    let mut index = serde_json::json!({"metadata": {"total_size": total}, "weight_map": map});
    edit(&mut index);
    std::fs::write(dir.path().join("pytorch_model.bin.index.json"), index.to_string()).unwrap();
    dir
}

#[test]
fn shards_of_pytorch_model_bin_are_one_checkpoint() {
    let dir = sharded_bin(|_| ());
    for path in [dir.path().to_path_buf(), dir.path().join("pytorch_model.bin.index.json")] {
        let source = open(&path, OpenOptions::new()).unwrap();
        assert_eq!((source.catalog().format, source.catalog().files.len()), (Format::Hf, 2));
        check_tensors("two shards", source.as_ref(), &fixtures::expected("hf/llama_bin"));
        assert_eq!(source.audit().unwrap().iter().filter(|f| f.severity > Severity::Note).count(), 0);
    }
}

#[test]
fn an_index_that_lies_about_bin_shards_is_refused_and_told() {
    let dir = sharded_bin(|index| {
        index["weight_map"]["ghost.weight"] = "pytorch_model-00001-of-00002.bin".into();
    });
    let error = open(dir.path(), OpenOptions::new()).unwrap_err();
    assert!(error.to_string().contains("ghost.weight"), "{error}");
    let dir = sharded_bin(|_| ());
    std::fs::remove_file(dir.path().join("pytorch_model-00002-of-00002.bin")).unwrap();
    let error = open(dir.path(), OpenOptions::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("pytorch_model-00002"), "{error}");
    let lenient = OpenOptions::new().strictness(Strictness::Lenient);
    let findings = open(dir.path(), lenient).unwrap().audit().unwrap();
    assert!(findings.iter().any(|finding| finding.code == FindingCode::MissingFile), "{findings:?}");
}

fn small_spec(objects: Vec<ObjectEntry>, tensors: &[(&str, Role)]) -> TargetSpec {
    let shape = Shape::new(&[2]);
    let regions = || vec![(Region::whole(&shape).unwrap(), 0)];
    let entry = |(name, role): &(&str, Role)| {
        Entry::new(Fqn::new(*name).unwrap(), role.clone(), Dtype::F32, shape.clone())
    };
    TargetSpec {
        tensors: tensors.iter().map(|it| TargetTensor { entry: entry(it), regions: regions() }).collect(),
        objects,
        step: None,
        mesh: None,
        split: None,
        plan_digest: "0123456789abcdef".repeat(4),
        extra: serde_json::Map::new(),
        codecs: crate::codec::Codecs::NONE,
    }
}

fn root_keys(spec: &TargetSpec) -> Vec<String> {
    let composed = super::sink::compose(spec).unwrap();
    let policy = crate::pickle::Policy::new(crate::pickle::Context::TensorArchive);
    let tree = crate::pickle::read(&composed.pickle, &policy, &crate::pickle::Limits::default()).unwrap();
    tree.root().as_mapping().unwrap().map(|(key, _)| key.as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_model_alone_is_flat_and_a_training_state_is_nested() {
    assert_eq!(root_keys(&small_spec(Vec::new(), &[("a.weight", Role::Param)])), ["a.weight"]);
    let both = [("a.weight", Role::Param), ("a.weight", Role::ExpAvg)];
    assert_eq!(root_keys(&small_spec(Vec::new(), &both)), ["model", "optim"]);
}

#[test]
fn two_entries_of_one_place_are_refused() {
    let object = |key: &str| ObjectEntry {
        key: key.to_owned(),
        path: vec![PathPart::Key(key.to_owned())],
        encoding: Encoding::Json,
        bytes: b"{\"step\": 3}".as_slice().into(),
        preview: None,
        reshard: ReshardRule::Global,
    };
    let tensors = [("a", Role::Param)];
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("x.pt");
    let error = PtSink::new(&target).layout(&small_spec(vec![object("model")], &tensors)).unwrap_err();
    assert!(error.kind() == ErrorKind::Incompatible && error.to_string().contains("model"), "{error}");
    assert!(!target.exists());
    assert_eq!(root_keys(&small_spec(vec![object("train")], &tensors)), ["model", "train"]);
}

#[test]
fn state_goes_from_an_archive_to_torch_dcp_and_back_unchanged() {
    let source = fixture("pt/training.pt");
    let dir = tempfile::tempdir().unwrap();
    let (dcp, back) = (dir.path().join("dcp"), dir.path().join("back.pt"));
    write(
        &source,
        &mut DcpSink::new(&dcp, Structure::Nested),
        spec_of(source.catalog(), 2),
        Format::TorchDcp,
    );
    let middle = open(&dcp, OpenOptions::new()).unwrap();
    let same = |catalog: &Catalog, other: &dyn Source| {
        for (at, (entry, _)) in catalog.iter().enumerate() {
            let there =
                other.catalog().registry.position(&entry.id()).unwrap_or_else(|| panic!("{}", entry.id()));
            assert_eq!(gather(&source, at), gather(other, there), "{}", entry.id());
        }
    };
    same(source.catalog(), middle.as_ref());
    write(middle.as_ref(), &mut PtSink::new(&back), spec_of(middle.catalog(), 1), Format::Pt);
    same(source.catalog(), &PtSource::open(&back, OpenOptions::new()).unwrap());
}
