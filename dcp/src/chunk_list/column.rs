//! Records of a packed column: their words, the checks of them, and the chunks that they are.

use fqn::{Dims, Dtype};
use reshard::Region;

use crate::{Chunk, CrcRecord, FileId};

/// Bits of a column and of a record's flags.
pub(super) const STRIDES: u32 = 1;
pub(super) const CRC: u32 = 2;

/// Bytes before the first record.
pub(super) const HEADER_LEN: usize = 8;

/// What a record holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Columns {
    pub(super) rank: usize,
    pub(super) bits: u32,
}

/// One record of a column, its words in place.
#[derive(Clone, Copy)]
pub(crate) struct Record<'a> {
    form: Columns,
    words: &'a [[u8; 8]],
}

impl Columns {
    const fn words(self) -> usize {
        let dims = if self.bits & STRIDES == 0 { 2 } else { 3 };
        2 + self.rank * dims + if self.bits & CRC == 0 { 0 } else { 3 }
    }

    pub(super) const fn bytes(self) -> usize {
        self.words() * 8
    }

    pub(super) fn records(self, column: &[u8]) -> Records<'_> {
        let words = column.get(HEADER_LEN..).unwrap_or_default().as_chunks::<8>().0;
        Records { form: self, words: words.chunks_exact(self.words()) }
    }

    pub(super) fn put(self, chunk: &Chunk, out: &mut Vec<u8>) {
        let mut put = |number: u64| out.extend_from_slice(&number.to_le_bytes());
        put(u64::from(chunk.file.0) | u64::from(flags_of(chunk)) << 32);
        put(chunk.offset);
        chunk.region.offsets().iter().chain(chunk.region.extents()).for_each(|it| put(*it));
        if self.bits & STRIDES != 0 {
            let strides = chunk.strides.iter().flatten().copied().chain(std::iter::repeat(0));
            strides.take(self.rank).for_each(&mut put);
        }
        if self.bits & CRC != 0 {
            let record = chunk.record.unwrap_or(CrcRecord { offset: 0, len: 0, crc32: 0 });
            [record.offset, record.len, u64::from(record.crc32)].into_iter().for_each(&mut put);
        }
    }
}

/// The records of a column.
#[derive(Clone)]
pub(crate) struct Records<'a> {
    form: Columns,
    words: std::slice::ChunksExact<'a, [u8; 8]>,
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        self.words.next().map(|words| Record { form: self.form, words })
    }

    fn nth(&mut self, at: usize) -> Option<Record<'a>> {
        self.words.nth(at).map(|words| Record { form: self.form, words })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.words.size_hint()
    }
}

impl ExactSizeIterator for Records<'_> {}

impl<'a> Record<'a> {
    fn word(self, at: usize) -> u64 {
        self.words.get(at).map_or(0, |word| u64::from_le_bytes(*word))
    }

    fn numbers(self, from: usize, count: usize) -> impl Iterator<Item = u64> + Clone + 'a {
        self.words.get(from..from + count).unwrap_or_default().iter().map(|word| u64::from_le_bytes(*word))
    }

    fn dims(self, from: usize) -> Dims {
        // The usual few dimensions by way of an array: a list is walked millions of times.
        let mut few = [0; 4];
        match few.get_mut(..self.form.rank) {
            Some(few) => {
                few.iter_mut().zip(self.numbers(from, self.form.rank)).for_each(|(to, number)| *to = number);
                Dims::from_slice(few)
            }
            None => self.numbers(from, self.form.rank).collect(),
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "the low half of a word")]
    pub(crate) fn file(self) -> FileId {
        FileId(self.word(0) as u32)
    }

    pub(super) fn flags(self) -> u32 {
        u32::try_from(self.word(0) >> 32).unwrap_or(0)
    }

    pub(crate) fn offset(self) -> u64 {
        self.word(1)
    }

    fn offsets(self) -> impl Iterator<Item = u64> + Clone + 'a {
        self.numbers(2, self.form.rank)
    }

    fn extents(self) -> impl Iterator<Item = u64> + Clone + 'a {
        self.numbers(2 + self.form.rank, self.form.rank)
    }

    fn strides(self) -> impl Iterator<Item = u64> + Clone + 'a {
        let count = if self.form.bits & STRIDES == 0 { 0 } else { self.form.rank };
        self.numbers(2 + 2 * self.form.rank, count)
    }

    fn crc(self) -> [u64; 3] {
        if self.form.bits & CRC == 0 {
            return [0; 3];
        }
        let end = self.form.words();
        [self.word(end - 3), self.word(end - 2), self.word(end - 1)]
    }

    /// What makes numbers a chunk, whatever the tensor and the file are.
    pub(super) fn check(self) -> Result<(), String> {
        let flags = self.flags();
        if flags & !self.form.bits != 0 {
            return Err(format!("flags {flags:#x} without their columns"));
        }
        if flags & STRIDES == 0 && self.strides().any(|it| it != 0) {
            return Err("strides that aren't meant and aren't zero".to_owned());
        }
        let crc = self.crc();
        if flags & CRC == 0 && crc != [0; 3] {
            return Err("a CRC that isn't meant and isn't zero".to_owned());
        }
        if u32::try_from(crc[2]).is_err() {
            return Err("a CRC of more than 32 bits".to_owned());
        }
        let in_range = self.offsets().zip(self.extents()).all(|(o, e)| o.checked_add(e).is_some());
        if in_range && self.elements().is_some() {
            return Ok(());
        }
        Err(reshard::RegionError::Overflow.to_string())
    }

    fn elements(self) -> Option<u64> {
        // An overflow is none where another extent is 0.
        let product = self.extents().try_fold(1_u64, u64::checked_mul);
        product.or_else(|| self.extents().any(|extent| extent == 0).then_some(0))
    }

    /// Whether the chunk certainly lies within its tensor and its file; `false` also where only the chunk itself can tell.
    pub(crate) fn lies_within(
        self,
        shape: &[u64],
        dtype: Dtype,
        file_size: impl Fn(FileId) -> Option<u64>,
    ) -> bool {
        let inside = shape.len() == self.form.rank
            && self
                .offsets()
                .zip(self.extents())
                .zip(shape)
                .all(|((o, e), whole)| o.checked_add(e).is_some_and(|end| end <= *whole));
        if !inside || self.flags() & STRIDES != 0 {
            return false;
        }
        let end =
            self.elements().and_then(|it| dtype.bytes_for(it)).and_then(|it| it.checked_add(self.offset()));
        end.zip(file_size(self.file())).is_some_and(|(end, size)| end <= size)
    }

    /// The chunk: always there, since a list checks its records when they come in.
    pub(crate) fn chunk(self) -> Option<Chunk> {
        let flags = self.flags();
        let region = Region::new(&self.dims(2), &self.dims(2 + self.form.rank)).ok()?;
        let [offset, len, crc32] = self.crc();
        Some(Chunk {
            region,
            file: self.file(),
            offset: self.offset(),
            strides: (flags & STRIDES != 0).then(|| self.strides().collect()),
            record: match flags & CRC {
                0 => None,
                _ => Some(CrcRecord { offset, len, crc32: u32::try_from(crc32).ok()? }),
            },
        })
    }
}

pub(super) fn flags_of(chunk: &Chunk) -> u32 {
    let strides = if chunk.strides.is_some() { STRIDES } else { 0 };
    strides | if chunk.record.is_some() { CRC } else { 0 }
}
