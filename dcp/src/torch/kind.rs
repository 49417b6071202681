//! Tells a torch zip archive from its look-alikes by content, so that a refusal can say what to do instead.

use super::error::ArchiveError;
use super::zip::LOCAL;
use crate::read_at::ReadAt;

/// Remedy for what torch still loads but no longer writes.
const RESAVE: &str =
    "load it with torch and save it again: `torch.save(torch.load(path, weights_only=True), path)`";

/// The magic number with which pickles of torch before 1.6 begin, as LONG1.
const LEGACY_MAGIC: &[u8] = b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";

/// Bytes that decide.
const HEAD: u64 = 512;

/// Where a tar header has its magic.
const TAR_MAGIC: (usize, &[u8]) = (257, b"ustar");

/// Refuses what does not begin as a zip.
pub(super) fn expect_zip(source: &dyn ReadAt) -> Result<(), ArchiveError> {
    let mut head = vec![0; usize::try_from(source.len().min(HEAD)).unwrap_or_default()];
    source.read_exact_at(0, &mut head)?;
    if head.starts_with(&LOCAL.0) {
        return Ok(());
    }
    if let Some(why) = damage(&head) {
        return Err(ArchiveError::structure("the archive", 0, why));
    }
    let (found, remedy) = describe(&head);
    Err(ArchiveError::NotAnArchive { found, remedy })
}

/// What is no file of any kind, but what is left of one.
fn damage(head: &[u8]) -> Option<&'static str> {
    if head.is_empty() {
        Some("the file is empty: the writer did not finish, or the copy failed")
    } else if head.iter().all(|b| *b == 0) {
        Some("it begins with zeros only: the writer did not finish, or the disk lost the file")
    } else if head.starts_with(b"PK\x05\x06") || head.starts_with(b"PK\x06\x06") {
        Some("it is a zip without records: the writer did not finish")
    } else {
        None
    }
}

fn describe(head: &[u8]) -> (&'static str, &'static str) {
    let pickle = matches!(head, [0x80, 2..=5, ..]);
    let after_protocol = head.get(2..).unwrap_or_default();
    if pickle && after_protocol.starts_with(LEGACY_MAGIC) {
        ("it is a torch file of the format before 1.6 (a row of pickles)", RESAVE)
    } else if head.get(TAR_MAGIC.0..).is_some_and(|rest| rest.starts_with(TAR_MAGIC.1)) {
        ("it is a tar, as torch before 0.1.10 wrote", RESAVE)
    } else if pickle {
        (
            "it is a bare pickle",
            "tensors in it are no torch checkpoint; load it with Python and save it with torch",
        )
    } else if head.get(8) == Some(&b'{') {
        ("it looks like a safetensors file", "give it the extension `.safetensors`")
    } else {
        (
            "it does not begin as any file that torch wrote",
            "check that the path is right and the copy complete",
        )
    }
}

/// Refuses zips of torch that hold programs instead of checkpoints.
pub(super) fn expect_checkpoint(has: impl Fn(&str) -> bool) -> Result<(), ArchiveError> {
    let (found, remedy) = if has("constants.pkl") {
        ("it is a TorchScript program", "load it with `torch.jit.load` and save its `state_dict()`")
    } else if has("archive_format") {
        ("it is an exported program (.pt2)", "load it with `torch.export.load` and save its `state_dict`")
    } else if has("data.pkl") {
        return Ok(());
    } else {
        return Err(ArchiveError::Missing("data.pkl"));
    };
    Err(ArchiveError::NotAnArchive { found, remedy })
}
