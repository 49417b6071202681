//! The manifest: the catalog of one checkpoint as one immutable object, an SQLite image named by its SHA-256.
//!
//! ```text
//!  Manifest ── write ──► tables in memory ── serialise ──► bytes ──► manifest-<sha256>.sqlite, put once
//!  Manifest ◄── read ─── tables, read-only ◄─ image checks ─ bytes
//!  (catalog, mesh, who wrote it, where it came from)
//! ```
//!
//! Tensors, files, objects and facts are plain tables that any SQLite tool can query; the chunks of a tensor are one
//! packed column, because a checkpoint can have millions of them. `FORMAT.md` is the contract; this module is its
//! Rust side.
//!
//! # Invariants
//!
//! * Equal manifests have equal bytes (with one version of SQLite): nothing in an image depends on time, place or order
//!   of work.
//! * No SQLite file is ever opened in place: images are built and read in memory.
//! * An image from outside is hostile until read: its header, then its schema (text for text), then its pages, then
//!   every number and name are checked. It can't make a reader run SQL of its own, and can't make it allocate more
//!   than a small multiple of its own size: what all rows would take is added up before any is decoded, and a writer refuses to
//!   write what no reader would take.
//! * Chunks are checked as the image is opened, all of them, by their numbers in the packed column; they stay packed, and
//!   become [`crate::Chunk`]s only where they are walked ([`crate::ChunkList`]). So nothing is believed unchecked, and nothing
//!   is left to fail later.

mod error;
mod image;
mod model;
mod path;
mod read;
mod schema;
mod weight;
mod write;

pub use error::ManifestError;
pub(crate) use image::image_len;
pub use model::{
    EncodedManifest, INLINE_OBJECT_LIMIT, Manifest, ObjectPlace, Origin, Writer, manifest_digest,
    manifest_name,
};
pub use path::{check_base, check_path};
pub use schema::{MANIFEST_VERSION, UNDERSTOOD_FEATURES};

#[cfg(test)]
mod tests;
