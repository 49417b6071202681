//! [`DcpSink`]: a checkpoint that `torch.distributed.checkpoint.load` opens, on any mesh, from torch 2.4 on.
//!
//! ```text
//!  __{rank}_0.distcp   values (rank 0) │ tensor │ tensor │ …     each a whole torch archive, nothing between them
//!  .metadata           what is where
//! ```
//!
//! Names: a tensor that came from torch keeps its flat key and path; others are nested as torch's own helpers nest
//! them, `{"model": {fqn: …}, "optim": {"state": {fqn: {slot: …}}}}`, or flat at the root, as TorchTitan does.

use std::{
    collections::{BTreeMap, HashSet},
    path::Path,
};

use bytes::Bytes;
use fqn::{
    Dtype, Shape,
    state_dict::{Layout, PathPart as FqnPart},
};
use reshard::Region;

use super::{
    METADATA,
    archive::{of_archive, of_pickle},
    build::ALIAS,
    encode::{Written, encode},
    metadata::{Item, StorageInfo},
    objects,
};
use crate::{
    Error, Needs, PathPart, Piece, Result, Sink, TargetChunk, TargetFile, TargetLayout, TargetSpec,
    formats::staged::{Staged, delegate_staging},
    pickle::{Protocol, write},
    staging::TargetKind,
    torch::{ArchiveLayout, Composer},
};

/// Where tensors without a torch name of their own stand in the state dict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Structure {
    /// Model under `model`, optimizer under `optim`, keyed by FQN.
    #[default]
    Nested,
    /// Model at the root, optimizer flattened under `optimizer`, as TorchTitan loads it.
    TorchTitan,
}

/// A tensor's entry: where its archive begins in the blob, and what it describes.
type TensorEntry = (u64, Dtype, Shape);

/// Writes a folder.
#[derive(Debug)]
pub struct DcpSink {
    staged: Staged,
    structure: Structure,
    /// Entries of tensors, by file: where each begins, and what it is.
    entries: Vec<Vec<TensorEntry>>,
}

impl DcpSink {
    /// A folder at `target`, which must not exist.
    #[must_use]
    pub fn new(target: &Path, structure: Structure) -> Self {
        Self { staged: Staged::new(target, TargetKind::Folder), structure, entries: Vec::new() }
    }
}

impl Sink for DcpSink {
    fn needs(&self) -> Needs {
        Needs { crc32: true, ..Needs::default() }
    }

    fn layout(&mut self, spec: &TargetSpec) -> Result<TargetLayout> {
        let mut plan = Plan::new(spec, self.structure)?;
        plan.values(spec)?;
        plan.tensors(spec)?;
        let (layout, entries) = plan.finish()?;
        self.entries = entries;
        self.staged.begin(&spec.plan_digest, &layout)?;
        Ok(layout)
    }

    fn tail(&self, file: usize, crc32: &[u32]) -> Result<Vec<Piece>> {
        let entries = self.entries.get(file).map_or(&[][..], Vec::as_slice);
        if entries.len() != crc32.len() {
            return Err(Error::internal(format!("{} checksums for {} entries", crc32.len(), entries.len())));
        }
        let mut pieces = Vec::new();
        for ((base, dtype, shape), crc) in entries.iter().zip(crc32) {
            pieces.extend(moved(archive(*dtype, shape)?.tail(&[*crc]).map_err(of_archive)?, *base));
        }
        Ok(pieces)
    }

    delegate_staging!();
}

/// The archive of one tensor. The same tensor always has the same one.
fn archive(dtype: Dtype, shape: &Shape) -> Result<ArchiveLayout> {
    let mut composer = Composer::new();
    let tensor = composer.tensor(dtype, shape, false);
    let tensor =
        tensor.ok_or_else(|| Error::incompatible(format!("torch can't hold {dtype} of shape {shape}")))?;
    let (arena, storages) = composer.into_parts();
    let tree = arena.finish(tensor).map_err(of_pickle)?;
    let pickle = write(&tree, Protocol::V2).map_err(of_pickle)?;
    ArchiveLayout::new("archive", Bytes::from(pickle), &storages).map_err(of_archive)
}

fn moved(pieces: Vec<(u64, Bytes)>, base: u64) -> impl Iterator<Item = Piece> {
    pieces.into_iter().map(move |(offset, bytes)| Piece { offset: offset.saturating_add(base), bytes })
}

/// A blob while entries are added to it.
#[derive(Default)]
struct Blob {
    len: u64,
    head: Vec<Piece>,
    /// Tensor, box and payload offset.
    chunks: Vec<(usize, Region, u64)>,
    entries: Vec<TensorEntry>,
}

struct Plan {
    structure: Structure,
    /// Whether every tensor has a name of torch's that still fits it.
    keep_names: bool,
    blobs: BTreeMap<u32, Blob>,
    written: Vec<Written>,
    keys: HashSet<String>,
}

