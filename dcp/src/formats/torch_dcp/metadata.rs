//! [`Metadata`]: what `.metadata` says, as plain data.
//!
//! ```text
//!  Metadata
//!   ├─ state_dict_metadata : flat key → TensorStorageMetadata (dtype, size, chunks) | BytesStorageMetadata
//!   ├─ planner_data        : flat key → path in the nested state dict
//!   ├─ storage_data        : (flat key, chunk offset) → _StorageInfo (file, offset, length, transforms)
//!   └─ storage_meta, version, and whatever else somebody's writer has put there
//! ```

use std::collections::{HashMap, hash_map::Entry};

use fqn::{Dims, Dtype, Shape};
use reshard::Region;
use serde_json::{Map, Value};

use crate::PathPart;

/// The decoded metadata of a checkpoint; of several ranks, merged, where each wrote its own.
#[derive(Debug, Clone, Default)]
pub struct Metadata {
    /// Items in the order of `state_dict_metadata`.
    pub items: Vec<(String, Item)>,
    /// Paths of flat keys; empty when the state dict was not flattened.
    pub paths: HashMap<String, Vec<PathPart>>,
    /// Where bytes are.
    pub storage: HashMap<StorageKey, StorageInfo>,
    /// Second copies of stored pieces, where each rank wrote all that it had.
    pub replicas: Vec<(StorageKey, StorageInfo)>,
    /// Facts beside: version, storage meta, attributes that no torch defines, as JSON or as text.
    pub facts: Map<String, Value>,
    /// Which class layout was met.
    pub layout: ClassLayout,
    /// Names in the pickle outside the closed set, kept as inert names.
    pub unknown_globals: Vec<String>,
    /// Contradictions that reading could step over, in words.
    pub oddities: Vec<String>,
}

/// A value of the state dict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// A tensor and its chunks, in the order of the metadata.
    Tensor {
        /// Element type.
        dtype: Dtype,
        /// Global shape.
        shape: Shape,
        /// Boxes.
        chunks: Vec<Region>,
    },
    /// A pickled value.
    Bytes,
}

/// Identity of a stored piece: `MetadataIndex` without its hint.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StorageKey {
    /// Flat key.
    pub key: String,
    /// Offset of the chunk; `None` for bytes.
    pub offsets: Option<Dims>,
}

/// Where a piece is: `_StorageInfo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageInfo {
    /// File, checked: it lies in the checkpoint's own folder.
    pub path: String,
    /// First byte of the piece.
    pub offset: u64,
    /// Number of its bytes.
    pub length: u64,
    /// Transforms of the byte stream, in the order in which a reader applies them.
    pub transforms: Vec<String>,
}

/// Which generation of classes wrote the metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClassLayout {
    /// 2.1 and 2.2: `TensorProperties` of the sharded tensor.
    Torch21,
    /// 2.3: properties moved, no `storage_meta`.
    Torch23,
    /// 2.4 to 2.8: `storage_meta`.
    #[default]
    Torch24,
    /// 2.9 and later: `version`.
    Torch29,
}

impl ClassLayout {
    /// In words.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Torch21 => "torch 2.1 or 2.2",
            Self::Torch23 => "torch 2.3",
            Self::Torch24 => "torch 2.4 to 2.8",
            Self::Torch29 => "torch 2.9 or later",
        }
    }
}

impl Metadata {
    /// Adds what another rank wrote by itself (`use_collectives=False`). The same chunk from two ranks is one
    /// chunk, read where the first rank put it.
    ///
    /// # Errors
    /// A tensor whose dtype or shape differs between ranks: its key.
    pub(super) fn merge(&mut self, other: Self) -> Result<(), String> {
        let position: HashMap<String, usize> =
            self.items.iter().enumerate().map(|(at, (key, _))| (key.clone(), at)).collect();
        for (key, item) in other.items {
            match position.get(&key).and_then(|at| self.items.get_mut(*at)) {
                None => self.items.push((key, item)),
                Some((_, ours)) => join(ours, item).map_err(|()| key)?,
            }
        }
        for (key, info) in other.storage {
            match self.storage.entry(key) {
                Entry::Vacant(free) => drop(free.insert(info)),
                Entry::Occupied(taken) => self.replicas.push((taken.key().clone(), info)),
            }
        }
        self.paths.extend(other.paths);
        self.unknown_globals.extend(other.unknown_globals);
        self.oddities.extend(other.oddities);
        Ok(())
    }
}

fn join(ours: &mut Item, theirs: Item) -> Result<(), ()> {
    match (ours, theirs) {
        (Item::Bytes, Item::Bytes) => Ok(()),
        (Item::Tensor { dtype, shape, chunks }, Item::Tensor { dtype: d, shape: s, chunks: more })
            if *dtype == d && *shape == s =>
        {
            for chunk in more {
                if !chunks.contains(&chunk) {
                    chunks.push(chunk);
                }
            }
            Ok(())
        }
        _ => Err(()),
    }
}
