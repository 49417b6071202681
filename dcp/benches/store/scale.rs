//! Two million shards: plan, check and write the manifest; open it.

use std::{fs, path::Path};

use dcp::{
    Source as _,
    formats::native,
    save::{SavePlan, SaveSpec},
    synthetic::{LARGE_MESH, Llama, Written},
};
use serde_json::json;

use crate::{Any, peak_bytes, processor_seconds, timed};

/// Plans, checks and writes. The blobs' headers, that a commit compares with the parts, are counted by themselves.
pub(crate) fn write(folder: &str) -> Result<serde_json::Value, Any> {
    let registry = Llama::B405.registry()?;
    let spec = SaveSpec::new("main".parse()?, registry, LARGE_MESH.parse()?, 1000);
    let (plan_seconds, plan) = timed(|| Ok(SavePlan::new(spec)?))?;
    let before = processor_seconds();
    let (heads_seconds, written) = timed(|| Ok(Written::by_all(&plan)?))?;
    let heads_processor = processor_seconds() - before;
    let (check_seconds, manifest) = timed(|| Ok(written.manifest()?))?;
    let (shards, tensors) = (written.chunks(), manifest.catalog.registry.len());
    drop(written);
    let (encode_seconds, encoded) = timed(|| Ok(manifest.encode()?))?;
    let path = Path::new(folder).join(encoded.name());
    let (put_seconds, ()) = timed(|| Ok(fs::write(&path, &encoded.bytes)?))?;
    Ok(json!({
        "ranks": plan.ranks(), "tensors": tensors, "shards": shards, "bytes": encoded.bytes.len(),
        "plan": plan_seconds, "heads": heads_seconds, "heads_processor": heads_processor, "check": check_seconds, "encode": encode_seconds,
        "put": put_seconds, "seconds": plan_seconds + check_seconds + encode_seconds + put_seconds,
        "peak_bytes": peak_bytes(), "processor": processor_seconds() - heads_processor,
    }))
}

/// Opens what there is.
pub(crate) fn open(folder: &str) -> Result<serde_json::Value, Any> {
    let (seconds, source) = timed(|| Ok(native::open(folder, None)?))?;
    let catalog = source.catalog();
    let shards: usize = catalog.tensors.iter().map(|tensor| tensor.chunks.len()).sum();
    Ok(json!({
        "seconds": seconds, "processor": processor_seconds(), "tensors": catalog.tensors.len(), "shards": shards, "peak_bytes": peak_bytes(),
    }))
}
