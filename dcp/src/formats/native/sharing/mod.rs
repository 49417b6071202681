//! Sharing: boxes of a save that an earlier checkpoint of the root holds already are referred to, not written again.
//!
//! ```text
//!  put(box) ─► Base: is it there, byte for byte? ─ yes ─► references: file of the root, offset, region, strides ─┐
//!                (blocks proven by SHA-256)      └ no ──► a blob of its own, or one with other small boxes ──────┤
//!                                                                                                                ▼
//!                                                                       note: what became of each box of the group
//! ```
//!
//! What can be shared is laid out in *groups* instead of blobs, since nobody knows before the bytes come which boxes are to be
//! written. A group's note takes the place of a part.
//!
//! Invariants:
//! * what is referred to was read, proven by its blocks' digests, and is equal to what was put, byte for byte; so a damaged
//!   original is never referred to, and good bytes are never dropped for bad ones;
//! * a reference names the blob that holds the bytes, in whatever attempt: never a manifest, so there are no chains;
//! * a checkpoint that can't be read as a base is told of, and costs no save: everything is written;
//! * of two writers of one group the first to put the note decides, and the other must have put the same contents.

mod base;
mod group;
mod note;
mod proof;
mod view;

pub(crate) use base::Base;
pub(crate) use group::{GroupFill, Told};
pub(super) use note::{Note, SharedBox, SharedBoxes, WITHOUT, directory_of};
