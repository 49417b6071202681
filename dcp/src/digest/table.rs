//! The block table of one file: length, codec and digest of every block, in file order.

use std::ops::Range;

use thiserror::Error;

use super::{BLOCK_LEN, BlockLayout, Sha256Digest};

/// How the bytes of a block are stored: plain, or as one zstd frame, of the bytes as they are or of their planes. The numbers are those
/// of the format; what the coded ones mean is in [`crate::codec`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[non_exhaustive]
#[repr(u8)]
pub enum BlockCodec {
    /// As they are.
    #[default]
    None = 0,
    /// As one zstd frame.
    Zstd = 1,
    /// Elements of 2 bytes: their first bytes, then their second ones, as one zstd frame.
    Planes2 = 2,
    /// The same of 4 bytes.
    Planes4 = 4,
    /// The same of 8 bytes.
    Planes8 = 8,
}

impl BlockCodec {
    pub(super) const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::None),
            1 => Some(Self::Zstd),
            2 => Some(Self::Planes2),
            4 => Some(Self::Planes4),
            8 => Some(Self::Planes8),
            _ => None,
        }
    }
}

/// One block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The bytes of the file that it occupies.
    pub stored: Range<u64>,
    /// The bytes that it decodes to, counted in the file as it is when all blocks are decoded: at most [`BLOCK_LEN`] of them.
    /// Equal to `stored` in a file without coded blocks.
    pub logical: Range<u64>,
    /// How to decode it.
    pub codec: BlockCodec,
    /// SHA-256 of the stored bytes.
    pub digest: Sha256Digest,
}

/// What is wrong with a block table.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BlockTableError {
    /// Not a block table at all.
    #[error("not a block table: it doesn't begin with its magic")]
    Magic,
    /// Written by a later major version, or with features that this one doesn't know.
    #[error(
        "block table of version {major}.{minor} with flags {flags:#x} needs a newer ckpt; this one reads version 1"
    )]
    Version {
        /// Major version.
        major: u16,
        /// Minor version.
        minor: u16,
        /// Feature flags.
        flags: u32,
    },
    /// Cut short, or with bytes behind its end.
    #[error("block table is {found} bytes long, its header says {expected}")]
    Length {
        /// What the header says.
        expected: u64,
        /// What there is.
        found: u64,
    },
    /// A block breaks a rule.
    #[error("block {block} of the table {problem}")]
    Block {
        /// Its number, from 0.
        block: usize,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The blocks don't add up to the file.
    #[error("blocks hold {blocks} bytes, the file {file}")]
    Sum {
        /// Sum of the stored lengths.
        blocks: u64,
        /// File length in the header.
        file: u64,
    },
    /// As many digests as blocks are needed.
    #[error("{digests} digests for {blocks} blocks")]
    Count {
        /// Blocks of the layout.
        blocks: usize,
        /// Digests given.
        digests: usize,
    },
}

/// Bytes that are not those that the table was made from.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("bytes {}..{} (block {block}) hash to {found}, expected {expected}", range.start, range.end)]
pub struct BlockMismatch {
    /// Number of the block in its file.
    pub block: usize,
    /// The bytes of the file that it occupies.
    pub range: Range<u64>,
    /// The digest in the table.
    pub expected: Sha256Digest,
    /// The digest of the bytes.
    pub found: Sha256Digest,
}

/// Digests of consecutive blocks that tile one file. Holds 40 bytes a block in memory, 49 where blocks are compressed.
///
/// A file has two counts of bytes. *Stored*: those that lie in the store. *Logical*: those that blocks decode to; offsets of chunks are
/// logical. Both are the same unless some block is compressed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BlockTable {
    pub(super) ends: Vec<u64>,
    pub(super) digests: Vec<Sha256Digest>,
    /// Where each block ends in logical bytes, and its codec; empty where every block is stored as it is.
    pub(super) coded: Vec<(u64, BlockCodec)>,
}

impl BlockTable {
    /// The table of a file whose blocks are stored as they are.
    ///
    /// # Errors
    /// As many digests as blocks are needed.
    pub fn new(layout: BlockLayout, digests: Vec<Sha256Digest>) -> Result<Self, BlockTableError> {
        let ends = layout.into_ends();
        if ends.len() != digests.len() {
            return Err(BlockTableError::Count { blocks: ends.len(), digests: digests.len() });
        }
        Ok(Self { ends, digests, coded: Vec::new() })
    }

    /// Number of blocks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether the file is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of the file, as stored.
    #[must_use]
    pub fn file_len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Bytes that its blocks decode to.
    #[must_use]
    pub fn logical_len(&self) -> u64 {
        self.coded.last().map_or_else(|| self.file_len(), |(end, _)| *end)
    }

    /// Whether some block is compressed.
    #[must_use]
    pub fn is_coded(&self) -> bool {
        !self.coded.is_empty()
    }

    /// A block by its number; `None` behind the last.
    #[must_use]
    pub fn block(&self, block: usize) -> Option<Block> {
        let &digest = self.digests.get(block)?;
        let codec = self.coded.get(block).map_or(BlockCodec::None, |(_, codec)| *codec);
        let blocks = block..block + 1;
        Some(Block { stored: self.stored_of(&blocks), logical: self.logical_of(&blocks), codec, digest })
    }

