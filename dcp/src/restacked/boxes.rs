//! [`Boxes`]: chunks of a source as chunks of what is made of its tensors: the same bytes, in boxes of the other side.

use std::collections::HashMap;

use fqn::{Dims, Dtype, Entry};
use reshard::{Assembly, AssemblyPart, Index, Region};

use crate::{Catalog, Chunk, ChunkList, Error, Result};

/// Most chunks of all tensors that are made of others: a bound on the memory that a catalog of small boxes can take.
const MOST_CHUNKS: u64 = 1 << 24;

/// As many there may be of the smallest source. A larger one has one for so many of its bytes: real chunks are far larger.
const FEW_CHUNKS: u64 = 1 << 18;
const BYTES_OF_A_CHUNK: u64 = 64;

/// Chunks of the source below as chunks of what is made of it.
pub(super) struct Boxes<'a> {
    inner: &'a Catalog,
    /// Where the chunks of a tensor lie.
    indices: HashMap<usize, Index>,
    count: u64,
    most: u64,
}

impl<'a> Boxes<'a> {
    pub(super) fn of_source(inner: &'a Catalog) -> Self {
        let bytes = inner.file_bytes().0;
        let most = FEW_CHUNKS.saturating_add(bytes / BYTES_OF_A_CHUNK).min(MOST_CHUNKS);
        Self { inner, indices: HashMap::new(), count: 0, most }
    }

    /// The chunks of a tensor that is made so.
    ///
    /// # Errors
    /// `Unsupported` for more chunks than are kept, and for elements that can't be cut there.
    pub(super) fn of(&mut self, entry: &Entry, made: &Assembly) -> Result<ChunkList> {
        let mut list = ChunkList::with_capacity(made.shape().rank(), made.parts().len());
        for part in made.parts() {
            let below = self.inner.tensors.get(part.source);
            let below = below.ok_or_else(|| Error::internal("a tensor is made of none of its source"))?;
            let index = self.indices.entry(part.source).or_insert_with(|| {
                let regions: Vec<Region> = below.chunks.regions().collect();
                Index::new(&regions)
            });
            let met = index.meeting(&part.from);
            self.count = self.count.saturating_add(met.len() as u64);
            if self.count > self.most {
                let text = format!("stacking makes more than {} chunks of the source's", self.most);
                return Err(Error::unsupported(text)
                    .hint("reshard to a smaller mesh first, or select a part with #GLOB"));
            }
            for at in met {
                let Some(chunk) = below.chunks.get(at) else { continue };
                list.extend(carried(entry.dtype, &chunk, part).transpose()?);
            }
        }
        Ok(list)
    }
}

/// The part of a chunk that the other side has, in its coordinates; `None` where they share nothing.
fn carried(dtype: Dtype, chunk: &Chunk, part: &AssemblyPart) -> Option<Result<Chunk>> {
    let shared = chunk.region.intersect(&part.from)?;
    let made = placed(dtype, chunk, part, &shared);
    Some(made.ok_or_else(|| {
        Error::unsupported(format!(
            "a chunk of {} can't be cut there: its elements are narrower than a byte, or its numbers exceed 64 bits",
            chunk.region
        ))
    }))
}

fn placed(dtype: Dtype, chunk: &Chunk, part: &AssemblyPart, shared: &Region) -> Option<Chunk> {
    let row_major = || fqn::Shape::new(chunk.region.extents()).row_major_strides();
    let strides = chunk.strides.clone().or_else(row_major)?;
    let skipped = shared.offsets().iter().zip(chunk.region.offsets()).zip(&strides);
    let mut skipped = skipped.map(|((at, base), stride)| at.checked_sub(*base)?.checked_mul(*stride));
    let skipped = skipped.try_fold(0_u64, |sum, skip| sum.checked_add(skip?))?;
    let offset = chunk.offset.checked_add(dtype.bytes_for(skipped)?)?;
    // Dimensions of extent 1 come and go; the others keep their order.
    let mut kept = strides.iter().zip(part.from.extents()).filter(|(_, extent)| **extent != 1);
    let own = part
        .to
        .extents()
        .iter()
        .map(|extent| if *extent == 1 { Some(1) } else { kept.next().map(|(it, _)| *it) });
    let strides = own.collect::<Option<Dims>>()?;
    let region = part.forward(shared)?;
    let made = Chunk { region, file: chunk.file, offset, strides: Some(strides), record: chunk.record };
    Some(if made.is_packed() { Chunk { strides: None, ..made } } else { made })
}
