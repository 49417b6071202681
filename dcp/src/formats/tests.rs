//! Every real fixture, opened and gathered element by element, against what the writing library says it holds.

use std::path::Path;

use fixtures::Expected;
use fqn::Dtype;
use reshard::Region;
use sha2::{Digest, Sha256};

use super::{
    Depth, LeftOut, OpenOptions, Strictness, fit,
    hf::{HfOptions, HfSink, HfSource, ModelFacts},
    safetensors::{SafetensorsSink, SafetensorsSource},
    torch_dcp::{DcpSink, DcpSource, Structure},
};
use crate::{
    Cancel, Catalog, Chunk, Error, FindingCode, Format, PathPart, Result, Severity, Silent, Sink, Source,
    TargetSpec, TargetTensor,
    engine::{CopyPlan, RunOptions, SourceRef, run},
};

fn open(name: &str, options: OpenOptions) -> Result<Box<dyn Source>> {
    super::open(&fixtures::path(name), options)
}

/// The whole tensor, gathered the slow and obvious way.
pub(super) fn gather(source: &dyn Source, at: usize) -> Vec<u8> {
    let catalog = source.catalog();
    let (entry, chunks) = catalog.iter().nth(at).unwrap();
    let size = usize::try_from(entry.dtype.element_bytes().unwrap()).unwrap();
    let strides = entry.shape.row_major_strides().unwrap();
    let mut whole = vec![0xEE; usize::try_from(entry.bytes().unwrap()).unwrap()];
    for chunk in &chunks.chunks {
        for_each_element(entry.dtype, &chunk, |global, offset| {
            let to: u64 = global.iter().zip(&strides).map(|(index, stride)| index * stride).sum();
            let to = usize::try_from(to).unwrap() * size;
            source.read_exact_at(chunk.file, offset, &mut whole[to..to + size]).unwrap();
        });
    }
    whole
}

fn for_each_element(dtype: Dtype, chunk: &Chunk, mut each: impl FnMut(&[u64], u64)) {
    let extents = chunk.region.extents();
    let packed = fqn::Shape::new(extents).row_major_strides().unwrap();
    let strides = chunk.strides.as_ref().unwrap_or(&packed);
    for flat in 0..chunk.region.elements() {
        let local: Vec<u64> =
            extents.iter().zip(&packed).map(|(extent, step)| flat / step % extent).collect();
        let global: Vec<u64> = local.iter().zip(chunk.region.offsets()).map(|(l, o)| l + o).collect();
        let skip: u64 = local.iter().zip(strides).map(|(index, stride)| index * stride).sum();
        each(&global, chunk.offset + dtype.bytes_for(skip).unwrap());
    }
}

/// The key of a tensor in its own format.
fn key(entry: &fqn::Entry) -> String {
    entry
        .alias("torch-dcp")
        .or_else(|| entry.alias("pt"))
        .map_or_else(|| entry.fqn.to_string(), |alias| alias.key.clone())
}

pub(super) fn check_tensors(name: &str, source: &dyn Source, expected: &Expected) {
    let catalog = source.catalog();
    assert_eq!(catalog.registry.len(), expected.tensors.len(), "{name}");
    for (at, (entry, chunks)) in catalog.iter().enumerate() {
        let key = key(entry);
        let wanted = expected.tensors.get(&key).unwrap_or_else(|| panic!("{name}: {key} is not expected"));
        assert_eq!(entry.dtype.torch_name(), Some(wanted.dtype.as_str()), "{name} {key}");
        assert_eq!(&*entry.shape, wanted.shape.as_slice(), "{name} {key}");
        let digest: String =
            Sha256::digest(gather(source, at)).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(digest, wanted.sha256, "{name} {key}");
        if !wanted.chunks.is_empty() {
            let mut boxes: Vec<_> = chunks
                .chunks
                .iter()
                .map(|c| (c.region.offsets().to_vec(), c.region.extents().to_vec()))
                .collect();
            boxes.sort();
            let wanted: Vec<_> =
                wanted.chunks.iter().map(|chunk| (chunk.0.clone(), chunk.1.clone())).collect();
            assert_eq!(boxes, wanted, "{name} {key}");
        }
    }
}

fn same_path(ours: &PathPart, theirs: &fixtures::PathPart) -> bool {
    match (ours, theirs) {
        (PathPart::Key(a), fixtures::PathPart::Key(b)) => a == b,
        (PathPart::Index(a), fixtures::PathPart::Index(b)) => a == b,
        _ => false,
    }
}

