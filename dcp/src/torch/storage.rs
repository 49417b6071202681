//! Storages: the persistent ids of a `data.pkl`, and the dtypes that torch's storage classes stand for.

use fqn::Dtype;

use super::rebuild::TensorError;
use crate::pickle::{Arena, NodeId, Ref, Value};

/// A storage by the record that holds it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StorageRef {
    /// Its record is `data/<key>`.
    pub key: String,
    /// Length in bytes.
    pub bytes: u64,
}

/// Names of storage classes and the dtypes that they stand for; other dtypes go with `UntypedStorage`.
const CLASSES: [(&str, Dtype); 12] = [
    ("DoubleStorage", Dtype::F64),
    ("FloatStorage", Dtype::F32),
    ("HalfStorage", Dtype::F16),
    ("BFloat16Storage", Dtype::BF16),
    ("LongStorage", Dtype::I64),
    ("IntStorage", Dtype::I32),
    ("ShortStorage", Dtype::I16),
    ("CharStorage", Dtype::I8),
    ("ByteStorage", Dtype::U8),
    ("BoolStorage", Dtype::Bool),
    ("ComplexFloatStorage", Dtype::C64),
    ("ComplexDoubleStorage", Dtype::C128),
];

/// Reads `persistent(('storage', class, key, location, elements))`: the storage, and its dtype if the class tells.
pub(super) fn read(value: Ref<'_>) -> Result<(StorageRef, Option<Dtype>), TensorError> {
    let Value::Persistent(id) = value.value() else {
        return Err(TensorError::shape("a storage", "a persistent id", value));
    };
    let parts: Vec<Ref<'_>> = id.as_sequence().map(Iterator::collect).unwrap_or_default();
    let [tag, class, key, _location, count, ..] = parts.as_slice() else {
        return Err(TensorError::shape("a storage", "a tuple of five", id));
    };
    if tag.as_str() != Some("storage") {
        return Err(TensorError::shape("a storage", "the word 'storage'", *tag));
    }
    let key = key.as_str().ok_or_else(|| TensorError::shape("a storage", "a key that is a str", *key))?;
    if key.is_empty() || !key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return Err(TensorError::Refused {
            what: format!("storage key {key:?}"),
            why: "it is no plain record name",
        });
    }
    let count = count.as_u64().ok_or_else(|| TensorError::shape("a storage", "a length", *count))?;
    let dtype = class_dtype(*class)?;
    let bytes = dtype.map_or(Some(count), |d| d.bytes_for(count));
    let bytes = bytes.ok_or_else(|| TensorError::Refused {
        what: format!("storage {key:?} of {count} elements"),
        why: "its length passes 64 bits",
    })?;
    Ok((StorageRef { key: key.to_owned(), bytes }, dtype))
}

fn class_dtype(class: Ref<'_>) -> Result<Option<Dtype>, TensorError> {
    let global =
        class.as_global().ok_or_else(|| TensorError::shape("a storage", "a storage class", class))?;
    if &*global.name == "UntypedStorage" {
        return Ok(None);
    }
    let known = CLASSES.iter().find(|(name, _)| *name == &*global.name);
    known.map(|(_, dtype)| Some(*dtype)).ok_or_else(|| TensorError::Refused {
        what: format!("storage class {}.{}", global.module, global.name),
        why: "quantized and unknown storages are not read; dequantize the tensor and save it again",
    })
}

/// The persistent id of storage `key`, as torch writes it for tensors on the CPU.
pub(super) fn write(arena: &mut Arena, names: &mut Names, key: usize, dtype: Dtype, bytes: u64) -> NodeId {
    let tag = names.text(arena, "storage");
    let location = names.text(arena, "cpu");
    let (class, count) = match typed_class(dtype) {
        Some(name) => (arena.global("torch", name), bytes / dtype.element_bytes().unwrap_or(1)),
        None => (arena.global("torch.storage", "UntypedStorage"), bytes),
    };
    let key = arena.str(&key.to_string());
    let count = arena.int(i64::try_from(count).unwrap_or(i64::MAX));
    let id = arena.tuple(&[tag, class, key, location, count]);
    arena.persistent(id)
}

/// The storage class that stands for this dtype, if torch has one.
pub(super) fn typed_class(dtype: Dtype) -> Option<&'static str> {
    CLASSES.iter().find(|(_, d)| *d == dtype).map(|(name, _)| *name)
}

/// Texts that come again in every tensor, kept once.
#[derive(Debug, Default)]
pub(super) struct Names(Vec<(&'static str, NodeId)>);

impl Names {
    pub(super) fn text(&mut self, arena: &mut Arena, text: &'static str) -> NodeId {
        if let Some((_, id)) = self.0.iter().find(|(known, _)| *known == text) {
            return *id;
        }
        let id = arena.str(text);
        self.0.push((text, id));
        id
    }
}
