//! Digests of bytes at rest: SHA-256 over blocks, one root per file, and the CRC-32 of foreign archives.
//!
//! ```text
//!  file   |header| chunk A ........................ | chunk B .. |       blocks of at most 1 MiB tile the file from byte 0
//!  blocks |  0   |    1    |    2    |    3    | 4  |     5      |       to its end; none spans two chunks
//!         └─ SHA-256 of each ─► block table (an object of its own) ─ SHA-256 ─► root, kept in the manifest
//! ```
//!
//! Invariants:
//! * a [`BlockTable`] accounts for every byte of its file, header and padding included, so any changed, cut, moved or
//!   appended byte shows;
//! * equal tables encode to equal bytes, so the root of a file is a function of its bytes and its chunk boundaries;
//! * a table read from outside is checked in full, and allocates no more than its own size times a small constant,
//!   before anything in it is believed.

mod compute;
mod crc;
mod encoding;
mod layout;
mod sha;
#[cfg(target_arch = "x86_64")]
mod sha_pair;
mod table;

pub use compute::{ComputeError, table_of};
pub use crc::Crc32;
pub use encoding::{BLOCK_TABLE_MAGIC, BLOCK_TABLE_VERSION};
pub use layout::{BLOCK_LEN, BlockLayout, LayoutError};
pub use sha::{DigestParseError, Sha256Digest, Sha256Hasher};
pub use table::{Block, BlockCodec, BlockMismatch, BlockTable, BlockTableBuilder, BlockTableError};
