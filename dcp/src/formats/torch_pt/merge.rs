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
    state_dict::{Kind, Leaf, ParamGroup, PathPart as FqnPart, classify},
    tie::{TieEvidence, tie},
};
use serde_json::{Map, Value};

use super::{
    ALIAS,
    containers::{self, Container},
    file::{PtContent, PtFile, PtLeaf, PtTensor, View, read_file},
    shard,
};
use crate::{
    Catalog, Chunk, Chunks, Encoding, Error, ErrorKind, FileId, Finding, FindingCode, Format, ObjectEntry,
    PathPart, Place, ReshardRule, Result, Severity,
    formats::{OpenOptions, blobs, blobs::Blobs, parallel, torch_dcp},
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
enum Slot {
    Tensor(Box<Joined>),
    /// File, rank and pickle of each.
    Value(Vec<Saved>),
}

#[derive(Debug)]
struct Joined {
    dtype: Dtype,
    shape: Shape,
    chunks: Vec<Chunk>,
    rule: Option<PlacementRule>,
    parameter: Option<bool>,
    first_file: String,
}

#[derive(Debug)]
struct Saved {
    rank: u64,
    pickle: Bytes,
    preview: Value,
}

struct Merging {
    together: Together,
    catalog: Catalog,
    blobs: Blobs,
    findings: Vec<Finding>,
    held: Vec<(String, Vec<(String, u64)>)>,
    leaves: Vec<Leaf>,
    slots: Vec<(PtPlace, Slot)>,
    by_path: HashMap<Vec<PathPart>, usize>,
    /// Slots that are one tensor in memory: the first, and each other.
    tied: Vec<(usize, usize)>,
    containers: BTreeMap<String, Container>,
    groups: Vec<ParamGroup>,
    /// Ranks that were read, and every mesh that was met.
    ranks: Vec<u64>,
    specs: Vec<DTensorSpec>,
    /// Files that have parts of DTensors.
    sharded: usize,
}

/// Where a slot is in the state dict.
#[derive(Debug)]
struct PtPlace {
    key: String,
    path: Vec<PathPart>,
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

    fn finish(mut self) -> Result<Assembled> {
        let corrupt =
            |error: fqn::state_dict::ClassifyError| Error::corrupt(error.to_string()).caused_by(error);
        let classified = classify(&self.leaves, &self.groups).map_err(corrupt)?;
        for note in &classified.notes {
            self.findings.push(Finding::new(Severity::Note, FindingCode::Other, note.to_string()));
        }
        let registry = classified.registry(&self.leaves, ALIAS).map_err(corrupt)?;
        let mut entries = registry.entries().iter().cloned();
        let (mut parameters, mut names) = (Map::new(), HashMap::new());
        for (item, (place, slot)) in classified.items.iter().zip(std::mem::take(&mut self.slots)) {
            match (&item.kind, slot) {
                (Kind::Tensor(id), Slot::Tensor(joined)) => {
                    let mut entry =
                        entries.next().ok_or_else(|| Error::internal("fewer entries than tensors"))?;
                    entry.placement = joined.rule;
                    if let Some(grad) = joined.parameter {
                        parameters.insert(place.key, grad.into());
                    }
                    names.insert(item.leaf, id.clone());
                    self.catalog.push(entry, Chunks { chunks: joined.chunks, fingerprint: None })?;
                }
                (_, Slot::Value(saved)) => self.objects(&place, saved),
                _ => return Err(Error::internal("a leaf that is a tensor here and a value there")),
            }
        }
        let name = |at: &usize| names.get(at).filter(|id| id.role.is_model()).map(|id| id.fqn.clone());
        let evidence: Vec<TieEvidence> = self
            .tied
            .iter()
            .filter_map(|(a, b)| Some(TieEvidence::SharedStorage(name(a)?, name(b)?)))
            .collect();
        tie(&mut self.catalog.registry, &evidence).map_err(|error| Error::corrupt(error.to_string()))?;
        containers::keep_parameters(parameters, &mut self.catalog.extra);
        self.describe()?;
        self.catalog.check()?;
        let Self { catalog, blobs, findings, held, sharded, .. } = self;
        let is_of_ranks = sharded == held.len();
        Ok(Assembled { catalog, blobs, findings, held, is_of_ranks })
    }

    /// One entry for a value that all files agree on, else one for each.
    fn objects(&mut self, place: &PtPlace, saved: Vec<Saved>) {
        let agree = saved.windows(2).all(|two| matches!(two, [a, b] if a.pickle == b.pickle));
        let entry = |saved: Saved, key: String, path: Vec<PathPart>, reshard: ReshardRule| ObjectEntry {
            key,
            path,
            encoding: Encoding::Pickle,
            bytes: saved.pickle,
            preview: Some(saved.preview),
            reshard,
        };
        if agree {
            let rule = torch_dcp::rule(&place.path);
            let first = saved.into_iter().next();
            self.catalog
                .objects
                .extend(first.map(|one| entry(one, place.key.clone(), place.path.clone(), rule)));
            return;
        }
        for one in saved {
            let name = format!("rank_{}", one.rank);
            let key = format!("{}.{name}", place.key);
            let path = place.path.iter().cloned().chain([PathPart::Key(name)]).collect();
            self.catalog.objects.push(entry(one, key, path, ReshardRule::PerRank));
        }
    }

    fn describe(&mut self) -> Result<()> {
        let files = self.held.len();
        self.catalog.variant = match self.together {
            Together::Alone if self.specs.is_empty() => "one torch.save archive".to_owned(),
            Together::Alone => "one rank's torch.save archive of DTensors".to_owned(),
            Together::Shards => format!("{files} torch.save archives, each with some of the tensors"),
            Together::Ranks => {
                format!("torch.save archives of {files} ranks, each with its parts of DTensors")
            }
        };
        let stem = self.held.first().and_then(|(name, _)| name.rsplit_once('.')).map(|(stem, _)| stem);
        let named = stem.filter(|_| self.together == Together::Alone).and_then(torch_dcp::step_of_folder);
        self.catalog.step = torch_dcp::step(&self.catalog.objects).or(named);
        let containers: Vec<Container> = std::mem::take(&mut self.containers).into_values().collect();
        containers::keep(&containers, &mut self.catalog.extra)?;
        let Some((first, rest)) = self.specs.split_first() else { return Ok(()) };
        let same =
            |spec: &DTensorSpec| spec.mesh_shape == first.mesh_shape && spec.mesh_names == first.mesh_names;
        if rest.iter().all(same) {
            self.catalog.mesh = shard::mesh(first);
        }
        let ranks = first.mesh_shape.iter().fold(1_u64, |product, extent| product.saturating_mul(*extent));
        let present = u64::try_from(self.ranks.len()).unwrap_or(u64::MAX);
        if ranks > present {
            let text = format!(
                "{present} of the {ranks} ranks of mesh {:?} are here: what only the others hold is missing",
                &*first.mesh_shape
            );
            let severity = if self.together == Together::Alone { Severity::Note } else { Severity::Warning };
            let finding = Finding::new(severity, FindingCode::MissingFile, text);
            self.findings.push(finding.hint("give the path of the folder that holds the files of all ranks"));
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
