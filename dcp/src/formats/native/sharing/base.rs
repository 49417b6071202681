//! [`Base`]: the earlier checkpoint that a save may refer to, and whether it holds a box.
//!
//! The rule: an original is believed when it was read just now, each of its blocks proven by its SHA-256, and its bytes are those
//! that were put. A recorded fingerprint alone is never enough: the blob may have rotted since. It serves to know *changed*
//! boxes, where a box is a whole tensor, without reading any.
//!
//! Cost: of a box that is unchanged, one read and one SHA-256 of the blocks that it lies in, in place of one SHA-256 and one
//! write. Of one that changed, the blocks around its first 256 KiB in nearly all cases; its first difference at worst.

use fqn::{Dims, Entry};
use reshard::{Region, flat::tiles};
use serde::{Deserialize, Serialize};

use super::{note::SharedFile, view::View};
use crate::{
    Chunk, Error, Location, Result, Source,
    commit::{Log, Seq},
    engine::{RegionReader, Verify},
    fingerprint::FingerprintSum,
    formats::native::{NativeSource, open::base_of},
    store::Root,
};

/// Bytes of a box that are compared before the rest is read.
const PROBE: u64 = 256 << 10;

/// Bytes that are compared at a time.
const TILE: u64 = 4 << 20;

/// The earlier checkpoint that a save may refer to.
#[derive(Debug)]
pub(crate) struct Base {
    source: NativeSource,
    /// Boxes below so many bytes are not looked for.
    least: u64,
}

/// A part of a box, and where its bytes lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(super) file: SharedFile,
    pub(super) piece: Piece,
}

/// A box of a tensor within a blob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Piece {
    pub(crate) region: Region,
    /// Byte of its first element.
    pub(crate) offset: u64,
    /// In elements; none where it is packed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) strides: Option<Vec<u64>>,
}

impl Base {
    /// Opens the checkpoint that a record committed; `None` when it was retired.
    ///
    /// # Errors
    /// `Corrupt` where its manifest is missing or damaged; the store's.
    pub(crate) fn open(root: &Root, log: &Log, seq: Seq, least: u64) -> Result<Option<Self>> {
        let Some(checkpoint) = log.state().checkpoints.get(&seq) else { return Ok(None) };
        Ok(Some(Self { source: base_of(root, seq, checkpoint)?, least }))
    }

    /// Where the checkpoint holds exactly these bytes as this box of this tensor; `None` where it does not.
    ///
    /// # Errors
    /// `Corrupt`, file and box named, where what it holds is damaged or missing; the store's.
    pub(crate) fn find(
        &self,
        entry: &Entry,
        region: &Region,
        bytes: &[u8],
        sum: FingerprintSum,
    ) -> Result<Option<Vec<Found>>> {
        let Some((before, chunks)) = self.chunks(entry, region).filter(|_| bytes.len() as u64 >= self.least)
        else {
            return Ok(None);
        };
        let whole = region.extents() == &entry.shape[..];
        let known = self.source.catalog().registry.position(&entry.id());
        let known = known.and_then(|at| self.source.catalog().tensors.get(at)?.fingerprint);
        if whole && known.is_some_and(|known| known != sum.finish(entry.dtype, &entry.shape)) {
            return Ok(None);
        }
        let Some(found) = self.pieces(entry, region, &chunks)? else { return Ok(None) };
        let same = self.holds(before, &chunks, region, bytes)?;
        Ok(same.then_some(found))
    }

    /// The tensor as the base has it, and its chunks that hold any of a box; `None` where it has no such tensor.
    fn chunks(&self, entry: &Entry, region: &Region) -> Option<(&Entry, Vec<Chunk>)> {
        let catalog = self.source.catalog();
        let at = catalog.registry.position(&entry.id())?;
        let before = catalog.registry.entries().get(at)?;
        if before.dtype != entry.dtype || before.shape != entry.shape {
            return None;
        }
        let chunks = catalog.tensors.get(at)?.chunks.iter();
        let meeting = chunks.filter(|chunk| chunk.region.intersect(region).is_some());
        Some((before, meeting.collect()))
    }

    /// The parts of a box that chunks hold; `None` where one of them can't be referred to.
    fn pieces(&self, entry: &Entry, region: &Region, chunks: &[Chunk]) -> Result<Option<Vec<Found>>> {
        let (mut found, mut elements) = (Vec::with_capacity(chunks.len()), 0_u64);
        for chunk in chunks {
            let Some(file) = self.file(chunk)? else { return Ok(None) };
            let Some(piece) = piece_of(entry, chunk, region) else { return Ok(None) };
            elements = elements.saturating_add(piece.region.elements());
            found.push(Found { file, piece });
        }
        Ok((elements == region.elements()).then_some(found))
    }

    /// The blob of a chunk, named from the root; `None` for files that lie outside, or that nothing proves.
    fn file(&self, chunk: &Chunk) -> Result<Option<SharedFile>> {
        let entry = self.source.catalog().file(chunk.file)?;
        let Some(blocks) = &entry.blocks else { return Ok(None) };
        let below = |path: &str| match &entry.location {
            Location::InStep => Some(format!("{}/{path}", self.source.dir)),
            Location::InRoot => Some(path.to_owned()),
            Location::External { .. } => None,
        };
        let file = below(&entry.path).zip(below(&blocks.path));
        Ok(file.map(|(path, table)| SharedFile {
            path,
            size: entry.size,
            logical: entry.logical,
            table,
            root: blocks.root,
        }))
    }

