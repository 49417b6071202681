//! [`View`]: one tensor of a checkpoint, as far as one box of it goes, as a source of its own; so that reading a box costs
//! nothing that grows with the checkpoint.

use std::sync::Arc;

use fqn::Entry;

use crate::{
    Catalog, Chunk, Chunks, Error, FileId, Finding, Format, Result, Source, digest::BlockTable,
    formats::native::NativeSource,
};

/// One tensor of a checkpoint, with some of its chunks.
#[derive(Debug)]
pub(super) struct View<'b> {
    base: &'b NativeSource,
    catalog: Catalog,
    /// The checkpoint's number of each file of the catalog.
    files: Vec<FileId>,
}

impl<'b> View<'b> {
    pub(super) fn new(base: &'b NativeSource, entry: &Entry, chunks: &[Chunk]) -> Result<Self> {
        let mut catalog = Catalog::new(Format::Native);
        let mut files: Vec<FileId> = chunks.iter().map(|chunk| chunk.file).collect();
        files.sort_unstable();
        files.dedup();
        for file in &files {
            catalog.files.push(base.catalog().file(*file)?.clone());
        }
        let renumbered = chunks.iter().map(|chunk| {
            let at = files.binary_search(&chunk.file).unwrap_or(usize::MAX);
            let file = FileId(u32::try_from(at).map_err(|_| Error::internal("a chunk in no file"))?);
            Ok(Chunk { file, ..chunk.clone() })
        });
        let chunks = renumbered.collect::<Result<_>>()?;
        catalog.push(entry.clone(), Chunks { chunks, fingerprint: None })?;
        Ok(Self { base, catalog, files })
    }

    fn file(&self, file: FileId) -> Result<FileId> {
        let found = usize::try_from(file.0).ok().and_then(|at| self.files.get(at)).copied();
        found.ok_or_else(|| Error::internal(format!("file {} of {}", file.0, self.files.len())))
    }
}

impl Source for View<'_> {
    fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    fn read_exact_at(&self, file: FileId, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.base.read_exact_at(self.file(file)?, offset, buf)
    }

    fn read_stored_at(&self, file: FileId, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.base.read_stored_at(self.file(file)?, offset, buf)
    }

    fn blocks(&self, file: FileId) -> Result<Option<Arc<BlockTable>>> {
        self.base.blocks(self.file(file)?)
    }

    fn waits(&self) -> bool {
        self.base.waits()
    }

    fn audit(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }
}
