//! Tensors put together from the headers of one or several files.
//!
//! A tensor may be whole in one file, or, as torch's `HuggingFaceStorageWriter` saves it, one box in each of several
//! files, placed by a JSON text in `__metadata__` (`DCP_SHARDING_INFO`: name → `saved_offsets`). Those files do not
//! say how large the whole is: extents are then the smallest that hold every box, and a lost last shard can't be seen.

use std::collections::HashMap;

use fqn::{Dims, Dtype, Entry, Fqn, Role, Shape, state_dict::is_buffer_name};
use reshard::Region;
use serde::Deserialize;

use super::{Header, TensorInfo};
use crate::{Chunk, Chunks, Error, FileId, Result};

/// Key of the text that places boxes.
const SHARDING_INFO: &str = "DCP_SHARDING_INFO";

/// A header that was read, and the file it is of.
#[derive(Debug, Clone)]
pub(crate) struct FileHeader {
    /// The file.
    pub(crate) file: FileId,
    /// Its name, for messages.
    pub(crate) path: String,
    /// Its header.
    pub(crate) header: Header,
}

/// Tensors of a set of files.
#[derive(Debug, Default)]
pub(crate) struct Assembled {
    /// Entries with their chunks, in order of first appearance.
    pub(crate) tensors: Vec<(Entry, Chunks)>,
    /// Names whose extents were inferred from boxes.
    pub(crate) inferred: Vec<Fqn>,
}

#[derive(Debug, Deserialize)]
struct Saved {
    saved_offsets: Dims,
}

struct Piece<'a> {
    info: &'a TensorInfo,
    offsets: Option<Dims>,
    file: &'a FileHeader,
}

