//! What kind of container each path of a nested state dict leads to, where the path alone does not tell.
//!
//! Keys alone mean a dict, numbers alone a list. The rest is kept in the catalog's extra facts, so that a file written
//! again has its `OrderedDict`s (with the `_metadata` that torch puts on them), its tuples, its dicts keyed by numbers,
//! such as an optimizer's `state`, and its keys in their order.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Error, PathPart, Result};

/// Key of the list of [`Container`]s in [`crate::Catalog::extra`].
const EXTRA: &str = "pt.containers";
/// Key of what was an `nn.Parameter`, with whether it takes a gradient.
const EXTRA_PARAMETERS: &str = "pt.parameters";

/// Most containers that are kept; a state dict has a handful, a hostile one may have millions.
const MOST: usize = 1 << 16;

/// A container that its path does not tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Container {
    /// Where it is.
    pub(super) path: Vec<PathPart>,
    /// What it is.
    pub(super) kind: Kind,
    /// The pickle of its attributes, where it has any.
    pub(super) state: Option<Vec<u8>>,
    /// Its keys in order, where that is not tensors first, then values: a catalog lists them apart.
    pub(super) order: Vec<PathPart>,
}

/// Kinds of containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    /// A dict, though it has numbers as keys.
    Dict,
    /// `collections.OrderedDict`.
    OrderedDict,
    /// A list, though it is empty of numbers at its place, or the root.
    List,
    /// A tuple.
    Tuple,
}

/// The form in which one is kept.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    path: Vec<Value>,
    kind: Kind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    state: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    order: Vec<Value>,
}

/// Keeps containers among extra facts.
pub(super) fn keep(containers: &[Container], extra: &mut Map<String, Value>) -> Result<()> {
    let kept: Vec<Kept> = containers
        .iter()
        .take(MOST)
        .map(|container| Kept {
            path: container.path.iter().map(PathPart::to_json).collect(),
            kind: container.kind,
            state: container.state.as_deref().map(to_hex),
            order: container.order.iter().map(PathPart::to_json).collect(),
        })
        .collect();
    if !kept.is_empty() {
        let value = serde_json::to_value(kept).map_err(|error| Error::internal(error.to_string()))?;
        extra.insert(EXTRA.to_owned(), value);
    }
    Ok(())
}

/// The containers among extra facts; none where another format wrote them.
///
/// # Errors
/// `Corrupt` for facts that are no such list.
pub(super) fn kept(extra: &Map<String, Value>) -> Result<Vec<Container>> {
    let Some(value) = extra.get(EXTRA) else { return Ok(Vec::new()) };
    let wrong = || Error::corrupt(format!("{EXTRA} does not say what containers there are"));
    let kept: Vec<Kept> = serde_json::from_value(value.clone()).map_err(|error| wrong().caused_by(error))?;
    let parts = |parts: &[Value]| parts.iter().map(PathPart::from_json).collect::<Option<Vec<_>>>();
    let container = |kept: Kept| {
        let (path, order) = (parts(&kept.path), parts(&kept.order));
        let state = kept.state.map(|hex| from_hex(&hex).ok_or_else(wrong)).transpose()?;
        let (path, order) = (path.ok_or_else(wrong)?, order.ok_or_else(wrong)?);
        Ok(Container { path, kind: kept.kind, state, order })
    };
    kept.into_iter().map(container).collect()
}

/// Keeps which keys are parameters.
pub(super) fn keep_parameters(parameters: Map<String, Value>, extra: &mut Map<String, Value>) {
    if !parameters.is_empty() {
        extra.insert(EXTRA_PARAMETERS.to_owned(), Value::Object(parameters));
    }
}

/// Whether `key` was a parameter, and took a gradient.
pub(super) fn parameter(extra: &Map<String, Value>, key: &str) -> Option<bool> {
    extra.get(EXTRA_PARAMETERS)?.get(key)?.as_bool()
}

fn to_hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len().saturating_mul(2)), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.chunks_exact(2).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_come_back_from_extra_facts_and_nonsense_is_refused() {
        let path = vec![PathPart::Key("optimizer".to_owned()), PathPart::Index(3)];
        let all = [
            Container { path: path.clone(), kind: Kind::Dict, state: None, order: path },
            Container {
                path: Vec::new(),
                kind: Kind::OrderedDict,
                state: Some(vec![0x80, 2, 0xff]),
                order: Vec::new(),
            },
        ];
        let mut extra = Map::new();
        keep(&all, &mut extra).unwrap();
        assert_eq!(kept(&extra).unwrap(), all);
        for bad in [r#"[{"path":[],"kind":"heap"}]"#, r#"[{"path":[],"kind":"dict","state":"xyz"}]"#, "3"] {
            extra.insert(EXTRA.to_owned(), serde_json::from_str(bad).unwrap());
            assert_eq!(kept(&extra).unwrap_err().kind(), crate::ErrorKind::Corrupt, "{bad}");
        }
    }
}
