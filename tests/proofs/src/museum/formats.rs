//! Of other formats: what their own readers accept, run or drop.

use std::num::NonZeroUsize;

use dcp::engine::{RunOptions, run as copy};
use dcp::formats::native::{NativeSink, SinkOptions, open};
use dcp::formats::{OpenOptions, Strictness, detect};
use dcp::ops::content::fingerprints;
use dcp::ops::prepare::{Request, prepare};
use dcp::ops::verify::{VerifyOptions, verify};
use dcp::store::{Root, Stores};
use dcp::{Cancel, ErrorKind, Format, Severity, Silent, Source};

use super::{Exhibit, must, refused};
use crate::training::{Outcome, location, run, scratch};

pub(super) const EXHIBITS: &[Exhibit] = &[
    Exhibit {
        source: "huggingface/huggingface_hub #4725",
        happened: "the index of a public model names a tensor that is in no shard",
        switch: "the index names `ghost.weight`",
        caught_by: "the index is compared with the headers of all shards when a folder is opened",
        show: ghost,
    },
    Exhibit {
        source: "pytorch/pytorch #189308",
        happened: "`.metadata` is unpickled without limits: it can run anything",
        switch: "the metadata would call `os.system`",
        caught_by: "the allow-list machine of `pickle`, which never runs anything",
        show: code_in_metadata,
    },
    Exhibit {
        source: "pytorch/torchtitan PR #4197 (torch DCP)",
        happened: "a folder of a save that never finished is taken for a checkpoint",
        switch: "there are `.distcp` files and no `.metadata`",
        caught_by: "`formats::detect` says that the save never finished",
        show: unfinished,
    },
    Exhibit {
        source: "pytorch/torchtitan #4011 (torch DCP)",
        happened: "torch writes CRC-32 of each record and never checks it",
        switch: "one bit of a chunk is flipped",
        caught_by: "`verify` compares each record's CRC-32, and names the tensor",
        show: unread_crc,
    },
    Exhibit {
        source: "pytorch/pytorch #161368 (torch DCP)",
        happened: "chunks leave a hole in a tensor, and torch loads whatever memory held",
        switch: "a chunk of `columns5` is not in the metadata",
        caught_by: "`verify` tells the gap; a conversion is refused",
        show: hole,
    },
    Exhibit {
        source: "pytorch/pytorch #192485, VeOmni #935, NVIDIA-NeMo/Automodel #301",
        happened: "consolidation crashes on integers, and scalars are dropped",
        switch: "the checkpoint holds tensors of all dtypes, scalars among them",
        caught_by: "a conversion keeps every tensor; fingerprints of both sides are compared",
        show: all_dtypes,
    },
];

/// Everything that is wrong with a fixture, from opening it or from verifying it.
fn wrong(name: &str) -> Outcome<Result<(), dcp::Error>> {
    let lenient = OpenOptions::new().strictness(Strictness::Lenient);
    let source = match dcp::formats::open(&fixtures::path(name), lenient) {
        Ok(source) => source,
        Err(error) => return Ok(Err(error)),
    };
    let report = verify(&*source, &VerifyOptions::default(), &Silent, &Cancel::new())?;
    let mut errors = report.findings.iter().filter(|it| it.severity == Severity::Error);
    Ok(errors.next().map_or(Ok(()), |it| {
        let tensor = it.tensor.as_ref().map(ToString::to_string).unwrap_or_default();
        Err(dcp::Error::corrupt(format!(
            "{:?} {tensor} {}: {}",
            it.code,
            it.range.as_deref().unwrap_or_default(),
            it.message
        )))
    }))
}

fn told(on: bool, hostile: &str, good: &str, words: &[&str]) -> Outcome<String> {
    if on {
        return refused(wrong(hostile)?, ErrorKind::Corrupt, words);
    }
    wrong(good)??;
    Ok(format!("{good} is whole"))
}

fn ghost(on: bool) -> Outcome<String> {
    told(on, "hostile/index_missing_tensor", "hf/llama_sharded", &["ghost.weight"])
}

fn code_in_metadata(on: bool) -> Outcome<String> {
    told(on, "hostile/metadata_runs_code", "torch_dcp/uneven", &["system"])
}

fn unread_crc(on: bool) -> Outcome<String> {
    told(on, "hostile/flipped_dcp", "torch_dcp/uneven", &["CrcMismatch", "rows5"])
}

fn hole(on: bool) -> Outcome<String> {
    let said = told(on, "hostile/gap", "torch_dcp/uneven", &["columns5"])?;
    let converted = convert(if on { "hostile/gap" } else { "torch_dcp/uneven" });
    must(converted.is_err() == on, || format!("{converted:?}"))?;
    Ok(said)
}

fn unfinished(on: bool) -> Outcome<String> {
    let name = if on { "hostile/unfinished_dcp" } else { "torch_dcp/uneven" };
    match (on, detect(&fixtures::path(name))) {
        (true, Err(error)) => {
            let hint = error.hint_text().unwrap_or_default().to_owned();
            must(hint.contains("never finished"), || format!("{error}: {hint}"))?;
            Ok(hint)
        }
        (false, Ok(found)) => Ok(found.why),
        (_, other) => Err(format!("{other:?}").into()),
    }
}

fn all_dtypes(on: bool) -> Outcome<String> {
    let (tensors, dtypes, scalars) = convert(if on { "torch_dcp/dtypes" } else { "torch_dcp/uneven" })?;
    must(!on || (scalars > 0 && dtypes > 8), || format!("{dtypes} dtypes, {scalars} scalars"))?;
    Ok(format!("{tensors} tensors of {dtypes} dtypes, {scalars} of them scalars, hold the same"))
}

/// Converts a fixture into a native root, and compares what both hold: tensors, dtypes and scalars among them.
fn convert(name: &str) -> Outcome<(usize, usize, usize)> {
    let folder = scratch()?;
    let source = dcp::formats::open(&fixtures::path(name), OpenOptions::new())?;
    let prepared = prepare(source.catalog(), &Request::new(Format::Native))?;
    let root = Root::create(location(folder.path())?, &Stores::new())?;
    let mut sink = NativeSink::new(root, SinkOptions::new(run()?));
    copy(&*source, &mut sink, &prepared.copy, &RunOptions::default(), &Silent, &Cancel::new())?;
    let made = open(location(folder.path())?, None)?;
    let prints =
        |source: &dyn Source| fingerprints(source, NonZeroUsize::MIN, 64 << 20, &Silent, &Cancel::new());
    let (mut before, mut after) = (prints(&*source)?, prints(&made)?);
    before.sort();
    after.sort();
    must(before == after, || "they differ".to_owned())?;
    let entries = source.catalog().registry.entries();
    let dtypes: std::collections::BTreeSet<&str> = entries.iter().map(|it| it.dtype.name()).collect();
    let scalars = entries.iter().filter(|it| it.shape.rank() == 0).count();
    Ok((entries.len(), dtypes.len(), scalars))
}
