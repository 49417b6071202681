//! [`PtSource`]: a `torch.save` archive, or a folder of one per rank, as a checkpoint.

use std::path::Path;

use super::{
    folder::archives,
    merge::{Assembled, Together, assemble},
};
use crate::{
    Catalog, Error, FileId, Finding, Place, Result, Source,
    formats::{Depth, OpenOptions, blobs::Blobs},
};

/// An opened checkpoint.
#[derive(Debug)]
pub struct PtSource {
    catalog: Catalog,
    blobs: Blobs,
    findings: Vec<Finding>,
    depth: Depth,
}

impl PtSource {
    /// Opens the archive at `path`, or the folder of archives.
    ///
    /// A file of DTensors holds its rank's parts; a folder of such files, one per rank, is one checkpoint that holds
    /// all. A folder of several files that are no parts of each other is refused: each is a checkpoint of its own.
    ///
    /// # Errors
    /// `NotFound`: nothing there. `Unsupported`: an archive, or a tensor in it, of a kind that is not read. `Corrupt`:
    /// what is damaged or contradicts itself, or would run code (what concerns single tensors or ranks is left to the
    /// audit when lenient).
    pub fn open(path: &Path, options: OpenOptions) -> Result<Self> {
        let assembled = if path.is_dir() {
            Self::folder(path, options)?
        } else {
            let name = path.file_name().and_then(|name| name.to_str());
            let name =
                name.ok_or_else(|| Error::incompatible(format!("{} is no file name", path.display())))?;
            let folder = path.parent().unwrap_or_else(|| Path::new(""));
            assemble(folder, &[name.to_owned()], Together::Alone, options)?
        };
        let Assembled { catalog, blobs, findings, .. } = assembled;
        Ok(Self { catalog, blobs, findings, depth: options.depth })
    }

    fn folder(path: &Path, options: OpenOptions) -> Result<Assembled> {
        let names = archives(path)?;
        if names.len() == 1 {
            return assemble(path, &names, Together::Alone, options);
        }
        let assembled = assemble(path, &names, Together::Ranks, options).place(path.display());
        let parts = assembled.as_ref().map_or(true, |found| found.is_of_ranks);
        if parts {
            return assembled;
        }
        let shown = names.iter().take(4).map(String::as_str).collect::<Vec<_>>().join(", ");
        Err(Error::incompatible(format!(
            "{}: {} torch.save archives that are not the ranks of one checkpoint: {shown}, …",
            path.display(),
            names.len()
        ))
        .hint("give the path of one of them"))
    }
}

impl Source for PtSource {
    fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    fn read_exact_at(&self, file: FileId, offset: u64, buf: &mut [u8]) -> Result<()> {
        if self.depth == Depth::Catalog {
            return Err(Error::internal(
                "this checkpoint was opened for its catalog only; its data can't be read",
            ));
        }
        self.blobs.read_exact_at(file, offset, buf)
    }

    fn stamp(&self) -> Result<Option<String>> {
        self.blobs.stamp().map(Some)
    }

    fn audit(&self) -> Result<Vec<Finding>> {
        Ok(self.findings.clone())
    }
}
