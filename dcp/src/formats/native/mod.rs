//! The native store as a format: our own root, read through [`NativeSource`] and written through [`NativeSink`].
//!
//! ```text
//!  TargetSpec ─ layout ─► data/r00000-0000-<nonce>.safetensors …   blobs, durable first
//!                         blocks/r00000-0000-<nonce>.blocks        then their digests
//!                         parts/r00000-0000.json                   then the note that both are whole
//!             ─ commit ─► manifest-<sha256>.sqlite ─► commits/<20 digits>.json     (publish)
//!  location@revision ─ open ─► record ─► manifest ─► Catalog
//! ```
//!
//! The contract is `FORMAT.md`. Invariants:
//! * what is referred to instead of written was proven and compared first (see `sharing`);
//! * a part names only what is durable, is put once, and decides which of two writers' blobs counts; names of unfinished
//!   blobs are never used again;
//! * the committer believes what lies in the store, never what it was told: parts, sizes, block tables and cover are read
//!   and checked before the manifest is written;
//! * the attempt's folder follows from the plan's digest, so the same plan goes on in the same folder, and is committed
//!   once however often it is run;
//! * what is read is checked before it is believed: manifest by the record's digest, block tables by the manifest's
//!   roots, sealed foreign files by size and time.

mod attempt;
mod audit;
mod catalog;
mod facts;
mod files;
mod fill;
mod layout;
mod objects;
mod open;
mod part;
mod planned;
mod publish;
mod revision;
mod sharing;
mod sink;
mod source;
mod whose;

pub(crate) use attempt::{attempt_of, is_attempt_name, is_attempt_object, is_attempt_of, is_piece};
#[cfg(any(test, feature = "testing"))]
pub(crate) use catalog::manifest_of_parts;
pub use facts::{CommitFacts, utc};
pub(crate) use files::nanoseconds;
pub(crate) use fill::{Closed, Fill, Put};
pub(crate) use layout::BLOB;
pub(crate) use objects::ObjectBlob;
pub use open::{open, open_in, open_record, open_root};
#[cfg(any(test, feature = "testing"))]
pub(crate) use part::HeldNote;
pub(crate) use part::Parts;
pub(crate) use planned::{Finished, Planned, Terms};
pub(crate) use publish::{Publication, append_record_while, publish, put_manifest};
pub use revision::{Revision, RevisionError};
pub(crate) use sharing::{Base, GroupFill, Told};
pub use sink::{Earlier, NativeSink, SinkOptions};
pub use source::NativeSource;
pub(crate) use whose::Whose;
#[cfg(any(test, feature = "testing"))]
pub(crate) use {layout::Blob, part::Part};

#[cfg(test)]
mod tests;
