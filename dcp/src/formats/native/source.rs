//! [`NativeSource`]: an opened checkpoint of the native store.

use std::sync::Arc;

use super::{
    facts::{self, CommitFacts},
    files::Files,
};
use crate::{
    Catalog, FileId, Finding, Place, Result, Source,
    commit::Log,
    digest::{BlockTable, Sha256Digest},
    manifest::{Manifest, ObjectPlace, Origin, Writer, manifest_name},
    store::{Root, object_path},
};

/// An opened checkpoint of the native store: committed, or a step's folder by itself.
#[derive(Debug)]
pub struct NativeSource {
    pub(super) root: Root,
    /// Its folder below the root; empty when the root is that folder.
    pub(super) dir: String,
    pub(super) digest: Sha256Digest,
    pub(super) manifest: Manifest,
    pub(super) files: Files,
    /// The record that committed it.
    pub(super) committed: Option<CommitFacts>,
    /// The log that the record stands in, where it was read.
    pub(super) log: Option<Log>,
    /// What went wrong while opening, where that was forgiven.
    pub(super) forgiven: Vec<Finding>,
}

impl NativeSource {
    /// The record that committed it; `None` for a step's folder by itself.
    #[must_use]
    pub fn commit(&self) -> Option<&CommitFacts> {
        self.committed.as_ref()
    }

    /// The log that its record stands in, where that was read.
    pub(crate) const fn log(&self) -> Option<&Log> {
        self.log.as_ref()
    }

    /// SHA-256 of its manifest.
    #[must_use]
    pub const fn manifest_digest(&self) -> Sha256Digest {
        self.digest
    }

    /// What proves its bytes, in one sentence.
    #[must_use]
    pub fn integrity(&self) -> String {
        facts::integrity(&self.manifest.catalog)
    }

    /// What it was made from, where the manifest says.
    #[must_use]
    pub const fn origin(&self) -> Option<&Origin> {
        self.manifest.origin.as_ref()
    }

    /// The program that wrote it.
    #[must_use]
    pub const fn writer(&self) -> &Writer {
        &self.manifest.writer
    }

    /// Changes the recorded fingerprint of a tensor, for tests of what compares it.
    #[cfg(test)]
    pub(crate) fn lie(&mut self, tensor: usize) {
        self.manifest.catalog.tensors[tensor].fingerprint =
            Some(crate::fingerprint::Fingerprint::from_bytes([7; 16]));
    }

    /// Its manifest as it is stored: nothing filled in, nothing described.
    ///
    /// # Errors
    /// `Corrupt` where it is not the one that was opened; the store's.
    pub(crate) fn stored_manifest(&self) -> Result<Manifest> {
        let name = manifest_name(&self.digest);
        let path = if self.dir.is_empty() { name } else { format!("{}/{name}", self.dir) };
        let path = object_path(&path)?;
        let bytes = self.root.get(&path)?;
        Manifest::decode(&bytes, &self.digest).place(self.root.full_name(&path))
    }

    /// Fills in the bytes of objects that lie in files.
    ///
    /// # Errors
    /// The first object's that can't be read, unless that is `forgiven`.
    pub(super) fn fill_objects(&mut self, forgive: bool) -> Result<()> {
        let each = self.manifest.catalog.objects.iter_mut().zip(&self.manifest.objects);
        for (object, place) in each {
            let ObjectPlace::File { file, offset, len } = *place else { continue };
            match self.files.proven(file, offset, len) {
                Ok(bytes) => object.bytes = bytes.into(),
                Err(error) if forgive => self.forgiven.push(super::audit::unread(&object.key, &error)),
                Err(error) => return Err(error.at(format!("object {}", object.key))),
            }
        }
        Ok(())
    }
}

impl Source for NativeSource {
    fn catalog(&self) -> &Catalog {
        &self.manifest.catalog
    }

    fn read_exact_at(&self, file: FileId, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.files.read_exact_at(file, offset, buf)
    }

    fn waits(&self) -> bool {
        self.root.waits()
    }

    fn read_stored_at(&self, file: FileId, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.files.read_stored_at(file, offset, buf)
    }

    fn blocks(&self, file: FileId) -> Result<Option<Arc<BlockTable>>> {
        self.files.blocks(file)
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let mut facts = Vec::new();
        facts.extend(self.commit().map(|commit| ("commit", commit.to_string())));
        facts.push(("integrity", self.integrity()));
        let from =
            |origin: &Origin| format!("{} ({}), {}", origin.place, origin.format.name(), origin.variant);
        facts.extend(self.origin().map(|origin| ("made from", from(origin))));
        facts
    }

    fn audit(&self) -> Result<Vec<Finding>> {
        super::audit::audit(self)
    }
}
