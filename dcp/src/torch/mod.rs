//! Torch's own file format, read in place and laid out for writing: zip archives of one pickle and many storages.
//!
//! ```text
//!  ReadAt ─► Archive (records, CRCs) ─► data.pkl ─► pickle::Tree ─► read_tensor ─► TensorRef, ShardRef
//!                                                                                     │ data/<key>
//!  Composer ─► pickle::write ─► ArchiveLayout ─► head, payload offsets, tail          ▼ byte ranges
//! ```
//!
//! `.pt` files are one archive; the blobs of a torch DCP checkpoint are rows of them. Nothing here knows either:
//! the adapters under `formats` do.

mod archive;
mod compose;
mod directory;
mod dtensor;
mod error;
mod kind;
mod layout;
mod rebuild;
mod storage;
mod zip;

pub use archive::{Archive, CrcState};
pub use compose::Composer;
pub use directory::Record;
pub use dtensor::{DTensorSpec, MeshRanks, TorchPlacement};
pub use error::ArchiveError;
pub use layout::{ALIGNMENT, ArchiveLayout};
pub use rebuild::{ShardRef, Tensor, TensorError, TensorRef, read_tensor};
pub use storage::StorageRef;

#[cfg(test)]
mod tests;
