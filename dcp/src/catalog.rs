//! [`Catalog`]: what a checkpoint holds and where every byte of it lies. The one idea of the suite: everything else
//! works on catalogs and byte ranges.
//!
//! ```text
//!  Catalog
//!   ├─ registry : Entry   (fqn, role, dtype, shape, placement, aliases) ┐ same order,
//!   ├─ tensors  : Chunks  (region → file, offset, strides, CRC)         ┘ same length
//!   ├─ files    : where a blob is, its size, its block table's root
//!   └─ objects  : non-tensor state, with its encoding and its reshard rule
//! ```
//!
//! Invariants (an adapter checks them before it hands a catalog out, see [`Catalog::check`]):
//! - `tensors` is parallel to `registry.entries()`;
//! - a chunk's region lies within its tensor's shape, its bytes within its file;
//! - whether chunks tile their tensor exactly is *not* an invariant: a foreign checkpoint may have gaps, and
//!   `verify` must be able to open and name them. Whoever reads data asks for coverage first.

use bytes::Bytes;
use fqn::{Dims, Dtype, Entry, Registry, Shape};
use reshard::{Mesh, Region, StageSplit};
use serde::{Deserialize, Serialize};

use crate::{ChunkList, Error, Lineage, Result, cores, rank_state::RankScheme};

/// Formats that are read or written. The text form is what `--as` takes and what is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// Our own store.
    Native,
    /// `torch.distributed.checkpoint`.
    TorchDcp,
    /// A `torch.save` archive.
    Pt,
    /// One safetensors file.
    Safetensors,
    /// A Hugging Face folder: safetensors files with an index, and a config.
    Hf,
}

/// What a checkpoint holds and where every byte of it lies.
#[derive(Debug, Clone)]
pub struct Catalog {
    /// The format it was read from.
    pub format: Format,
    /// One sentence on the variant and version that was found: `written by torch ≥ 2.4, zstd-compressed entries`.
    pub variant: String,
    /// Every tensor.
    pub registry: Registry,
    /// Where each tensor's bytes are; parallel to the registry.
    pub tensors: Vec<Chunks>,
    /// Files that chunks point into.
    pub files: Vec<FileEntry>,
    /// Non-tensor state.
    pub objects: Vec<ObjectEntry>,
    /// Training step, where it is known.
    pub step: Option<u64>,
    /// Mesh it was written on, where the format records one.
    pub mesh: Option<Mesh>,
    /// How layers were split over `pp`, where the format records it.
    pub split: Option<StageSplit>,
    /// By which rules files were compressed, for people: see [`crate::codec::Codecs`]. None where no file is.
    pub codecs: Option<String>,
    /// What tensors were recorded as, where a source shows them otherwise.
    pub lineage: Lineage,
    /// Facts that only the format knows (a save id, safetensors' `__metadata__`, unknown attributes), by name, kept
    /// so that a round trip loses nothing.
    pub extra: serde_json::Map<String, serde_json::Value>,
}

/// Index of a file in [`Catalog::files`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FileId(pub u32);

/// The chunks of one tensor.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Chunks {
    /// In the order of the format.
    pub chunks: ChunkList,
    /// Fingerprint of the whole tensor, where the format keeps one: 32 hexadecimal digits (see `fingerprint`).
    pub fingerprint: Option<crate::fingerprint::Fingerprint>,
}

/// A box of a tensor and the place of its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// The box, in global coordinates.
    pub region: Region,
    /// The file.
    pub file: FileId,
    /// Byte offset of the box's first element in that file, decoded where it is compressed.
    pub offset: u64,
    /// Strides in elements, one per dimension; `None` when row-major and packed. Foreign files only.
    pub strides: Option<Dims>,
    /// The checksummed record that holds the bytes, where the format has one.
    pub record: Option<CrcRecord>,
}

/// A byte range with a CRC-32 (a record of a zip archive). Several chunks may lie in one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CrcRecord {
    /// First byte in the file.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
    /// CRC-32 (IEEE) of the bytes.
    pub crc32: u32,
}

/// A file that chunks point into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    /// Path relative to the checkpoint's folder; what messages show.
    pub path: String,
    /// Where it is.
    pub location: Location,
    /// Bytes, as they lie there.
    pub size: u64,
    /// Bytes that its blocks decode to, where some are compressed. Offsets of chunks are among these.
    pub logical: Option<u64>,
    /// Block table, where the format has one.
    pub blocks: Option<BlockRef>,
}

/// Where a file is, seen from the manifest that names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// In the checkpoint's own folder.
    InStep,
    /// In the root, in another step's folder.
    InRoot,
    /// Outside: a sealed foreign file. Its identity is checked before its bytes are believed.
    External {
        /// Absolute path or URL of the folder that `path` is relative to.
        base: String,
        /// Entity tag, where the store has them.
        etag: Option<String>,
        /// Modification time in nanoseconds since 1970, where the store tells.
        mtime_ns: Option<i64>,
    },
}

