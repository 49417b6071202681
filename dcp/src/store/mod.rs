//! The rim: where checkpoints are stored, and the only way to it.
//!
//! ```text
//!  Root ──────► LocalStore ──► Fs (traced) ──► DiskFs
//!    │  sync        ▲ implements
//!    └────────► dyn ObjectStore ◄── memory; Remote ──► S3, GCS, Azure (each behind its feature)
//! ```
//!
//! Invariants: a name that was put is never overwritten by this crate (but for one hint, see `commit`); what a call has put is durable when it returns; a reader sees
//! an object whole or not at all; no name leads out of the root; an error tells whether something may have landed. Randomness comes in as
//! a value ([`Nonces`]), and so do stores in memory ([`Stores`]).
//!
//! With the feature `testing` come a suite that every store must pass (`conformance`), stores over others (`over`) that fail by a seed
//! (`faults`) or count (`counted`), and a file system that crashes (`sim`): put a `LocalStore` over it, and look at every state that a crash may leave.

mod blob;
#[cfg(any(test, feature = "testing"))]
pub mod conformance;
#[cfg(any(test, feature = "testing"))]
pub mod counted;
mod coverage;
mod disk;
mod error;
#[cfg(any(test, feature = "testing"))]
pub mod faults;
mod filesystem;
mod fs;
mod local;
mod location;
mod name;
mod nonce;
mod object_at;
mod open_files;
#[cfg(any(test, feature = "testing"))]
pub mod over;
#[cfg(feature = "remote")]
mod remote;
mod root;
#[cfg(any(test, feature = "testing"))]
pub mod sim;
mod staging;
mod stores;
#[cfg(test)]
pub(crate) mod traced;
mod waiter;

pub use blob::{BlobWriter, UPLOADING};
pub use disk::{DiskFs, GATHERED, Links, gather_at_most};
pub use error::{Result, Source, StoreError};
pub use filesystem::{FileSystem, Trust};
pub use fs::{DirEntry, FileKind, FileStat, Fs, FsFile};
pub use local::{Listed, LocalStore, Node};
pub use location::bytes_of_open_blob;
pub(crate) use name::PROBE;
pub use name::{ObjectPath, object_path};
pub use nonce::{Nonce, Nonces, NotANonce, OsNonces, SeededNonces};
pub use object_at::ObjectAt;
#[cfg(feature = "remote")]
pub use remote::Patience;
pub use root::{Listing, ObjectInfo, Put, Root};
pub use stores::{Stores, local_path};
