//! Indices in names: the layer and expert a tensor belongs to, and folding of repeated names for display
//! (`layers.{0..31}.attention.wq.weight`).
//!
//! Invariants: a number in a name is an index only in its canonical spelling (`3`, not `03`), so that folding loses
//! nothing; every pattern that [`fold`] prints matches exactly its members.

mod fold_names;
mod index_set;
#[cfg(test)]
mod tests;

pub use fold_names::{Folded, fold, fold_by};
pub use index_set::IndexSet;

/// Module names whose next segment is the index of a layer.
const LAYER_LISTS: [&str; 7] = ["layers", "layer", "h", "blocks", "block", "decoder_layers", "resblocks"];

/// Module names whose next segment is the index of an expert.
const EXPERT_LISTS: [&str; 3] = ["experts", "local_experts", "expert"];

/// The canonical decimal number that `text` is.
#[must_use]
pub fn index_of(text: &str) -> Option<u32> {
    let canonical = text == "0" || !text.starts_with('0');
    (canonical && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

/// Index of the layer that `name` belongs to: the first number after `layers`, `h`, `blocks`, …
#[must_use]
pub fn layer_of(name: &str) -> Option<u32> {
    indexed(name, &LAYER_LISTS).map(|(_, index)| index)
}

/// Index of the expert that `name` belongs to: the first number after `experts`.
#[must_use]
pub fn expert_of(name: &str) -> Option<u32> {
    indexed(name, &EXPERT_LISTS).map(|(_, index)| index)
}

/// The name with its layer index replaced: what it would be in another layer.
#[must_use]
pub fn with_layer(name: &str, layer: u32) -> Option<String> {
    let (at, _) = indexed(name, &LAYER_LISTS)?;
    let segments = name.split('.').enumerate();
    let text: Vec<String> =
        segments.map(|(i, s)| if i == at { layer.to_string() } else { s.to_owned() }).collect();
    Some(text.join("."))
}

/// Position among the segments and value of the first index that follows one of `lists`.
fn indexed(name: &str, lists: &[&str]) -> Option<(usize, u32)> {
    let mut before = "";
    name.split('.').enumerate().find_map(|(at, segment)| {
        let found = if lists.contains(&before) { index_of(segment) } else { None };
        before = segment;
        found.map(|index| (at, index))
    })
}
