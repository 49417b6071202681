//! The catalog of one checkpoint from one archive, from shards that each hold some tensors, or from the archives of
//! several ranks that each hold a part of every tensor.
//!
//! Invariants: a tensor has each of its boxes once, though several ranks saved it; a value that ranks disagree on is
//! kept once per rank, and marked so; ties are those that storages prove.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
};

use bytes::Bytes;
use fqn::{
    Dtype, PlacementRule, Shape,
    state_dict::{Leaf, ParamGroup, PathPart as FqnPart},
};
use serde_json::Value;

use super::{
    containers::Container,
    file::{PtContent, PtFile, PtLeaf, PtTensor, View, read_file},
    shard,
};
use crate::{
    Catalog, Chunk, Error, ErrorKind, FileId, Finding, FindingCode, Format, PathPart, Place, Result,
    Severity,
    formats::{OpenOptions, blobs, blobs::Blobs, parallel},
    read_at::ReadAt as _,
    torch::DTensorSpec,
};

/// How several archives are one checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Together {
    /// There is one.
    Alone,
    /// Each has tensors that the others have not.
    Shards,
    /// Each has its rank's part of every tensor.
    Ranks,
}

/// A checkpoint put together.
#[derive(Debug)]
pub(crate) struct Assembled {
    pub(crate) catalog: Catalog,
    pub(crate) blobs: Blobs,
    pub(crate) findings: Vec<Finding>,
    /// What each file holds: keys of tensors and their bytes.
    pub(crate) held: Vec<(String, Vec<(String, u64)>)>,
    /// Whether every file has parts of DTensors.
    pub(crate) is_of_ranks: bool,
}

/// Opens the archives `names` in `folder` and puts them together.
///
/// # Errors
/// A missing, damaged or refused archive (left to the audit when lenient, unless it is alone); archives that
/// contradict each other.
pub(crate) fn assemble(
    folder: &Path,
    names: &[String],
    together: Together,
    options: OpenOptions,
) -> Result<Assembled> {
    let mut merging = Merging::new(together);
    let mut ids = Vec::with_capacity(names.len());
    for name in names {
        ids.push((merging.blobs.add(folder.join(name), name.clone())?, name));
    }
    let blobs = &merging.blobs;
    let read = |(id, name): &(FileId, &String)| -> Result<(u64, Result<PtFile>)> {
        Ok(match blobs.open(*id) {
            Ok(file) => (file.len(), read_file(&file, *id, name, options).place(name)),
            Err(error) => (0, Err(error)),
        })
    };
    let files = parallel::map(&ids, read)?;
    for ((_, name), (size, file)) in ids.iter().zip(files) {
        merging.catalog.files.push(blobs::entry((*name).clone(), size));
        match file {
            Ok(file) => merging.add(file)?,
            Err(error) if options.is_lenient() && together != Together::Alone => {
                let code = match error.kind() {
                    ErrorKind::NotFound => FindingCode::MissingFile,
                    _ => FindingCode::MetadataMismatch,
                };
                merging.findings.push(Finding::new(Severity::Error, code, error.to_string()).file(*name));
            }
            Err(error) => return Err(error),
        }
    }
    merging.finish()
}

/// A tensor or value while files are added.
#[derive(Debug)]
pub(super) enum Slot {
    Tensor(Box<Joined>),
    /// File, rank and pickle of each.
    Value(Vec<Saved>),
}

#[derive(Debug)]
pub(super) struct Joined {
    pub(super) dtype: Dtype,
    pub(super) shape: Shape,
    pub(super) chunks: Vec<Chunk>,
    pub(super) rule: Option<PlacementRule>,
    pub(super) parameter: Option<bool>,
    pub(super) first_file: String,
}

#[derive(Debug)]
pub(super) struct Saved {
    pub(super) rank: u64,
    pub(super) pickle: Bytes,
    pub(super) preview: Value,
}