pub(super) fn check_objects(name: &str, catalog: &Catalog, expected: &Expected) {
    let keys: Vec<&str> = catalog.objects.iter().map(|object| object.key.as_str()).collect();
    let mut sorted = keys.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, expected.objects.keys().map(String::as_str).collect::<Vec<_>>(), "{name}");
    for object in &catalog.objects {
        if let Some(path) = expected.paths.get(&object.key) {
            assert_eq!(object.path.len(), path.len(), "{name} {}", object.key);
            assert!(object.path.iter().zip(path).all(|(a, b)| same_path(a, b)), "{name} {}", object.key);
        }
        let preview = object.preview.as_ref().unwrap_or_else(|| panic!("{name} {}: no preview", object.key));
        match &expected.objects[&object.key] {
            fixtures::Value::Int(int) if int.len() < 19 => {
                assert_eq!(&preview.to_string(), int, "{}", object.key);
            }
            fixtures::Value::Float(float) => assert_eq!(preview.as_f64(), Some(*float), "{}", object.key),
            fixtures::Value::Str(text) => assert_eq!(preview.as_str(), Some(text.as_str()), "{}", object.key),
            fixtures::Value::Bool(value) => assert_eq!(preview.as_bool(), Some(*value), "{}", object.key),
            fixtures::Value::None => assert!(preview.is_null(), "{}", object.key),
            _ => {}
        }
    }
}

#[test]
fn every_real_checkpoint_reads_as_the_library_that_wrote_it_says() {
    let mut read = 0;
    for name in fixtures::all() {
        let expected = fixtures::expected(&name);
        let source = open(&name, OpenOptions::new()).unwrap_or_else(|error| panic!("{name}: {error:?}"));
        check_tensors(&name, source.as_ref(), &expected);
        check_objects(&name, source.catalog(), &expected);
        read += 1;
    }
    assert!(read >= 27, "only {read} fixtures were read");
}

#[test]
fn no_real_checkpoint_has_errors_and_only_those_made_stale_have_warnings() {
    for name in fixtures::all() {
        let expected = fixtures::expected(&name);
        let findings = open(&name, OpenOptions::new()).unwrap().audit().unwrap();
        let worst = findings.iter().map(|finding| finding.severity).max();
        let suspicious = name.contains("stale") || expected.format == "hf_sharded";
        let limit = if suspicious { Severity::Warning } else { Severity::Note };
        assert!(worst.is_none_or(|worst| worst <= limit), "{name}: {findings:?}");
        if name.contains("stale") {
            assert!(findings.iter().any(|finding| finding.code == FindingCode::StaleFile), "{findings:?}");
        }
        if name.contains("crc_disabled") {
            assert!(findings.iter().any(|finding| finding.code == FindingCode::ChecksumsOff), "{findings:?}");
        }
    }
}

#[test]
fn payloads_of_real_checkpoints_agree_with_the_checksums_that_torch_wrote() {
    let mut checked = 0;
    for name in fixtures::all()
        .into_iter()
        .filter(|name| !name.starts_with("hf/") && !name.starts_with("safetensors/"))
    {
        let source = open(&name, OpenOptions::new()).unwrap();
        for record in
            source.catalog().tensors.iter().flat_map(|t| &t.chunks).filter_map(|c| Some((c.file, c.record?)))
        {
            let mut bytes = vec![0; usize::try_from(record.1.len).unwrap()];
            source.read_exact_at(record.0, record.1.offset, &mut bytes).unwrap();
            assert_eq!(crc32fast::hash(&bytes), record.1.crc32, "{name}");
            checked += 1;
        }
    }
    assert!(checked > 100, "only {checked}");
}

#[test]
fn a_catalog_alone_has_the_same_tensors_and_refuses_to_read_data() {
    let path = fixtures::path("torch_dcp/fsdp2_tp2");
    let (all, fast) = (DcpSource::open(&path, OpenOptions::new()), OpenOptions::new().depth(Depth::Catalog));
    let (all, fast) = (all.unwrap(), DcpSource::open(&path, fast).unwrap());
    assert_eq!(all.catalog().registry, fast.catalog().registry);
    let chunk = &fast.catalog().tensors[0].chunks.get(0).unwrap();
    assert!(fast.read_exact_at(chunk.file, 0, &mut [0]).is_err());
}

fn copy(name: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(fixtures::path(name)).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    dir
}

fn lenient(path: &Path) -> Vec<crate::Finding> {
    DcpSource::open(path, OpenOptions::new().strictness(Strictness::Lenient)).unwrap().audit().unwrap()
}