    /// All blocks, in file order.
    pub fn blocks(&self) -> impl Iterator<Item = Block> + '_ {
        (0..self.len()).filter_map(|block| self.block(block))
    }

    /// The stored bytes of consecutive blocks.
    #[must_use]
    pub fn stored_of(&self, blocks: &Range<usize>) -> Range<u64> {
        let end_of = |count: usize| {
            let last = self.len().min(count).checked_sub(1);
            last.and_then(|last| self.ends.get(last)).copied().unwrap_or(0)
        };
        end_of(blocks.start)..end_of(blocks.end)
    }

    /// The logical bytes of consecutive blocks.
    #[must_use]
    pub fn logical_of(&self, blocks: &Range<usize>) -> Range<u64> {
        if !self.is_coded() {
            return self.stored_of(blocks);
        }
        let end_of = |count: usize| {
            let last = self.len().min(count).checked_sub(1);
            last.and_then(|last| self.coded.get(last)).map_or(0, |(end, _)| *end)
        };
        end_of(blocks.start)..end_of(blocks.end)
    }

    /// The numbers of the blocks that hold any of these logical bytes of the file; none for an empty range.
    #[must_use]
    pub fn covering(&self, bytes: &Range<u64>) -> Range<usize> {
        let first = self.ending(|end| end <= bytes.start);
        if bytes.is_empty() {
            return first..first;
        }
        let last = self.ending(|end| end < bytes.end);
        first..self.len().min(last + 1)
    }

    /// The smallest logical range of whole blocks around these logical bytes.
    #[must_use]
    pub fn around(&self, bytes: &Range<u64>) -> Range<u64> {
        self.logical_of(&self.covering(bytes))
    }

    /// How many blocks, from the first on, end in logical bytes as `is` says.
    fn ending(&self, is: impl Fn(u64) -> bool) -> usize {
        if self.is_coded() {
            self.coded.partition_point(|&(end, _)| is(end))
        } else {
            self.ends.partition_point(|&end| is(end))
        }
    }

    /// Compares the stored bytes of a block with its digest.
    ///
    /// # Errors
    /// The mismatch, with the block's place. A block that the table doesn't have is compared with nothing and differs.
    pub fn check(&self, block: usize, bytes: &[u8]) -> Result<(), BlockMismatch> {
        self.compare(block, Sha256Digest::of(bytes))
    }

    /// Compares the digest of a block's stored bytes with the one that it should have.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn compare(&self, block: usize, found: Sha256Digest) -> Result<(), BlockMismatch> {
        match self.block(block) {
            Some(it) if it.digest == found => Ok(()),
            Some(it) => Err(BlockMismatch { block, range: it.stored, expected: it.digest, found }),
            None => {
                let end = self.file_len();
                Err(BlockMismatch { block, range: end..end, expected: Sha256Digest::of(&[]), found })
            }
        }
    }
}

/// A table built block by block, where stored lengths are known only as blocks are compressed.
#[derive(Debug, Clone, Default)]
pub struct BlockTableBuilder {
    table: BlockTable,
}

impl BlockTableBuilder {
    /// A table without blocks.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Stored bytes of the blocks so far.
    #[must_use]
    pub fn stored(&self) -> u64 {
        self.table.file_len()
    }

    pub(super) fn with_capacity(blocks: usize) -> Self {
        let (ends, digests) = (Vec::with_capacity(blocks), Vec::with_capacity(blocks));
        Self { table: BlockTable { ends, digests, coded: Vec::new() } }
    }

    /// Appends the block that follows in the file.
    ///
    /// # Errors
    /// Lengths of zero or above [`BLOCK_LEN`], a plain block of two different lengths, a coded one that isn't shorter.
    pub fn push(
        &mut self,
        logical_len: u32,
        stored_len: u32,
        codec: BlockCodec,
        digest: Sha256Digest,
    ) -> Result<(), BlockTableError> {
        let block = self.table.len();
        let wrong = |problem| Err(BlockTableError::Block { block, problem });
        match codec {
            _ if logical_len == 0 || stored_len == 0 => return wrong("is empty"),
            _ if logical_len > BLOCK_LEN => return wrong("is longer than 1 MiB"),
            BlockCodec::None if logical_len != stored_len => {
                return wrong("is stored plain but not at its own length");
            }
            BlockCodec::None => {}
            // A block that doesn't shrink is stored plain; so stored lengths are bounded too.
            _ if stored_len >= logical_len => return wrong("is compressed but not shorter"),
            _ => {}
        }
        let end = self.table.file_len().checked_add(u64::from(stored_len));
        let logical = self.table.logical_len().checked_add(u64::from(logical_len));
        let (Some(end), Some(logical)) = (end, logical) else {
            return wrong("ends behind 2^64");
        };
        self.table.ends.push(end);
        self.table.digests.push(digest);
        self.table.coded.push((logical, codec));
        Ok(())
    }

    /// The table of the blocks so far.
    #[must_use]
    pub fn finish(mut self) -> BlockTable {
        if self.table.coded.iter().all(|&(_, codec)| codec == BlockCodec::None) {
            self.table.coded = Vec::new();
        }
        self.table
    }
}

#[cfg(test)]
mod tests;
