//! Fingerprints: what a logical tensor holds, however it is cut, stored or compressed.
//!
//! A fingerprint is a sum over elements, so any rank computes its part from its own box, parts add up in any order,
//! and a reshard, an import or an export is proven by comparing sixteen bytes. It finds accidents (a flipped bit,
//! swapped or shifted rows, a stale or missing shard); it is *not* proof against someone who builds two tensors on
//! purpose, for which there are the SHA-256 digests of [`crate::digest`].
//!
//! # Version 1, exactly
//!
//! All integers are little-endian. An *element* is a pair of a canonical index `i` (u64) and its bits `b` (u64).
//!
//! * The canonical index of an element is its row-major position in the tensor's *true* shape in the registry's
//!   coordinates (no padding rows, region maps undone), counted from 0.
//! * Elements of 1, 2, 4 or 8 bytes are one pair: `b` is the stored bits, zero-extended. No value is normalised: `-0.0`
//!   and `0.0`, and two different NaNs, differ.
//! * Elements of 16 bytes (complex128) are two pairs, `(2i, first 8 bytes)` and `(2i + 1, last 8 bytes)`: the tensor is
//!   taken as the float64 tensor with a last axis of 2.
//! * Dtypes of any other width (those narrower than a byte) are taken as their packed bytes: one pair per byte, `i`
//!   counting bytes.
//!
//! `mix(i, b)`: the 16 bytes `i ‖ b` go through four AES encryption rounds, `s ← MixColumns(ShiftRows(SubBytes(s))) ⊕ K_r`
//! for `r = 0, 1, 2, 3` (FIPS 197; no whitening before, MixColumns also in the last round). The round keys are the first
//! 64 bytes of the fractional part of π:
//!
//! ```text
//! K_0 = 243f6a8885a308d313198a2e03707344      K_1 = a4093822299f31d0082efa98ec4e6c89
//! K_2 = 452821e638d01377be5466cf34e90c6c      K_3 = c0ac29b7c97c50dd3f84d5b5b5470917
//! ```
//!
//! Byte `n` of the block is row `n mod 4`, column `n div 4`. SubBytes maps `x` to
//! `y ⊕ rotl8(y,1) ⊕ rotl8(y,2) ⊕ rotl8(y,3) ⊕ rotl8(y,4) ⊕ 0x63` where `y = x^254` in GF(2⁸) modulo
//! `x⁸+x⁴+x³+x+1`. ShiftRows: `out[row, col] = in[row, (col + row) mod 4]`. MixColumns:
//! `out[row] = 2·in[row] ⊕ 3·in[row+1] ⊕ in[row+2] ⊕ in[row+3]`, rows modulo 4.
//!
//! The *sum* is two lanes: over all pairs, lane 0 adds the first 8 bytes of `mix(i, b)` as a u64, lane 1 the last 8,
//! both modulo 2⁶⁴. The sum of no elements is zero. Written as text it is 32 hex digits: the bytes of lane 0, then lane 1.
//!
//! The *fingerprint* is the first 16 bytes of SHA-256 over
//! `"ckpt fingerprint 1" ‖ 00 ‖ dtype name (`f32`, `bf16`, …) ‖ 00 ‖ rank (u32) ‖ each extent (u64) ‖ lane 0 (u64) ‖ lane 1 (u64)`,
//! written as 32 hex digits. So an empty tensor has a fingerprint, bound to its dtype and shape like any other.
//!
//! # Why so
//!
//! The mix must be linear in neither index nor bits, or errors cancel in the sum. Four rounds are the least for which
//! every change of an input byte is spread over the whole block with at least 25 active S-boxes; fewer were seen to
//! collide on structured pairs. Processors run AES rounds in hardware, several elements at once.
//!
//! # Invariants
//!
//! * Version 1 never changes; another mix is another version, with another name in the SHA-256 prefix.
//! * Every implementation gives the same sum as the portable one, for every length and alignment.
//! * `unsafe` lives in `x86` alone, behind tokens that exist only where the processor has the instructions.

mod engine;
mod mix;
mod region;
mod sum;
mod value;
mod walk;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use engine::{Engine, EngineKind};
pub(crate) use region::RegionSum;
pub use sum::{ElementWidth, FingerprintError, FingerprintSum};
pub use value::Fingerprint;

#[cfg(test)]
mod tests;