pub(super) struct Merging {
    pub(super) together: Together,
    pub(super) catalog: Catalog,
    pub(super) blobs: Blobs,
    pub(super) findings: Vec<Finding>,
    pub(super) held: Vec<(String, Vec<(String, u64)>)>,
    pub(super) leaves: Vec<Leaf>,
    pub(super) slots: Vec<(PtPlace, Slot)>,
    pub(super) by_path: HashMap<Vec<PathPart>, usize>,
    /// Slots that are one tensor in memory: the first, and each other.
    pub(super) tied: Vec<(usize, usize)>,
    pub(super) containers: BTreeMap<String, Container>,
    pub(super) groups: Vec<ParamGroup>,
    /// Ranks that were read, and every mesh that was met.
    pub(super) ranks: Vec<u64>,
    pub(super) specs: Vec<DTensorSpec>,
    /// Files that have parts of DTensors.
    pub(super) sharded: usize,
}

/// Where a slot is in the state dict.
#[derive(Debug)]
pub(super) struct PtPlace {
    pub(super) key: String,
    pub(super) path: Vec<PathPart>,
}

impl Merging {
    fn new(together: Together) -> Self {
        Self {
            together,
            catalog: Catalog::new(Format::Pt),
            blobs: Blobs::default(),
            findings: Vec::new(),
            held: Vec::new(),
            leaves: Vec::new(),
            slots: Vec::new(),
            by_path: HashMap::new(),
            tied: Vec::new(),
            containers: BTreeMap::new(),
            groups: Vec::new(),
            ranks: Vec::new(),
            specs: Vec::new(),
            sharded: 0,
        }
    }

    fn add(&mut self, file: PtFile) -> Result<()> {
        let rank = file.rank.unwrap_or_else(|| u64::try_from(self.held.len()).unwrap_or(u64::MAX));
        self.findings.extend(file.findings);
        self.ranks.push(rank);
        if self.groups.is_empty() {
            self.groups = file.groups;
        }
        for container in file.containers {
            let place: Vec<Value> = container.path.iter().map(PathPart::to_json).collect();
            self.containers.entry(Value::from(place).to_string()).or_insert(container);
        }
        let is_part =
            |leaf: &PtLeaf| matches!(&leaf.content, PtContent::Tensor(tensor) if tensor.spec.is_some());
        if file.leaves.iter().any(is_part) {
            self.sharded = self.sharded.saturating_add(1);
        }
        let (mut views, mut held) = (HashMap::new(), Vec::new());
        for leaf in file.leaves {
            if let PtContent::Tensor(tensor) = &leaf.content {
                let bytes = tensor.shape.elements().and_then(|count| tensor.dtype.bytes_for(count));
                held.push((leaf.key.clone(), bytes.unwrap_or(0)));
            }
            self.leaf(&file.name, rank, leaf, &mut views)?;
        }
        self.held.push((file.name, held));
        Ok(())
    }

    fn leaf(&mut self, file: &str, rank: u64, leaf: PtLeaf, views: &mut HashMap<View, usize>) -> Result<()> {
        let at = match (self.by_path.get(&leaf.path).copied(), leaf.content) {
            (None, PtContent::Value { pickle, preview }) => {
                self.leaves.push(located(Leaf::object(leaf.key.clone()), &leaf.path));
                return self.slot(leaf.key, leaf.path, Slot::Value(vec![Saved { rank, pickle, preview }]));
            }
            (Some(at), PtContent::Value { pickle, preview }) => match self.slots.get_mut(at) {
                Some((_, Slot::Value(saved))) => {
                    saved.push(Saved { rank, pickle, preview });
                    return Ok(());
                }
                _ => return Err(unlike(file, &leaf.key, "a value", "a tensor")),
            },
            (None, PtContent::Tensor(tensor)) => self.first(file, leaf.key, leaf.path, *tensor, views)?,
            (Some(at), PtContent::Tensor(tensor)) => {
                self.again(file, at, *tensor)?;
                return Ok(());
            }
        };
        self.tie_view(at, views);
        Ok(())
    }

