//! [`SafetensorsSink`]: all tensors of a checkpoint in one safetensors file.

use std::path::Path;

use bytes::Bytes;
use fqn::{TensorId, state_dict::Layout};
use reshard::Region;

use super::{HeaderBuilder, Placed};
use crate::{
    Error, Needs, Piece, Result, Sink, TargetChunk, TargetFile, TargetLayout, TargetSpec, TargetTensor,
    formats::staged::{Staged, delegate_staging},
    staging::TargetKind,
};

/// Writes one file. Optimizer state, if there is any, gets TorchTitan's flat names, which reading understands.
#[derive(Debug)]
pub struct SafetensorsSink {
    staged: Staged,
}

impl SafetensorsSink {
    /// A file at `target`, which must not exist.
    #[must_use]
    pub fn new(target: &Path) -> Self {
        Self { staged: Staged::new(target, TargetKind::File) }
    }
}

impl Sink for SafetensorsSink {
    fn needs(&self) -> Needs {
        Needs::default()
    }

    fn layout(&mut self, spec: &TargetSpec) -> Result<TargetLayout> {
        if let Some(object) = spec.objects.first() {
            return Err(Error::incompatible(format!(
                "safetensors holds tensors only, not values such as {}",
                object.key
            )));
        }
        let mut header = HeaderBuilder::new();
        for (key, value) in carried_metadata(spec) {
            header.metadata(key, value);
        }
        for tensor in &spec.tensors {
            header.tensor(&key(&tensor.entry.id())?, tensor.entry.dtype, &tensor.entry.shape)?;
        }
        let placed = header.finish()?;
        let tensors: Vec<usize> = (0..spec.tensors.len()).collect();
        let mut layout = TargetLayout::default();
        add_file(&mut layout, self.staged.file_name()?, spec, &tensors, &placed)?;
        self.staged.begin(&spec.plan_digest, &layout)?;
        Ok(layout)
    }

    delegate_staging!();
}

fn key(id: &TensorId) -> Result<String> {
    Layout::torchtitan().key(id).ok_or_else(|| Error::incompatible(format!("{id} has no flat name")))
}

/// Text pairs that came from a safetensors file and go back into one.
pub(crate) fn carried_metadata(spec: &TargetSpec) -> impl Iterator<Item = (&String, &str)> {
    let pairs = spec.extra.get("safetensors.metadata").and_then(serde_json::Value::as_object);
    pairs.into_iter().flatten().filter_map(|(key, value)| Some((key, value.as_str()?)))
}

/// Adds the file at `path` that holds `tensors` of the spec where `placed` says.
pub(crate) fn add_file(
    layout: &mut TargetLayout,
    path: String,
    spec: &TargetSpec,
    tensors: &[usize],
    placed: &Placed,
) -> Result<()> {
    let file = layout.files.len();
    let head = vec![Piece { offset: 0, bytes: Bytes::from(placed.bytes.clone()) }];
    layout.files.push(TargetFile { path, size: placed.file_size, head });
    let mut chunks = Vec::new();
    for (at, start) in tensors.iter().zip(&placed.offsets) {
        let tensor =
            spec.tensors.get(*at).ok_or_else(|| Error::internal("a tensor that is not in the spec"))?;
        for (region, _) in &tensor.regions {
            let offset = start.saturating_add(offset_within(tensor, region)?);
            chunks.push(TargetChunk { tensor: *at, region: region.clone(), file, offset });
        }
    }
    chunks.sort_by_key(|chunk| chunk.offset);
    layout.chunks.append(&mut chunks);
    Ok(())
}

/// Bytes before a box in its row-major tensor. The file holds each tensor whole, so a box must be a run of bytes.
pub(crate) fn offset_within(tensor: &TargetTensor, region: &Region) -> Result<u64> {
    let (entry, whole) = (&tensor.entry, &tensor.entry.shape);
    // Extents are one, then anything, then whole: only such a box is a run.
    let first = region
        .extents()
        .iter()
        .position(|extent| *extent != 1)
        .map_or(region.rank(), |at| at.saturating_add(1));
    let full = region.extents().iter().zip(whole.iter()).skip(first).all(|(extent, all)| extent == all);
    let strides = whole.row_major_strides().filter(|_| full || region.is_empty());
    let strides = strides.ok_or_else(|| {
        Error::internal(format!(
            "{}: box {region} of shape {whole} is no run of bytes in a whole tensor",
            entry.fqn
        ))
    })?;
    if region.is_empty() {
        return Ok(0);
    }
    let elements = strides
        .iter()
        .zip(region.offsets())
        .fold(0_u64, |sum, (stride, at)| sum.saturating_add(stride.saturating_mul(*at)));
    entry
        .dtype
        .bytes_for(elements)
        .ok_or_else(|| Error::incompatible(format!("{}: box {region} ends within a byte", entry.fqn)))
}
