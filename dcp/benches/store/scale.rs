//! Two million shards: plan, check and write the manifest; open it.

use std::{fs, path::Path};

use dcp::{
    Source as _,
    formats::native,
    save::{SavePlan, SaveSpec},
    synthetic::{LARGE_MESH, LaidOut, Llama, Written},
};
use serde_json::json;

use crate::{Any, peak_bytes, processor_seconds, timed};

/// Plans, lays out the blobs with their headers, checks and writes: all that a commit computes. The parts, that it reads from the store
/// in between, are made up, and neither their seconds nor their processor time count.
pub(crate) fn write(folder: &str) -> Result<serde_json::Value, Any> {
    let registry = Llama::B405.registry()?;
    let spec = SaveSpec::new("main".parse()?, registry, LARGE_MESH.parse()?, 1000);
    let (plan_seconds, plan) = timed(|| Ok(SavePlan::new(spec)?))?;
    let (heads_seconds, laid_out) = timed(|| Ok(LaidOut::new(&plan)?))?;
    let before = processor_seconds();
    let written = Written::by_all(laid_out);
    let made_up = processor_seconds() - before;
    let (check_seconds, manifest) = timed(|| Ok(written.manifest()?))?;
    let (shards, tensors) = (written.chunks(), manifest.catalog.registry.len());
    drop(written);
    let (encode_seconds, encoded) = timed(|| Ok(manifest.encode()?))?;
    let path = Path::new(folder).join(encoded.name());
    let (put_seconds, ()) = timed(|| Ok(fs::write(&path, &encoded.bytes)?))?;
    Ok(json!({
        "ranks": plan.ranks(), "tensors": tensors, "shards": shards, "bytes": encoded.bytes.len(),
        "plan": plan_seconds, "heads": heads_seconds, "check": check_seconds, "encode": encode_seconds, "put": put_seconds,
        "seconds": plan_seconds + heads_seconds + check_seconds + encode_seconds + put_seconds,
        "peak_bytes": peak_bytes(), "processor": processor_seconds() - made_up,
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