#[test]
fn a_missing_or_cut_blob_is_refused_by_name_and_listed_when_lenient() {
    let dir = copy("torch_dcp/uneven");
    let blob = dir.path().join("__1_0.distcp");
    let whole = std::fs::read(&blob).unwrap();
    std::fs::write(&blob, &whole[..whole.len() - 100]).unwrap();
    let error: Error = DcpSource::open(dir.path(), OpenOptions::new()).unwrap_err();
    assert!(error.to_string().contains("__1_0.distcp"), "{error}");
    let findings = lenient(dir.path());
    assert!(
        findings.iter().any(|f| f.code == FindingCode::SizeMismatch && f.severity == Severity::Error),
        "{findings:?}"
    );
    std::fs::remove_file(&blob).unwrap();
    assert!(
        DcpSource::open(dir.path(), OpenOptions::new())
            .unwrap_err()
            .to_string()
            .contains("__1_0.distcp is missing")
    );
    assert!(lenient(dir.path()).iter().any(|f| f.code == FindingCode::MissingFile), "{findings:?}");
}

#[test]
fn blobs_of_two_ranks_that_were_swapped_are_found() {
    let dir = copy("torch_dcp/fsdp2_tp2");
    let (a, b) = (dir.path().join("__0_0.distcp"), dir.path().join("__1_0.distcp"));
    std::fs::rename(&a, dir.path().join("x")).unwrap();
    std::fs::rename(&b, &a).unwrap();
    std::fs::rename(dir.path().join("x"), &b).unwrap();
    let errors =
        lenient(dir.path()).into_iter().filter(|finding| finding.severity == Severity::Error).count();
    assert!(errors > 0);
}

/// Everything that `source` holds, cut in two along the first dimension where `ranks` is 2.
pub(super) fn spec_of(catalog: &Catalog, ranks: u64) -> TargetSpec {
    let cut = |entry: &fqn::Entry| -> Vec<(Region, u32)> {
        let whole = Region::whole(&entry.shape).unwrap();
        let Some(rows) = entry.shape.first().copied().filter(|rows| ranks == 2 && *rows > 1) else {
            return vec![(whole, 0)];
        };
        let half = rows.div_ceil(2);
        [(0, half, 0), (half, rows - half, 1)]
            .into_iter()
            .map(|(offset, extent, rank)| {
                let (mut offsets, mut extents) = (whole.offsets().to_vec(), whole.extents().to_vec());
                (offsets[0], extents[0]) = (offset, extent);
                (Region::new(&offsets, &extents).unwrap(), rank)
            })
            .collect()
    };
    let tensors = catalog.registry.entries();
    TargetSpec {
        tensors: tensors
            .iter()
            .map(|entry| TargetTensor { entry: entry.clone(), regions: cut(entry) })
            .collect(),
        objects: catalog.objects.clone(),
        step: catalog.step,
        mesh: None,
        split: None,
        plan_digest: "0123456789abcdef".repeat(4),
        extra: catalog.extra.clone(),
        codecs: crate::codec::Codecs::NONE,
    }
}

pub(super) fn write(
    source: &dyn Source,
    sink: &mut dyn Sink,
    mut spec: TargetSpec,
    format: Format,
) -> LeftOut {
    let left = fit(&mut spec, format);
    let position = |tensor: &TargetTensor| source.catalog().registry.position(&tensor.entry.id()).unwrap();
    let sources = spec.tensors.iter().map(|tensor| SourceRef::plain(position(tensor))).collect();
    let plan = CopyPlan { spec, sources };
    let options = RunOptions::default();
    run(source, sink, &plan, &options, &Silent, &Cancel::new()).unwrap_or_else(|error| panic!("{error:?}"));
    left
}