/// The block table of a file: its object and its root hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockRef {
    /// Path of the table, relative as the manifest says.
    pub path: String,
    /// SHA-256 of the encoded table.
    pub root: crate::digest::Sha256Digest,
}

/// A piece of non-tensor state.
#[derive(Debug, Clone, PartialEq)]
pub struct ObjectEntry {
    /// Flat key, as the format spells it.
    pub key: String,
    /// Path in the nested state dict; equal to `[key]` where the format is flat.
    pub path: Vec<PathPart>,
    /// How `bytes` are encoded.
    pub encoding: Encoding,
    /// The value.
    pub bytes: Bytes,
    /// The value as JSON, for people, where it has such a form.
    pub preview: Option<serde_json::Value>,
    /// What a change of mesh does to it.
    pub reshard: ReshardRule,
}

/// One step down a nested state dict.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PathPart {
    /// A mapping's key.
    Key(String),
    /// A list's index.
    Index(u64),
}

/// How an object's bytes are encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Encoding {
    /// UTF-8 JSON.
    Json,
    /// A bare pickle without tensors.
    Pickle,
    /// A whole `torch.save` archive.
    TorchSave,
}

/// What a change of mesh does to non-tensor state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReshardRule {
    /// One value for the whole run: kept.
    Global,
    /// One value per data rank: kept while their number stays, else split or merged as a [`RankScheme`] says.
    PerDataRank,
    /// One opaque value per rank: kept on the same mesh, else refused, or dropped when told so.
    PerRank,
}

impl PathPart {
    /// As JSON: text for keys, a number for indices.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Key(key) => key.clone().into(),
            Self::Index(index) => (*index).into(),
        }
    }

    /// From JSON text or an unsigned number.
    #[must_use]
    pub fn from_json(value: &serde_json::Value) -> Option<Self> {
        match value {
            serde_json::Value::String(key) => Some(Self::Key(key.clone())),
            other => other.as_u64().map(Self::Index),
        }
    }
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Native, Self::TorchDcp, Self::Pt, Self::Safetensors, Self::Hf];

    /// The text form.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::TorchDcp => "torch-dcp",
            Self::Pt => "pt",
            Self::Safetensors => "safetensors",
            Self::Hf => "hf",
        }
    }
}

impl FileEntry {
    /// Bytes that offsets of chunks are counted in: those of the file, decoded where it is compressed.
    #[must_use]
    pub fn logical_size(&self) -> u64 {
        self.logical.unwrap_or(self.size)
    }

    /// Whether some of its blocks are compressed.
    #[must_use]
    pub const fn is_coded(&self) -> bool {
        self.logical.is_some()
    }
}

impl Chunk {
    /// Bytes from the chunk's first element to the end of its last, in its file: packed size when row-major, the
    /// span that strides cover otherwise. `None` on overflow.
    #[must_use]
    pub fn span(&self, dtype: Dtype) -> Option<u64> {
        let Some(strides) = &self.strides else { return dtype.bytes_for(self.region.elements()) };
        if self.region.is_empty() {
            return Some(0);
        }
        let mut last = 0_u64;
        for (stride, extent) in strides.iter().zip(self.region.extents()) {
            last = last.checked_add(stride.checked_mul(extent.checked_sub(1)?)?)?;
        }
        dtype.bytes_for(last.checked_add(1)?)
    }

    /// Whether the bytes are row-major and packed.
    #[must_use]
    pub fn is_packed(&self) -> bool {
        let Some(strides) = &self.strides else { return true };
        let extents = Shape::new(self.region.extents());
        let packed = extents.row_major_strides();
        let same = |packed: Dims| {
            packed
                .iter()
                .zip(strides)
                .zip(self.region.extents())
                .all(|((want, have), extent)| *extent <= 1 || want == have)
        };
        packed.is_some_and(same)
    }
}

impl Catalog {
    /// Key of [`Catalog::extra`]: what becomes of state that every data rank has of its own when their number changes, a
    /// [`RankScheme`]; recorded by whoever saved it.
    pub const RANK_STATE: &'static str = "rank-state";

    /// The rules that it records for state of data ranks; none where it records none.
    ///
    /// # Errors
    /// `Corrupt` where what is recorded is no scheme.
    pub fn rank_scheme(&self) -> Result<RankScheme> {
        let Some(recorded) = self.extra.get(Self::RANK_STATE) else { return Ok(RankScheme::default()) };
        RankScheme::deserialize(recorded).map_err(|error| {
            Error::corrupt(format!("the recorded rules for state of data ranks: {error}")).caused_by(error)
        })
    }