    /// Whether the base has these bytes there.
    fn holds(&self, entry: &Entry, chunks: &[Chunk], region: &Region, bytes: &[u8]) -> Result<bool> {
        let view = View::new(&self.source, entry, chunks)?;
        let reader = RegionReader::new(&view, Verify::Records);
        let mut buffer = Vec::new();
        let mut same = |tile: &Region, wanted: &[u8]| {
            buffer.resize(wanted.len(), 0);
            reader.read_into(0, tile, &mut buffer)?;
            Ok::<_, Error>(buffer == wanted)
        };
        let Some(width) = entry.dtype.element_bytes() else {
            // Elements narrower than a byte can't be cut just anywhere.
            return same(region, bytes);
        };
        let cut = |most: u64| tiles(region, (most / width).max(1));
        if let Some(first) = cut(PROBE).next() {
            let (probe, _) = split(bytes, &first, width)?;
            if !same(&first, probe)? {
                return Ok(false);
            }
        }
        let mut rest = bytes;
        for tile in cut(TILE) {
            let (now, later) = split(rest, &tile, width)?;
            if !same(&tile, now)? {
                return Ok(false);
            }
            rest = later;
        }
        Ok(rest.is_empty())
    }
}

/// The bytes of a tile, which begin the rest of its box.
fn split<'b>(bytes: &'b [u8], tile: &Region, width: u64) -> Result<(&'b [u8], &'b [u8])> {
    let len = usize::try_from(tile.elements().saturating_mul(width)).unwrap_or(usize::MAX);
    bytes.split_at_checked(len).ok_or_else(|| Error::internal(format!("{tile} is longer than its box")))
}

/// What a chunk holds of a box; `None` where that can't be said in offset and strides.
fn piece_of(entry: &Entry, chunk: &Chunk, region: &Region) -> Option<Piece> {
    let shared = chunk.region.intersect(region)?;
    if chunk.record.is_some() {
        return None;
    }
    let packed = fqn::Shape::new(chunk.region.extents()).row_major_strides()?;
    if shared == chunk.region {
        let strides = chunk.strides.as_ref().filter(|_| !chunk.is_packed()).map(|it| it.to_vec());
        return Some(Piece { region: shared, offset: chunk.offset, strides });
    }
    let width = entry.dtype.element_bytes()?;
    let strides: Dims = chunk.strides.clone().unwrap_or(packed);
    let mut offset = chunk.offset;
    for ((at, base), stride) in shared.offsets().iter().zip(chunk.region.offsets()).zip(&strides) {
        offset = offset.checked_add((at - base).checked_mul(*stride)?.checked_mul(width)?)?;
    }
    let cut = Chunk { region: shared, file: chunk.file, offset, strides: Some(strides), record: None };
    let strides = (!cut.is_packed()).then(|| cut.strides.iter().flatten().copied().collect());
    Some(Piece { region: cut.region, offset, strides })
}

#[cfg(test)]
mod tests {
    use fqn::{Dtype, Fqn, Role, Shape};

    use super::*;
    use crate::FileId;

    fn chunk(offsets: &[u64], extents: &[u64], strides: Option<&[u64]>) -> Chunk {
        let region = Region::new(offsets, extents).unwrap();
        let strides = strides.map(Dims::from_slice);
        Chunk { region, file: FileId(0), offset: 100, strides, record: None }
    }

    fn piece(
        dtype: Dtype,
        chunk: &Chunk,
        offsets: &[u64],
        extents: &[u64],
    ) -> Option<(u64, Option<Vec<u64>>)> {
        let entry = Entry::new(Fqn::new("w").unwrap(), Role::Param, dtype, Shape::new(&[8, 8]));
        piece_of(&entry, chunk, &Region::new(offsets, extents).unwrap()).map(|it| (it.offset, it.strides))
    }

    #[test]
    fn a_cut_of_rows_stays_packed_and_a_cut_of_columns_gets_strides() {
        let whole = chunk(&[0, 0], &[8, 8], None);
        assert_eq!(piece(Dtype::F32, &whole, &[2, 0], &[3, 8]), Some((100 + 2 * 32, None)));
        assert_eq!(piece(Dtype::F32, &whole, &[0, 4], &[8, 4]), Some((116, Some(vec![8, 1]))));
        assert_eq!(piece(Dtype::BF16, &whole, &[7, 6], &[1, 2]), Some((100 + 2 * 62, None)));
        let part = chunk(&[4, 2], &[4, 4], None);
        assert_eq!(piece(Dtype::F32, &part, &[0, 0], &[6, 4]), Some((100, Some(vec![4, 1]))));
        assert_eq!(piece(Dtype::F32, &part, &[5, 0], &[1, 8]), Some((116, None)));
        assert_eq!(piece(Dtype::F32, &part, &[0, 0], &[8, 8]), Some((100, None)));
    }

    #[test]
    fn a_piece_of_a_piece_points_into_the_first_blob() {
        let columns = chunk(&[0, 4], &[8, 4], Some(&[8, 1]));
        assert_eq!(piece(Dtype::F32, &columns, &[2, 0], &[2, 6]), Some((100 + 64, Some(vec![8, 1]))));
        assert_eq!(piece(Dtype::F32, &columns, &[0, 0], &[8, 8]), Some((100, Some(vec![8, 1]))));
    }

    #[test]
    fn elements_narrower_than_a_byte_are_referred_to_by_whole_chunks_only() {
        let whole = chunk(&[0, 0], &[8, 8], None);
        assert_eq!(piece(Dtype::F6E2M3, &whole, &[0, 0], &[8, 8]), Some((100, None)));
        assert_eq!(piece(Dtype::F6E2M3, &whole, &[0, 0], &[4, 8]), None);
    }
}
