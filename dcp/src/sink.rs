//! [`Sink`]: the writing half of the format seam. An adapter decides which files there are and where each chunk's
//! bytes go; the engine moves the bytes; the adapter makes the result visible, all or nothing.
//!
//! ```text
//!  TargetSpec ──► Sink::layout ──► TargetLayout ──► engine: fill chunks at their offsets, any order, any thread
//!                                                     │ per file, when its last chunk is in: Sink::tail → finish
//!                                                     ▼ Sink::file_done (durable memory of what is finished)
//!                                                   Sink::commit: visible, or nothing
//! ```
//!
//! Several workers may write one target, each its share of the files: [`Sink::finished_by_others`] tells what else is done, and
//! whoever finds everything done commits.
//!
//! Invariants: chunks of a file never overlap and lie inside it; `head` pieces, chunks and `tail` pieces together
//! fill a file exactly; nothing under the target's name is visible before `commit`; the same spec gives the same
//! layout, so that a stopped run can go on.

use std::ops::Range;

use bytes::Bytes;
use fqn::Entry;
use reshard::{Layout, Mesh, Region, StageSplit};
use serde::{Deserialize, Serialize};

use crate::{
    Error, ObjectEntry, Result,
    codec::Codecs,
    digest::{BlockCodec, BlockTable},
    fingerprint::{Fingerprint, FingerprintSum},
    store::BlobWriter,
};

/// Everything that a target shall hold.
#[derive(Debug, Clone)]
pub struct TargetSpec {
    /// Tensors, named as in the target, in order.
    pub tensors: Vec<TargetTensor>,
    /// Non-tensor state.
    pub objects: Vec<ObjectEntry>,
    /// Training step, where it is known.
    pub step: Option<u64>,
    /// Mesh that the regions were laid out for, if for one.
    pub mesh: Option<Mesh>,
    /// How layers are split over `pp`, with a mesh.
    pub split: Option<StageSplit>,
    /// Digest of everything the plan depends on, in hexadecimal; a rerun of the same plan has the same one.
    pub plan_digest: String,
    /// Facts to carry over, see [`crate::Catalog::extra`].
    pub extra: serde_json::Map<String, serde_json::Value>,
    /// Which roles are stored compressed: for the native store, which alone can.
    pub codecs: Codecs,
}

/// One tensor of a target.
#[derive(Debug, Clone)]
pub struct TargetTensor {
    /// Name, role, dtype, shape, placement.
    pub entry: Entry,
    /// The boxes to write, tiling it exactly, each with the rank that it is written for.
    pub regions: Vec<(Region, u32)>,
}

impl TargetTensor {
    /// The tensor at a position of a layout's registry, each of its boxes with the one rank that writes it.
    ///
    /// # Errors
    /// `Corrupt` for a shape that no box can have.
    pub fn laid_out(entry: Entry, layout: &Layout, at: usize) -> Result<Self> {
        let mut regions = layout.boxes(at);
        if regions.is_empty() {
            // An empty tensor has no shard that holds anything, and still has to be there.
            regions.push((Self::whole(&entry)?, 0));
        }
        Ok(Self { entry, regions })
    }

    /// All of a tensor as one box.
    ///
    /// # Errors
    /// `Corrupt` for a shape that no box can have.
    pub fn whole(entry: &Entry) -> Result<Region> {
        Region::whole(&entry.shape).map_err(|error| Error::corrupt(format!("{}: {error}", entry.id())))
    }
}

/// Where a target's bytes go.
#[derive(Debug, Clone, Default)]
pub struct TargetLayout {
    /// Files to write.
    pub files: Vec<TargetFile>,
    /// Chunks, sorted by file and offset.
    pub chunks: Vec<TargetChunk>,
}

/// A file to write.
#[derive(Debug, Clone)]
pub struct TargetFile {
    /// Path relative to the target.
    pub path: String,
    /// Bytes, known before the first is written; of a coded file, those that it decodes to.
    pub size: u64,
    /// Bytes known beforehand: headers, padding, archive records.
    pub head: Vec<Piece>,
}

/// Bytes at an offset of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// First byte's offset.
    pub offset: u64,
    /// The bytes.
    pub bytes: Bytes,
}

/// A chunk to fill: row-major, little-endian, packed.
#[derive(Debug, Clone)]
pub struct TargetChunk {
    /// Index in [`TargetSpec::tensors`].
    pub tensor: usize,
    /// The box.
    pub region: Region,
    /// Index in [`TargetLayout::files`].
    pub file: usize,
    /// Offset of its first byte.
    pub offset: u64,
}

/// What the engine shall compute on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Needs {
    /// CRC-32 of each chunk.
    pub crc32: bool,
    /// SHA-256 block table of each file; blocks start at chunk starts.
    pub blocks: bool,
}

