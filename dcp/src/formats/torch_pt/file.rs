//! One archive, read: its leaves, each tensor with the place of its bytes, and what is odd about the file itself.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use bytes::Bytes;
use fqn::{Dims, Dtype, Shape, state_dict::ParamGroup};
use reshard::Region;
use serde_json::Value;

use super::{
    containers::Container,
    groups::groups,
    leaves::{Content, leaves},
    objects, shard,
};
use crate::{
    Chunk, CrcRecord, Error, ErrorKind, FileId, Finding, FindingCode, PathPart, Result, Severity,
    formats::{
        Depth, OpenOptions,
        torch_dcp::{json, of_archive, of_pickle},
    },
    pickle::{Context, Limits, Policy, Ref, Unknown, read},
    read_at::FileAt,
    torch::{Archive, ArchiveError, CrcState, DTensorSpec, MeshRanks, Record, Tensor, TensorRef},
};

/// Largest `data.pkl` that is read.
const MOST_PICKLE: u64 = 2 << 30;

/// Most ranks of a mesh that are kept in a tensor.
const MOST_MESH_BYTES: u64 = 64 << 20;

/// One archive, understood.
#[derive(Debug)]
pub(super) struct PtFile {
    pub(super) name: String,
    pub(super) leaves: Vec<PtLeaf>,
    pub(super) containers: Vec<Container>,
    /// The `param_groups` of its optimizer, where there is exactly one.
    pub(super) groups: Vec<ParamGroup>,
    pub(super) findings: Vec<Finding>,
    /// The rank that wrote it, where it is one of several.
    pub(super) rank: Option<u64>,
}

#[derive(Debug)]
pub(super) struct PtLeaf {
    pub(super) key: String,
    pub(super) path: Vec<PathPart>,
    pub(super) content: PtContent,
}

#[derive(Debug)]
pub(super) enum PtContent {
    Tensor(Box<PtTensor>),
    Value { pickle: Bytes, preview: Value },
}

/// A tensor, or one rank's part of one.
#[derive(Debug)]
pub(super) struct PtTensor {
    pub(super) dtype: Dtype,
    /// Shape of the whole.
    pub(super) shape: Shape,
    /// `None` where its bytes are missing and that is forgiven.
    pub(super) chunk: Option<Chunk>,
    pub(super) view: View,
    /// Whether it takes a gradient, of a parameter.
    pub(super) parameter: Option<bool>,
    pub(super) spec: Option<Box<DTensorSpec>>,
}

/// What is one tensor in memory: equal views are.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct View {
    storage: String,
    offset: u64,
    dtype: Dtype,
    shape: Shape,
    strides: Dims,
    /// Shape of the whole.
    global: Shape,
}

/// Reads the archive in `file`.
///
/// # Errors
/// `Unsupported`: a file or a tensor of a kind that is not read. `Corrupt`: a damaged archive, a refused pickle, a
/// tensor that is not in its storage. When lenient, what concerns single tensors becomes a finding.
pub(super) fn read_file(file: &Arc<FileAt>, id: FileId, name: &str, options: OpenOptions) -> Result<PtFile> {
    let archive = Archive::open(Arc::clone(file) as _).map_err(not_opened)?;
    let pickle = archive.data_pickle(MOST_PICKLE).map_err(of_archive)?;
    let policy = Policy::new(Context::TensorArchive).unknown(Unknown::Inert);
    let tree = read(&pickle, &policy, &Limits::default()).map_err(of_pickle)?;
    let found = leaves(tree.root(), pickle.len() as u64)?;
    let mut reading = Reading {
        archive: &archive,
        file: id,
        name,
        options,
        places: HashMap::new(),
        views: BTreeMap::new(),
        rank: rank_of_name(name),
        findings: Vec::new(),
    };
    let mut read = Vec::with_capacity(found.leaves.len());
    for leaf in found.leaves {
        match reading.content(leaf.content) {
            Ok(content) => read.push(PtLeaf { key: leaf.key, path: leaf.path, content }),
            Err(error) => reading.problem(error.at(&leaf.key))?,
        }
    }
    reading.look_around(&tree);
    let container = |(container, state): (Container, Option<Ref<'_>>)| {
        Ok(Container { state: state.map(objects::pickled).transpose()?, ..container })
    };
    Ok(PtFile {
        name: name.to_owned(),
        leaves: read,
        containers: found.containers.into_iter().map(container).collect::<Result<_>>()?,
        groups: groups(tree.root()),
        findings: reading.findings,
        rank: reading.rank,
    })
}

