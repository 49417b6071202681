//! [`Watch`]: the seam to whoever watches a save, slows it down, or makes it fail where a test wants it.

use std::fmt;

use crate::Result;

/// Where a save is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Moment<'a> {
    /// Bytes of a rank's blobs were handed to the store, or found there: at most 1 MiB since the moment before. They are not
    /// durable yet.
    Wrote {
        /// The writer.
        rank: u32,
        /// Bytes of boxes so far, of this writer.
        done: u64,
        /// Bytes of boxes that this writer has to write.
        total: u64,
    },
    /// A box, or the whole checkpoint, that a save may refer to could not be read, or is damaged: what lies there is written
    /// anew. The save goes on; whoever depends on the earlier checkpoint should know.
    Suspect {
        /// The writer.
        rank: u32,
        /// What could not be read, and why.
        why: &'a str,
    },
    /// All boxes of a file are put: it is durable, its block table and its part too.
    FileDone {
        /// The writer.
        rank: u32,
        /// The file, in the attempt's folder.
        path: &'a str,
    },
    /// All parts were found and checked; nothing of the commit is written.
    Checked,
    /// The manifest is durable; the record is not written: without it, nothing exists.
    Landed,
}

/// Watches a save. Called from the threads that write and commit, which wait for it: what sleeps here slows the save down. An
/// error ends the call that it came from, as the store's own would.
pub trait Watch: fmt::Debug + Send + Sync {
    /// A moment of a save.
    ///
    /// # Errors
    /// Whatever shall end the save here.
    fn at(&self, moment: Moment<'_>) -> Result<()>;
}

/// Nobody watches.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unwatched;

impl Watch for Unwatched {
    fn at(&self, _: Moment<'_>) -> Result<()> {
        Ok(())
    }
}