#[test]
fn torch_dcp_written_from_torch_dcp_holds_the_same_under_the_same_names() {
    let mut written = 0;
    for name in fixtures::all().into_iter().filter(|name| name.starts_with("torch_dcp/")) {
        let mut expected = fixtures::expected(&name);
        if !expected.format.starts_with("torch_dcp") {
            continue;
        }
        let source = open(&name, OpenOptions::new()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("out");
        let mut sink = DcpSink::new(&target, Structure::Nested);
        write(source.as_ref(), &mut sink, spec_of(source.catalog(), 2), Format::TorchDcp);
        let back = DcpSource::open(&target, OpenOptions::new()).unwrap();
        for tensor in expected.tensors.values_mut() {
            tensor.chunks.clear();
        }
        check_tensors(&name, &back, &expected);
        check_objects(&name, back.catalog(), &expected);
        assert_eq!(back.audit().unwrap().iter().filter(|f| f.severity > Severity::Note).count(), 0, "{name}");
        for (a, b) in source.catalog().iter().zip(back.catalog().iter()) {
            let a = source.catalog().registry.get(&b.0.id()).unwrap_or(a.0);
            let (a, b) = (a.alias("torch-dcp").unwrap(), b.0.alias("torch-dcp").unwrap());
            assert_eq!(a.key, b.key, "{name}");
            // A state dict that was not flattened has no paths; written again, its keys are its paths.
            assert!(a.path == b.path || a.path.is_empty(), "{name}");
        }
        written += 1;
    }
    assert!(written >= 12, "only {written}");
}

#[test]
fn every_checksum_that_is_written_is_right() {
    let path = fixtures::path("torch_dcp/dtypes");
    let source = DcpSource::open(&path, OpenOptions::new()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("out");
    write(
        &source,
        &mut DcpSink::new(&target, Structure::Nested),
        spec_of(source.catalog(), 2),
        Format::TorchDcp,
    );
    let back = DcpSource::open(&target, OpenOptions::new()).unwrap();
    let records = back.catalog().tensors.iter().flat_map(|t| &t.chunks).map(|c| (c.file, c.record.unwrap()));
    for (file, record) in records {
        let mut bytes = vec![0; usize::try_from(record.len).unwrap()];
        back.read_exact_at(file, record.offset, &mut bytes).unwrap();
        assert_eq!(crc32fast::hash(&bytes), record.crc32);
    }
}

#[test]
fn a_hugging_face_folder_comes_back_with_its_config_and_files_in_as_many_shards_as_asked() {
    for name in ["hf/llama_sharded", "hf/llama_tied"] {
        let expected = fixtures::expected(name);
        let source = open(name, OpenOptions::new()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("out");
        let mut options = HfOptions::new();
        options.max_shard_bytes = Some(source.catalog().tensor_bytes() / 3);
        let mut sink = HfSink::new(&target, options);
        write(source.as_ref(), &mut sink, spec_of(source.catalog(), 1), Format::Hf);
        let back = HfSource::open(&target, OpenOptions::new()).unwrap();
        check_tensors(name, &back, &expected);
        assert_eq!(back.audit().unwrap(), [], "{name}");
        assert!(back.catalog().files.len() >= 3, "{name}");
        for key in ["hf.config", "hf.files"] {
            assert_eq!(back.catalog().extra.get(key), source.catalog().extra.get(key), "{name} {key}");
        }
    }
}

#[test]
fn a_model_of_torch_dcp_becomes_a_hugging_face_folder_only_when_all_facts_are_known() {
    let source = DcpSource::open(&fixtures::path("torch_dcp/fsdp2_tp2"), OpenOptions::new()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("out");
    let mut spec = spec_of(source.catalog(), 1);
    let left = fit(&mut spec, Format::Hf);
    assert!(!left.tensors.is_empty() && !left.objects.is_empty());
    let error = HfSink::new(&target, HfOptions::new()).layout(&spec).unwrap_err();
    assert!(error.to_string().contains("num_attention_heads"), "{error}");
    let mut options = HfOptions::new();
    options.facts = ModelFacts {
        num_attention_heads: Some(4),
        rope_theta: Some(10000.0),
        rms_norm_eps: Some(1e-6),
        max_position_embeddings: Some(32),
        ..ModelFacts::default()
    };
    write(&source, &mut HfSink::new(&target, options), spec, Format::Hf);
    let back = HfSource::open(&target, OpenOptions::new()).unwrap();
    let config = back.catalog().extra["hf.config"].as_object().unwrap();
    assert_eq!(config["num_key_value_heads"].as_u64(), Some(2));
    for (at, (entry, _)) in back.catalog().iter().enumerate() {
        let from = source.catalog().registry.position(&entry.id()).unwrap();
        assert_eq!(gather(&back, at), gather(&source, from), "{}", entry.fqn);
    }
}

#[test]
fn one_safetensors_file_holds_optimizer_state_under_names_that_read_back() {
    let source = DcpSource::open(&fixtures::path("torch_dcp/fsdp2_tp2"), OpenOptions::new()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("all.safetensors");
    let left =
        write(&source, &mut SafetensorsSink::new(&target), spec_of(source.catalog(), 1), Format::Safetensors);
    assert!(left.tensors.is_empty());
    let back = SafetensorsSource::open(&target, OpenOptions::new()).unwrap();
    assert_eq!(back.catalog().registry.len(), source.catalog().registry.len());
    for (at, (entry, _)) in back.catalog().iter().enumerate() {
        let from =
            source.catalog().registry.position(&entry.id()).unwrap_or_else(|| panic!("{}", entry.id()));
        assert_eq!(gather(&back, at), gather(&source, from), "{}", entry.id());
    }
}
