//! [`Encoder`] and [`Decoder`]: one block to its stored bytes and back. Each holds what zstd needs, so that a thread makes one and
//! uses it for many blocks.

use std::{fmt, io};

use thiserror::Error;
use zstd::{
    bulk::{Compressor, Decompressor},
    zstd_safe,
};

use super::{LEVEL, WORTH, planes};
use crate::digest::{BLOCK_LEN, BlockCodec};

/// The first bytes of a zstd frame; skippable frames begin otherwise.
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Why a block can't be coded or decoded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The stored bytes are not what the codec makes.
    #[error("its stored bytes {0}")]
    Frame(&'static str),
    /// The frame is damaged.
    #[error("its zstd frame is damaged: {0}")]
    Damaged(String),
    /// zstd could not work.
    #[error("zstd: {0}")]
    Zstd(#[from] io::Error),
}

/// Compresses blocks.
pub struct Encoder {
    zstd: Compressor<'static>,
    planes: Vec<u8>,
    frame: Vec<u8>,
}

/// Decompresses blocks.
pub struct Decoder {
    zstd: Decompressor<'static>,
    planes: Vec<u8>,
}

impl Encoder {
    /// An encoder; holds 3 MiB at most.
    ///
    /// # Errors
    /// No memory.
    pub fn new() -> Result<Self, CodecError> {
        Self::at_level(LEVEL)
    }

    /// An encoder of another level: to measure what [`LEVEL`] is worth.
    ///
    /// # Errors
    /// No memory.
    pub fn at_level(level: i32) -> Result<Self, CodecError> {
        let mut zstd = Compressor::new(level)?;
        // SHA-256 of the stored bytes proves them; the logical length is what a frame is checked against.
        zstd.include_checksum(false)?;
        zstd.include_contentsize(true)?;
        Ok(Self { zstd, planes: Vec::new(), frame: Vec::new() })
    }

    /// The stored form of a block, and how it is stored: plain where compression isn't worth it.
    ///
    /// # Errors
    /// zstd's, for lack of memory.
    pub fn encode<'b>(
        &'b mut self,
        codec: BlockCodec,
        bytes: &'b [u8],
    ) -> Result<(BlockCodec, &'b [u8]), CodecError> {
        if codec == BlockCodec::None {
            return Ok((codec, bytes));
        }
        let width = width(codec);
        let input = if width > 1 {
            self.planes.resize(bytes.len(), 0);
            planes::split(width, bytes, &mut self.planes);
            self.planes.as_slice()
        } else {
            bytes
        };
        self.frame.resize(zstd_safe::compress_bound(bytes.len()), 0);
        let len = self.zstd.compress_to_buffer(input, self.frame.as_mut_slice())?;
        let most = bytes.len() - bytes.len().div_ceil(WORTH);
        match self.frame.get(..len) {
            Some(frame) if len <= most => Ok((codec, frame)),
            _ => Ok((BlockCodec::None, bytes)),
        }
    }
}

impl Decoder {
    /// A decoder; holds 1 MiB and what zstd needs.
    ///
    /// # Errors
    /// No memory.
    pub fn new() -> Result<Self, CodecError> {
        Ok(Self { zstd: Decompressor::new()?, planes: Vec::new() })
    }

    /// Fills `bytes`, as long as the block is logically, from its stored form.
    ///
    /// # Errors
    /// Stored bytes that are not exactly such a block.
    pub fn decode(&mut self, codec: BlockCodec, stored: &[u8], bytes: &mut [u8]) -> Result<(), CodecError> {
        if codec == BlockCodec::None {
            if stored.len() != bytes.len() {
                return Err(CodecError::Frame("are plain, and of another length than the block"));
            }
            bytes.copy_from_slice(stored);
            return Ok(());
        }
        check(stored, bytes.len())?;
        let width = width(codec);
        if width == 1 {
            return inflate(&mut self.zstd, stored, bytes);
        }
        self.planes.resize(bytes.len(), 0);
        inflate(&mut self.zstd, stored, &mut self.planes)?;
        planes::join(width, &self.planes, bytes);
        Ok(())
    }
}

/// Bytes of the elements that are cut into planes; 1 where none are.
const fn width(codec: BlockCodec) -> usize {
    match codec {
        BlockCodec::None | BlockCodec::Zstd => 1,
        BlockCodec::Planes2 => 2,
        BlockCodec::Planes4 => 4,
        BlockCodec::Planes8 => 8,
    }
}

/// Whether `stored` is one frame and nothing else, of `len` bytes, and needs no dictionary.
fn check(stored: &[u8], len: usize) -> Result<(), CodecError> {
    let wrong = |what| Err(CodecError::Frame(what));
    if len > BLOCK_LEN as usize {
        return wrong("would decode to more than 1 MiB");
    }
    if !stored.starts_with(&MAGIC) {
        return wrong("are no zstd frame");
    }
    match zstd_safe::get_frame_content_size(stored) {
        Ok(Some(size)) if size == len as u64 => {}
        Ok(Some(_)) => return wrong("are a zstd frame of another length than the block"),
        Ok(None) | Err(_) => return wrong("are a zstd frame that doesn't say its length"),
    }
    if zstd_safe::get_dict_id_from_frame(stored).is_some() {
        return wrong("are a zstd frame that needs a dictionary");
    }
    match zstd_safe::find_frame_compressed_size(stored) {
        Ok(size) if size == stored.len() => Ok(()),
        Ok(_) => wrong("go on behind the end of their zstd frame"),
        Err(_) => wrong("are a zstd frame that is cut short or damaged"),
    }
}

fn inflate(zstd: &mut Decompressor<'static>, stored: &[u8], bytes: &mut [u8]) -> Result<(), CodecError> {
    let found = zstd.decompress_to_buffer(stored, bytes);
    match found.map_err(|error| CodecError::Damaged(error.to_string()))? {
        len if len == bytes.len() => Ok(()),
        _ => Err(CodecError::Frame("decode to fewer bytes than the block has")),
    }
}

impl fmt::Debug for Encoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoder").finish_non_exhaustive()
    }
}

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoder").finish_non_exhaustive()
    }
}
