//! [`PtSink`]: one file that `torch.load(weights_only=True)` opens.
//!
//! Names: a checkpoint that came from torch keeps its nesting. Otherwise a model alone is a flat state dict, as
//! `load_state_dict` takes it; with more than a model, `{"model": {fqn: …}, "optim": {"state": {fqn: {slot: …}}}}`.
//! Tied tensors are written once each: names are what a state dict is loaded by.

use std::path::Path;

use bytes::Bytes;
use crc32fast::Hasher;
use fqn::{
    Entry, Role,
    state_dict::{Layout, PathPart as FqnPart},
};

use super::{
    ALIAS,
    containers::{self, parameter},
    nest::{Builder, Nest},
    objects,
};
use crate::{
    Error, Needs, PathPart, Piece, Place, Result, Sink, TargetChunk, TargetFile, TargetLayout, TargetSpec,
    formats::{
        safetensors::offset_within,
        staged::{Staged, delegate_staging},
        torch_dcp::{self, of_archive, of_pickle},
    },
    pickle::{Arena, NodeId, Protocol, write},
    staging::TargetKind,
    torch::{ArchiveLayout, Composer},
};

/// Writes one file.
#[derive(Debug)]
pub struct PtSink {
    staged: Staged,
    archive: Option<ArchiveLayout>,
    /// Storage and length of each chunk, in the layout's order.
    chunks: Vec<(usize, u64)>,
    storages: usize,
}

impl PtSink {
    /// A file at `target`, which must not exist.
    #[must_use]
    pub fn new(target: &Path) -> Self {
        Self { staged: Staged::new(target, TargetKind::File), archive: None, chunks: Vec::new(), storages: 0 }
    }
}

impl Sink for PtSink {
    fn needs(&self) -> Needs {
        Needs { crc32: true, ..Needs::default() }
    }

    fn layout(&mut self, spec: &TargetSpec) -> Result<TargetLayout> {
        let composed = compose(spec)?;
        let archive =
            ArchiveLayout::new("archive", composed.pickle, &composed.storages).map_err(of_archive)?;
        let mut placed = Vec::new();
        for ((tensor, storage), start) in composed.tensors.iter().zip(0..).zip(archive.payload_offsets()) {
            let target = spec.tensors.get(*tensor).ok_or_else(|| Error::internal("a tensor of no spec"))?;
            for (region, _) in &target.regions {
                let length = target.entry.dtype.bytes_for(region.elements()).unwrap_or(0);
                // No byte is at the place of an empty payload, and a run of known records goes across it.
                let offset =
                    if region.is_empty() { 0 } else { start.saturating_add(offset_within(target, region)?) };
                let chunk = TargetChunk { tensor: *tensor, region: region.clone(), file: 0, offset };
                placed.push((chunk, storage, length));
            }
        }
        placed.sort_by_key(|(chunk, _, _)| chunk.offset);
        let mut layout = TargetLayout::default();
        let head = archive.head().into_iter().map(|(offset, bytes)| Piece { offset, bytes }).collect();
        layout.files.push(TargetFile { path: self.staged.file_name()?, size: archive.total_len(), head });
        self.chunks = placed.iter().map(|(_, storage, length)| (*storage, *length)).collect();
        layout.chunks = placed.into_iter().map(|(chunk, _, _)| chunk).collect();
        self.storages = composed.storages.len();
        self.archive = Some(archive);
        self.staged.begin(&spec.plan_digest, &layout)?;
        Ok(layout)
    }

    fn tail(&self, file: usize, crc32: &[u32]) -> Result<Vec<Piece>> {
        let archive = self.archive.as_ref().filter(|_| file == 0 && crc32.len() == self.chunks.len());
        let archive = archive.ok_or_else(|| {
            Error::internal(format!(
                "{} checksums for the {} chunks of file {file}",
                crc32.len(),
                self.chunks.len()
            ))
        })?;
        // Chunks come by offset, so those of one storage follow each other.
        let mut sums = vec![Hasher::new(); self.storages];
        for ((storage, length), crc) in self.chunks.iter().zip(crc32) {
            if let Some(sum) = sums.get_mut(*storage) {
                sum.combine(&Hasher::new_with_initial_len(*crc, *length));
            }
        }
        let sums: Vec<u32> = sums.into_iter().map(Hasher::finalize).collect();
        let pieces = archive.tail(&sums).map_err(of_archive)?;
        Ok(pieces.into_iter().map(|(offset, bytes)| Piece { offset, bytes }).collect())
    }

    delegate_staging!();
}

/// The pickle, the storages in their order, and the tensor of each.
pub(super) struct Composed {
    pub(super) pickle: Bytes,
    storages: Vec<u64>,
    tensors: Vec<usize>,
}

