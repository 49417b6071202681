//! The block table as an object: fixed header, then columns. Little-endian throughout.
//!
//! ```text
//!  0   8   magic "CKPTBLKS"
//!  8   2   major version, 1          a reader refuses another major version
//! 10   2   minor version, 0          later minor versions only add what an older reader may pass over: nothing, in a table
//! 12   4   flags                     bit 0: columns for stored lengths and codecs are there; other bits: refuse
//! 16   8   bytes of the file
//! 24   8   number of blocks, n
//! 32   4n  logical length of each block, 1 to 1048576
//!      4n  stored length of each     only with flag bit 0
//!      n   codec of each             only with flag bit 0: 0 none, 1 zstd frame, 2 4 8: planes of so many bytes, zstd frame
//!      32n SHA-256 of each block's stored bytes
//! ```
//!
//! Stored lengths (logical ones without flag bit 0) add up to the bytes of the file. Bit 0 is set exactly when some codec
//! is not 0, so a table has one encoding. The *root* of the file is SHA-256 over the whole object.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{BlockCodec, BlockTable, BlockTableBuilder, BlockTableError, Sha256Digest, sha::nibble};

/// The first bytes of a block table.
pub const BLOCK_TABLE_MAGIC: [u8; 8] = *b"CKPTBLKS";

/// `(major, minor)` version of the block tables that are written.
pub const BLOCK_TABLE_VERSION: (u16, u16) = (1, 0);

const HEADER_LEN: usize = 32;
const CODED: u32 = 1;

impl BlockTable {
    /// The table as an object.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let coded = !self.coded.is_empty();
        let mut out = Vec::with_capacity(HEADER_LEN + self.len() * bytes_per_block(coded));
        out.extend(BLOCK_TABLE_MAGIC);
        out.extend(BLOCK_TABLE_VERSION.0.to_le_bytes());
        out.extend(BLOCK_TABLE_VERSION.1.to_le_bytes());
        out.extend(if coded { CODED } else { 0 }.to_le_bytes());
        out.extend(self.file_len().to_le_bytes());
        out.extend((self.len() as u64).to_le_bytes());
        self.blocks().for_each(|block| out.extend(length(&block.logical).to_le_bytes()));
        if coded {
            self.blocks().for_each(|block| out.extend(length(&block.stored).to_le_bytes()));
            self.blocks().for_each(|block| out.push(block.codec as u8));
        }
        self.digests.iter().for_each(|digest| out.extend(digest.as_bytes()));
        out
    }

    /// The root of the file: SHA-256 over the encoded table.
    #[must_use]
    pub fn root(&self) -> Sha256Digest {
        Sha256Digest::of(&self.encode())
    }

    /// Reads a table that came from anywhere.
    ///
    /// # Errors
    /// Anything but the one encoding of a valid table.
    pub fn parse(bytes: &[u8]) -> Result<Self, BlockTableError> {
        let header = Header::parse(bytes)?;
        let (n, coded) = (header.blocks, header.coded);
        let body = bytes.get(HEADER_LEN..).unwrap_or_default();
        let (logical, body) = body.split_at(4 * n);
        let (stored, body) = body.split_at(if coded { 4 * n } else { 0 });
        let (codecs, digests) = body.split_at(if coded { n } else { 0 });
        let logical = logical.as_chunks::<4>().0;
        let stored = if coded { stored.as_chunks::<4>().0 } else { logical };
        let mut builder = BlockTableBuilder::with_capacity(n);
        for (block, (digest, (logical, stored))) in
            digests.as_chunks::<32>().0.iter().zip(logical.iter().zip(stored)).enumerate()
        {
            let codec = BlockCodec::from_byte(codecs.get(block).copied().unwrap_or(0)).ok_or(
                BlockTableError::Block { block, problem: "has a codec that this version doesn't know" },
            )?;
            let [logical, stored] = [logical, stored].map(|it| u32::from_le_bytes(*it));
            builder.push(logical, stored, codec, Sha256Digest::from_bytes(*digest))?;
        }
        let table = builder.finish();
        if table.file_len() != header.file_len {
            return Err(BlockTableError::Sum { blocks: table.file_len(), file: header.file_len });
        }
        if coded && table.coded.is_empty() {
            return Err(BlockTableError::Block {
                block: n,
                problem: "has columns for codecs, and no block uses one",
            });
        }
        Ok(table)
    }
}

struct Header {
    coded: bool,
    file_len: u64,
    blocks: usize,
}

impl Header {
    /// The header of a table that is exactly as long as it says.
    fn parse(bytes: &[u8]) -> Result<Self, BlockTableError> {
        let found = bytes.len() as u64;
        if !bytes.starts_with(&BLOCK_TABLE_MAGIC) {
            return Err(BlockTableError::Magic);
        }
        let Some((header, _)) = bytes.split_first_chunk::<HEADER_LEN>() else {
            return Err(BlockTableError::Length { expected: HEADER_LEN as u64, found });
        };
        let number = |at: usize, len: usize| {
            header.iter().skip(at).take(len).rev().fold(0, |n: u64, &byte| n << 8 | u64::from(byte))
        };
        let flags = number(12, 4);
        if number(8, 2) != u64::from(BLOCK_TABLE_VERSION.0) || flags > u64::from(CODED) {
            let narrow = |n: u64| u16::try_from(n).unwrap_or(u16::MAX);
            let flags = u32::try_from(flags).unwrap_or(u32::MAX);
            return Err(BlockTableError::Version {
                major: narrow(number(8, 2)),
                minor: narrow(number(10, 2)),
                flags,
            });
        }
        let (coded, count) = (flags == u64::from(CODED), number(24, 8));
        let expected = count.saturating_mul(bytes_per_block(coded) as u64).saturating_add(HEADER_LEN as u64);
        match usize::try_from(count) {
            Ok(blocks) if expected == found => Ok(Self { coded, file_len: number(16, 8), blocks }),
            _ => Err(BlockTableError::Length { expected, found }),
        }
    }
}

const fn bytes_per_block(coded: bool) -> usize {
    if coded { 4 + 4 + 1 + 32 } else { 4 + 32 }
}

/// Lengths fit by construction: no block is longer than 1 MiB, and none is stored longer than it decodes to.
fn length(bytes: &std::ops::Range<u64>) -> u32 {
    u32::try_from(bytes.end - bytes.start).unwrap_or(u32::MAX)
}

/// In text formats a table is its encoding in hex, checked like any other when it is read.
impl Serialize for BlockTable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut text = String::with_capacity(2 * (HEADER_LEN + self.len() * bytes_per_block(true)));
        for byte in self.encode() {
            text.extend(
                [byte >> 4, byte & 0xf].map(|digit| char::from_digit(u32::from(digit), 16).unwrap_or('0')),
            );
        }
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for BlockTable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let bytes: Option<Vec<u8>> =
            pairs.iter().map(|&[high, low]| Some(nibble(high)? << 4 | nibble(low)?)).collect();
        match bytes {
            Some(bytes) if rest.is_empty() => Self::parse(&bytes).map_err(serde::de::Error::custom),
            _ => Err(serde::de::Error::custom("a block table is text of lowercase hex digits")),
        }
    }
}
