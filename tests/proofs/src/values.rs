//! Values of records that several proofs write.

use dcp::commit::{Commit, DirName, ManifestRef, Metrics};

/// Content of a commit record of a saver that measured nothing.
pub(crate) fn commit(
    step: u64,
    attempt: &DirName,
    manifest: ManifestRef,
    directories: impl IntoIterator<Item = DirName>,
) -> Commit {
    let directories = directories.into_iter().collect();
    Commit { step, attempt: attempt.clone(), manifest, directories, metrics: Metrics::default() }
}
