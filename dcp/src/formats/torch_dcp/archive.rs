//! One entry of a `.distcp` file: a `torch.save` archive of one tensor or one value.

use std::sync::Arc;

use bytes::Bytes;
use fqn::{Dims, Dtype, Shape};
use serde_json::Value;

use super::decode::json;
use crate::{
    Error, Result,
    pickle::{Context, Limits, PickleError, Policy, Tree, Unknown, read},
    read_at::ReadAt,
    torch::{Archive, ArchiveError, CrcState, Tensor, TensorRef, read_tensor},
};

/// How a zip archive begins.
pub(super) const MAGIC: &[u8] = b"PK\x03\x04";

/// Largest `data.pkl` of a tensor; torch's takes 150 bytes.
const MOST_TENSOR_PICKLE: u64 = 1 << 20;

/// A tensor as its archive describes it.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) dtype: Dtype,
    pub(super) shape: Shape,
    /// Bytes before the first element in the payload.
    pub(super) skip: u64,
    /// Strides in elements, unless packed.
    pub(super) strides: Option<Dims>,
    pub(super) payload: Payload,
}

/// A record's bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Payload {
    /// First byte in the archive.
    pub(super) offset: u64,
    pub(super) len: u64,
    /// `None` when the archive was written without checksums.
    pub(super) crc32: Option<u32>,
}

/// Reads the description of the tensor in the archive `source`.
///
/// # Errors
/// `Corrupt`: no such archive, a pickle that is refused or describes something else, a payload too short.
pub(super) fn tensor(source: Arc<dyn ReadAt>) -> Result<Stored> {
    let archive = Archive::open(source).map_err(of_archive)?;
    let tree = pickle(&archive, &Policy::new(Context::TensorArchive), MOST_TENSOR_PICKLE)?;
    let tensor =
        read_tensor(tree.root()).map_err(|error| Error::corrupt(error.to_string()).caused_by(error))?;
    match tensor {
        Some(Tensor::Plain(tensor)) => stored(&archive, tensor),
        Some(Tensor::Sharded(_)) => {
            Err(Error::unsupported("a DTensor inside an entry, where torch puts its local part"))
        }
        None => Err(Error::corrupt(format!("the entry holds no tensor but {:.80}", tree.root()))),
    }
}

fn stored(archive: &Archive, tensor: TensorRef) -> Result<Stored> {
    let name = format!("data/{}", tensor.storage.key);
    let record =
        archive.record(&name).ok_or_else(|| Error::corrupt(format!("the archive has no record {name}")))?;
    if record.len < tensor.storage.bytes {
        let text = format!("{name} has {} bytes, its storage {}", record.len, tensor.storage.bytes);
        return Err(Error::corrupt(text));
    }
    let payload = Payload {
        offset: archive.payload_offset(record).map_err(of_archive)?,
        len: record.len,
        crc32: (archive.crc_state() == CrcState::Recorded).then_some(record.crc32),
    };
    let (skip, packed) = (tensor.byte_offset(), tensor.is_contiguous());
    Ok(Stored {
        dtype: tensor.dtype,
        shape: tensor.shape,
        skip,
        strides: (!packed).then_some(tensor.strides),
        payload,
    })
}

/// Decodes the value in the archive `bytes` as JSON, for people.
///
/// # Errors
/// `Corrupt`: no such archive, or a pickle that is refused because it would run code.
pub(super) fn value(bytes: &Bytes) -> Result<Value> {
    let archive = Archive::open(Arc::new(bytes.clone())).map_err(of_archive)?;
    let tree =
        pickle(&archive, &Policy::new(Context::BytesEntry).unknown(Unknown::Inert), bytes.len() as u64)?;
    Ok(json(tree.root()))
}

fn pickle(archive: &Archive, policy: &Policy, most: u64) -> Result<Tree> {
    let bytes = archive.data_pickle(most).map_err(of_archive)?;
    read(&bytes, policy, &Limits::default()).map_err(of_pickle)
}

/// A refused pickle, its reason in the message.
pub(crate) fn of_pickle(error: PickleError) -> Error {
    Error::corrupt(format!("{error}: {}", error.kind)).caused_by(error)
}

/// A refused archive, its reason in the message.
pub(crate) fn of_archive(error: ArchiveError) -> Error {
    match error {
        ArchiveError::Io(error) => error.into(),
        ArchiveError::Pickle(error) => of_pickle(error),
        other => Error::corrupt(other.to_string()).caused_by(other),
    }
}
