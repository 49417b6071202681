//! safetensors: one file of tensors behind a JSON header.
//!
//! ```text
//!  u64 LE length │ JSON header, padded with spaces │ tensors, packed, row-major, little-endian, without holes
//! ```
//!
//! Source: the format's own description (huggingface/safetensors, README). Our reader is stricter than its words
//! where data could hide or be mistaken: holes, overlaps, trailing bytes and names that come twice are refused.

mod error;
mod header;
mod json;
mod pieces;
mod sink;
mod source;
mod write;

pub use error::HeaderError;
pub use header::{Header, MAX_HEADER_BYTES, TensorInfo};
pub(crate) use pieces::{FileHeader, assemble};
pub use sink::SafetensorsSink;
pub(crate) use sink::{add_file, carried_metadata, offset_within};
pub use source::SafetensorsSource;
pub(crate) use source::{inferred_extents, metadata};
pub(crate) use write::numbers;
pub use write::{HeaderBuilder, Placed};

#[cfg(test)]
mod tests;
