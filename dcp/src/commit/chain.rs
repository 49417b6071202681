//! The chain: each record names the bytes of the one before it, and the root that both belong to.

use super::error::{CommitError, Result};
use super::record::{Record, RootId};
use super::seq::Seq;
use crate::digest::Sha256Digest;

/// Where a reader is in the chain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Chain {
    /// The root, once a record has named it.
    pub(crate) root: Option<RootId>,
    /// The last record, and the digest of its bytes.
    pub(crate) last: Option<(Seq, Sha256Digest)>,
}

impl Chain {
    /// The number after the last record.
    pub(crate) fn next(&self) -> Seq {
        self.last.map_or(Seq::FIRST, |(seq, _)| seq.next())
    }

    /// The digest of the last record.
    pub(crate) fn prev(&self) -> Option<Sha256Digest> {
        self.last.map(|(_, digest)| digest)
    }

    /// Goes on to the record that was found as number `seq`, or says why it does not belong there. A reader that has seen none begins
    /// wherever it likes.
    pub(crate) fn advance(
        &mut self,
        name: &str,
        seq: Seq,
        record: &Record,
        digest: Sha256Digest,
    ) -> Result<()> {
        let mixed = |reason: String| CommitError::Mixed { path: name.to_owned(), reason };
        if record.seq != seq {
            return Err(mixed(format!("it says that it is record {}", record.seq)));
        }
        if let Some(root) = self.root.filter(|root| *root != record.root) {
            return Err(mixed(format!("it is of root {}, and those before it of {root}", record.root)));
        }
        if record.prev.is_none() != (seq == Seq::FIRST) {
            return Err(mixed("only the first record has none before it".to_owned()));
        }
        if self.last.is_some_and(|(_, last)| record.prev != Some(last)) {
            return Err(mixed("it follows another record than the one before it".to_owned()));
        }
        *self = Self { root: Some(record.root), last: Some((seq, digest)) };
        Ok(())
    }
}
