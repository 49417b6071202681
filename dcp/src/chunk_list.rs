//! [`ChunkList`]: the chunks of one tensor, kept as the packed column that the manifest holds.
//!
//! ```text
//!  column: count u32, columns u32, then `count` records of one size
//!  record: file u32, flags u32, offset u64, region offsets r × u64, region extents r × u64,
//!          strides r × u64                             only where bit 0 of `columns` is set
//!          CRC record: offset u64, length u64, CRC-32 u32, zero u32     only where bit 1 of `columns` is set
//! ```
//!
//! `r` is the tensor's rank; everything is little-endian. Bit 0 of a record's flags says that its strides are meant, bit 1 that its
//! CRC record is; what isn't meant is zero. `columns` is the union of the flags. So a list of chunks has one encoding.
//!
//! A checkpoint of two million shards has two million of these records: 48 bytes each as they lie here, four times as many as
//! [`Chunk`]s. So a list stays packed, and whoever walks it gets chunks made on the way, one at a time.
//!
//! # Invariants
//!
//! * Every record of a list is a chunk: what [`ChunkList::from_packed`] is given is checked there and then, in one pass over its
//!   numbers that builds nothing. Nothing is left to fail when chunks are made later.
//! * What no column can hold (boxes of different ranks in one list, as only a broken foreign checkpoint has them) is kept as
//!   chunks, so that a list always gives back what was put into it.

use std::{borrow::Cow, fmt};

use reshard::Region;

use crate::{Chunk, FileId};

mod column;

use column::{CRC, Columns, HEADER_LEN, Record, Records, STRIDES, flags_of};

/// The chunks of one tensor. Walking it makes [`Chunk`]s on the way.
#[derive(Clone)]
pub struct ChunkList(Form);

#[derive(Clone)]
enum Form {
    /// The column; without its header while there are no chunks.
    Packed {
        form: Columns,
        column: Vec<u8>,
    },
    Loose(Vec<Chunk>),
}

impl ChunkList {
    /// An empty list with room for `count` chunks of a tensor of this rank.
    #[must_use]
    pub fn with_capacity(rank: usize, count: usize) -> Self {
        let form = Columns { rank, bits: 0 };
        let column = Vec::with_capacity(HEADER_LEN + form.bytes() * count);
        Self(Form::Packed { form, column })
    }

    /// The list in a packed column of a tensor of this rank.
    ///
    /// # Errors
    /// What is wrong with the column, in a sentence: a length that isn't the sum of its records, columns that aren't known or
    /// that no record uses, numbers that overflow.
    pub fn from_packed(rank: usize, column: Vec<u8>) -> Result<Self, String> {
        let Some((header, body)) = column.split_first_chunk::<HEADER_LEN>() else {
            return Err(format!("{} bytes are no list of chunks", column.len()));
        };
        let [count, bits] = halves(header);
        if bits & !(STRIDES | CRC) != 0 {
            return Err(format!("chunks have columns {bits:#x}, of which not all are known"));
        }
        let form = Columns { rank, bits };
        let len = form.bytes();
        if u64::from(count).checked_mul(len as u64) != Some(body.len() as u64) {
            return Err(format!("{count} chunks of {len} bytes in {} bytes", body.len()));
        }
        let mut used = 0;
        for (n, record) in form.records(&column).enumerate() {
            record.check().map_err(|why| format!("chunk {n}: {why}"))?;
            used |= record.flags();
        }
        if used != bits {
            return Err("a column that no chunk uses".to_owned());
        }
        Ok(Self(Form::Packed { form, column }))
    }

    /// The packed column; `None` for what no column can hold.
    #[must_use]
    pub fn packed(&self) -> Option<Cow<'_, [u8]>> {
        match &self.0 {
            Form::Packed { column, .. } if column.is_empty() => Some(Cow::Owned(vec![0; HEADER_LEN])),
            Form::Packed { column, .. } => Some(Cow::Borrowed(column)),
            Form::Loose(_) => None,
        }
    }

    /// Number of chunks.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Form::Packed { form, column } => form.records(column).len(),
            Form::Loose(chunks) => chunks.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The chunk at a position.
    #[must_use]
    pub fn get(&self, at: usize) -> Option<Chunk> {
        self.iter().nth(at)
    }

    /// The chunks, in the order of the format.
    #[must_use]
    pub fn iter(&self) -> Iter<'_> {
        Iter(match &self.0 {
            Form::Packed { form, column } => Walk::Packed(form.records(column)),
            Form::Loose(chunks) => Walk::Loose(chunks.iter()),
        })
    }

    /// The boxes alone.
    pub fn regions(&self) -> impl ExactSizeIterator<Item = Region> + Clone + '_ {
        self.iter().map(|chunk| chunk.region)
    }

    /// The files that chunks lie in, one for each chunk.
    pub(crate) fn files(&self) -> impl Iterator<Item = FileId> + '_ {
        let (packed, loose) = self.parts();
        packed.into_iter().flatten().map(|record| record.file()).chain(loose.iter().map(|chunk| chunk.file))
    }

    /// The records, where the list is packed; the chunks, where it is not.
    pub(crate) fn parts(&self) -> (Option<Records<'_>>, &[Chunk]) {
        match &self.0 {
            Form::Packed { form, column } => (Some(form.records(column)), &[]),
            Form::Loose(chunks) => (None, chunks),
        }
    }

    /// Appends a chunk.
    pub fn push(&mut self, chunk: Chunk) {
        let rank = chunk.region.rank();
        let odd = chunk.strides.as_ref().is_some_and(|strides| strides.len() != rank);
        match &mut self.0 {
            Form::Loose(chunks) => chunks.push(chunk),
            Form::Packed { form, column } => {
                if form.records(column).len() == 0 {
                    *form = Columns { rank, bits: 0 };
                    column.resize(HEADER_LEN, 0);
                }
                let bits = form.bits | flags_of(&chunk);
                if odd || rank != form.rank || u32::try_from(form.records(column).len() + 1).is_err() {
                    let mut chunks: Vec<Chunk> = self.iter().collect();
                    chunks.push(chunk);
                    self.0 = Form::Loose(chunks);
                    return;
                }
                if bits != form.bits {
                    // A column that no earlier chunk had: at most twice in a list's life.
                    let wider = Columns { rank, bits };
                    let mut all = vec![0; HEADER_LEN];
                    form.records(column).filter_map(Record::chunk).for_each(|it| wider.put(&it, &mut all));
                    (*form, *column) = (wider, all);
                }
                form.put(&chunk, column);
                let count = u32::try_from(form.records(column).len()).unwrap_or(u32::MAX);
                if let Some(header) = column.first_chunk_mut::<HEADER_LEN>() {
                    *header = (u64::from(count) | u64::from(form.bits) << 32).to_le_bytes();
                }
            }
        }
    }
}

