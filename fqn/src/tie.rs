//! Ties: names that are one tensor in memory. The registry notes the group, a store keeps one copy.
//!
//! Sharing of storage proves a tie. Equal content proves nothing by itself (all norms of a fresh model are equal):
//! it counts only between an embedding and an output head, which models do tie.
//!
//! Invariants: members of a group agree in shape and dtype; the group is named by its first member in registry
//! order; optimizer state is not tied, as it exists once.

use std::collections::HashMap;

use crate::{Entry, Fqn, Registry, Role};

/// What says that two names are one tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TieEvidence {
    /// The names share one storage, by the same view.
    SharedStorage(Fqn, Fqn),
    /// The names have equal fingerprints.
    EqualContent(Fqn, Fqn),
}

/// A group of names that are one tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TieGroup {
    /// Name of the group: its first member, whose copy is kept.
    pub name: Fqn,
    /// All members in registry order.
    pub members: Vec<Fqn>,
}

/// Why names cannot be tied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TieError {
    /// A name that no model tensor has.
    #[error("{0} is said to be tied, but no parameter or buffer is called so")]
    Unknown(Fqn),
    /// Members that cannot be one tensor.
    #[error("{a} and {b} are said to be one tensor, but differ in shape or dtype: {a_is} against {b_is}")]
    Unlike {
        /// One name.
        a: Fqn,
        /// What it is.
        a_is: String,
        /// Other name.
        b: Fqn,
        /// What it is.
        b_is: String,
    },
}

/// Last module names of embeddings and output heads.
const EMBEDDINGS: [&str; 6] =
    ["embed_tokens", "tok_embeddings", "wte", "embed_in", "word_embeddings", "shared"];
const HEADS: [&str; 4] = ["lm_head", "output", "embed_out", "output_layer"];

/// Notes ties in the registry and returns the groups, in registry order.
///
/// # Errors
/// Evidence that names an unknown tensor, or tensors that cannot be one. The registry is unchanged then.
pub fn tie(registry: &mut Registry, evidence: &[TieEvidence]) -> Result<Vec<TieGroup>, TieError> {
    let at: HashMap<&Fqn, usize> = registry
        .entries()
        .iter()
        .enumerate()
        .filter(|(_, e)| e.role.is_model())
        .map(|(at, e)| (&e.fqn, at))
        .collect();
    let mut parent: Vec<usize> = (0..registry.len()).collect();
    for one in evidence {
        let (TieEvidence::SharedStorage(a, b) | TieEvidence::EqualContent(a, b)) = one;
        let find = |name: &Fqn| at.get(name).copied().ok_or_else(|| TieError::Unknown(name.clone()));
        let (a, b) = (find(a)?, find(b)?);
        let (Some(first), Some(second)) = (registry.entries().get(a), registry.entries().get(b)) else {
            continue;
        };
        if matches!(one, TieEvidence::EqualContent(..)) && !may_tie(first, second) {
            continue;
        }
        agree(first, second)?;
        let (a, b) = (root(&mut parent, a), root(&mut parent, b));
        if let Some(place) = parent.get_mut(a.max(b)) {
            *place = a.min(b);
        }
    }
    let groups = groups(registry, &mut parent);
    let names: HashMap<Fqn, Fqn> =
        groups.iter().flat_map(|g| g.members.iter().map(|m| (m.clone(), g.name.clone()))).collect();
    // Ids do not change, so that the edit cannot fail; were it to, the registry would be as before.
    let _ = registry.edit(|entry| {
        if let Some(name) = names.get(&entry.fqn).filter(|_| entry.role.is_model()) {
            entry.tie = Some(name.clone());
        }
    });
    Ok(groups)
}

/// Positions of the entries that a store leaves out: tied model tensors whose group is kept under another name.
#[must_use]
pub fn redundant(registry: &Registry) -> Vec<usize> {
    let kept = |name: &Fqn| {
        [Role::Param, Role::Buffer]
            .into_iter()
            .any(|role| registry.position(&crate::TensorId { fqn: name.clone(), role }).is_some())
    };
    let entries = registry.entries().iter().enumerate();
    let copies =
        entries.filter(|(_, e)| e.role.is_model() && e.tie.as_ref().is_some_and(|t| *t != e.fqn && kept(t)));
    copies.map(|(at, _)| at).collect()
}

