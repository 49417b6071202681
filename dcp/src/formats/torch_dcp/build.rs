//! The catalog of a checkpoint, from its metadata and the places of its pieces.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
};

use fqn::state_dict::{Classified, Kind, Leaf, PathPart as FqnPart, classify};
use serde_json::{Value, json};

use super::{
    Listing, Metadata,
    inflate::Inflated,
    metadata::{Item, StorageInfo, StorageKey},
    objects,
    resolve::{Found, Wanted, resolve},
};
use crate::{
    Catalog, Chunk, Chunks, Error, FileId, Finding, FindingCode, Format, PathPart, Result, Severity,
    formats::{Depth, OpenOptions, blobs, blobs::Blobs},
    read_at::ReadAt as _,
};

/// Name under which keys and paths are kept as aliases.
pub(crate) const ALIAS: &str = "torch-dcp";

/// A checkpoint being opened.
pub(super) struct Building<'a> {
    pub(super) path: &'a Path,
    pub(super) listing: &'a Listing,
    pub(super) metadata: &'a Metadata,
    pub(super) options: OpenOptions,
    pub(super) blobs: Blobs,
    pub(super) virtuals: Vec<std::sync::Arc<Inflated>>,
    pub(super) findings: Vec<Finding>,
    files: HashMap<&'a str, Option<FileId>>,
    catalog: Catalog,
}

/// One piece that the metadata promises: its item, its chunk (`None` for values) and where it is stored.
struct Piece<'a> {
    item: usize,
    chunk: Option<usize>,
    info: &'a StorageInfo,
}

impl<'a> Building<'a> {
    pub(super) fn new(
        path: &'a Path,
        listing: &'a Listing,
        metadata: &'a Metadata,
        options: OpenOptions,
    ) -> Self {
        Self {
            path,
            listing,
            metadata,
            options,
            blobs: Blobs::default(),
            virtuals: Vec::new(),
            findings: Vec::new(),
            files: HashMap::new(),
            catalog: Catalog::new(Format::TorchDcp),
        }
    }

    /// Puts the catalog together.
    ///
    /// # Errors
    /// What strictness refuses; names that are refused always.
    pub(super) fn run(&mut self) -> Result<Catalog> {
        let pieces = self.pieces()?;
        let mut wanted = Vec::with_capacity(pieces.len());
        let mut kept = Vec::with_capacity(pieces.len());
        for piece in pieces {
            if let Some(file) = self.file(&piece)? {
                wanted.push(self.wanted(&piece, file)?);
                kept.push(piece);
            }
        }
        let mut chunks: Vec<Vec<Chunk>> = vec![Vec::new(); self.metadata.items.len()];
        let mut values: HashMap<usize, Vec<u8>> = HashMap::new();
        for (piece, (wanted, found)) in kept.iter().zip(wanted.iter().zip(self.resolve(&wanted)?)) {
            match found {
                Ok(Found::Value(bytes)) => drop(values.insert(piece.item, bytes)),
                Ok(Found::Tensor(placed)) => {
                    let Some((_, region)) = wanted.tensor else { continue };
                    let file = placed
                        .inflated
                        .map_or(Ok(wanted.file), |inflated| self.virtual_file(wanted, inflated))?;
                    let (region, offset) = (region.clone(), placed.offset);
                    let chunk =
                        Chunk { region, file, offset, strides: placed.strides, record: placed.record };
                    if let Some(list) = chunks.get_mut(piece.item) {
                        list.push(chunk);
                    }
                }
                Err(error) => self.problem(FindingCode::MetadataMismatch, wanted.info, error)?,
            }
        }
        self.fill(chunks, values)?;
        let catalog = std::mem::replace(&mut self.catalog, Catalog::new(Format::TorchDcp));
        catalog.check()?;
        Ok(catalog)
    }