/// Puts the tensors of `files` together.
///
/// # Errors
/// A name that is whole in two files, boxes of different dtypes or ranks, a sharding text that is no such text.
pub(crate) fn assemble(files: &[FileHeader]) -> Result<Assembled> {
    let (mut order, mut by_name) = (Vec::new(), HashMap::<&Fqn, Vec<Piece<'_>>>::new());
    for file in files {
        let mut boxes = sharding_info(file)?;
        for info in &file.header.tensors {
            let pieces = by_name.entry(&info.name).or_insert_with(|| {
                order.push(&info.name);
                Vec::new()
            });
            pieces.push(Piece { info, offsets: boxes.remove(info.name.as_str()), file });
        }
    }
    let mut assembled = Assembled::default();
    for name in order {
        let pieces = by_name.remove(name).unwrap_or_default();
        if pieces.iter().any(|piece| piece.offsets.is_some()) {
            assembled.inferred.push(name.clone());
        }
        assembled.tensors.push(join(name, &pieces)?);
    }
    Ok(assembled)
}

fn sharding_info(file: &FileHeader) -> Result<HashMap<String, Dims>> {
    let Some(text) = file.header.metadata(SHARDING_INFO) else { return Ok(HashMap::new()) };
    let saved: HashMap<String, Saved> = serde_json::from_str(text).map_err(|error| {
        Error::corrupt(format!("{}: {SHARDING_INFO} is not understood: {error}", file.path))
    })?;
    Ok(saved.into_iter().map(|(name, saved)| (name, saved.saved_offsets)).collect())
}

fn join(name: &Fqn, pieces: &[Piece<'_>]) -> Result<(Entry, Chunks)> {
    let Some(first) = pieces.first() else { return Err(Error::internal(format!("{name} has no piece"))) };
    let (dtype, rank) = (first.info.dtype, first.info.shape.rank());
    let (mut extents, mut chunks) = (Dims::from_elem(0, rank), Vec::with_capacity(pieces.len()));
    for piece in pieces {
        check_alike(name, first, piece)?;
        let whole = Dims::from_elem(0, piece.info.shape.rank());
        let offsets = piece.offsets.as_ref().unwrap_or(&whole);
        let region = Region::new(offsets, &piece.info.shape)
            .map_err(|error| Error::corrupt(format!("{}: {name}: {error}", piece.file.path)))?;
        for (extent, (offset, len)) in extents.iter_mut().zip(region.offsets().iter().zip(region.extents())) {
            *extent = (*extent).max(offset.saturating_add(*len));
        }
        chunks.push(Chunk {
            region,
            file: piece.file.file,
            offset: piece.info.offset,
            strides: None,
            record: None,
        });
    }
    Ok((entry(name, dtype, Shape::from(extents)), Chunks { chunks: chunks.into(), fingerprint: None }))
}

fn check_alike(name: &Fqn, first: &Piece<'_>, piece: &Piece<'_>) -> Result<()> {
    let (a, b) = (&first.file.path, &piece.file.path);
    if !std::ptr::eq(first, piece) && piece.offsets.is_none() {
        let text = format!("{name} is in {a} and again in {b}, with nothing to say how they belong together");
        return Err(Error::corrupt(text).hint("two checkpoints in one folder? move one of the files away"));
    }
    let alike = piece.info.dtype == first.info.dtype && piece.info.shape.rank() == first.info.shape.rank();
    if alike {
        return Ok(());
    }
    let (x, y) = (first.info, piece.info);
    Err(Error::corrupt(format!(
        "{name} is {} {} in {a} but {} {} in {b}",
        x.dtype, x.shape, y.dtype, y.shape
    )))
}

/// The entry of a model's tensor.
fn entry(name: &Fqn, dtype: Dtype, shape: Shape) -> Entry {
    let role = if is_buffer_name(name.as_str(), shape.rank()) { Role::Buffer } else { Role::Param };
    Entry::new(name.clone(), role, dtype, shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(id: u32, tensors: &[(&str, &[u64])], saved: Option<&str>) -> FileHeader {
        let mut builder = super::super::HeaderBuilder::new();
        for (name, shape) in tensors {
            builder.tensor(*name, Dtype::F32, &Shape::new(shape)).unwrap();
        }
        if let Some(saved) = saved {
            builder.metadata(SHARDING_INFO, saved);
        }
        let placed = builder.finish().unwrap();
        let mut bytes = placed.bytes;
        bytes.resize(usize::try_from(placed.file_size).unwrap(), 0);
        FileHeader {
            file: FileId(id),
            path: format!("{id}.safetensors"),
            header: Header::read(&bytes).unwrap(),
        }
    }

    #[test]
    fn boxes_in_several_files_make_one_tensor_of_inferred_extents() {
        let a = header(0, &[("w", &[2, 4])], Some(r#"{"w":{"saved_offsets":[0,0]}}"#));
        let b = header(1, &[("w", &[1, 4])], Some(r#"{"w":{"saved_offsets":[2,0]}}"#));
        let made = assemble(&[a, b]).unwrap();
        let (entry, chunks) = &made.tensors[0];
        assert_eq!(entry.shape, Shape::new(&[3, 4]));
        assert_eq!(chunks.chunks.get(1).unwrap().region, Region::new(&[2, 0], &[1, 4]).unwrap());
        assert_eq!((made.inferred.len(), chunks.chunks.get(1).unwrap().file), (1, FileId(1)));
    }

    #[test]
    fn a_name_that_is_whole_twice_is_refused_with_both_files() {
        let (a, b) = (header(0, &[("w", &[2])], None), header(1, &[("w", &[2])], None));
        let text = assemble(&[a, b]).unwrap_err().to_string();
        assert!(text.contains("0.safetensors") && text.contains("1.safetensors"), "{text}");
    }

    #[test]
    fn boxes_of_another_rank_or_beyond_64_bits_are_refused() {
        let a = header(0, &[("w", &[2, 4])], Some(r#"{"w":{"saved_offsets":[0]}}"#));
        assert!(assemble(&[a]).unwrap_err().to_string().contains("1 offsets but 2 extents"));
        let b = header(0, &[("w", &[2])], Some(r#"{"w":{"saved_offsets":[18446744073709551615]}}"#));
        assert!(assemble(&[b]).is_err());
        let c = header(0, &[("w", &[2])], Some(r#"{"w":3}"#));
        assert!(assemble(&[c]).unwrap_err().to_string().contains("DCP_SHARDING_INFO is not understood"));
    }
}
