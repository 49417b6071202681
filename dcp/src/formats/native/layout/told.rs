//! What heads of blobs say of tensors and boxes, as the text that it is there.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    sync::OnceLock,
};

use serde_json::json;

use super::Piece;
use crate::{Error, Result, TargetSpec};

/// What heads say of tensors, worked out once for all blobs. What a head tells of its chunks is JSON within a JSON string: everything
/// here is escaped as it stands there.
pub(super) struct Told<'s> {
    pub(super) spec: &'s TargetSpec,
    tensors: Vec<OnceLock<About>>,
}

/// What heads say of one tensor.
pub(super) struct About {
    /// Its id.
    id: String,
    /// The same as a key.
    pub(super) key: Vec<u8>,
    /// The beginning of what is told of one of its boxes.
    pub(super) begin: Vec<u8>,
}

impl<'s> Told<'s> {
    pub(super) fn new(spec: &'s TargetSpec) -> Self {
        Self { spec, tensors: spec.tensors.iter().map(|_| OnceLock::new()).collect() }
    }

    pub(super) fn of(&self, tensor: usize) -> Result<&About> {
        let missing = || Error::internal("a box of no tensor");
        let slot = self.tensors.get(tensor).ok_or_else(missing)?;
        if let Some(known) = slot.get() {
            return Ok(known);
        }
        let entry = &self.spec.tensors.get(tensor).ok_or_else(missing)?.entry;
        let told = json!({"fqn": entry.fqn, "role": entry.role, "dtype": entry.dtype, "shape": entry.shape});
        let mut begin = escaped(&told.to_string())?;
        begin.pop();
        let id = entry.id().to_string();
        let key = key(&id)?;
        Ok(slot.get_or_init(|| About { id, key, begin }))
    }
}

/// A name as a key, escaped.
pub(super) fn key(name: &str) -> Result<Vec<u8>> {
    let json = serde_json::to_string(name).map_err(|error| Error::internal(error.to_string()))?;
    escaped(&json)
}

/// A text as it stands between the quotes of a JSON string.
pub(super) fn escaped(text: &str) -> Result<Vec<u8>> {
    let quoted = serde_json::to_vec(text).map_err(|error| Error::internal(error.to_string()))?;
    Ok(quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default().to_vec())
}

/// Appends `before`, then a list of numbers as JSON.
pub(super) fn put(out: &mut Vec<u8>, before: &[u8], numbers: &[u64]) {
    out.extend_from_slice(before);
    for (nth, number) in numbers.iter().enumerate() {
        out.push(if nth == 0 { b'[' } else { b',' });
        digits(out, *number);
    }
    out.extend_from_slice(if numbers.is_empty() { b"[]" } else { b"]" });
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

/// The name that no tensor of a safetensors file has.
const METADATA: &str = "__metadata__";

/// Names within a blob: the tensor's id, its box where the blob has several of its boxes, a number where two would still
/// be the same.
pub(super) fn names_of<'t>(told: &'t Told<'_>, pieces: &[Piece<'_>]) -> Result<Vec<Cow<'t, str>>> {
    // As a rule each tensor is there once, and ids differ.
    if pieces.is_sorted_by(|(one, _), (next, _)| one < next) {
        let ids =
            pieces.iter().map(|(tensor, _)| Ok(told.of(*tensor)?.id.as_str())).collect::<Result<Vec<_>>>()?;
        if !ids.contains(&METADATA) {
            return Ok(ids.into_iter().map(Cow::Borrowed).collect());
        }
    }
    let mut counts: HashMap<usize, usize> = HashMap::with_capacity(pieces.len());
    pieces.iter().for_each(|(tensor, _)| *counts.entry(*tensor).or_default() += 1);
    let mut taken: HashSet<Cow<'_, str>> = HashSet::with_capacity(pieces.len() + 1);
    taken.insert(Cow::Borrowed(METADATA));
    let name = |(tensor, region): &Piece<'_>| {
        let id = told.of(*tensor)?.id.as_str();
        let alone = counts.get(tensor) == Some(&1);
        let base = if alone { Cow::Borrowed(id) } else { Cow::Owned(format!("{id}{region}")) };
        if taken.insert(base.clone()) {
            return Ok(base);
        }
        let mut numbered = (2..).map(|number: u64| Cow::Owned(format!("{base}#{number}")));
        let free = numbered.find(|name| !taken.contains(name)).unwrap_or(base);
        taken.insert(free.clone());
        Ok(free)
    };
    pieces.iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_numbers_are_json() {
        for numbers in [&[][..], &[0], &[7, 10, 99], &[u64::MAX, 1_000_000]] {
            let mut text = b"x".to_vec();
            put(&mut text, b"=", numbers);
            assert_eq!(
                String::from_utf8(text).unwrap(),
                format!("x={}", serde_json::to_string(numbers).unwrap())
            );
        }
    }
}