    /// Joins chunks with their storage; a chunk without one is a problem.
    fn pieces(&mut self) -> Result<Vec<Piece<'a>>> {
        let (metadata, mut pieces) = (self.metadata, Vec::new());
        for (item, (key, value)) in metadata.items.iter().enumerate() {
            let stored = |offsets| metadata.storage.get(&StorageKey { key: key.clone(), offsets });
            match value {
                Item::Bytes => match stored(None) {
                    Some(info) => pieces.push(Piece { item, chunk: None, info }),
                    None => self.unstored(key, "the value")?,
                },
                Item::Tensor { chunks, .. } => {
                    for (at, chunk) in chunks.iter().enumerate() {
                        match stored(Some(chunk.offsets().into())) {
                            Some(info) => pieces.push(Piece { item, chunk: Some(at), info }),
                            None => self.unstored(key, &format!("chunk {chunk}"))?,
                        }
                    }
                }
            }
        }
        Ok(pieces)
    }

    fn unstored(&mut self, key: &str, what: &str) -> Result<()> {
        let text = format!("{key}: the metadata names {what}, but says of no file that it holds it");
        if !self.options.is_lenient() {
            return Err(Error::corrupt(text)
                .hint("the metadata was cut or edited; `ckpt verify` lists everything affected"));
        }
        self.findings.push(Finding::new(Severity::Error, FindingCode::MetadataMismatch, text));
        Ok(())
    }

    /// The file of a piece; `None` for one that is missing and forgiven.
    fn file(&mut self, piece: &Piece<'a>) -> Result<Option<FileId>> {
        let name = piece.info.path.as_str();
        if let Some(known) = self.files.get(name) {
            return Ok(*known);
        }
        let size = match self.listing.sizes.get(name) {
            Some(size) => Some(*size),
            None if name.contains('/') => {
                std::fs::metadata(self.path.join(name)).ok().map(|found| found.len())
            }
            None => None,
        };
        let id = match size {
            Some(size) => {
                self.catalog.files.push(blobs::entry(name.to_owned(), size));
                Some(self.blobs.add(self.path.join(name), name.to_owned())?)
            }
            None => {
                self.missing(name)?;
                None
            }
        };
        self.files.insert(name, id);
        Ok(id)
    }

    fn missing(&mut self, name: &str) -> Result<()> {
        let text = format!("{name} is missing: the metadata places data in it");
        if !self.options.is_lenient() {
            return Err(Error::corrupt(text)
                .hint("copy the whole folder again; `ckpt verify` lists everything affected"));
        }
        self.findings.push(Finding::new(Severity::Error, FindingCode::MissingFile, text).file(name));
        Ok(())
    }

    fn wanted(&self, piece: &Piece<'a>, file: FileId) -> Result<Wanted<'a>> {
        let lost = || Error::internal("a piece of no item");
        let (key, item) = self.metadata.items.get(piece.item).ok_or_else(lost)?;
        let tensor = match (item, piece.chunk) {
            (Item::Tensor { dtype, chunks, .. }, Some(at)) => {
                Some((*dtype, chunks.get(at).ok_or_else(lost)?))
            }
            _ => None,
        };
        Ok(Wanted { key, info: piece.info, file, tensor })
    }

    /// Finds the pieces; at [`Depth::Catalog`] only values and compressed entries are looked into.
    fn resolve(&self, wanted: &[Wanted<'a>]) -> Result<Vec<Result<Found>>> {
        if self.options.depth == Depth::Data {
            return resolve(&self.blobs, wanted);
        }
        let nearby: Vec<Option<Found>> = wanted.iter().map(|piece| self.nearby(piece)).collect();
        let rest: Vec<Wanted<'a>> = wanted
            .iter()
            .zip(&nearby)
            .filter(|(_, found)| found.is_none())
            .map(|(piece, _)| piece.clone())
            .collect();
        let mut rest = resolve(&self.blobs, &rest)?.into_iter();
        let missing = || Err(Error::internal("a piece was not resolved"));
        Ok(nearby
            .into_iter()
            .map(|found| found.map_or_else(|| rest.next().unwrap_or_else(missing), Ok))
            .collect())
    }

    /// The entry's own place for a tensor's, where its bytes must be within the entry.
    fn nearby(&self, piece: &Wanted<'_>) -> Option<Found> {
        let (dtype, region) = piece.tensor?;
        let size = self.catalog.file(piece.file).ok()?.size;
        let end = piece.info.offset.checked_add(piece.info.length).filter(|end| *end <= size)?;
        let fits = dtype.bytes_for(region.elements())? <= end.saturating_sub(piece.info.offset);
        let placed =
            super::resolve::Placed { offset: piece.info.offset, strides: None, record: None, inflated: None };
        (fits && piece.info.transforms.is_empty()).then_some(Found::Tensor(placed))
    }

    fn problem(&mut self, code: FindingCode, info: &StorageInfo, error: Error) -> Result<()> {
        if !self.options.is_lenient() {
            return Err(error);
        }
        let finding = Finding::new(Severity::Error, code, error.to_string()).file(&info.path);
        let hint = error.hint_text().map(str::to_owned);
        self.findings.push(match hint {
            Some(hint) => finding.hint(hint),
            None => finding,
        });
        Ok(())
    }

    /// A file of its own for an entry that must be inflated to be read.
    fn virtual_file(&mut self, wanted: &Wanted<'_>, inflated: std::sync::Arc<Inflated>) -> Result<FileId> {
        let id = u32::try_from(self.catalog.files.len())
            .map_err(|_| Error::unsupported("more than 2^32 files"))?;
        let name = format!("{}@{} (inflated)", wanted.info.path, wanted.info.offset);
        self.catalog.files.push(blobs::entry(name, inflated.len()));
        self.virtuals.push(inflated);
        Ok(FileId(id))
    }

    fn fill(&mut self, mut chunks: Vec<Vec<Chunk>>, mut values: HashMap<usize, Vec<u8>>) -> Result<()> {
        let metadata = self.metadata;
        let leaves: Vec<Leaf> = metadata.items.iter().map(|(key, item)| leaf(key, item, metadata)).collect();
        let classified =
            classify(&leaves, &[]).map_err(|error| Error::corrupt(error.to_string()).caused_by(error))?;
        self.notes(&classified);
        let registry = classified
            .registry(&leaves, ALIAS)
            .map_err(|error| Error::corrupt(error.to_string()).caused_by(error))?;
        let mut entries = registry.entries().iter();
        for item in &classified.items {
            if matches!(item.kind, Kind::Tensor(_)) {
                let entry = entries.next().ok_or_else(|| Error::internal("fewer entries than tensors"))?;
                let chunks = chunks.get_mut(item.leaf).map(std::mem::take).unwrap_or_default();
                self.catalog.push(entry.clone(), Chunks { chunks: chunks.into(), fingerprint: None })?;
            } else if let (Some((key, _)), Some(bytes)) =
                (metadata.items.get(item.leaf), values.remove(&item.leaf))
            {
                let (object, finding) = objects::object(key, metadata.paths.get(key), bytes);
                self.catalog.objects.push(object);
                self.findings.extend(finding);
            }
        }
        self.describe();
        Ok(())
    }

    fn notes(&mut self, classified: &Classified) {
        for note in &classified.notes {
            self.findings.push(Finding::new(Severity::Note, FindingCode::Other, note.to_string()));
        }
    }

    fn describe(&mut self) {
        let metadata = self.metadata;
        let mut variant = format!("metadata classes of {}", metadata.layout.text());
        if self.listing.is_per_rank() {
            variant.push_str(&format!(", metadata of {} ranks merged", self.listing.rank_metadata.len()));
        }
        let mut transforms: Vec<&str> =
            metadata.storage.values().flat_map(|info| &info.transforms).map(String::as_str).collect();
        transforms.sort_unstable();
        transforms.dedup();
        if !transforms.is_empty() {
            variant.push_str(&format!(", entries stored through {}", transforms.join(", ")));
        }
        self.catalog.variant = variant;
        let folder = self.path.file_name().and_then(|name| name.to_str()).and_then(objects::step_of_folder);
        self.catalog.step = objects::step(&self.catalog.objects).or(folder);
        let flattened = json!(!metadata.paths.is_empty());
        self.catalog.extra.insert("torch-dcp.flattened".to_owned(), flattened);
        let named: HashSet<&str> = metadata.storage.values().map(|info| info.path.as_str()).collect();
        if let Some(ranks) = self.listing.ranks(&named) {
            self.catalog.extra.insert(Catalog::RANKS.to_owned(), ranks.into());
        }
        for (name, value) in &metadata.facts {
            self.catalog.extra.insert(format!("torch-dcp.{name}"), Value::clone(value));
        }
    }
}

fn leaf(key: &str, item: &Item, metadata: &Metadata) -> Leaf {
    let leaf = match item {
        Item::Tensor { dtype, shape, .. } => Leaf::tensor(key, *dtype, shape.clone()),
        Item::Bytes => Leaf::object(key),
    };
    let part = |part: &PathPart| match part {
        PathPart::Key(key) => FqnPart::key(key),
        PathPart::Index(index) => FqnPart::Index(*index),
    };
    match metadata.paths.get(key) {
        Some(path) => leaf.at(path.iter().map(part).collect()),
        None => leaf,
    }
}
