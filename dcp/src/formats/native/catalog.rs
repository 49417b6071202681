//! The catalog of what a sink wrote, from the spec, the layout and what the parts say.

use std::{collections::HashMap, ops::Range};

use fqn::{Dims, Entry};

use super::{objects::ObjectBlob, part::Part, planned::Finished, sharing::SharedBox};
use crate::{
    BlockRef, Catalog, Chunk, ChunkList, Chunks, Error, FileEntry, FileId, Format, Location, Place, Result,
    TargetSpec, TargetTensor,
    cores::{self, Spread},
    fingerprint::FingerprintSum,
    manifest::{Manifest, Origin},
};

/// Most threads that collect chunks: each looks at all of them.
const MOST_SHARES: usize = 4;

/// Checks that chunks tile every tensor, and returns the manifest. Its files are those of the attempt, then those of others that
/// are referred to.
///
/// # Errors
/// `Corrupt` for tensors that are not tiled, `Internal` for parts that name no tensor of the spec.
pub(super) fn manifest(
    spec: &TargetSpec,
    finished: &Finished<'_>,
    objects: &ObjectBlob,
    origin: Option<Origin>,
) -> Result<Manifest> {
    let mut catalog = Catalog::new(Format::Native);
    catalog.variant = "native store, version 1".to_owned();
    catalog.files = finished.files.iter().map(|(_, part)| file_of(part)).collect();
    let last = file_id(catalog.files.len().saturating_sub(1))?;
    let mut chunks = chunks_of(spec, finished)?;
    refer(&mut catalog.files, &mut chunks, finished)?;
    let sums = sums_of(spec, finished)?;
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
    let coded = catalog.files.iter().any(FileEntry::is_coded) && !spec.codecs.is_none();
    catalog.codecs = coded.then(|| spec.codecs.to_string());
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
pub(crate) fn manifest_of_parts(
    planned: &super::Planned,
    files: &[(super::layout::Blob, Part)],
) -> Result<Manifest> {
    let files = files.iter().map(|(blob, part)| (std::borrow::Cow::Borrowed(blob), part.clone())).collect();
    manifest(&planned.spec, &Finished { files, shared: Vec::new() }, &ObjectBlob::of(&[])?, None)
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
        logical: part.done.logical,
        blocks: Some(BlockRef { path: part.table.clone(), root: part.root }),
    }
}

fn file_id(at: usize) -> Result<FileId> {
    u32::try_from(at).map(FileId).map_err(|_| Error::incompatible("more than 2^32 files"))
}

/// Chunks of each tensor, in the order of the files: each thread looks at all files, for a share of the tensors.
fn chunks_of(spec: &TargetSpec, finished: &Finished<'_>) -> Result<Vec<Chunks>> {
    let count = spec.tensors.len();
    let shares = cores::count().min(MOST_SHARES);
    let share = count.div_ceil(shares).max(1);
    let spread = Spread { batch: 1, alone: 1, others: shares - 1, caller_works: true };
    let each = spread.try_map(shares, |at| {
        let first = (at * share).min(count);
        share_of_chunks(spec, finished, first..(first + share).min(count))
    })?;
    Ok(each.into_iter().flatten().collect())
}

fn share_of_chunks(spec: &TargetSpec, finished: &Finished<'_>, share: Range<usize>) -> Result<Vec<Chunks>> {
    let room = |tensor: &TargetTensor| {
        let chunks = ChunkList::with_capacity(tensor.entry.shape.rank(), tensor.regions.len());
        Chunks { fingerprint: None, chunks }
    };
    let mut chunks: Vec<Chunks> =
        spec.tensors.get(share.clone()).unwrap_or_default().iter().map(room).collect();
    for (at, (blob, _)) in finished.files.iter().enumerate() {
        let file = file_id(at)?;
        for chunk in &blob.chunks {
            if chunk.tensor >= spec.tensors.len() {
                return Err(Error::internal("a chunk of no tensor"));
            }
            let Some(list) = chunk.tensor.checked_sub(share.start).and_then(|at| chunks.get_mut(at)) else {
                continue;
            };
            let region = chunk.region.clone();
            list.chunks.push(Chunk { region, file, offset: chunk.offset, strides: None, record: None });
        }
    }
    Ok(chunks)
}

/// Adds the chunks that lie in blobs of other attempts, and these blobs, each once.
fn refer(files: &mut Vec<FileEntry>, chunks: &mut [Chunks], finished: &Finished<'_>) -> Result<()> {
    let mut known: HashMap<String, FileId> = HashMap::new();
    for shared in &finished.shared {
        let mut ids = Vec::with_capacity(shared.files.len());
        for file in &shared.files {
            let id = match known.get(&file.path) {
                Some(id) => *id,
                None => {
                    let id = file_id(files.len())?;
                    files.push(file.clone());
                    known.insert(file.path.clone(), id);
                    id
                }
            };
            if usize::try_from(id.0).ok().and_then(|at| files.get(at)) != Some(file) {
                return Err(Error::corrupt(format!(
                    "{}: ranks refer to it and disagree on what it is",
                    file.path
                )));
            }
            ids.push(id);
        }
        for SharedBox { tensor, pieces, .. } in &shared.boxes {
            let list = chunks.get_mut(*tensor).ok_or_else(|| Error::internal("a box of no tensor"))?;
            for (file, piece) in pieces {
                let file = usize::try_from(*file).ok().and_then(|at| ids.get(at)).copied();
                let file = file.ok_or_else(|| Error::internal("a piece in no file"))?;
                let (region, strides) =
                    (piece.region.clone(), piece.strides.as_deref().map(Dims::from_slice));
                list.chunks.push(Chunk { region, file, offset: piece.offset, strides, record: None });
            }
        }
    }
    Ok(())
}

/// What the sums of parts and notes add up to, for each tensor.
fn sums_of(spec: &TargetSpec, finished: &Finished<'_>) -> Result<Vec<FingerprintSum>> {
    let mut sums = vec![FingerprintSum::default(); spec.tensors.len()];
    let written = finished.files.iter().flat_map(|(_, part)| part.done.sums.iter().copied());
    let boxes = finished.shared.iter().flat_map(|shared| &shared.boxes);
    for (tensor, sum) in written.chain(boxes.map(|it| (it.tensor, it.sum))) {
        let slot = sums.get_mut(tensor);
        *slot.ok_or_else(|| {
            Error::corrupt(format!("its part names tensor {tensor}, which the plan has not"))
        })? += sum;
    }
    Ok(sums)
}
