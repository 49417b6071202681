//! Values of a state dict: each a pickle of its own, so that it can be carried to any format and back.

use bytes::Bytes;

use crate::{
    Encoding, Error, ObjectEntry, Result,
    formats::torch_dcp::{from_json, of_archive, of_pickle},
    pickle::{Arena, Context, Limits, NodeId, Policy, Protocol, Ref, Tree, Unknown, read, write},
    torch::Archive,
};

/// The pickle of `value` alone.
///
/// # Errors
/// `Corrupt` for a value that can't be pickled again (a class whose name has a line break).
pub(super) fn pickled(value: Ref<'_>) -> Result<Vec<u8>> {
    let mut arena = Arena::new();
    let root = arena.graft(value);
    let tree = arena.finish(root).map_err(of_pickle)?;
    write(&tree, Protocol::V2).map_err(of_pickle)
}

/// Puts the value of `object` into `arena`.
///
/// # Errors
/// `Corrupt` for bytes that are not of the encoding; `Incompatible` for a value with tensors inside.
pub(super) fn put(arena: &mut Arena, object: &ObjectEntry) -> Result<NodeId> {
    match object.encoding {
        Encoding::Json => {
            let value = serde_json::from_slice(&object.bytes)
                .map_err(|error| Error::corrupt(format!("no JSON: {error}")).caused_by(error))?;
            Ok(from_json(arena, &value))
        }
        Encoding::Pickle => put_pickle(arena, &object.bytes),
        Encoding::TorchSave => {
            let archive =
                Archive::open(std::sync::Arc::new(Bytes::clone(&object.bytes))).map_err(of_archive)?;
            if archive.records().iter().any(|record| record.name.starts_with("data/")) {
                return Err(Error::incompatible(
                    "the value holds tensors of its own, which no place in a state dict has room for",
                )
                .hint("leave it out of the plan, or take its tensors out where it is made"));
            }
            let limit = u64::try_from(object.bytes.len()).unwrap_or(u64::MAX);
            put_pickle(arena, &archive.data_pickle(limit).map_err(of_archive)?)
        }
    }
}

/// Puts the value of a pickle without tensors into `arena`.
pub(super) fn put_pickle(arena: &mut Arena, pickle: &[u8]) -> Result<NodeId> {
    Ok(arena.graft(inert(pickle)?.root()))
}

fn inert(pickle: &[u8]) -> Result<Tree> {
    let policy = Policy::new(Context::BytesEntry).unknown(Unknown::Inert);
    read(pickle, &policy, &Limits::default()).map_err(of_pickle)
}