    /// Key of [`Catalog::extra`]: how many ranks saved it, where the format tells.
    pub const RANKS: &'static str = "ranks";

    /// An empty catalog of `format`.
    #[must_use]
    pub fn new(format: Format) -> Self {
        Self {
            format,
            variant: String::new(),
            registry: Registry::new(),
            tensors: Vec::new(),
            files: Vec::new(),
            objects: Vec::new(),
            step: None,
            mesh: None,
            split: None,
            codecs: None,
            lineage: Lineage::default(),
            extra: serde_json::Map::new(),
        }
    }

    /// Appends a tensor and its chunks.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Corrupt`] when the id is already there.
    pub fn push(&mut self, entry: Entry, chunks: Chunks) -> Result<usize> {
        let at =
            self.registry.push(entry).map_err(|error| Error::corrupt(error.to_string()).caused_by(error))?;
        self.tensors.push(chunks);
        Ok(at)
    }

    /// Tensors with their chunks, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Entry, &Chunks)> {
        self.registry.entries().iter().zip(&self.tensors)
    }

    /// The file of `id`.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Internal`] for an id of another catalog.
    pub fn file(&self, id: FileId) -> Result<&FileEntry> {
        let entry = usize::try_from(id.0).ok().and_then(|at| self.files.get(at));
        entry.ok_or_else(|| {
            Error::internal(format!("file {} is not in this catalog of {}", id.0, self.files.len()))
        })
    }

    /// Bytes of all files, as stored and as they decode to; the same where none is compressed.
    #[must_use]
    pub fn file_bytes(&self) -> (u64, u64) {
        let sum = |of: fn(&FileEntry) -> u64| self.files.iter().map(of).fold(0, u64::saturating_add);
        (sum(|file| file.size), sum(FileEntry::logical_size))
    }

    /// Total bytes of all tensors, each counted once.
    #[must_use]
    pub fn tensor_bytes(&self) -> u64 {
        self.registry.entries().iter().filter_map(Entry::bytes).fold(0, u64::saturating_add)
    }

    /// Checks the invariants of this module.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Corrupt`], naming the tensor, the region and the file.
    pub fn check(&self) -> Result<()> {
        if self.registry.len() != self.tensors.len() {
            return Err(Error::internal(format!(
                "{} entries, {} chunk lists",
                self.registry.len(),
                self.tensors.len()
            )));
        }
        cores::try_each(self.tensors.len(), |at| {
            match (self.registry.entries().get(at), self.tensors.get(at)) {
                (Some(entry), Some(chunks)) => self.check_chunks(entry, &chunks.chunks),
                _ => Err(Error::internal(format!("tensor {at} has no entry, or no chunk list"))),
            }
        })
    }

    /// Two million chunks pass here: what lies where it should is told from its numbers alone.
    fn check_chunks(&self, entry: &Entry, chunks: &ChunkList) -> Result<()> {
        let size = |file: FileId| self.file(file).ok().map(FileEntry::logical_size);
        let (packed, loose) = chunks.parts();
        for record in packed.into_iter().flatten() {
            if !record.lies_within(&entry.shape, entry.dtype, size) {
                let chunk = record.chunk();
                let chunk = chunk
                    .ok_or_else(|| Error::corrupt(format!("{}: a record that is no chunk", entry.id())))?;
                self.check_chunk(entry, &chunk)?;
            }
        }
        loose.iter().try_for_each(|chunk| self.check_chunk(entry, chunk))
    }

    fn check_chunk(&self, entry: &Entry, chunk: &Chunk) -> Result<()> {
        let id = entry.id();
        if !chunk.region.fits(&entry.shape) {
            return Err(Error::corrupt(format!(
                "{id}: chunk {} lies outside the shape {}",
                chunk.region, entry.shape
            )));
        }
        let rank = chunk.region.rank();
        if chunk.strides.as_ref().is_some_and(|strides| strides.len() != rank) {
            return Err(Error::corrupt(format!("{id}: chunk {} has strides of another rank", chunk.region)));
        }
        let file = self.file(chunk.file)?;
        let end = chunk.span(entry.dtype).and_then(|span| span.checked_add(chunk.offset));
        if end.is_some_and(|end| end <= file.logical_size()) {
            return Ok(());
        }
        Err(Error::corrupt(format!(
            "{id}: chunk {} of {} at byte {} ends beyond the {} bytes of {}",
            chunk.region,
            entry.dtype,
            chunk.offset,
            file.logical_size(),
            file.path
        ))
        .hint("the file is cut short, or the metadata belongs to another save; `ckpt verify` lists everything affected"))
    }
}
