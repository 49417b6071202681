//! [`Spool`]: puts the blocks of one coded file one behind the other, whatever the order in which they are ready.
//!
//! ```text
//!  blocks of the file   0   1   2   3   4   5          where a block goes is known once all before it are there:
//!  written              ██  ██                          next = 2, at = their stored bytes
//!  held                             ██  ██              in memory, compressed, until 2 is there
//! ```
//!
//! Invariants: stored bytes are written in ascending order, each once, so that the file can be of any length in the end; what is held is
//! given back as soon as it is written. How much is held is the caller's matter: nothing, when blocks come in the file's order.

use std::collections::BTreeMap;

use crate::{
    Error, Result,
    digest::{BlockCodec, BlockLayout, BlockTable, BlockTableBuilder, Sha256Digest},
};

/// Blocks of one file on their way to it.
#[derive(Debug)]
pub(crate) struct Spool {
    layout: BlockLayout,
    next: usize,
    held: BTreeMap<usize, Held>,
    table: BlockTableBuilder,
}

/// A block that waits for earlier ones.
#[derive(Debug)]
struct Held {
    codec: BlockCodec,
    digest: Sha256Digest,
    bytes: Vec<u8>,
}

impl Spool {
    /// A file that has these blocks, logically, and no bytes yet.
    pub(crate) fn new(layout: BlockLayout) -> Self {
        Self { layout, next: 0, held: BTreeMap::new(), table: BlockTableBuilder::new() }
    }

    /// The block whose turn it is.
    pub(crate) const fn next(&self) -> usize {
        self.next
    }

    /// Bytes that wait for earlier ones.
    pub(crate) fn held(&self) -> u64 {
        self.held.values().map(|held| held.bytes.len() as u64).sum()
    }

    /// The logical layout.
    pub(crate) const fn layout(&self) -> &BlockLayout {
        &self.layout
    }

    /// Bytes that were written.
    pub(crate) fn at(&self) -> u64 {
        self.table.stored()
    }

    /// Puts plain bytes from the file's first byte on, which whole blocks hold: what stands before the first chunk.
    pub(crate) fn head(&mut self, head: &[u8], write: &dyn Fn(u64, &[u8]) -> Result<()>) -> Result<()> {
        for block in 0..self.layout.count_before(head.len() as u64) {
            let range = self.layout.range(block).unwrap_or_default();
            let at = |byte| usize::try_from(byte).unwrap_or(usize::MAX);
            let bytes = head.get(at(range.start)..at(range.end)).unwrap_or_default();
            self.put(block, BlockCodec::None, bytes, Sha256Digest::of(bytes), write)?;
        }
        Ok(())
    }

    /// Puts the stored form of a block: writes it, and those that waited for it, or holds it.
    pub(crate) fn put(
        &mut self,
        block: usize,
        codec: BlockCodec,
        stored: &[u8],
        digest: Sha256Digest,
        write: &dyn Fn(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        if block != self.next {
            let held = Held { codec, digest, bytes: stored.to_vec() };
            let twice = block < self.next || self.held.insert(block, held).is_some();
            return if twice { Err(Error::internal(format!("block {block} came twice"))) } else { Ok(()) };
        }
        self.write(codec, stored, digest, write)?;
        while let Some(held) = self.held.remove(&self.next) {
            self.write(held.codec, &held.bytes, held.digest, write)?;
        }
        Ok(())
    }

    fn write(
        &mut self,
        codec: BlockCodec,
        stored: &[u8],
        digest: Sha256Digest,
        write: &dyn Fn(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let logical = self.layout.range(self.next).unwrap_or_default();
        let [logical, len] = [logical.end - logical.start, stored.len() as u64]
            .map(|len| u32::try_from(len).unwrap_or(u32::MAX));
        write(self.at(), stored)?;
        let pushed = self.table.push(logical, len, codec, digest);
        pushed.map_err(|error| Error::internal(error.to_string()))?;
        self.next += 1;
        Ok(())
    }

    /// The table of the file, all blocks of which were put. The spool is empty afterwards.
    pub(crate) fn finish(&mut self) -> Result<BlockTable> {
        if self.next < self.layout.len() {
            return Err(Error::internal(format!("block {} of {} was not put", self.next, self.layout.len())));
        }
        Ok(std::mem::take(&mut self.table).finish())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn blocks_are_written_in_the_files_order_whatever_order_they_come_in() {
        let mut spool = Spool::new(BlockLayout::new(40, [10, 20, 30]).unwrap());
        let file = RefCell::new(Vec::new());
        let write = |at: u64, bytes: &[u8]| {
            assert_eq!(at, file.borrow().len() as u64);
            file.borrow_mut().extend_from_slice(bytes);
            Ok(())
        };
        let mut put = |block: usize, codec, bytes: &[u8]| {
            spool.put(block, codec, bytes, Sha256Digest::of(bytes), &write).unwrap();
            (spool.next(), spool.held(), spool.at())
        };
        assert_eq!(put(2, BlockCodec::Zstd, b"cc"), (0, 2, 0));
        assert_eq!(put(0, BlockCodec::None, &[b'a'; 10]), (1, 2, 10));
        assert_eq!(put(3, BlockCodec::None, &[b'd'; 10]), (1, 12, 10));
        assert_eq!(put(1, BlockCodec::Planes2, b"bbb"), (4, 0, 25));
        assert!(spool.put(1, BlockCodec::Zstd, b"x", Sha256Digest::of(b"x"), &write).is_err());
        let table = spool.finish().unwrap();
        assert_eq!((table.file_len(), table.logical_len()), (25, 40));
        let file = file.into_inner();
        assert_eq!(file, b"aaaaaaaaaabbbccdddddddddd");
        for (number, block) in table.blocks().enumerate() {
            let bytes =
                usize::try_from(block.stored.start).unwrap()..usize::try_from(block.stored.end).unwrap();
            table.check(number, &file[bytes]).unwrap();
        }
    }

    #[test]
    fn a_file_that_lacks_a_block_has_no_table() {
        let mut spool = Spool::new(BlockLayout::new(20, [10]).unwrap());
        spool.put(1, BlockCodec::None, &[0; 10], Sha256Digest::of(&[0; 10]), &|_, _| Ok(())).unwrap();
        assert!(spool.finish().is_err());
    }
}
