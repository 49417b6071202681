//! [`HfSource`]: a folder of safetensors as a checkpoint.

use std::{collections::HashSet, path::Path};

use serde_json::{Map, Value, json};

use super::{CONFIG, EXTRA_CONFIG, EXTRA_FILES, EXTRA_FOLDER, Folder, SINGLE, Weights, audit, index::Index};
use crate::{
    Catalog, Error, ErrorKind, FileId, Finding, FindingCode, Format, Place, Result, Severity, Source,
    formats::{
        OpenOptions, blobs,
        blobs::Blobs,
        parallel,
        safetensors::{FileHeader, Header, assemble, inferred_extents, metadata},
        torch_pt::{self, Assembled, Together},
    },
    read_at::ReadAt,
};

/// Largest config or index that is read.
const MOST_JSON: u64 = 64 << 20;

/// An opened folder.
#[derive(Debug)]
pub struct HfSource {
    catalog: Catalog,
    blobs: Blobs,
    findings: Vec<Finding>,
}

impl HfSource {
    /// Opens the folder at `path`: reads the index, the config and the header of every shard.
    ///
    /// # Errors
    /// `NotFound` where there are no weights; `Corrupt` for a missing or damaged shard (left to the audit when
    /// lenient), an index or header that is refused; what the system says.
    pub fn open(path: &Path, options: OpenOptions) -> Result<Self> {
        let folder = Folder::list(path)?;
        let index = read_index(&folder)?;
        if let Some(Weights::TorchBin(name)) = &folder.weights {
            return Self::open_torch_bin(&folder, name, index.as_ref(), options);
        }
        let mut opening =
            Opening { blobs: Blobs::default(), catalog: Catalog::new(Format::Hf), findings: Vec::new() };
        let files = wanted(&folder, index.as_ref())?;
        let headers = opening.read_headers(path, &files, options)?;
        if let Some(index) = &index {
            opening.findings.extend(audit::index_against_shards(index, &audit::held(&headers)));
            refuse_unless_lenient(&opening.findings, options)?;
            opening.findings.extend(audit::orphans(&folder, &files));
        }
        opening.fill(&folder, index.as_ref(), &headers)?;
        opening.catalog.check()?;
        Ok(Self { catalog: opening.catalog, blobs: opening.blobs, findings: opening.findings })
    }

    /// Weights as `torch.save` archives: one, or shards by an index.
    fn open_torch_bin(
        folder: &Folder,
        name: &str,
        index: Option<&Index>,
        options: OpenOptions,
    ) -> Result<Self> {
        let (files, together) = match index {
            Some(index) => (index.files(), Together::Shards),
            None => (vec![name.to_owned()], Together::Alone),
        };
        let read = torch_pt::assemble(&folder.path, &files, together, options).map_err(missing_is_corrupt)?;
        let Assembled { catalog, blobs, findings, held, .. } = read;
        let mut opening = Opening { blobs, catalog, findings };
        opening.catalog.format = Format::Hf;
        if let Some(index) = index {
            let found = audit::index_against_shards(index, &held);
            opening.findings.extend(found);
            refuse_unless_lenient(&opening.findings, options)?;
        }
        opening.describe(folder, index)?;
        opening.catalog.check()?;
        Ok(Self { catalog: opening.catalog, blobs: opening.blobs, findings: opening.findings })
    }
}

struct Opening {
    blobs: Blobs,
    catalog: Catalog,
    findings: Vec<Finding>,
}

impl Opening {
    fn read_headers(
        &mut self,
        path: &Path,
        files: &[String],
        options: OpenOptions,
    ) -> Result<Vec<FileHeader>> {
        let ids: Vec<(FileId, &String)> = files
            .iter()
            .map(|file| Ok((self.blobs.add(path.join(file), file.clone())?, file)))
            .collect::<Result<_>>()?;
        let blobs = &self.blobs;
        let read = |(id, name): &(FileId, &String)| -> Result<(u64, Result<Header>)> {
            Ok(match blobs.open(*id) {
                Ok(file) => (file.len(), Header::read(&file).place(name)),
                Err(error) => (0, Err(error)),
            })
        };
        let mut headers = Vec::with_capacity(files.len());
        for ((file, path), (size, header)) in ids.iter().zip(parallel::map(&ids, read)?) {
            self.catalog.files.push(blobs::entry((*path).clone(), size));
            match header {
                Ok(header) => headers.push(FileHeader { file: *file, path: (*path).clone(), header }),
                Err(error) if options.is_lenient() => self.findings.push(damaged(path, &error)),
                Err(error) => return Err(missing_is_corrupt(error)),
            }
        }
        Ok(headers)
    }

    fn fill(&mut self, folder: &Folder, index: Option<&Index>, headers: &[FileHeader]) -> Result<()> {
        let assembled = assemble(headers)?;
        self.findings.extend(inferred_extents(&assembled.inferred));
        if folder.weights == Some(Weights::Loose) && assembled.inferred.is_empty() && headers.len() > 1 {
            let text = format!(
                "{} safetensors files without an index: whether one is missing can't be seen",
                headers.len()
            );
            self.findings.push(Finding::new(Severity::Warning, FindingCode::Other, text));
        }
        self.catalog.variant = variant(folder, headers.len(), !assembled.inferred.is_empty());
        for (entry, chunks) in assembled.tensors {
            self.catalog.push(entry, chunks)?;
        }
        if let Some(first) = headers.first() {
            self.catalog.extra.insert("safetensors.metadata".to_owned(), plain_metadata(&first.header));
        }
        self.describe(folder, index)
    }

