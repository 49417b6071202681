//! [`HeaderBuilder`]: the header of a file to write, known in full before the first byte of data.
//!
//! Invariants: the same tensors in the same order give the same bytes; data begins at a multiple of 8 (the header
//! is padded with spaces, as the format allows); tensors are laid down in order of falling alignment within the
//! caller's order, so that each begins at a multiple of its element size.

use std::collections::HashSet;

use fqn::{Dtype, Shape};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::{Error, Result};

/// The entry that is no tensor.
const METADATA: &str = "__metadata__";

/// Bytes that a header has for one tensor, about.
const ENTRY: usize = 160;

/// Bytes of the length field.
const LENGTH: usize = 8;

/// Collects tensors and metadata of a file to write.
#[derive(Debug, Clone, Default)]
pub struct HeaderBuilder {
    tensors: Vec<(String, Dtype, Shape)>,
    metadata: Map<String, Value>,
    /// The last pair of the metadata, where its value came escaped.
    escaped: Option<(&'static str, Vec<u8>)>,
    /// Whether names are known to differ.
    distinct: bool,
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
        Self::with_capacity(0)
    }

    /// The same with room for so many tensors.
    pub(crate) fn with_capacity(tensors: usize) -> Self {
        let metadata = Map::from_iter([("format".to_owned(), Value::from("pt"))]);
        Self { tensors: Vec::with_capacity(tensors), metadata, escaped: None, distinct: false }
    }

    /// Adds a pair to `__metadata__`, or replaces it.
    pub fn metadata(&mut self, key: &str, value: &str) -> &mut Self {
        self.metadata.insert(key.to_owned(), value.into());
        self
    }

    /// Adds a last pair to `__metadata__`, the value as it stands between the quotes of a JSON string.
    pub(crate) fn escaped_metadata(&mut self, key: &'static str, value: Vec<u8>) -> &mut Self {
        self.escaped = Some((key, value));
        self
    }

    /// Takes it that names differ from each other and from that of the metadata: who adds them has seen to it.
    pub(crate) fn with_distinct_names(&mut self) -> &mut Self {
        self.distinct = true;
        self
    }

    /// Adds a tensor.
    ///
    /// # Errors
    /// `Incompatible` for an element type that the format lacks.
    pub fn tensor(&mut self, name: impl Into<String>, dtype: Dtype, shape: &Shape) -> Result<&mut Self> {
        let name = name.into();
        if dtype.safetensors_name().is_none() {
            let text = format!("{name}: safetensors has no element type for {dtype}");
            return Err(Error::incompatible(text)
                .hint("cast it to a type that the format has, or write another format"));
        }
        self.tensors.push((name, dtype, shape.clone()));
        Ok(self)
    }

    /// Lays out the file.
    ///
    /// # Errors
    /// Sizes that exceed 64 bits or do not fill whole bytes, names that come twice, a header beyond the format's limit.
    pub fn finish(&self) -> Result<Placed> {
        let (mut starts, mut at) = (vec![0; self.tensors.len()], 0_u64);
        let mut names = HashSet::new();
        if !self.distinct {
            names.reserve(self.tensors.len() + 1);
            names.insert(METADATA);
        }
        // Written as it goes: a checkpoint on thousands of ranks has millions of these entries.
        let escaped = self.escaped.as_ref().map_or(0, |(_, value)| value.len());
        let mut bytes = Vec::with_capacity(escaped + (self.tensors.len() + 1) * ENTRY);
        bytes.resize(LENGTH, 0);
        json(&mut bytes, "{", METADATA)?;
        json(&mut bytes, ":", &self.metadata)?;
        if let Some((key, value)) = &self.escaped {
            bytes.pop();
            json(&mut bytes, if self.metadata.is_empty() { "" } else { "," }, key)?;
            for part in [b":\"", value.as_slice(), b"\"}"] {
                bytes.extend_from_slice(part);
            }
        }
        for index in self.order() {
            let Some((name, dtype, shape)) = self.tensors.get(index) else { continue };
            let len = shape.elements().and_then(|elements| dtype.bytes_for(elements));
            let end = len.and_then(|len| at.checked_add(len)).ok_or_else(|| {
                Error::incompatible(format!("{name}: {dtype} of shape {shape} has no size in whole bytes"))
            })?;
            if !self.distinct && !names.insert(name.as_str()) {
                return Err(Error::incompatible(format!("two tensors would be called {name} in one file")));
            }
            json(&mut bytes, ",", name)?;
            json(&mut bytes, ":{\"dtype\":", &dtype.safetensors_name())?;
            numbers(&mut bytes, b",\"shape\":", shape);
            numbers(&mut bytes, b",\"data_offsets\":", &[at, end]);
            bytes.push(b'}');
            if let Some(start) = starts.get_mut(index) {
                *start = at;
            }
            at = end;
        }
        bytes.push(b'}');
        self.place(bytes, starts, at)
    }

