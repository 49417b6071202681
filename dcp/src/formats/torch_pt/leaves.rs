//! From the tree of a `data.pkl` to its leaves: every tensor and every value with its path.
//!
//! Rules, torch's own where it has some: mappings are always entered; lists only when a tensor or a mapping is in
//! them, tuples only when a tensor is; anything else is one value. A mapping that is empty, or has keys that are
//! neither text nor numbers, is one value.
//!
//! Invariants: what the leaves take is bounded by the pickle's size, though a pickle may refer to one dict from many
//! places; a value that is kept whole holds no storage.

use std::collections::HashMap;

use super::containers::{Container, Kind};
use crate::{
    Error, PathPart, Result,
    pickle::{NodeId, Ref, Value},
    torch::{Tensor, TensorError, read_tensor},
};

/// A leaf of the state dict.
#[derive(Debug)]
pub(super) struct Leaf<'a> {
    /// Its path.
    pub(super) path: Vec<PathPart>,
    /// The path joined by dots; of a file that is one value, a name for it.
    pub(super) key: String,
    /// What is there.
    pub(super) content: Content<'a>,
}

/// What is at a leaf.
#[derive(Debug)]
pub(super) enum Content<'a> {
    /// A tensor.
    Tensor(Box<Tensor>),
    /// A value without tensors.
    Value(Ref<'a>),
    /// Something that is not read, and why.
    Refused(Error),
}

/// Leaves and the containers around them.
#[derive(Debug, Default)]
pub(super) struct Leaves<'a> {
    pub(super) leaves: Vec<Leaf<'a>>,
    pub(super) containers: Vec<(Container, Option<Ref<'a>>)>,
}

/// Name of the one leaf of a file that holds no container.
const ROOT: &str = "tensor";

/// What a walk may take beside four times the pickle, in bytes.
const FLOOR: u64 = 64 << 20;

/// Bytes that a leaf takes beside its texts.
const LEAF_COST: u64 = 160;

/// Finds the leaves below `root`, of a pickle of `input` bytes.
///
/// # Errors
/// `Corrupt`: keys that are no names, more leaves than a pickle of this size should have.
pub(super) fn leaves(root: Ref<'_>, input: u64) -> Result<Leaves<'_>> {
    let mut walk = Walk {
        out: Leaves::default(),
        held: HashMap::new(),
        path: Vec::new(),
        left: FLOOR.saturating_add(input.saturating_mul(4)),
    };
    walk.value(root, "")?;
    Ok(walk.out)
}

/// What is somewhere inside a value.
#[derive(Debug, Clone, Copy, Default)]
struct Held {
    tensor: bool,
    mapping: bool,
    storage: bool,
}

impl Held {
    fn with(self, other: Self) -> Self {
        Self {
            tensor: self.tensor || other.tensor,
            mapping: self.mapping || other.mapping,
            storage: self.storage || other.storage,
        }
    }
}

struct Walk<'a> {
    out: Leaves<'a>,
    held: HashMap<NodeId, Held>,
    path: Vec<PathPart>,
    left: u64,
}

impl<'a> Walk<'a> {
    fn value(&mut self, value: Ref<'a>, key: &str) -> Result<()> {
        match read_tensor(value) {
            Ok(Some(tensor)) => return self.leaf(key, Content::Tensor(Box::new(tensor))),
            Ok(None) => {}
            Err(error) => return self.leaf(key, Content::Refused(of_tensor(error))),
        }
        if let Some(keyed) = mapping(value) {
            return self.mapping(value, keyed, key);
        }
        if let Some(items) = value.as_sequence() {
            let held = self.held(value);
            let is_tuple = matches!(value.value(), Value::Tuple(_));
            if held.tensor || held.mapping && !is_tuple {
                if is_tuple {
                    self.container(Kind::Tuple, None, Vec::new())?;
                }
                let parts: Vec<_> = (0..).map(PathPart::Index).zip(items).collect();
                return self.parts(parts, key);
            }
        }
        let held = self.held(value);
        let content =
            if held.tensor || held.storage { Content::Refused(closed(value)) } else { Content::Value(value) };
        self.leaf(key, content)
    }

