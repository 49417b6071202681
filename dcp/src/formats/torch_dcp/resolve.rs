//! From a piece's entry in a file to the place of its bytes: payload offset, strides, checksum.
//!
//! Entries are resolved in batches of one file each, so that their ends are read together; batches run in parallel.

use std::sync::Arc;

use fqn::{Dims, Dtype};
use reshard::Region;

use super::{archive, inflate::Inflated, metadata::StorageInfo, windows::Windows};
use crate::{
    CrcRecord, Error, FileId, Result,
    formats::{blobs::Blobs, parallel, safetensors::Header},
    read_at::{FileAt, ReadAt, Section},
};

/// Entries resolved together.
const BATCH: usize = 256;

/// What an archive may hold beside its payload: pickle, records, directory.
const ARCHIVE_EXTRA: u64 = 1 << 20;

/// A piece of a tensor or a value that is to be found.
#[derive(Debug, Clone)]
pub(super) struct Wanted<'a> {
    /// Flat key.
    pub(super) key: &'a str,
    /// Where the metadata says it is.
    pub(super) info: &'a StorageInfo,
    /// That file.
    pub(super) file: FileId,
    /// Dtype and box of a tensor's piece; `None` for a value.
    pub(super) tensor: Option<(Dtype, &'a Region)>,
}

/// Where a piece was found.
#[derive(Debug)]
pub(super) enum Found {
    /// A tensor's bytes.
    Tensor(Placed),
    /// A value, whole.
    Value(Vec<u8>),
}

/// The place of a tensor's bytes.
#[derive(Debug)]
pub(super) struct Placed {
    /// Offset of the first element, in the file or in `inflated`.
    pub(super) offset: u64,
    /// Strides, unless packed.
    pub(super) strides: Option<Dims>,
    /// The checksummed record.
    pub(super) record: Option<CrcRecord>,
    /// The inflated entry, where it is stored compressed.
    pub(super) inflated: Option<Arc<Inflated>>,
}

