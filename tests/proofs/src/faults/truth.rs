//! Which elements of which tensors a changed byte belongs to: worked out from the blob's own header, as FORMAT.md §5 describes it,
//! and from nothing that the code under test computed.

use std::ops::Range;

use serde_json::Value;

use super::kinds::Change;
use crate::training::Outcome;

/// An element of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Element {
    /// `layers.0.w@exp_avg`; a parameter's name alone.
    pub(crate) tensor: String,
    pub(crate) index: Vec<u64>,
}

/// A chunk as the header has it.
struct Chunk {
    tensor: String,
    bytes: Range<u64>,
    width: u64,
    offsets: Vec<u64>,
    extents: Vec<u64>,
}

/// The elements that a change of a blob of tensors touches: of each run of changed bytes, in each chunk, the first and the last.
pub(crate) fn touched(change: &Change) -> Outcome<Vec<Element>> {
    let before = change.before.as_deref().unwrap_or_default();
    let after = change.after.as_deref().unwrap_or_default();
    let (chunks, runs) = (chunks(before)?, runs(before, after));
    let mut found = Vec::new();
    for chunk in &chunks {
        for run in &runs {
            let (start, end) = (run.start.max(chunk.bytes.start), run.end.min(chunk.bytes.end));
            if start < end {
                found.push(chunk.element(start));
                found.push(chunk.element(end - 1));
            }
        }
    }
    Ok(found)
}

/// Runs of bytes of `before` that are other, or gone, in `after`.
fn runs(before: &[u8], after: &[u8]) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for (at, byte) in (0_u64..).zip(before) {
        let same = usize::try_from(at).ok().and_then(|at| after.get(at)) == Some(byte);
        match runs.last_mut() {
            _ if same => {}
            Some(run) if run.end == at => run.end += 1,
            _ => runs.push(at..at + 1),
        }
    }
    runs
}

fn chunks(blob: &[u8]) -> Outcome<Vec<Chunk>> {
    let (len, rest) = blob.split_first_chunk::<8>().ok_or("a blob without a header")?;
    let header = rest.get(..usize::try_from(u64::from_le_bytes(*len))?).ok_or("a header beyond its file")?;
    let data = 8 + header.len() as u64;
    let header: Value = serde_json::from_slice(header)?;
    let told =
        header.pointer("/__metadata__/ckpt").and_then(Value::as_str).ok_or("a blob that tells nothing")?;
    let told: Value = serde_json::from_str(told)?;
    let told = told.get("chunks").and_then(Value::as_object).ok_or("no chunks are told of")?;
    let mut chunks = Vec::new();
    for (name, about) in told {
        let entry = header.get(name).ok_or("a chunk without bytes")?;
        let text = |key: &str| about.get(key).and_then(Value::as_str).unwrap_or_default();
        let [start, end] = numbers(entry, "data_offsets")[..] else { return Err("no byte range".into()) };
        let extents = numbers(about, "extents");
        let elements: u64 = extents.iter().product();
        let tensor = match text("role") {
            "param" | "buffer" | "other" => text("fqn").to_owned(),
            role => format!("{}@{role}", text("fqn")),
        };
        let width = (end - start).checked_div(elements).unwrap_or(1);
        chunks.push(Chunk {
            tensor,
            bytes: data + start..data + end,
            width,
            offsets: numbers(about, "offsets"),
            extents,
        });
    }
    Ok(chunks)
}

fn numbers(of: &Value, key: &str) -> Vec<u64> {
    of.get(key).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_u64).collect()
}

impl Chunk {
    fn element(&self, byte: u64) -> Element {
        let mut flat = (byte - self.bytes.start) / self.width.max(1);
        let mut index = vec![0; self.extents.len()];
        for ((at, extent), offset) in index.iter_mut().zip(&self.extents).zip(&self.offsets).rev() {
            *at = offset + flat % extent;
            flat /= extent;
        }
        Element { tensor: self.tensor.clone(), index }
    }
}

/// Whether a range, as findings have it (`[0..4, 8..16] + [4..5, 8..9]`), holds an element.
pub(crate) fn holds(range: &str, index: &[u64]) -> bool {
    range.split(" + ").any(|one| {
        let inner = one.trim().trim_start_matches('[').trim_end_matches(']');
        let dims: Vec<&str> = inner.split(", ").filter(|dim| !dim.is_empty()).collect();
        dims.len() == index.len()
            && dims.iter().zip(index).all(|(dim, at)| {
                let ends = dim.split_once("..").and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
                ends.is_some_and(|(start, end): (u64, u64)| (start..end).contains(at))
            })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_holds_what_lies_in_one_of_its_boxes() {
        assert!(holds("[0..4, 8..16]", &[3, 8]) && !holds("[0..4, 8..16]", &[4, 8]));
        assert!(
            holds("[0..1, 0..2] + [1..2, 0..1]", &[1, 0]) && !holds("[0..1, 0..2] + [1..2, 0..1]", &[1, 1])
        );
        assert!(holds("[]", &[]) && !holds("[]", &[0]));
    }

    #[test]
    fn runs_are_what_differs_or_is_gone() {
        assert_eq!(runs(b"abcdef", b"abXXe"), [2..4, 5..6]);
        assert_eq!(runs(b"abc", b"abcd"), Vec::<Range<u64>>::new());
    }

    #[test]
    fn a_byte_of_a_blob_is_an_element_of_the_tensor_by_its_header_alone() {
        let about =
            r#"{\"chunks\":{\"w\":{\"fqn\":\"w\",\"role\":\"param\",\"offsets\":[4,2],\"extents\":[2,3]}}}"#;
        let header = format!(
            r#"{{"__metadata__":{{"ckpt":"{about}"}},"w":{{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}}}"#
        );
        let mut blob = (header.len() as u64).to_le_bytes().to_vec();
        blob.extend(header.as_bytes());
        blob.extend([7; 12]);
        let mut after = blob.clone();
        let last = after.len() - 1;
        after[last - 5] ^= 1;
        let change = Change { path: String::new(), object: None, before: Some(blob), after: Some(after) };
        let element = Element { tensor: "w".to_owned(), index: vec![5, 2] };
        assert_eq!(touched(&change).unwrap(), [element.clone(), element]);
    }
}