    /// Positions by falling element size; equal ones keep the caller's order.
    fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.tensors.len()).collect();
        order.sort_by_key(|at| {
            std::cmp::Reverse(self.tensors.get(*at).map_or(0, |(_, dtype, _)| dtype.bits()))
        });
        order
    }

    /// Pads the text, which stands behind room for its length, and says where everything is.
    fn place(&self, mut bytes: Vec<u8>, starts: Vec<u64>, data: u64) -> Result<Placed> {
        bytes.resize(bytes.len().next_multiple_of(LENGTH), b' ');
        let len = u64::try_from(bytes.len() - LENGTH).unwrap_or(u64::MAX);
        if len > super::MAX_HEADER_BYTES {
            let count = self.tensors.len();
            return Err(Error::incompatible(format!(
                "{count} tensors in one file make a header of {len} bytes; the format allows {}",
                super::MAX_HEADER_BYTES
            ))
            .hint("write several files: lower the shard size"));
        }
        if let Some(length) = bytes.first_chunk_mut::<LENGTH>() {
            *length = len.to_le_bytes();
        }
        let data_start = len.saturating_add(8);
        let file_size =
            data_start.checked_add(data).ok_or_else(|| Error::incompatible("a file beyond 2^64 bytes"))?;
        let offsets = starts.into_iter().map(|start| start.saturating_add(data_start)).collect();
        Ok(Placed { bytes, offsets, file_size })
    }
}

/// Appends `before`, then the value as JSON.
fn json(out: &mut Vec<u8>, before: &str, value: &(impl Serialize + ?Sized)) -> Result<()> {
    out.extend_from_slice(before.as_bytes());
    serde_json::to_writer(out, value).map_err(|error| Error::internal(error.to_string()))
}

/// Appends `before`, then a list of numbers as JSON.
pub(crate) fn numbers(out: &mut Vec<u8>, before: &[u8], list: &[u64]) {
    out.extend_from_slice(before);
    for (nth, number) in list.iter().enumerate() {
        out.push(if nth == 0 { b'[' } else { b',' });
        digits(out, *number);
    }
    out.extend_from_slice(if list.is_empty() { b"[]" } else { b"]" });
}

/// Appends a number: two million boxes have ten million of them.
fn digits(out: &mut Vec<u8>, mut number: u64) {
    let mut text = [b'0'; 20];
    let mut len = 0;
    for digit in text.iter_mut().rev() {
        // The remainder is below 10.
        *digit = b'0' + u8::try_from(number % 10).unwrap_or(0);
        number /= 10;
        len += 1;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(text.get(text.len() - len..).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_numbers_are_json() {
        for list in [&[][..], &[0], &[7, 10, 99], &[u64::MAX, 1_000_000]] {
            let mut text = b"x".to_vec();
            numbers(&mut text, b"=", list);
            assert_eq!(
                String::from_utf8(text).unwrap(),
                format!("x={}", serde_json::to_string(list).unwrap())
            );
        }
    }
}