/// Finds every piece; one result for each, in order.
///
/// # Errors
/// Only `Internal` ones: what is wrong with a piece is in its own result.
pub(super) fn resolve(blobs: &Blobs, wanted: &[Wanted<'_>]) -> Result<Vec<Result<Found>>> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by_key(|at| wanted.get(*at).map(|piece| (piece.file, piece.info.offset)));
    let at = |index: &usize| wanted.get(*index).map(|piece| piece.file);
    let batches: Vec<&[usize]> =
        order.chunk_by(|a, b| at(a) == at(b)).flat_map(|of_file| of_file.chunks(BATCH)).collect();
    let work = |batch: &&[usize]| {
        let pieces: Vec<&Wanted<'_>> = batch.iter().filter_map(|index| wanted.get(*index)).collect();
        Ok(resolve_batch(blobs, &pieces))
    };
    let mut found: Vec<(usize, Result<Found>)> = Vec::with_capacity(wanted.len());
    for (batch, results) in batches.iter().zip(parallel::map(&batches, work)?) {
        found.extend(batch.iter().copied().zip(results));
    }
    found.sort_by_key(|(index, _)| *index);
    Ok(found.into_iter().map(|(_, result)| result).collect())
}

fn resolve_batch(blobs: &Blobs, pieces: &[&Wanted<'_>]) -> Vec<Result<Found>> {
    let opened = pieces.first().map(|piece| open(blobs, piece.file, pieces)).transpose();
    match opened {
        Ok(Some(file)) => {
            pieces.iter().map(|piece| find(&file, piece).map_err(|error| error.at(place(piece)))).collect()
        }
        Ok(None) => Vec::new(),
        Err(error) => {
            let again = |piece: &&Wanted<'_>| Err(Error::new(error.kind(), error.to_string()).at(piece.key));
            pieces.iter().map(again).collect()
        }
    }
}

fn place(piece: &Wanted<'_>) -> String {
    format!("{} (bytes {}..{} of {})", piece.key, piece.info.offset, end(piece.info), piece.info.path)
}

pub(super) fn end(info: &StorageInfo) -> u64 {
    info.offset.saturating_add(info.length)
}

/// A file of entries, and, where it is no such file, the safetensors header that it has instead.
struct Opened {
    windows: Arc<Windows>,
    header: Option<Header>,
}

fn open(blobs: &Blobs, file: FileId, pieces: &[&Wanted<'_>]) -> Result<Opened> {
    let handle = blobs.open(file)?;
    let header = safetensors_header(&handle, pieces);
    let entries = pieces.iter().map(|piece| (piece.info.offset, piece.info.length));
    Ok(Opened { windows: Arc::new(Windows::of_entries(handle, entries)?), header })
}

/// `SerializationFormat.SAFETENSORS` makes the whole file one safetensors file, after the values' archives if there are any.
fn safetensors_header(file: &Arc<FileAt>, pieces: &[&Wanted<'_>]) -> Option<Header> {
    let tensor = pieces.iter().find(|piece| piece.tensor.is_some() && piece.info.transforms.is_empty())?;
    let mut magic = [0; 4];
    file.read_exact_at(tensor.info.offset, &mut magic).ok()?;
    if magic.starts_with(archive::MAGIC) {
        return None;
    }
    Header::read(file).ok()
}

fn find(file: &Opened, piece: &Wanted<'_>) -> Result<Found> {
    if let (Some(header), Some((dtype, region))) = (&file.header, piece.tensor) {
        return in_safetensors(header, piece.key, dtype, region).map(Found::Tensor);
    }
    let section =
        Section::new(Arc::clone(&file.windows) as Arc<dyn ReadAt>, piece.info.offset, piece.info.length)
            .map_err(|_| cut(piece, file.windows.len()))?;
    match piece.info.transforms.as_slice() {
        [] => in_archive(Arc::new(section), piece, piece.info.offset, None),
        [zstd] if zstd.split('/').next() == Some("stream.zstd") => {
            let payload = piece.tensor.and_then(|(dtype, region)| dtype.bytes_for(region.elements()));
            // Strided storage may be larger than the box; a value's size is known to nobody.
            let most = payload.map_or(1 << 30, |bytes| bytes.saturating_mul(2)).saturating_add(ARCHIVE_EXTRA);
            let inflated = Inflated::new(section, most).map_err(Error::from)?;
            let shared = Arc::new(inflated);
            in_archive(shared.clone(), piece, 0, Some(shared))
        }
        other => {
            Err(Error::unsupported(format!("stored through {other:?}, of which only stream.zstd is read"))
                .hint("load and save it with the extension that wrote it, without transforms"))
        }
    }
}

fn cut(piece: &Wanted<'_>, len: u64) -> Error {
    let text = format!("ends at byte {}, but the file has {len}", end(piece.info));
    Error::corrupt(text)
        .hint("the file is cut short, or of another save; `ckpt verify` lists everything affected")
}

/// Reads an archive that begins at `base` of its file.
fn in_archive(
    source: Arc<dyn ReadAt>,
    piece: &Wanted<'_>,
    base: u64,
    inflated: Option<Arc<Inflated>>,
) -> Result<Found> {
    let Some((dtype, region)) = piece.tensor else {
        let len =
            usize::try_from(source.len()).map_err(|_| Error::unsupported("a value larger than memory"))?;
        let mut bytes = vec![0; len];
        source.read_exact_at(0, &mut bytes)?;
        return Ok(Found::Value(bytes));
    };
    let stored = archive::tensor(source)?;
    if stored.dtype != dtype || &*stored.shape != region.extents() {
        let text = format!(
            "holds {} of shape {}, the metadata says {dtype} of shape {}",
            stored.dtype,
            stored.shape,
            fqn::Shape::new(region.extents())
        );
        return Err(Error::corrupt(text)
            .hint("the blob is of another save than the metadata, or entries were swapped"));
    }
    let first = stored.payload.offset.checked_add(stored.skip);
    let offset = first
        .and_then(|first| first.checked_add(base))
        .ok_or_else(|| Error::corrupt("offsets beyond 64 bits"))?;
    let record = stored.payload.crc32.map(|crc32| CrcRecord {
        offset: stored.payload.offset.saturating_add(base),
        len: stored.payload.len,
        crc32,
    });
    Ok(Found::Tensor(Placed { offset, strides: stored.strides, record, inflated }))
}

fn in_safetensors(header: &Header, key: &str, dtype: Dtype, region: &Region) -> Result<Placed> {
    let info = header.tensors.iter().find(|info| info.name.as_str() == key);
    let info = info.ok_or_else(|| Error::corrupt("the safetensors file has no tensor of this name"))?;
    if info.dtype != dtype || &*info.shape != region.extents() {
        let text =
            format!("holds {} of shape {}, the metadata says {dtype} {region}", info.dtype, info.shape);
        return Err(Error::corrupt(text)
            .hint("torch's safetensors writer keeps one chunk of a tensor per file and loses the others"));
    }
    Ok(Placed { offset: info.offset, strides: None, record: None, inflated: None })
}
