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
    /// Whether it is known that ids of tensors differ, and are names that a tensor may have.
    distinct: bool,
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
        Self { spec, tensors: spec.tensors.iter().map(|_| OnceLock::new()).collect(), distinct: false }
    }

    /// For many blobs: looks first whether ids differ, which is then not asked blob by blob.
    pub(super) fn for_many(spec: &'s TargetSpec) -> Self {
        let mut seen = HashSet::from([METADATA.to_owned()]);
        let distinct = spec.tensors.iter().all(|tensor| seen.insert(tensor.entry.id().to_string()));
        Self { distinct, ..Self::new(spec) }
    }

    /// Whether names of these pieces are the ids of their tensors, all different: as a rule each tensor is there once.
    pub(super) fn are_ids(&self, pieces: &[Piece<'_>]) -> bool {
        self.distinct && pieces.is_sorted_by(|(one, _), (next, _)| one < next)
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

/// The name that no tensor of a safetensors file has.
const METADATA: &str = "__metadata__";

/// Names within a blob: the tensor's id, its box where the blob has several of its boxes, a number where two would still
/// be the same.
pub(super) fn names_of<'t>(told: &'t Told<'_>, pieces: &[Piece<'_>]) -> Result<Vec<Cow<'t, str>>> {
    if told.are_ids(pieces) {
        return pieces.iter().map(|(tensor, _)| Ok(Cow::Borrowed(told.of(*tensor)?.id.as_str()))).collect();
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
