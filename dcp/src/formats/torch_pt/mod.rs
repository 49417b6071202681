//! `torch.save` archives: a `.pt` or `.pth` file, `pytorch_model.bin` and its shards, a folder of one file per rank.
//!
//! ```text
//!  data.pkl ─► leaves (nested dicts, lists) ─► file: tensors placed in records, values pickled ─┐
//!  data/<k> ◄─ byte ranges, strides, CRCs ───────────────────────────────────────────────────────┤ merge: Catalog
//!  other ranks' files, other shards ─────────────────────────────────────────────────────────────┘
//!  TargetSpec ─► nest (paths to dicts) ─► data.pkl ─► ArchiveLayout ─► one file
//! ```
//!
//! Read: what torch 1.6 to 2.13 saved of tensors, parameters and DTensors. Older files (rows of pickles, tars),
//! TorchScript, whole modules and big-endian files are refused with what to do. Written: a file that `torch.load` opens
//! with `weights_only=True`, as far as the values in it are plain.
//!
//! Invariants: nothing in a pickle is ever run; a leaf's path and the kinds of the containers around it are kept, so
//! that a state dict written again has the same nesting; tensors of one storage and one view are tied; a tensor of one
//! rank's file is a box in its global shape, wherever the file is opened.

mod containers;
mod file;
mod finish;
mod folder;
mod groups;
mod leaves;
mod merge;
mod nest;
mod objects;
mod oddities;
mod shard;
mod sink;
mod source;

pub(crate) use merge::{Assembled, Together, assemble};
pub use sink::PtSink;
pub use source::PtSource;

/// Name under which keys and paths are kept as aliases.
pub(crate) const ALIAS: &str = "pt";

#[cfg(test)]
mod tests;