    /// What the folder tells beside its weights.
    fn describe(&mut self, folder: &Folder, index: Option<&Index>) -> Result<()> {
        let extra = &mut self.catalog.extra;
        let folder_path = std::path::absolute(&folder.path).unwrap_or_else(|_| folder.path.clone());
        extra.insert(EXTRA_FOLDER.to_owned(), json!(folder_path.to_string_lossy()));
        extra.insert(EXTRA_FILES.to_owned(), json!(folder.passed));
        if let Some(index) = index {
            extra.insert("hf.index_metadata".to_owned(), index.metadata.clone());
        }
        if let Some(config) = read_config(folder)? {
            self.tie(&config)?;
            self.catalog.extra.insert(EXTRA_CONFIG.to_owned(), Value::Object(config));
        }
        Ok(())
    }

    /// Marks the tensors that the config says are one.
    fn tie(&mut self, config: &Map<String, Value>) -> Result<()> {
        if config.get("tie_word_embeddings") != Some(&Value::Bool(true)) {
            return Ok(());
        }
        let group =
            self.catalog.registry.entries().iter().find(|entry| audit::is_embedding(entry.fqn.as_str()));
        let Some(group) = group.map(|entry| entry.fqn.clone()) else { return Ok(()) };
        let member = |name: &str| name == group.as_str() || audit::is_head(name);
        let tie = |entry: &mut fqn::Entry| {
            if member(entry.fqn.as_str()) {
                entry.tie = Some(group.clone());
            }
        };
        self.catalog.registry.edit(tie).map_err(|error| Error::internal(error.to_string()))
    }
}

impl Source for HfSource {
    fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    fn read_exact_at(&self, file: FileId, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.blobs.read_exact_at(file, offset, buf)
    }

    fn stamp(&self) -> Result<Option<String>> {
        self.blobs.stamp().map(Some)
    }

    fn audit(&self) -> Result<Vec<Finding>> {
        Ok(self.findings.clone())
    }
}

fn read_index(folder: &Folder) -> Result<Option<Index>> {
    let name = match &folder.weights {
        Some(Weights::Indexed(name)) => name,
        Some(Weights::TorchBin(name)) if name.ends_with(".index.json") => name,
        _ => return Ok(None),
    };
    let text = blobs::read_small(&folder.path.join(name), name, MOST_JSON)?;
    Index::parse(&text, name).map(Some)
}

fn read_config(folder: &Folder) -> Result<Option<Map<String, Value>>> {
    let path = folder.path.join(CONFIG);
    if !path.is_file() {
        return Ok(None);
    }
    let text = blobs::read_small(&path, CONFIG, MOST_JSON)?;
    let config = serde_json::from_slice(&text);
    config
        .map(Some)
        .map_err(|error| Error::corrupt(format!("{CONFIG}: no JSON object: {error}")).caused_by(error))
}

fn wanted(folder: &Folder, index: Option<&Index>) -> Result<Vec<String>> {
    match (&folder.weights, index) {
        (Some(Weights::Indexed(_)), Some(index)) => Ok(index.files()),
        (Some(Weights::Single), _) => Ok(vec![SINGLE.to_owned()]),
        (Some(Weights::Loose), _) => Ok(folder.safetensors.clone()),
        _ => Err(Error::new(
            ErrorKind::NotFound,
            format!("{}: no safetensors files and no index", folder.path.display()),
        )),
    }
}

fn refuse_unless_lenient(findings: &[Finding], options: OpenOptions) -> Result<()> {
    let error = findings.iter().find(|finding| finding.severity == Severity::Error);
    match error {
        Some(finding) if !options.is_lenient() => {
            Err(Error::corrupt(finding.message.clone()).hint("`ckpt verify` lists everything affected"))
        }
        _ => Ok(()),
    }
}

fn missing_is_corrupt(error: Error) -> Error {
    if error.kind() != ErrorKind::NotFound {
        return error;
    }
    Error::corrupt(format!("{error}: the index names this file"))
        .hint("fetch the missing shard; `ckpt verify` lists all of them")
}

fn damaged(path: &str, error: &Error) -> Finding {
    let code = if error.kind() == ErrorKind::NotFound {
        FindingCode::MissingFile
    } else {
        FindingCode::SizeMismatch
    };
    Finding::new(Severity::Error, code, error.to_string()).file(path)
}

/// `__metadata__` without what places shards: that is told by the chunks.
fn plain_metadata(header: &Header) -> Value {
    let mut value = metadata(header);
    if let Some(object) = value.as_object_mut() {
        object.retain(|key, _| !key.starts_with("DCP_"));
    }
    value
}

fn variant(folder: &Folder, files: usize, sharded: bool) -> String {
    match &folder.weights {
        _ if sharded => format!(
            "{files} files of torch's HuggingFaceStorageWriter, tensors cut across files, no global shapes"
        ),
        Some(Weights::Indexed(name)) => format!("{files} safetensors files by {name}"),
        Some(Weights::Single) => "one safetensors file".to_owned(),
        _ => format!("{files} safetensors files without an index"),
    }
}

/// Names in the set of `files`.
pub(super) fn name_set(files: &[String]) -> HashSet<&str> {
    files.iter().map(String::as_str).collect()
}
