//! Parsers that are not part of the crate's interface, for fuzzers: each says whether the bytes were accepted. And hostile input for them.

use crate::{ChunkList, Result, commit, formats, manifest::Manifest};

/// The image of a manifest, though no reader may take it.
///
/// # Errors
/// What can't be a manifest at all.
pub fn hostile_image(manifest: &Manifest) -> Result<Vec<u8>> {
    manifest.image()
}

/// The packed chunks of a tensor of this rank.
#[must_use]
pub fn chunks(rank: usize, column: &[u8]) -> bool {
    ChunkList::from_packed(rank, column.to_vec()).is_ok()
}

/// The head hint of a log.
#[must_use]
pub fn head_hint(bytes: &[u8]) -> bool {
    commit::is_hint(bytes)
}

/// A part: a writer's note of a finished blob.
#[must_use]
pub fn part(bytes: &[u8]) -> bool {
    serde_json::from_slice::<formats::native::Part>(bytes).is_ok()
}

/// A writer's note of what it holds and does not write.
#[must_use]
pub fn held(bytes: &[u8]) -> bool {
    serde_json::from_slice::<formats::native::HeldNote>(bytes).is_ok()
}

/// The index of a Hugging Face folder.
#[must_use]
pub fn hf_index(bytes: &[u8]) -> bool {
    formats::hf::is_index(bytes)
}
