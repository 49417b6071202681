//! [`SafetensorsSource`]: one safetensors file as a checkpoint.

use std::path::Path;

use fqn::{
    Entry, Registry,
    state_dict::{ClassifyError, Leaf, Note, classify},
};
use serde_json::Value;

use super::{FileHeader, Header, assemble};
use crate::{
    Catalog, Chunks, Error, FileId, Finding, FindingCode, Format, Place, Result, Severity, Source,
    formats::{OpenOptions, blobs, blobs::Blobs},
    read_at::ReadAt,
};

/// One file, opened.
#[derive(Debug)]
pub struct SafetensorsSource {
    catalog: Catalog,
    blobs: Blobs,
    findings: Vec<Finding>,
}

impl SafetensorsSource {
    /// Opens the file at `path`. Its header is all there is to read, so `options` change nothing.
    ///
    /// # Errors
    /// What [`Header::read`] refuses, with the file's name; what the system says.
    pub fn open(path: &Path, _options: OpenOptions) -> Result<Self> {
        let name = path
            .file_name()
            .map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned());
        let mut blobs = Blobs::default();
        let file = blobs.add(path.to_path_buf(), name.clone())?;
        let handle = blobs.open(file)?;
        let header = Header::read(&handle).place(path.display())?;
        let mut catalog = Catalog::new(Format::Safetensors);
        catalog.variant = "one safetensors file".to_owned();
        catalog.files.push(blobs::entry(name.clone(), handle.len()));
        catalog.extra.insert("safetensors.metadata".to_owned(), metadata(&header));
        let assembled = assemble(&[FileHeader { file, path: name, header }])?;
        let mut findings = inferred_extents(&assembled.inferred);
        let (registry, notes) = classified(&assembled.tensors)?;
        findings.extend(notes);
        for (entry, (_, chunks)) in registry.entries().iter().zip(assembled.tensors) {
            catalog.push(entry.clone(), chunks)?;
        }
        catalog.check()?;
        Ok(Self { catalog, blobs, findings })
    }
}

impl Source for SafetensorsSource {
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

/// What each tensor is, by its flat name alone: a file may hold optimizer state beside the model.
fn classified(tensors: &[(Entry, Chunks)]) -> Result<(Registry, Vec<Finding>)> {
    let leaf =
        |(entry, _): &(Entry, Chunks)| Leaf::tensor(entry.fqn.as_str(), entry.dtype, entry.shape.clone());
    let leaves: Vec<Leaf> = tensors.iter().map(leaf).collect();
    let refused = |error: ClassifyError| Error::corrupt(error.to_string()).caused_by(error);
    let classified = classify(&leaves, &[]).map_err(refused)?;
    let registry = classified.registry(&leaves, "safetensors").map_err(refused)?;
    let note = |note: &Note| Finding::new(Severity::Note, FindingCode::Other, note.to_string());
    Ok((registry, classified.notes.iter().map(note).collect()))
}

/// `__metadata__` as JSON.
pub(crate) fn metadata(header: &Header) -> Value {
    header.metadata.iter().map(|(key, value)| (key.clone(), Value::from(value.clone()))).collect()
}

/// The warning that goes with extents that no file states.
pub(crate) fn inferred_extents(names: &[fqn::Fqn]) -> Vec<Finding> {
    let Some(first) = names.first() else { return Vec::new() };
    let text = format!(
        "the shards do not say how large their tensors are: extents of {} tensors ({first}, …) are the smallest that \
         hold every shard, so a lost last shard can't be seen",
        names.len()
    );
    let hint = "compare the shapes with the model's, or with a baseline: `ckpt fqn check`";
    vec![Finding::new(Severity::Warning, FindingCode::Other, text).hint(hint)]
}