/// Walks a [`ChunkList`].
#[derive(Clone)]
pub struct Iter<'a>(Walk<'a>);

#[derive(Clone)]
enum Walk<'a> {
    Packed(Records<'a>),
    Loose(std::slice::Iter<'a, Chunk>),
}

impl Iterator for Iter<'_> {
    type Item = Chunk;

    fn next(&mut self) -> Option<Chunk> {
        match &mut self.0 {
            Walk::Packed(records) => records.next().and_then(Record::chunk),
            Walk::Loose(chunks) => chunks.next().cloned(),
        }
    }

    fn nth(&mut self, at: usize) -> Option<Chunk> {
        match &mut self.0 {
            Walk::Packed(records) => records.nth(at).and_then(Record::chunk),
            Walk::Loose(chunks) => chunks.nth(at).cloned(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.0 {
            Walk::Packed(records) => records.size_hint(),
            Walk::Loose(chunks) => chunks.size_hint(),
        }
    }
}

impl ExactSizeIterator for Iter<'_> {}

impl Default for ChunkList {
    fn default() -> Self {
        Self::with_capacity(0, 0)
    }
}

impl<'a> IntoIterator for &'a ChunkList {
    type Item = Chunk;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl Extend<Chunk> for ChunkList {
    fn extend<T: IntoIterator<Item = Chunk>>(&mut self, chunks: T) {
        chunks.into_iter().for_each(|chunk| self.push(chunk));
    }
}

impl FromIterator<Chunk> for ChunkList {
    fn from_iter<T: IntoIterator<Item = Chunk>>(chunks: T) -> Self {
        let mut list = Self::default();
        list.extend(chunks);
        list
    }
}

impl From<Vec<Chunk>> for ChunkList {
    fn from(chunks: Vec<Chunk>) -> Self {
        chunks.into_iter().collect()
    }
}

impl PartialEq for ChunkList {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl Eq for ChunkList {}

impl fmt::Debug for ChunkList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl fmt::Debug for Iter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.clone()).finish()
    }
}

fn halves(bytes: &[u8; 8]) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = *bytes;
    [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])]
}

#[cfg(test)]
mod tests {
    use fqn::Dims;

    use super::*;
    use crate::CrcRecord;

    fn chunk(offsets: &[u64], extents: &[u64]) -> Chunk {
        let region = Region::new(offsets, extents).unwrap();
        Chunk { region, file: FileId(7), offset: 1 << 40, strides: None, record: None }
    }

    #[test]
    fn a_list_gives_back_what_was_put_into_it_and_has_one_encoding_whatever_came_first() {
        let plain = chunk(&[0, 4], &[2, 2]);
        let strided = Chunk { strides: Some(Dims::from_slice(&[1, 9])), ..chunk(&[2, 0], &[1, 1]) };
        let record = Some(CrcRecord { offset: 3, len: 5, crc32: u32::MAX });
        let summed = Chunk { record, ..chunk(&[3, 3], &[0, 1]) };
        for order in [[&plain, &strided, &summed], [&summed, &plain, &strided], [&strided, &summed, &plain]] {
            let chunks: Vec<Chunk> = order.into_iter().cloned().collect();
            let list = ChunkList::from(chunks.clone());
            assert_eq!(list.iter().collect::<Vec<_>>(), chunks);
            assert_eq!((list.len(), list.get(2), list.get(3)), (3, Some(chunks[2].clone()), None));
            let packed = list.packed().unwrap().into_owned();
            assert_eq!(packed.len(), 8 + 3 * 8 * (2 + 6 + 3));
            let back = ChunkList::from_packed(2, packed.clone()).unwrap();
            assert_eq!((&back, back.packed().unwrap()), (&list, packed.into()));
        }
    }

    #[test]
    fn boxes_of_different_ranks_are_kept_though_no_column_holds_them() {
        let chunks = vec![chunk(&[0], &[4]), chunk(&[0, 0], &[2, 2]), chunk(&[4], &[4])];
        let list = ChunkList::from(chunks.clone());
        assert_eq!((list.iter().collect::<Vec<_>>(), list.packed()), (chunks, None));
        assert_eq!(list.files().collect::<Vec<_>>(), [FileId(7); 3]);
    }

    #[test]
    fn an_empty_list_is_a_header_of_zeros() {
        let list = ChunkList::default();
        assert_eq!((list.is_empty(), list.packed().unwrap().as_ref()), (true, &[0; 8][..]));
        assert_eq!(ChunkList::from_packed(5, vec![0; 8]), Ok(list));
    }
}