impl Plan {
    fn new(spec: &TargetSpec, structure: Structure) -> Result<Self> {
        // A blob for each rank that has a part, and one for the values.
        let ranks = spec.tensors.iter().flat_map(|tensor| &tensor.regions).map(|(_, rank)| *rank);
        let blobs = ranks.chain([0]).map(|rank| (rank, Blob::default())).collect();
        // A renamed tensor's old key would contradict its new name; half old and half new names would be no state dict.
        let keep_names = spec.tensors.iter().all(|tensor| {
            tensor.entry.alias(ALIAS).is_some_and(|alias| alias.key.contains(tensor.entry.fqn.as_str()))
        });
        Ok(Self { structure, keep_names, blobs, written: Vec::new(), keys: HashSet::new() })
    }

    fn name(&mut self, key: String) -> Result<String> {
        if self.keys.insert(key.clone()) {
            return Ok(key);
        }
        Err(Error::incompatible(format!("two entries would be called {key} in the state dict")))
    }

    fn values(&mut self, spec: &TargetSpec) -> Result<()> {
        for object in &spec.objects {
            let bytes = objects::archived(object)?;
            let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
            let blob = self.blobs.entry(0).or_default();
            let offset = blob.len;
            blob.head.push(Piece { offset, bytes });
            blob.len = offset.saturating_add(length);
            let storage = vec![StorageInfo { path: blob_name(0), offset, length, transforms: Vec::new() }];
            let key = self.name(object.key.clone())?;
            self.written.push(Written { key, path: object.path.clone(), item: Item::Bytes, storage });
        }
        Ok(())
    }

    fn tensors(&mut self, spec: &TargetSpec) -> Result<()> {
        for (at, tensor) in spec.tensors.iter().enumerate() {
            let entry = &tensor.entry;
            let (key, path) = self.place(entry)?;
            let key = self.name(key)?;
            let (mut chunks, mut storage) = (Vec::new(), Vec::new());
            for (region, rank) in &tensor.regions {
                let info = self.add(at, entry.dtype, region, *rank).map_err(|error| error.at(&entry.fqn))?;
                chunks.push(region.clone());
                storage.push(info);
            }
            let item = Item::Tensor { dtype: entry.dtype, shape: entry.shape.clone(), chunks };
            self.written.push(Written { key, path, item, storage });
        }
        Ok(())
    }

    /// Flat key and path of a tensor.
    fn place(&self, entry: &fqn::Entry) -> Result<(String, Vec<PathPart>)> {
        if let Some(alias) = entry.alias(ALIAS).filter(|_| self.keep_names) {
            let path: Option<Vec<PathPart>> = alias.path.iter().map(PathPart::from_json).collect();
            let path = path
                .filter(|path| !path.is_empty())
                .unwrap_or_else(|| vec![PathPart::Key(alias.key.clone())]);
            return Ok((alias.key.clone(), path));
        }
        let layout = match self.structure {
            Structure::Nested => Layout::nested(),
            Structure::TorchTitan => Layout::torchtitan(),
        };
        let id = entry.id();
        let (Some(key), Some(path)) = (layout.key(&id), layout.path(&id)) else {
            return Err(Error::incompatible(format!("{id} has no place in a state dict")));
        };
        let part = |part: FqnPart| match part {
            FqnPart::Key(key) => PathPart::Key(key.into_string()),
            FqnPart::Index(index) => PathPart::Index(index),
        };
        Ok((key, path.into_iter().map(part).collect()))
    }

    /// Adds the archive of a box to its rank's blob.
    fn add(&mut self, tensor: usize, dtype: Dtype, region: &Region, rank: u32) -> Result<StorageInfo> {
        let shape = Shape::new(region.extents());
        let layout = archive(dtype, &shape)?;
        let blob = self.blobs.entry(rank).or_default();
        let (offset, length) = (blob.len, layout.total_len());
        let payload =
            layout.payload_offset(0).ok_or_else(|| Error::internal("an archive without a payload"))?;
        // No byte is at the place of an empty payload, and a run of known records goes across it.
        let payload = if region.is_empty() { 0 } else { payload };
        blob.head.extend(moved(layout.head(), offset));
        blob.chunks.push((tensor, region.clone(), offset.saturating_add(payload)));
        blob.entries.push((offset, dtype, shape));
        blob.len =
            offset.checked_add(length).ok_or_else(|| Error::incompatible("a blob beyond 2^64 bytes"))?;
        Ok(StorageInfo { path: blob_name(rank), offset, length, transforms: Vec::new() })
    }

    fn finish(self) -> Result<(TargetLayout, Vec<Vec<TensorEntry>>)> {
        let (mut layout, mut entries) = (TargetLayout::default(), Vec::new());
        for (rank, blob) in self.blobs {
            let file = layout.files.len();
            layout.files.push(TargetFile { path: blob_name(rank), size: blob.len, head: blob.head });
            let chunk = |(tensor, region, offset)| TargetChunk { tensor, region, file, offset };
            layout.chunks.extend(blob.chunks.into_iter().map(chunk));
            entries.push(blob.entries);
        }
        let bytes = Bytes::from(encode(&self.written)?);
        let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        layout.files.push(TargetFile {
            path: METADATA.to_owned(),
            size,
            head: vec![Piece { offset: 0, bytes }],
        });
        entries.push(Vec::new());
        Ok((layout, entries))
    }
}

fn blob_name(rank: u32) -> String {
    format!("__{rank}_0.distcp")
}
