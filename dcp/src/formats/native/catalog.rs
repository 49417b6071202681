//! The catalog of what a sink wrote, from the spec, the layout and what the parts say.

use fqn::Entry;

use super::{layout::Blob, objects::ObjectBlob, part::Part};
use crate::{
    BlockRef, Catalog, Chunk, Chunks, Error, FileEntry, FileId, Format, Location, Place, Result, TargetSpec,
    cores,
    fingerprint::FingerprintSum,
    manifest::{Manifest, Origin},
};

/// Checks that chunks tile every tensor, and returns the manifest. `files` are the finished ones, each with its blob,
/// that of the large objects last.
///
/// # Errors
/// `Corrupt` for tensors that are not tiled, `Internal` for parts that name no tensor of the spec.
pub(super) fn manifest(
    spec: &TargetSpec,
    files: &[(&Blob, Part)],
    objects: &ObjectBlob,
    origin: Option<Origin>,
) -> Result<Manifest> {
    let mut catalog = Catalog::new(Format::Native);
    catalog.variant = "native store, version 1".to_owned();
    catalog.files = files.iter().map(|(_, part)| file_of(part)).collect();
    let mut chunks = chunks_of(spec, files)?;
    let sums = sums_of(spec, files)?;
    cores::try_each(spec.tensors.len(), |at| match (spec.tensors.get(at), chunks.get(at)) {
        (Some(tensor), Some(chunks)) => check_cover(&tensor.entry, chunks),
        _ => Err(Error::internal("a tensor without a list of chunks")),
    })?;
    for ((tensor, chunks), sum) in spec.tensors.iter().zip(&mut chunks).zip(sums) {
        let entry = &tensor.entry;
        chunks.fingerprint = Some(sum.finish(entry.dtype, &entry.shape));
        catalog.push(entry.clone(), std::mem::take(chunks))?;
    }
    catalog.objects.clone_from(&spec.objects);
    (catalog.step, catalog.mesh, catalog.split) = (spec.step, spec.mesh.clone(), spec.split.clone());
    catalog.extra.clone_from(&spec.extra);
    let last = file_id(files.len().saturating_sub(1))?;
    let places = objects.place(&mut catalog.objects, last);
    let mut manifest = Manifest::new(catalog);
    (manifest.objects, manifest.origin) = (places, origin);
    Ok(manifest)
}

/// The manifest of a plan's files, as a commit makes it.
///
/// # Errors
/// As a commit's.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn manifest_of_parts(planned: &super::Planned, files: &[(Blob, Part)]) -> Result<Manifest> {
    let files: Vec<(&Blob, Part)> = files.iter().map(|(blob, part)| (blob, part.clone())).collect();
    manifest(&planned.spec, &files, &ObjectBlob::of(&[])?, None)
}

fn check_cover(entry: &Entry, chunks: &Chunks) -> Result<()> {
    let regions: Vec<_> = chunks.chunks.regions().collect();
    reshard::coverage::check(&entry.shape, &regions)
        .map_err(|error| Error::corrupt(error.to_string()).caused_by(error))
        .place(entry.id())
}

fn file_of(part: &Part) -> FileEntry {
    FileEntry {
        path: part.done.path.clone(),
        location: Location::InStep,
        size: part.done.size,
        blocks: Some(BlockRef { path: part.table.clone(), root: part.root }),
    }
}

fn file_id(at: usize) -> Result<FileId> {
    u32::try_from(at).map(FileId).map_err(|_| Error::incompatible("more than 2^32 files"))
}

/// Chunks of each tensor, in the order of the files.
fn chunks_of(spec: &TargetSpec, files: &[(&Blob, Part)]) -> Result<Vec<Chunks>> {
    let mut chunks = vec![Chunks::default(); spec.tensors.len()];
    for (at, (blob, _)) in files.iter().enumerate() {
        let file = file_id(at)?;
        for chunk in &blob.chunks {
            let list = chunks.get_mut(chunk.tensor).ok_or_else(|| Error::internal("a chunk of no tensor"))?;
            let region = chunk.region.clone();
            list.chunks.push(Chunk { region, file, offset: chunk.offset, strides: None, record: None });
        }
    }
    Ok(chunks)
}

/// What the parts' sums add up to, for each tensor.
fn sums_of(spec: &TargetSpec, files: &[(&Blob, Part)]) -> Result<Vec<FingerprintSum>> {
    let mut sums = vec![FingerprintSum::default(); spec.tensors.len()];
    for (_, part) in files {
        for (tensor, sum) in &part.done.sums {
            let slot = sums.get_mut(*tensor);
            *slot.ok_or_else(|| {
                Error::corrupt(format!("its part names tensor {tensor}, which the plan has not"))
            })? += *sum;
        }
    }
    Ok(sums)
}
