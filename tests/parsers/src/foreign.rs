//! What other formats hold: safetensors headers, pickles, archives of torch, metadata of torch DCP, indices and configs.

use std::sync::Arc;

use bytes::Bytes;
use dcp::formats::{hf, safetensors, torch_dcp};
use dcp::pickle::{Context, Limits, Policy, read};
use dcp::read_at::ReadAt;
use dcp::torch::{Archive, read_tensor};

use crate::{Target, seeds, target};

pub(crate) const TARGETS: &[Target] = &[
    target("safetensors_header", safetensors_header, safetensors_seeds, SAFETENSORS),
    target("pickle", pickle, pickle_seeds, PICKLE),
    target(
        "torch_archive",
        torch_archive,
        archive_seeds,
        &["PK\u{1}\u{2}", "PK\u{3}\u{4}", "PK\u{5}\u{6}", "data.pkl"],
    ),
    target("dcp_metadata", dcp_metadata, metadata_seeds, PICKLE),
    target(
        "hf_index",
        hf_index,
        index_seeds,
        &["\"weight_map\":{", "\"total_size\":1e400", "../", "/etc", "\\u0000"],
    ),
    target(
        "hf_config",
        hf_config,
        config_seeds,
        &["\"rope_theta\":", "\"num_attention_heads\":0", "-1", "1e400", "null"],
    ),
];

const SAFETENSORS: &[&str] = &[
    "\"data_offsets\":[0,0]",
    "\"shape\":[18446744073709551615,2]",
    "\"dtype\":\"F64\"",
    "\"__metadata__\":{",
    "\\u001b",
];
const PICKLE: &[&str] =
    &["\u{80}\u{2}", "cos\nsystem\n", "q\u{0}", "(", "t", "}", "]", "R", "b", ".", "\u{95}", "X"];

/// Largest pickle of an archive that is read.
const PICKLE_LIMIT: u64 = 16 << 20;

/// The header of a safetensors file.
#[must_use]
pub fn safetensors_header(data: &[u8]) -> bool {
    safetensors::Header::read(&data).is_ok()
}

/// A pickle, in each context, and the tensors in it.
#[must_use]
pub fn pickle(data: &[u8]) -> bool {
    let contexts = [Context::Metadata, Context::TensorArchive, Context::BytesEntry];
    let trees = contexts.map(|context| read(data, &Policy::new(context), &Limits::default()));
    let read = trees.iter().any(Result::is_ok);
    for tree in trees.iter().flatten() {
        drop(read_tensor(tree.root()));
    }
    read
}

/// A zip archive as torch writes it: directory, pickle, records.
#[must_use]
pub fn torch_archive(data: &[u8]) -> bool {
    let source: Arc<dyn ReadAt> = Arc::new(Bytes::copy_from_slice(data));
    let Ok(archive) = Archive::open(source) else { return false };
    let records = archive.records().iter().take(64).all(|record| archive.check(record, |_| {}).is_ok());
    archive.data_pickle(PICKLE_LIMIT).is_ok_and(|bytes| pickle(&bytes)) && records
}

/// The `.metadata` of a torch DCP checkpoint.
#[must_use]
pub fn dcp_metadata(data: &[u8]) -> bool {
    torch_dcp::decode(data).is_ok()
}

/// The index of a Hugging Face folder.
#[must_use]
pub fn hf_index(data: &[u8]) -> bool {
    dcp::parsers::hf_index(data)
}

/// The config of a Hugging Face folder.
#[must_use]
pub fn hf_config(data: &[u8]) -> bool {
    let Ok(value) = serde_json::from_slice::<serde_json::Value>(data) else { return false };
    let facts = value.as_object().map(hf::ModelFacts::from_config);
    let of_names = fqn::preset::ModelFacts::from_config(&value);
    facts.is_some() && of_names == fqn::preset::ModelFacts::from_config(&value)
}

fn safetensors_seeds() -> Vec<Vec<u8>> {
    let mut seeds = seeds::files("safetensors", |path| path.ends_with(".safetensors"));
    seeds.extend(seeds::files("native/v1", |path| path.contains("/data/r")));
    seeds
}

fn metadata_seeds() -> Vec<Vec<u8>> {
    let mut seeds = seeds::files("torch_dcp", |path| path.ends_with("metadata"));
    seeds.extend(seeds::files("hostile", |path| path.ends_with("/.metadata")));
    seeds
}

fn archive_seeds() -> Vec<Vec<u8>> {
    seeds::files("pt", |path| path.ends_with(".pt"))
}

fn pickle_seeds() -> Vec<Vec<u8>> {
    let open = |bytes: Vec<u8>| Archive::open(Arc::new(Bytes::from(bytes)) as Arc<dyn ReadAt>).ok();
    let inner =
        archive_seeds().into_iter().filter_map(open).filter_map(|it| it.data_pickle(PICKLE_LIMIT).ok());
    inner.chain(metadata_seeds()).collect()
}

fn index_seeds() -> Vec<Vec<u8>> {
    seeds::files("hf", |path| path.ends_with(".index.json"))
}

fn config_seeds() -> Vec<Vec<u8>> {
    seeds::files("hf", |path| path.ends_with("/config.json"))
}