    fn slot(&mut self, key: String, path: Vec<PathPart>, slot: Slot) -> Result<()> {
        self.by_path.insert(path.clone(), self.slots.len());
        self.slots.push((PtPlace { key, path }, slot));
        Ok(())
    }

    /// A tensor that no earlier file had.
    fn first(
        &mut self,
        file: &str,
        key: String,
        path: Vec<PathPart>,
        tensor: PtTensor,
        views: &mut HashMap<View, usize>,
    ) -> Result<(usize, View)> {
        let at = self.slots.len();
        let mut leaf = located(Leaf::tensor(key.clone(), tensor.dtype, tensor.shape.clone()), &path);
        let is_empty = tensor.shape.elements() == Some(0);
        leaf.alias_of = views.get(&tensor.view).copied().filter(|_| !is_empty);
        self.leaves.push(leaf);
        let rule = tensor.spec.as_deref().and_then(shard::rule);
        if let Some(spec) = tensor.spec {
            self.specs.push(*spec);
        }
        let joined = Joined {
            dtype: tensor.dtype,
            shape: tensor.shape,
            chunks: tensor.chunk.into_iter().collect(),
            rule,
            parameter: tensor.parameter,
            first_file: file.to_owned(),
        };
        self.slot(key, path, Slot::Tensor(Box::new(joined)))?;
        Ok((at, tensor.view))
    }

    fn tie_view(&mut self, (at, view): (usize, View), views: &mut HashMap<View, usize>) {
        match self.leaves.get(at).and_then(|leaf| leaf.alias_of) {
            Some(first) => self.tied.push((first, at)),
            None => drop(views.insert(view, at)),
        }
    }

    /// A tensor that an earlier file had: another part of it, or the same again.
    fn again(&mut self, file: &str, at: usize, tensor: PtTensor) -> Result<()> {
        let Some((place, Slot::Tensor(joined))) = self.slots.get_mut(at) else {
            let key = self.slots.get(at).map_or("", |(place, _)| &place.key);
            return Err(unlike(file, key, "a tensor", "a value"));
        };
        if joined.dtype != tensor.dtype || joined.shape != tensor.shape {
            let (a, b) = (
                format!("{} of shape {}", tensor.dtype, tensor.shape),
                format!("{} of shape {} ({})", joined.dtype, joined.shape, joined.first_file),
            );
            return Err(unlike(file, &place.key, &a, &b));
        }
        let Some(chunk) = tensor.chunk else { return Ok(()) };
        let Some(known) = joined.chunks.iter().find(|known| known.region == chunk.region) else {
            joined.chunks.push(chunk);
            return Ok(());
        };
        // Checksums of whole records tell what reading both would; where a record holds more, nothing is said.
        let whole = |chunk: &Chunk| {
            let record = chunk.record.filter(|record| record.offset == chunk.offset)?;
            (chunk.span(joined.dtype) == Some(record.len) && chunk.is_packed()).then_some(record.crc32)
        };
        let differs = whole(known).zip(whole(&chunk)).is_some_and(|(a, b)| a != b);
        if differs || self.together == Together::Shards {
            let but = if differs { ", with other bytes" } else { "" };
            let text = format!(
                "{} {} is also in {file}{but}; that of {} is taken",
                place.key, chunk.region, joined.first_file
            );
            let finding = Finding::new(Severity::Warning, FindingCode::Overlap, text).file(file);
            self.findings
                .push(finding.hint("ranks that should agree do not, or files of two saves are mixed"));
        }
        Ok(())
    }
}

fn located(leaf: Leaf, path: &[PathPart]) -> Leaf {
    let part = |part: &PathPart| match part {
        PathPart::Key(key) => FqnPart::key(key),
        PathPart::Index(index) => FqnPart::Index(*index),
    };
    leaf.at(path.iter().map(part).collect())
}

fn unlike(file: &str, key: &str, here: &str, there: &str) -> Error {
    Error::corrupt(format!("{file}: {key} is {here} here, and {there} in an earlier file"))
        .hint("files of different saves are mixed, or these are no parts of one checkpoint")
}
