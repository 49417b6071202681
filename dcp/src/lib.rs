//! The native store, the adapters for the formats of others, and the engine that moves bytes between them.
//!
//! ```text
//!  formats::* ─ Source ─► Catalog ─► plan (moves) ─► engine ─► Sink ─ formats::*
//!                            ▲       shown first     bounded
//!                            └ fqn::Registry         memory
//! ```
//!
//! A checkpoint is a catalog plus blobs. A format is an adapter: a `Source` yields a catalog and serves byte
//! ranges, a `Sink` says where bytes go and makes them visible. Nothing outside an adapter knows its format.
#![deny(unsafe_code)]

mod bounded;
mod catalog;
mod chunk_list;
pub mod codec;
pub mod commit;
mod cores;
mod crew;
pub mod digest;
pub mod element;
pub mod engine;
mod error;
mod finding;
pub mod fingerprint;
pub mod formats;
mod lineage;
pub mod load;
pub mod manifest;
pub mod ops;
#[cfg(any(test, feature = "testing"))]
pub mod parsers;
pub mod pickle;
mod progress;
pub mod rank_state;
pub mod read_at;
mod restacked;
pub mod retention;
pub mod save;
mod sink;
mod source;
pub mod staging;
pub mod store;
#[cfg(any(test, feature = "testing"))]
pub mod synthetic;
pub mod torch;

pub use catalog::{
    BlockRef, Catalog, Chunk, Chunks, CrcRecord, Encoding, FileEntry, FileId, Format, Location, ObjectEntry,
    PathPart, ReshardRule,
};
pub use chunk_list::{ChunkList, Iter as ChunkIter};
pub use error::{Error, ErrorKind, Place, Result};
pub use finding::{Finding, FindingCode, Severity};
pub use lineage::{Lineage, Recorded};
pub use progress::{Cancel, Progress, Silent};
pub use restacked::{Restacked, Step};
pub use sink::{
    Committed, FileDone, Needs, Piece, Sink, TargetChunk, TargetFile, TargetLayout, TargetSpec, TargetTensor,
    Written,
};
pub use source::Source;
