//! [`Registry`]: the ordered table of a model's tensors. A checkpoint carries one; a baseline is one as JSON.
//!
//! Invariants: ids are unique; order is the order of insertion and survives every round trip; an entry holds
//! nothing about ranks or bytes.

use std::collections::HashMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Dtype, Fqn, PlacementRule, Role, Shape, TensorId};

/// One tensor, as known without its bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Canonical name.
    pub fqn: Fqn,
    /// What the values are.
    pub role: Role,
    /// Element type.
    pub dtype: Dtype,
    /// Global shape of the unsplit tensor; true rows only, padding excluded.
    pub shape: Shape,
    /// How it lies on any mesh; `None` while nothing is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<PlacementRule>,
    /// Index of the layer it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<u32>,
    /// Index of the expert it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expert: Option<u32>,
    /// Canonical name of the tie group; all members are one tensor in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tie: Option<Fqn>,
    /// Parts of a fused tensor, in order along their axis.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fusion: Vec<FusionPart>,
    /// Rows that a layout pads dimension 0 to (vocabulary padding); the shape holds the true rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub padded_rows: Option<u64>,
    /// Names and places of it in formats of others, so that a round trip keeps them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<Alias>,
}

/// A named part of a fused tensor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FusionPart {
    /// Name of the part: `q`, `k`, `v`, `gate`, `up`.
    pub name: String,
    /// Dimension along which parts follow each other.
    pub axis: usize,
    /// Extent along that dimension.
    pub extent: u64,
}

/// How another format names the tensor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alias {
    /// Format or dialect that uses the name: `torch-dcp`, `pt`, `hf`.
    pub of: String,
    /// Flat key there.
    pub key: String,
    /// Path in the nested state dict: text for mapping keys, numbers for list indices. Empty when flat.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub path: Vec<serde_json::Value>,
}

/// Ordered table of tensors with unique ids.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Registry {
    entries: Vec<Entry>,
    index: HashMap<TensorId, usize>,
}

/// Why an entry was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// The id is taken.
    #[error("{0} appears twice")]
    Duplicate(TensorId),
}

impl Entry {
    /// An entry of which only the essentials are known.
    #[must_use]
    pub const fn new(fqn: Fqn, role: Role, dtype: Dtype, shape: Shape) -> Self {
        Self {
            fqn,
            role,
            dtype,
            shape,
            placement: None,
            layer: None,
            expert: None,
            tie: None,
            fusion: Vec::new(),
            padded_rows: None,
            aliases: Vec::new(),
        }
    }

    /// Its identity.
    #[must_use]
    pub fn id(&self) -> TensorId {
        TensorId { fqn: self.fqn.clone(), role: self.role.clone() }
    }

    /// Bytes of the whole tensor, packed; `None` where that overflows or does not fill whole bytes.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        self.dtype.bytes_for(self.shape.elements()?)
    }

    /// How format `of` names it.
    #[must_use]
    pub fn alias(&self, of: &str) -> Option<&Alias> {
        self.aliases.iter().find(|alias| alias.of == of)
    }
}

impl Registry {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes room for so many more entries, where their number is known.
    pub fn reserve(&mut self, more: usize) {
        self.entries.reserve_exact(more);
        self.index.reserve(more);
    }

    /// Appends an entry and returns its position.
    ///
    /// # Errors
    /// An id that is already there.
    pub fn push(&mut self, entry: Entry) -> Result<usize, RegistryError> {
        let (id, at) = (entry.id(), self.entries.len());
        if self.index.contains_key(&id) {
            return Err(RegistryError::Duplicate(id));
        }
        self.index.insert(id, at);
        self.entries.push(entry);
        Ok(at)
    }

    /// Entries in order.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Changes what is known of each entry.
    ///
    /// # Errors
    /// Two entries that have one id afterwards; the table is unchanged then.
    pub fn edit(&mut self, mut change: impl FnMut(&mut Entry)) -> Result<(), RegistryError> {
        let mut next = Self::new();
        for mut entry in self.entries.iter().cloned() {
            change(&mut entry);
            next.push(entry)?;
        }
        *self = next;
        Ok(())
    }

    /// Position of `id`.
    #[must_use]
    pub fn position(&self, id: &TensorId) -> Option<usize> {
        self.index.get(id).copied()
    }

    /// The entry of `id`.
    #[must_use]
    pub fn get(&self, id: &TensorId) -> Option<&Entry> {
        self.entries.get(self.position(id)?)
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl Serialize for Registry {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.entries.serialize(s)
    }
}

impl<'de> Deserialize<'de> for Registry {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let mut registry = Self::new();
        for entry in Vec::<Entry>::deserialize(d)? {
            registry.push(entry).map_err(serde::de::Error::custom)?;
        }
        Ok(registry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str) -> Entry {
        Entry::new(Fqn::new(name).unwrap(), Role::Param, Dtype::F32, Shape::new(&[4, 2]))
    }

    #[test]
    fn a_second_entry_of_one_id_is_refused_and_roles_are_told_apart() {
        let mut registry = Registry::new();
        registry.push(entry("w")).unwrap();
        registry.push(Entry { role: Role::ExpAvg, ..entry("w") }).unwrap();
        assert_eq!(registry.push(entry("w")).unwrap_err().to_string(), "w appears twice");
    }

    #[test]
    fn order_survives_json() {
        let mut registry = Registry::new();
        for name in ["z", "a", "m"] {
            registry.push(entry(name)).unwrap();
        }
        let text = serde_json::to_string(&registry).unwrap();
        assert_eq!(serde_json::from_str::<Registry>(&text).unwrap(), registry);
    }
}
