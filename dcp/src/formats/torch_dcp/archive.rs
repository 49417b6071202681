//! One entry of a `.distcp` file: a `torch.save` archive of one tensor or one value.
//!
//! ```text
//!  archive/data.pkl │ .format_version │ … │ archive/data/0 (payload, 64-aligned) │ version │ serialization_id │ directory
//! ```
//!
//! All records are stored uncompressed. Sizes and checksums are in the central directory only; an archive whose
//! every checksum is zero was written with checksums switched off.

use fqn::{Dims, Dtype, Shape};
use serde_json::Value;

use super::{decode::json, zip};
use crate::{
    Error, Result,
    pickle::{Context, Limits, Policy, Ref, Tree, Unknown, Value as Inert, read},
    read_at::ReadAt,
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
    /// Elements before the first one in the payload.
    pub(super) storage_offset: u64,
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
pub(super) fn tensor(source: &dyn ReadAt) -> Result<Stored> {
    let directory = zip::Directory::read(source)?;
    let tree = pickle(source, &directory, Context::TensorArchive, MOST_TENSOR_PICKLE)?;
    let rebuilt = rebuild(tree.root())?;
    let record = directory.record(&format!("data/{}", rebuilt.storage))?;
    let payload = Payload {
        offset: zip::payload_offset(source, record)?,
        len: record.len,
        crc32: directory.has_checksums().then_some(record.crc32),
    };
    rebuilt.stored(payload)
}

/// Decodes the value in the archive `bytes` as JSON, for people.
///
/// # Errors
/// `Corrupt`: no such archive, or a pickle that is refused because it would run code.
pub(super) fn value(bytes: &dyn ReadAt) -> Result<Value> {
    let directory = zip::Directory::read(bytes)?;
    let tree = pickle(bytes, &directory, Context::BytesEntry, bytes.len())?;
    Ok(json(tree.root()))
}

fn pickle(source: &dyn ReadAt, directory: &zip::Directory, context: Context, most: u64) -> Result<Tree> {
    let record = directory.record("data.pkl")?;
    if record.len > most {
        return Err(Error::corrupt(format!("data.pkl claims {} bytes", record.len)));
    }
    let mut bytes =
        vec![0; usize::try_from(record.len).map_err(|_| Error::corrupt("data.pkl beyond memory"))?];
    source.read_exact_at(zip::payload_offset(source, record)?, &mut bytes)?;
    let policy = Policy::new(context).unknown(if context == Context::BytesEntry {
        Unknown::Inert
    } else {
        Unknown::Refuse
    });
    read(&bytes, &policy, &Limits::default()).map_err(|error| {
        let text = format!("data.pkl: {error}: {}", error.kind);
        Error::corrupt(text).caused_by(error)
    })
}

/// What `_rebuild_tensor_v2` (or `_v3`, with an untyped storage and a dtype) would be called with.
struct Rebuilt {
    dtype: Dtype,
    storage: String,
    storage_offset: u64,
    shape: Shape,
    strides: Dims,
}

fn rebuild(root: Ref<'_>) -> Result<Rebuilt> {
    let wrong = |what: &str| Error::corrupt(format!("data.pkl is no plain tensor: {what}: {root:.80}"));
    let mut object = root.as_object().ok_or_else(|| wrong("no object"))?;
    // A Parameter wraps its tensor.
    if object.is("torch._utils", "_rebuild_parameter") {
        let inner = object.arg(0).and_then(Ref::as_object);
        object = inner.ok_or_else(|| wrong("a parameter without a tensor"))?;
    }
    let typed = object.is("torch._utils", "_rebuild_tensor_v2");
    if !typed && !object.is("torch._utils", "_rebuild_tensor_v3") {
        return Err(wrong("made by another function"));
    }
    let arg = |index| object.arg(index).ok_or_else(|| wrong("too few arguments"));
    let storage = arg(0)?;
    let Inert::Persistent(id) = storage.value() else { return Err(wrong("no storage")) };
    let mut id = id.as_sequence().ok_or_else(|| wrong("no storage id"))?;
    let (kind, key) = (id.nth(1), id.next());
    let kind = kind.and_then(Ref::as_global).ok_or_else(|| wrong("no storage type"))?;
    let key = key.and_then(Ref::as_str).ok_or_else(|| wrong("no storage key"))?;
    let dtype = if typed {
        dtype_of_storage(&kind.name)
    } else {
        arg(6)?.as_global().and_then(|g| Dtype::from_torch_name(&g.name))
    };
    let numbers = |value: Ref<'_>| value.as_sequence()?.map(Ref::as_u64).collect::<Option<Dims>>();
    Ok(Rebuilt {
        dtype: dtype.ok_or_else(|| {
            Error::unsupported(format!("storage type {} is not one that is read", kind.name))
        })?,
        storage: key.to_owned(),
        storage_offset: arg(1)?.as_u64().ok_or_else(|| wrong("no storage offset"))?,
        shape: Shape::from(numbers(arg(2)?).ok_or_else(|| wrong("no size"))?),
        strides: numbers(arg(3)?).ok_or_else(|| wrong("no strides"))?,
    })
}

/// The element type of `torch.<name>`.
fn dtype_of_storage(name: &str) -> Option<Dtype> {
    Some(match name.strip_suffix("Storage")? {
        "Double" => Dtype::F64,
        "Float" => Dtype::F32,
        "Half" => Dtype::F16,
        "BFloat16" => Dtype::BF16,
        "Long" => Dtype::I64,
        "Int" => Dtype::I32,
        "Short" => Dtype::I16,
        "Char" => Dtype::I8,
        "Byte" => Dtype::U8,
        "Bool" => Dtype::Bool,
        "ComplexFloat" => Dtype::C64,
        "ComplexDouble" => Dtype::C128,
        _ => return None,
    })
}

impl Rebuilt {
    /// Checks that every element lies in the payload.
    fn stored(self, payload: Payload) -> Result<Stored> {
        let Self { dtype, shape, strides, storage_offset, .. } = self;
        if strides.len() != shape.rank() {
            return Err(Error::corrupt(format!("{} strides for shape {shape}", strides.len())));
        }
        let elements =
            shape.elements().ok_or_else(|| Error::corrupt(format!("shape {shape} exceeds 64 bits")))?;
        let last = strides.iter().zip(shape.iter()).try_fold(storage_offset, |sum, (stride, extent)| {
            sum.checked_add(stride.checked_mul(extent.saturating_sub(1))?)
        });
        let needed =
            if elements == 0 { Some(0) } else { last.and_then(|last| dtype.bytes_for(last.checked_add(1)?)) };
        if needed.is_none_or(|needed| needed > payload.len) {
            let text =
                format!("{dtype} of shape {shape} does not fit into its payload of {} bytes", payload.len);
            return Err(Error::corrupt(text));
        }
        let packed = shape.row_major_strides();
        let same = |packed: &Dims| {
            packed.iter().zip(&strides).zip(shape.iter()).all(|((a, b), extent)| *extent <= 1 || a == b)
        };
        let strides = (elements > 0 && !packed.as_ref().is_some_and(same)).then_some(strides);
        Ok(Stored { dtype, shape, storage_offset, strides, payload })
    }
}