/// A file of another kind is whole, but not read; an archive that can't be opened is damaged.
fn not_opened(error: ArchiveError) -> Error {
    match error {
        ArchiveError::NotAnArchive { found, remedy } => {
            Error::unsupported(format!("not a torch zip archive: {found}")).hint(remedy)
        }
        other => of_archive(other),
    }
}

pub(super) struct Reading<'a> {
    pub(super) archive: &'a Archive,
    file: FileId,
    pub(super) name: &'a str,
    options: OpenOptions,
    /// Payload offsets of storages that were looked up.
    places: HashMap<String, u64>,
    /// Views of each storage, and its length as the pickle has it.
    pub(super) views: BTreeMap<String, (u64, HashSet<View>)>,
    rank: Option<u64>,
    pub(super) findings: Vec<Finding>,
}

impl Reading<'_> {
    fn content(&mut self, content: Content<'_>) -> Result<PtContent> {
        match content {
            Content::Value(value) => {
                let pickle = Bytes::from(objects::pickled(value)?);
                Ok(PtContent::Value { pickle, preview: json(value) })
            }
            Content::Tensor(tensor) => self.tensor(&tensor).map(|tensor| PtContent::Tensor(Box::new(tensor))),
            Content::Refused(error) => Err(error),
        }
    }

    fn tensor(&mut self, tensor: &Tensor) -> Result<PtTensor> {
        let (local, shape, region, spec) = match tensor {
            Tensor::Plain(local) => {
                let region = Region::whole(&local.shape);
                let region = region.map_err(|error| Error::corrupt(error.to_string()))?;
                (local, local.shape.clone(), region, None)
            }
            Tensor::Sharded(part) => {
                let coordinate = self.coordinate(&part.spec)?;
                let region = shard::region(part, &coordinate)?;
                (&part.local, part.spec.shape.clone(), region, Some(Box::new(part.spec.clone())))
            }
        };
        let view = View {
            storage: local.storage.key.clone(),
            offset: local.offset,
            dtype: local.dtype,
            shape: local.shape.clone(),
            strides: local.strides.clone(),
            global: shape.clone(),
        };
        let views = self.views.entry(local.storage.key.clone());
        views.or_insert_with(|| (local.storage.bytes, HashSet::new())).1.insert(view.clone());
        let chunk = match self.chunk(local, region) {
            Ok(chunk) => Some(chunk),
            Err(error) if self.options.is_lenient() => {
                self.problem(error)?;
                None
            }
            Err(error) => return Err(error),
        };
        let parameter = local.is_parameter.then_some(local.requires_grad);
        Ok(PtTensor { dtype: local.dtype, shape, chunk, view, parameter, spec })
    }

    fn chunk(&mut self, local: &TensorRef, region: Region) -> Result<Chunk> {
        let (record, payload) = self.payload(local)?;
        let offset = payload
            .checked_add(local.byte_offset())
            .ok_or_else(|| Error::corrupt("offsets beyond 64 bits"))?;
        let strides = (!local.is_contiguous()).then(|| local.strides.clone());
        let recorded = self.archive.crc_state() == CrcState::Recorded && self.options.depth == Depth::Data;
        let crc = CrcRecord { offset: payload, len: record.len, crc32: record.crc32 };
        Ok(Chunk { region, file: self.file, offset, strides, record: recorded.then_some(crc) })
    }

    /// The record that holds a tensor's storage, and where its bytes begin.
    fn payload(&mut self, tensor: &TensorRef) -> Result<(Record, u64)> {
        let storage = &tensor.storage;
        let name = format!("data/{}", storage.key);
        let record = self.archive.record(&name).ok_or_else(|| {
            Error::corrupt(format!("its storage should be in record {name}, which the archive does not have"))
                .hint("the archive was edited, or is of another save than its pickle")
        })?;
        if record.len < storage.bytes {
            let text =
                format!("record {name} has {} bytes, its storage should have {}", record.len, storage.bytes);
            return Err(Error::corrupt(text).hint("the archive was edited, or its writer was interrupted"));
        }
        if let Some(known) = self.places.get(&storage.key) {
            return Ok((record.clone(), *known));
        }
        // Near enough for who only looks, and no read for each of a million storages.
        let payload = match self.options.depth {
            Depth::Catalog => record.header,
            Depth::Data => self.archive.payload_offset(record).map_err(of_archive)?,
        };
        self.places.insert(storage.key.clone(), payload);
        Ok((record.clone(), payload))
    }

    /// Where on its mesh the rank is that wrote this part.
    fn coordinate(&mut self, spec: &DTensorSpec) -> Result<Vec<u64>> {
        self.rank = spec.rank.or(self.rank);
        if let Some(coordinate) = &spec.coordinate {
            return Ok(coordinate.to_vec());
        }
        if shard::is_whole(spec) {
            return Ok(vec![0; spec.mesh_shape.len()]);
        }
        let rank = self.rank.ok_or_else(|| {
            Error::unsupported("a part of a DTensor that does not say which rank it is of")
                .hint("torch before 2.9 does not save the rank: name the files rank_0.pt, rank_1.pt, …")
        })?;
        let ranks = self.ranks(spec)?;
        let position = ranks.iter().position(|known| *known == rank);
        let mut left = position.and_then(|at| u64::try_from(at).ok()).ok_or_else(|| {
            Error::corrupt(format!("rank {rank}, which the name {} tells, is not on its mesh", self.name))
        })?;
        let mut coordinate = vec![0; spec.mesh_shape.len()];
        for (place, extent) in coordinate.iter_mut().zip(&spec.mesh_shape).rev() {
            let extent = (*extent).max(1);
            (*place, left) = (left % extent, left / extent);
        }
        Ok(coordinate)
    }

    fn ranks(&mut self, spec: &DTensorSpec) -> Result<Vec<u64>> {
        let stored = match &spec.ranks {
            MeshRanks::Listed(ranks) => return Ok(ranks.clone()),
            MeshRanks::Stored(tensor) => tensor,
        };
        let known = matches!(stored.dtype, Dtype::I64 | Dtype::I32) && stored.is_contiguous();
        if !known || stored.storage.bytes > MOST_MESH_BYTES {
            return Err(Error::unsupported("a device mesh whose ranks are no packed tensor of integers"));
        }
        let (record, _) = self.payload(stored)?;
        let mut bytes = Vec::new();
        self.archive.check(&record, |piece| bytes.extend_from_slice(piece)).map_err(of_archive)?;
        let size = if stored.dtype == Dtype::I64 { 8 } else { 4 };
        let first = usize::try_from(stored.byte_offset()).unwrap_or(usize::MAX);
        let count = usize::try_from(stored.shape.elements().unwrap_or(0)).unwrap_or(usize::MAX);
        let number = |bytes: &[u8]| {
            bytes.iter().rev().fold(0_u64, |value, byte| value.wrapping_shl(8) | u64::from(*byte))
        };
        Ok(bytes.get(first..).unwrap_or_default().chunks_exact(size).take(count).map(number).collect())
    }

    /// A tensor that can't be had: fatal, or a finding.
    fn problem(&mut self, error: Error) -> Result<()> {
        if !self.options.is_lenient() {
            return Err(error);
        }
        let code = match error.kind() {
            ErrorKind::Unsupported => FindingCode::Other,
            _ => FindingCode::MetadataMismatch,
        };
        let finding = Finding::new(Severity::Error, code, error.to_string()).file(self.name);
        self.findings.push(match error.hint_text() {
            Some(hint) => finding.hint(hint),
            None => finding,
        });
        Ok(())
    }
}

/// The number in `rank_3.pt`, `model-rank3.pt`, `3.pt`: the last in the name.
fn rank_of_name(name: &str) -> Option<u64> {
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    let digits = stem.rsplit(|c: char| !c.is_ascii_digit()).find(|part| !part.is_empty())?;
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_name_tells_its_rank_by_its_last_number() {
        let names = ["rank_3.pt", "model-rank3.pth", "3.pt", "step_100_rank_3.pt", "a3b.bin"];
        assert!(names.iter().all(|name| rank_of_name(name) == Some(3)));
        assert_eq!(rank_of_name("model.pt"), None);
    }
}
