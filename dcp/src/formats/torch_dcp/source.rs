//! [`DcpSource`]: a folder of torch's as a checkpoint.

use std::{path::Path, sync::Arc};

use super::{Listing, audit, build::Building, inflate::Inflated};
use crate::{
    Catalog, Error, FileId, Finding, Place, Result, Source,
    formats::{Depth, OpenOptions, blobs::Blobs},
    read_at::ReadAt,
};

/// An opened checkpoint.
#[derive(Debug)]
pub struct DcpSource {
    catalog: Catalog,
    blobs: Blobs,
    /// Inflated entries: files after those of `blobs`.
    virtuals: Vec<(FileId, Arc<Inflated>)>,
    depth: Depth,
    findings: Vec<Finding>,
}

impl DcpSource {
    /// Opens the folder at `path`.
    ///
    /// # Errors
    /// `NotFound`: no metadata. `Corrupt`: metadata that is refused, or that contradicts itself or the blobs (what
    /// concerns single pieces is left to the audit when lenient). What the system says.
    pub fn open(path: &Path, options: OpenOptions) -> Result<Self> {
        let listing = Listing::read(path)?;
        let metadata = listing.metadata(path).place(path.display())?;
        let mut building = Building::new(path, &listing, &metadata, options);
        let catalog = building.run()?;
        let Building { blobs, virtuals, mut findings, .. } = building;
        findings.extend(audit::audit(&listing, &metadata, &catalog, options.depth));
        let first = catalog.files.len().saturating_sub(virtuals.len());
        let id = |at: usize| {
            u32::try_from(first.saturating_add(at)).map(FileId).map_err(|_| Error::internal("file id"))
        };
        let virtuals =
            virtuals.into_iter().enumerate().map(|(at, file)| Ok((id(at)?, file))).collect::<Result<_>>()?;
        Ok(Self { catalog, blobs, virtuals, depth: options.depth, findings })
    }
}

impl Source for DcpSource {
    fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    fn read_exact_at(&self, file: FileId, offset: u64, buf: &mut [u8]) -> Result<()> {
        if self.depth == Depth::Catalog {
            return Err(Error::internal(
                "this checkpoint was opened for its catalog only; its data can't be read",
            ));
        }
        let at = self.virtuals.binary_search_by_key(&file, |(id, _)| *id);
        match at.ok().and_then(|at| self.virtuals.get(at)) {
            Some((_, inflated)) => {
                let name =
                    || self.catalog.file(file).map_or_else(|_| String::new(), |file| file.path.clone());
                inflated.read_exact_at(offset, buf).map_err(|error| Error::from(error).at(name()))
            }
            None => self.blobs.read_exact_at(file, offset, buf),
        }
    }

    fn stamp(&self) -> Result<Option<String>> {
        self.blobs.stamp().map(Some)
    }

    fn audit(&self) -> Result<Vec<Finding>> {
        Ok(self.findings.clone())
    }
}