pub(super) fn compose(spec: &TargetSpec) -> Result<Composed> {
    let names = Names::of(spec);
    let mut nest = Nest::default();
    for (at, tensor) in spec.tensors.iter().enumerate() {
        let path = names.path(&tensor.entry)?;
        nest.put(&path, at).place(&tensor.entry.fqn)?;
    }
    for (at, object) in spec.objects.iter().enumerate() {
        nest.put(&object.path, spec.tensors.len().saturating_add(at)).place(&object.key)?;
    }
    let containers = if names.is_ours() { containers::kept(&spec.extra)? } else { Vec::new() };
    let mut leaves = Leaves { spec, composer: Composer::new(), tensors: Vec::new(), keep: names.is_ours() };
    let root = nest.build(&containers, &mut leaves)?;
    let Leaves { composer, tensors, .. } = leaves;
    let (arena, storages) = composer.into_parts();
    let tree = arena.finish(root).map_err(of_pickle)?;
    let pickle = Bytes::from(write(&tree, Protocol::V2).map_err(of_pickle)?);
    Ok(Composed { pickle, storages, tensors })
}

/// Where tensors stand.
enum Names {
    /// Where they stood in a state dict of torch's, kept under this alias.
    Kept(&'static str),
    /// Where this layout puts them.
    Made(Layout),
}

impl Names {
    fn of(spec: &TargetSpec) -> Self {
        let entries = || spec.tensors.iter().map(|tensor| &tensor.entry);
        let kept =
            [ALIAS, torch_dcp::ALIAS].into_iter().find(|of| entries().all(|entry| still_fits(entry, of)));
        if let Some(of) = kept.filter(|_| !spec.tensors.is_empty()) {
            return Self::Kept(of);
        }
        let alone = spec.objects.is_empty() && entries().all(|entry| entry.role.is_model());
        Self::Made(if alone { Layout { model: None, optimizer: None } } else { Layout::nested() })
    }

    fn is_ours(&self) -> bool {
        matches!(self, Self::Kept(of) if *of == ALIAS)
    }

    fn path(&self, entry: &Entry) -> Result<Vec<PathPart>> {
        let lost = || Error::incompatible(format!("{} has no place in a state dict", entry.id()));
        match self {
            Self::Kept(of) => {
                let alias = entry.alias(of).ok_or_else(lost)?;
                let path: Option<Vec<PathPart>> = alias.path.iter().map(PathPart::from_json).collect();
                let flat = || vec![PathPart::Key(alias.key.clone())];
                // A file that is one tensor has the empty path; a flat format has no paths.
                let path = path.ok_or_else(lost)?;
                Ok(if path.is_empty() && *of != ALIAS { flat() } else { path })
            }
            Self::Made(layout) => {
                let path = layout.path(&entry.id()).ok_or_else(lost)?;
                let part = |part: FqnPart| match part {
                    FqnPart::Key(key) => PathPart::Key(key.into_string()),
                    FqnPart::Index(index) => PathPart::Index(index),
                };
                Ok(path.into_iter().map(part).collect())
            }
        }
    }
}

/// Whether the place that `of` tells is still that of this tensor: a renamed one's would contradict its name. State by
/// index goes with the parameters that it is of.
fn still_fits(entry: &Entry, of: &str) -> bool {
    let by_index = |path: &[serde_json::Value]| {
        path.windows(2).any(|two| matches!(two, [state, index] if state == "state" && index.is_u64()))
    };
    let is_slot = !entry.role.is_model() && entry.role != Role::Other;
    entry
        .alias(of)
        .is_some_and(|alias| alias.key.contains(entry.fqn.as_str()) || is_slot && by_index(&alias.path))
}

/// Makes tensors and values.
struct Leaves<'a> {
    spec: &'a TargetSpec,
    composer: Composer,
    /// The tensor of each storage.
    tensors: Vec<usize>,
    /// Whether what was a parameter shall be one.
    keep: bool,
}

impl Builder for Leaves<'_> {
    fn arena(&mut self) -> &mut Arena {
        self.composer.arena()
    }

    fn leaf(&mut self, leaf: usize) -> Result<NodeId> {
        let Some(tensor) = self.spec.tensors.get(leaf) else {
            let object = leaf.checked_sub(self.spec.tensors.len()).and_then(|at| self.spec.objects.get(at));
            let object = object.ok_or_else(|| Error::internal("a leaf of nothing"))?;
            return objects::put(self.composer.arena(), object).place(&object.key);
        };
        let entry = &tensor.entry;
        let made = self.composer.tensor(entry.dtype, &entry.shape, false);
        let made = made.ok_or_else(|| {
            let text = format!("{}: torch can't hold {} of shape {}", entry.fqn, entry.dtype, entry.shape);
            Error::incompatible(text).hint("plan a cast to a dtype that torch has")
        })?;
        self.tensors.push(leaf);
        let key = entry.alias(ALIAS).filter(|_| self.keep).map(|alias| alias.key.as_str());
        Ok(match key.and_then(|key| parameter(&self.spec.extra, key)) {
            Some(grad) => self.composer.parameter(made, grad),
            None => made,
        })
    }
}
