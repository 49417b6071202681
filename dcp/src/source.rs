//! [`Source`]: the reading half of the format seam. An adapter opens a checkpoint of its format, yields a
//! [`Catalog`] and serves byte ranges; nothing outside the adapter knows the format.

use std::{fmt, sync::Arc};

use crate::{Catalog, FileId, Finding, Result, digest::BlockTable};

/// An opened checkpoint. Opening reads metadata only; data is read when it is asked for.
pub trait Source: Send + Sync + fmt::Debug {
    /// What it holds, invariants checked.
    fn catalog(&self) -> &Catalog;

    /// Fills `buf` from byte `offset` of `file`: of its logical bytes, where its blocks are compressed. Several threads call it at
    /// once.
    ///
    /// A file may be virtual (the decompressed form of a stored one); its adapter makes sequential reads cheap.
    ///
    /// # Errors
    /// The file's name is in the message. `Corrupt` where the file ends early.
    fn read_exact_at(&self, file: FileId, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Fills `buf` from byte `offset` of what is stored of `file`: the same unless its blocks are compressed.
    ///
    /// # Errors
    /// As [`Self::read_exact_at`].
    fn read_stored_at(&self, file: FileId, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read_exact_at(file, offset, buf)
    }

    /// The block table of `file`, checked against its root hash; `None` where the format has none.
    ///
    /// # Errors
    /// `Corrupt` when table and root differ.
    fn blocks(&self, file: FileId) -> Result<Option<Arc<BlockTable>>> {
        let _ = file;
        Ok(None)
    }

    /// A text that changes when the files are written again, where nothing in the catalog would: whoever goes on with what another
    /// process copied of them must know that they are still the same. `None` where digests in the catalog tell.
    ///
    /// # Errors
    /// Where a file can't be looked at.
    fn stamp(&self) -> Result<Option<String>> {
        Ok(None)
    }

    /// Whether its bytes come through a network, so that a thread that reads waits most of the time; see [`crate::engine::threads`].
    fn waits(&self) -> bool {
        false
    }

    /// Facts for people that have no place in the catalog, each with its label: which record committed it, what proves
    /// its bytes. In the order to show.
    fn facts(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// What only the adapter can check without reading payloads: orphan and stale files, sizes, an index against
    /// the files' own headers, contradictions in the metadata, globals of pickles. Box cover, CRCs and blocks are
    /// checked for all formats alike by `verify`.
    ///
    /// # Errors
    /// Only where the check itself could not be made.
    fn audit(&self) -> Result<Vec<Finding>>;
}