/// A file that is written and durable.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FileDone {
    /// Index in [`TargetLayout::files`].
    pub file: usize,
    /// Its path, as a guard against another layout.
    pub path: String,
    /// Its size, as stored.
    pub size: u64,
    /// Bytes that it decodes to, where some of its blocks are compressed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logical: Option<u64>,
    /// CRC-32 of its chunks, in the layout's order; empty unless needed.
    pub crc32: Vec<u32>,
    /// Its block table; `None` unless needed. Not part of the text form: a store that keeps block tables keeps each as
    /// an object of its own.
    #[serde(skip)]
    pub blocks: Option<BlockTable>,
    /// What its chunks add to their tensors' fingerprints: index in [`TargetSpec::tensors`] and sum, in the target's own
    /// coordinates.
    pub sums: Vec<(usize, FingerprintSum)>,
    /// The same in the source's coordinates, for tensors whose rows were mapped: what the source's own fingerprint is
    /// compared with. Numbers from the count of tensors on are positions in the source's [`Lineage`](crate::Lineage): what was
    /// recorded of tensors that were stacked or taken apart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub source_sums: Vec<(usize, FingerprintSum)>,
}

impl FileDone {
    /// Bytes that it decodes to: the size that the layout gave it.
    #[must_use]
    pub fn logical_size(&self) -> u64 {
        self.logical.unwrap_or(self.size)
    }
}

/// Everything written.
#[derive(Debug, Clone)]
pub struct Written {
    /// One per file, in the layout's order.
    pub files: Vec<FileDone>,
    /// One per tensor of the spec, in the target's coordinates.
    pub fingerprints: Vec<Fingerprint>,
}

/// What became visible.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Committed {
    /// Where: a path or URL as the user would give it to the next command.
    pub target: String,
    /// Sequence number in the commit log, for the native store.
    pub sequence: Option<u64>,
    /// Bytes of all files together, metadata included.
    pub bytes: u64,
    /// Number of files, metadata included.
    pub files: usize,
}

/// A target being written.
pub trait Sink: Send + Sync {
    /// What to compute on the way.
    fn needs(&self) -> Needs;

    /// Decides files and offsets. Called once, before anything else.
    ///
    /// # Errors
    /// `Conflict` when the target exists, `Incompatible` for what the format can't hold (a dtype, a name).
    fn layout(&mut self, spec: &TargetSpec) -> Result<TargetLayout>;

    /// Files that an earlier, stopped run of the same plan finished.
    ///
    /// # Errors
    /// The store's.
    fn finished(&self) -> Result<Vec<FileDone>>;

    /// Which files of the layout this process writes; the others are other workers'.
    fn mine(&self, layout: &TargetLayout) -> Range<usize> {
        0..layout.files.len()
    }

    /// Those of `files` (positions in the layout) that other workers finished since the layout was decided. Their paths need not be the
    /// layout's.
    ///
    /// # Errors
    /// The store's; `Corrupt` for what is not of this plan; `Conflict` where the target was given up meanwhile, so that nobody can finish it.
    fn finished_by_others(&self, files: &[usize]) -> Result<Vec<FileDone>> {
        let _ = files;
        Ok(Vec::new())
    }

    /// Opens a file of the layout for writing.
    ///
    /// # Errors
    /// The store's.
    fn blob(&self, file: usize) -> Result<Box<dyn BlobWriter>>;

    /// How the blocks of each chunk of `file` are to be stored, in the layout's order; nothing for a file that is stored plain. A
    /// coded file has no bytes but its head and its chunks, one behind the other, and ends where its blocks do: its writer is
    /// finished by [`BlobWriter::finish_at`].
    ///
    /// # Errors
    /// `Internal` for a file that is not in the layout.
    fn codecs(&self, file: usize) -> Result<Vec<BlockCodec>> {
        let _ = file;
        Ok(Vec::new())
    }

    /// The bytes of `file` that depend on its chunks' CRCs (in the layout's order).
    ///
    /// # Errors
    /// `Internal` for a file that is not in the layout.
    fn tail(&self, file: usize, crc32: &[u32]) -> Result<Vec<Piece>> {
        let _ = (file, crc32);
        Ok(Vec::new())
    }

    /// Remembers, durably, that a file is finished.
    ///
    /// # Errors
    /// The store's.
    fn file_done(&self, done: &FileDone) -> Result<()>;

    /// Makes the target visible.
    ///
    /// # Errors
    /// `Conflict` when somebody else made it in the meantime; the store's. Nothing is visible then.
    fn commit(&mut self, written: &Written) -> Result<Committed>;
}
