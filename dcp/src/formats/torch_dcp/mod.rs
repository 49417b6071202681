//! `torch.distributed.checkpoint`: one pickle, `.metadata`, and blobs `__{rank}_{n}.distcp`.
//!
//! ```text
//!  .metadata ─► decode (allow-list pickle) ─► Metadata ─► classify (fqn) ─┐
//!  __R_N.distcp: archive │ archive │ … ─► resolve (both ends of each) ────┴─► Catalog
//! ```
//!
//! Read: torch 2.1 to 2.13, nested and flattened optimizer state, values as archives, one metadata per rank
//! (`use_collectives=False`), zstd streams, safetensors blobs. Written: what every torch from 2.4 on opens.
//!
//! Facts that the reader relies on, seen in torch's source and files: entries are complete `torch.save` archives
//! that tile their file; a chunk is identified by (flat key, offset), the index in `MetadataIndex` is only a hint;
//! an empty shard is a real chunk with a blob; 0-d tensors have one chunk with empty offsets.

mod archive;
mod audit;
mod build;
mod decode;
mod encode;
mod folder;
mod inflate;
mod metadata;
mod objects;
mod resolve;
mod sink;
mod source;
mod windows;

pub(crate) use archive::{of_archive, of_pickle};
pub(crate) use build::ALIAS;
pub use decode::decode;
pub(crate) use decode::json;
pub use folder::Listing;
pub(crate) use folder::METADATA;
pub use metadata::{ClassLayout, Item, Metadata, StorageInfo, StorageKey};
pub(crate) use objects::{archive_of, from_json, rule, step, step_of_folder};
pub use sink::{DcpSink, Structure};
pub use source::DcpSource;
