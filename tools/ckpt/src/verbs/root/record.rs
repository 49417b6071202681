//! `ckpt verify --record`: what a verification found, noted in the log.

use dcp::commit::{Label, Log, Seq};
use dcp::formats::native::CommitFacts;
use dcp::retention::verified;
use dcp::store::{Root, Stores};
use dcp::{Error, Place, Result};

use super::options;

/// A log that knows a checkpoint, and can be told what was found.
#[derive(Debug)]
pub(in crate::verbs) struct Recorder {
    root: Root,
    run: Label,
    seq: Seq,
}

impl Recorder {
    /// The log of a checkpoint. `location` is its root, or its folder in the root.
    ///
    /// # Errors
    /// `Incompatible` where no log knows it; the store's and the log's.
    pub(in crate::verbs) fn of(location: &str, commit: &CommitFacts) -> Result<Self> {
        let (run, seq) = (commit.run.clone(), commit.seq);
        let has_log = |location: &str| {
            let root = Root::open(location, &Stores::new()).ok()?;
            Log::open(&root).is_ok_and(|log| log.state().checkpoints.contains_key(&seq)).then_some(root)
        };
        let trimmed = location.trim_end_matches('/');
        let above =
            trimmed.rsplit_once('/').map_or(".", |(above, _)| if above.is_empty() { "/" } else { above });
        let found = has_log(location).or_else(|| has_log(above));
        let root = found
            .ok_or_else(|| Error::incompatible("no commit log here knows it").hint("give ROOT@REVISION"))
            .place(location)?;
        Ok(Self { root, run, seq })
    }

    /// Notes whether it was found whole.
    ///
    /// # Errors
    /// The store's and the log's.
    pub(in crate::verbs) fn note(&self, whole: bool) -> Result<()> {
        verified(&self.root, &self.run, None, self.seq, whole, options())
    }
}