    fn mapping(&mut self, value: Ref<'a>, keyed: Vec<(PathPart, Ref<'a>)>, key: &str) -> Result<()> {
        let order = self.order(&keyed);
        let object = value.as_object();
        if object.as_ref().is_some_and(|object| object.is("collections", "OrderedDict")) {
            let state = object.and_then(|object| object.state);
            let state = state.filter(|state| {
                let held = self.held(*state);
                !held.tensor && !held.storage
            });
            self.container(Kind::OrderedDict, state, order)?;
        } else if !order.is_empty() || keyed.iter().any(|(part, _)| matches!(part, PathPart::Index(_))) {
            self.container(Kind::Dict, None, order)?;
        }
        self.parts(keyed, key)
    }

    fn parts(&mut self, parts: Vec<(PathPart, Ref<'a>)>, key: &str) -> Result<()> {
        for (part, value) in parts {
            let name = match &part {
                PathPart::Key(text) => text.clone(),
                PathPart::Index(index) => index.to_string(),
            };
            let inner = if self.path.is_empty() { name } else { format!("{key}.{name}") };
            self.path.push(part);
            self.value(value, &inner)?;
            self.path.pop();
        }
        Ok(())
    }

    /// The keys, where a value comes before a tensor.
    fn order(&mut self, keyed: &[(PathPart, Ref<'a>)]) -> Vec<PathPart> {
        let tensors: Vec<bool> = keyed.iter().map(|(_, value)| self.held(*value).tensor).collect();
        let mixed = tensors.windows(2).any(|two| matches!(two, [false, true]));
        let parts = keyed.iter().map(|(part, _)| part.clone());
        if mixed { parts.collect() } else { Vec::new() }
    }

    fn container(&mut self, kind: Kind, state: Option<Ref<'a>>, order: Vec<PathPart>) -> Result<()> {
        let texts = self.path.iter().chain(&order).map(|part| match part {
            PathPart::Key(text) => text.len(),
            PathPart::Index(_) => 0,
        });
        let texts: usize = texts.sum();
        self.spend((texts as u64).saturating_add(LEAF_COST))?;
        let container = Container { path: self.path.clone(), kind, state: None, order };
        self.out.containers.push((container, state));
        Ok(())
    }

    fn spend(&mut self, bytes: u64) -> Result<()> {
        self.left = self.left.checked_sub(bytes).ok_or_else(|| {
            Error::corrupt(
                "the pickle refers to the same values so often that the state dict would be far larger than it",
            )
            .hint("no training code writes such a file: it was made to exhaust memory")
        })?;
        Ok(())
    }

    fn leaf(&mut self, key: &str, content: Content<'a>) -> Result<()> {
        let key = if self.path.is_empty() { ROOT } else { key };
        // The joined key, and once more as the parts of the path.
        let cost = (key.len() as u64).saturating_mul(2).saturating_add(LEAF_COST);
        self.spend(cost)?;
        fqn::check_name(key).map_err(|error| {
            let shown: String = key.chars().take(200).flat_map(char::escape_default).collect();
            Error::corrupt(format!("key {shown}: {error}")).caused_by(error)
        })?;
        self.out.leaves.push(Leaf { path: self.path.clone(), key: key.to_owned(), content });
        Ok(())
    }

    /// Each value is looked into once.
    fn held(&mut self, value: Ref<'a>) -> Held {
        if let Some(known) = self.held.get(&value.id()) {
            return *known;
        }
        let held = match value.value() {
            _ if !matches!(read_tensor(value), Ok(None)) => Held { tensor: true, ..Held::default() },
            Value::Tuple(items) | Value::List(items) | Value::Set(items) | Value::FrozenSet(items) => {
                self.all(items)
            }
            Value::Dict(pairs) => {
                Held { mapping: true, ..Held::default() }.with(self.all(pairs.flat_map(|(k, v)| [k, v])))
            }
            Value::Persistent(_) => Held { storage: true, ..Held::default() },
            Value::Object(object) => {
                let fixed = [Some(object.args), object.kwargs, object.state].into_iter().flatten();
                let pairs = object.pairs.flat_map(|(k, v)| [k, v]);
                let mapping = Held { mapping: value.as_mapping().is_some(), ..Held::default() };
                mapping.with(self.all(fixed.chain(object.items).chain(pairs)))
            }
            _ => Held::default(),
        };
        self.held.insert(value.id(), held);
        held
    }

    fn all(&mut self, values: impl Iterator<Item = Ref<'a>>) -> Held {
        values.fold(Held::default(), |held, value| held.with(self.held(value)))
    }
}

/// The entries of a mapping that is entered: not empty, every key a text or a number. As in Python, a key that comes
/// twice keeps its first place and has its last value.
fn mapping(value: Ref<'_>) -> Option<Vec<(PathPart, Ref<'_>)>> {
    let pairs = value.as_mapping()?;
    let mut entries: Vec<(PathPart, Ref<'_>)> = Vec::new();
    let mut places: HashMap<PathPart, usize> = HashMap::new();
    for (key, value) in pairs {
        let part = match key.as_str() {
            Some(text) => PathPart::Key(text.to_owned()),
            None => PathPart::Index(key.as_u64()?),
        };
        match places.get(&part).and_then(|at| entries.get_mut(*at)) {
            Some(entry) => entry.1 = value,
            None => {
                places.insert(part.clone(), entries.len());
                entries.push((part, value));
            }
        }
    }
    (!entries.is_empty()).then_some(entries)
}

/// A refused tensor, as a caller can react to it.
pub(super) fn of_tensor(error: TensorError) -> Error {
    let text = error.to_string();
    match error {
        TensorError::Refused { .. } => Error::unsupported(text).caused_by(error),
        _ => Error::corrupt(text).caused_by(error),
    }
}

/// A value that holds tensors where they can't be taken out.
fn closed(value: Ref<'_>) -> Error {
    let class = value.as_object().and_then(|object| object.global().cloned());
    let what = class.map_or_else(|| value.noun().to_owned(), |g| format!("a {}.{}", g.module, g.name));
    Error::unsupported(format!("{what} that holds tensors: only dicts, lists and tuples are entered"))
        .hint("load it with the code that defines it and save its `state_dict()`")
}
