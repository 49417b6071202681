//! Compression of blocks: how the bytes of a block are stored, and which tensors' blocks are.
//!
//! ```text
//!  box ─ 1 MiB blocks ─► planes ─► zstd frame ─► smaller by 1/32? ─► stored coded, else plain ─► SHA-256 of what is stored
//!                                                                          │ Spool: in the order of the file
//!  block ◄─ cells ◄─ planes ◄─ zstd, into exactly so many bytes ◄─ checked frame ◄──────┘
//! ```
//!
//! *Planes*: the first bytes of all elements, then their second ones, and so on. Floats of one tensor have few different
//! exponents and any mantissa: apart, the one compresses well and the other costs nothing but a copy. A plane that holds exactly the
//! exponent (all bits rotated by one, so that the sign goes to the mantissa) was measured too: it saves another 0.2 to 0.7 % of the
//! bytes of weights and moments, too little for a form of its own.
//!
//! # Invariants
//!
//! * The same bytes give the same stored bytes, with one version of zstd: whoever goes on where another stopped writes the
//!   same file. Readers don't depend on it.
//! * Each block stands for itself: it is decoded from its own bytes, codec and lengths alone.
//! * A frame is believed only after it was looked at: it must be one, of exactly the block's stored bytes, that promises
//!   exactly the block's logical bytes and needs no dictionary. What is decoded never passes the buffer it goes to.
//! * A block that doesn't shrink by [`WORTH`] is stored plain; so a coded file is never longer than a plain one.
//! * Files that no rule compresses are written as ever, and stay valid files of their format.

mod choice;
mod frame;
mod planes;
mod spool;

pub use choice::{Codec, Codecs, CodecsError};
pub use frame::{CodecError, Decoder, Encoder};
pub(crate) use spool::Spool;

/// The level of zstd. Planes of floats have next to nothing that repeats; what shrinks them is the coding of single bytes, which every
/// level does alike. On real weights and moments level 3 takes up to twice the time and mostly makes more bytes, for the chance matches
/// that it finds; level 9 takes 4 to 7 times as long and saves at most another 0.7 %: `cargo xtask bench codecs` shows it. A change of it
/// is a change of `VERSION`.
pub const LEVEL: i32 = 1;

/// Version of what is stored for the same bytes: part of an attempt's identity, so that a later one never goes on in an older
/// one's folder.
pub(crate) const VERSION: &str = "codecs 1";

/// A coded block is kept if it saves at least one byte in so many: less isn't worth decoding it.
pub const WORTH: usize = 32;

#[cfg(test)]
mod tests;
