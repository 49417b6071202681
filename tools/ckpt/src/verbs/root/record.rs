//! `ckpt verify --record`: what a verification found, noted in the log.

use dcp::commit::{Log, Seq};
use dcp::formats::native::CommitFacts;
use dcp::retention::verified;
use dcp::store::{Root, Stores};
use dcp::{Error, Place, Result};

use super::options;

/// Notes whether a checkpoint was found whole. `location` is its root, or its folder in the root.
///
/// # Errors
/// `Incompatible` where no log knows it; the store's and the log's.
pub(in crate::verbs) fn record_verified(location: &str, commit: &CommitFacts, whole: bool) -> Result<()> {
    let root = root_of(location, commit.seq)?;
    verified(&root, &commit.run, None, commit.seq, whole, options())
}

fn root_of(location: &str, seq: Seq) -> Result<Root> {
    let has_log = |location: &str| {
        let root = Root::open(location, &Stores::new()).ok()?;
        Log::open(&root).is_ok_and(|log| log.state().checkpoints.contains_key(&seq)).then_some(root)
    };
    let trimmed = location.trim_end_matches('/');
    let above = trimmed.rsplit_once('/').map_or(".", |(above, _)| if above.is_empty() { "/" } else { above });
    let found = has_log(location).or_else(|| has_log(above));
    found
        .ok_or_else(|| Error::incompatible("no commit log here knows it").hint("give ROOT@REVISION"))
        .place(location)
}
