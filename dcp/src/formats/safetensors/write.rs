//! [`HeaderBuilder`]: the header of a file to write, known in full before the first byte of data.
//!
//! Invariants: the same tensors in the same order give the same bytes; data begins at a multiple of 8 (the header
//! is padded with spaces, as the format allows); tensors are laid down in order of falling alignment within the
//! caller's order, so that each begins at a multiple of its element size.

use fqn::{Dtype, Shape};
use serde_json::{Map, Value, json};

use crate::{Error, Result};

/// Collects tensors and metadata of a file to write.
#[derive(Debug, Clone, Default)]
pub struct HeaderBuilder {
    tensors: Vec<(String, Dtype, Shape)>,
    metadata: Map<String, Value>,
}

/// A finished header and where each tensor lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// The length field and the padded JSON: the first bytes of the file.
    pub bytes: Vec<u8>,
    /// Offset of each tensor's first byte in the file, in the order in which they were added.
    pub offsets: Vec<u64>,
    /// Size of the whole file.
    pub file_size: u64,
}

impl HeaderBuilder {
    /// A header whose metadata says `format: pt`, which `transformers` asks for.
    #[must_use]
    pub fn new() -> Self {
        Self { tensors: Vec::new(), metadata: Map::from_iter([("format".to_owned(), json!("pt"))]) }
    }

    /// Adds a pair to `__metadata__`, or replaces it.
    pub fn metadata(&mut self, key: &str, value: &str) -> &mut Self {
        self.metadata.insert(key.to_owned(), value.into());
        self
    }

    /// Adds a tensor.
    ///
    /// # Errors
    /// `Incompatible` for an element type that the format lacks.
    pub fn tensor(&mut self, name: &str, dtype: Dtype, shape: &Shape) -> Result<&mut Self> {
        if dtype.safetensors_name().is_none() {
            let text = format!("{name}: safetensors has no element type for {dtype}");
            return Err(Error::incompatible(text)
                .hint("cast it to a type that the format has, or write another format"));
        }
        self.tensors.push((name.to_owned(), dtype, shape.clone()));
        Ok(self)
    }

    /// Lays out the file.
    ///
    /// # Errors
    /// Sizes that exceed 64 bits or do not fill whole bytes, names that come twice, a header beyond the format's limit.
    pub fn finish(&self) -> Result<Placed> {
        let order = self.order();
        let (mut json, mut starts, mut at) = (Map::new(), vec![0; self.tensors.len()], 0_u64);
        json.insert("__metadata__".to_owned(), Value::Object(self.metadata.clone()));
        for index in order {
            let Some((name, dtype, shape)) = self.tensors.get(index) else { continue };
            let len = shape.elements().and_then(|elements| dtype.bytes_for(elements));
            let end = len.and_then(|len| at.checked_add(len)).ok_or_else(|| {
                Error::incompatible(format!("{name}: {dtype} of shape {shape} has no size in whole bytes"))
            })?;
            let record =
                json!({"dtype": dtype.safetensors_name(), "shape": shape, "data_offsets": [at, end]});
            if json.insert(name.clone(), record).is_some() {
                return Err(Error::incompatible(format!("two tensors would be called {name} in one file")));
            }
            if let Some(start) = starts.get_mut(index) {
                *start = at;
            }
            at = end;
        }
        self.place(&Value::Object(json), starts, at)
    }

    /// Positions by falling element size; equal ones keep the caller's order.
    fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.tensors.len()).collect();
        order.sort_by_key(|at| {
            std::cmp::Reverse(self.tensors.get(*at).map_or(0, |(_, dtype, _)| dtype.bits()))
        });
        order
    }

    fn place(&self, json: &Value, starts: Vec<u64>, data: u64) -> Result<Placed> {
        let mut text = json.to_string().into_bytes();
        text.resize(text.len().next_multiple_of(8), b' ');
        let len = u64::try_from(text.len()).unwrap_or(u64::MAX);
        if len > super::MAX_HEADER_BYTES {
            let count = self.tensors.len();
            return Err(Error::incompatible(format!(
                "{count} tensors in one file make a header of {len} bytes; the format allows {}",
                super::MAX_HEADER_BYTES
            ))
            .hint("write several files: lower the shard size"));
        }
        let bytes = [&len.to_le_bytes()[..], &text].concat();
        let data_start = len.saturating_add(8);
        let file_size =
            data_start.checked_add(data).ok_or_else(|| Error::incompatible("a file beyond 2^64 bytes"))?;
        let offsets = starts.into_iter().map(|start| start.saturating_add(data_start)).collect();
        Ok(Placed { bytes, offsets, file_size })
    }
}