fn groups(registry: &Registry, parent: &mut [usize]) -> Vec<TieGroup> {
    let mut members: std::collections::BTreeMap<usize, Vec<Fqn>> = std::collections::BTreeMap::new();
    for (at, entry) in registry.entries().iter().enumerate().filter(|(_, e)| e.role.is_model()) {
        members.entry(root(parent, at)).or_default().push(entry.fqn.clone());
    }
    let tied = members.into_values().filter(|m| m.len() > 1);
    tied.filter_map(|members| Some(TieGroup { name: members.first()?.clone(), members })).collect()
}

fn root(parent: &mut [usize], mut at: usize) -> usize {
    while let Some(&up) = parent.get(at).filter(|&&up| up != at) {
        // Halves the path, so that chains stay short.
        let above = parent.get(up).copied().unwrap_or(up);
        if let Some(place) = parent.get_mut(at) {
            *place = above;
        }
        at = above;
    }
    at
}

fn may_tie(a: &Entry, b: &Entry) -> bool {
    let module = |e: &Entry| e.fqn.segments().rev().nth(1).unwrap_or_default().to_owned();
    let (a, b) = (module(a), module(b));
    let pair = |x: &str, y: &str| EMBEDDINGS.contains(&x) && HEADS.contains(&y);
    pair(&a, &b) || pair(&b, &a)
}

fn agree(a: &Entry, b: &Entry) -> Result<(), TieError> {
    if a.shape == b.shape && a.dtype == b.dtype {
        return Ok(());
    }
    let is = |e: &Entry| format!("{} {}", e.dtype, e.shape);
    Err(TieError::Unlike { a: a.fqn.clone(), a_is: is(a), b: b.fqn.clone(), b_is: is(b) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dtype, Shape};

    fn name(text: &str) -> Fqn {
        Fqn::new(text).unwrap()
    }

    fn model() -> Registry {
        let mut registry = Registry::new();
        for (text, shape) in
            [("model.embed_tokens.weight", &[8, 4][..]), ("a.norm.weight", &[4]), ("b.norm.weight", &[4])]
        {
            registry.push(Entry::new(name(text), Role::Param, Dtype::F32, Shape::new(shape))).unwrap();
        }
        registry
            .push(Entry::new(name("lm_head.weight"), Role::Param, Dtype::F32, Shape::new(&[8, 4])))
            .unwrap();
        registry
    }

    #[test]
    fn shared_storage_ties_and_one_copy_is_kept() {
        let mut registry = model();
        let evidence =
            [TieEvidence::SharedStorage(name("lm_head.weight"), name("model.embed_tokens.weight"))];
        let groups = tie(&mut registry, &evidence).unwrap();
        assert_eq!(groups.len(), 1);
        assert_eq!(groups[0].name.as_str(), "model.embed_tokens.weight");
        assert_eq!(redundant(&registry), [3]);
        assert_eq!(registry.entries()[3].tie, Some(name("model.embed_tokens.weight")));
    }

    #[test]
    fn equal_content_ties_an_embedding_and_its_head_but_not_two_norms() {
        let mut registry = model();
        let evidence = [
            TieEvidence::EqualContent(name("a.norm.weight"), name("b.norm.weight")),
            TieEvidence::EqualContent(name("model.embed_tokens.weight"), name("lm_head.weight")),
        ];
        assert_eq!(tie(&mut registry, &evidence).unwrap().len(), 1);
        assert_eq!(registry.entries()[1].tie, None);
    }

    #[test]
    fn tensors_that_cannot_be_one_and_unknown_names_are_refused() {
        let mut registry = model();
        let unlike = [TieEvidence::SharedStorage(name("lm_head.weight"), name("a.norm.weight"))];
        assert!(tie(&mut registry, &unlike).unwrap_err().to_string().contains("f32 8x4 against f32 4"));
        let unknown = [TieEvidence::SharedStorage(name("x"), name("a.norm.weight"))];
        assert_eq!(tie(&mut registry, &unknown), Err(TieError::Unknown(name("x"))));
        assert_eq!(registry, model());
    }
}
