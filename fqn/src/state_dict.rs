//! Classification of the keys of a foreign state dict: what each leaf is ([`TensorId`]) and where it stood.
//!
//! # Rules
//! - With a nested path, the path decides. `("model", "layers.0.wq.weight")` lies in the container `model`;
//!   `("model.embed_tokens.weight",)` is a Hugging Face name at the root and keeps its `model.`.
//! - `optim`, `optimizer`, `optimizer_state_dict`, … hold optimizer state, nested (`state`, FQN, slot), flattened
//!   (`state.<fqn>.<slot>`) or by parameter index. A root that itself has `state` and `param_groups` is one.
//! - Without a path, `state_dict.` and `model_state_dict.` are containers: no module is called so. `model.`,
//!   `module.`, `net.` and `network.` may be either. They are containers only if every model tensor is under them
//!   and (a) optimizer state names its parameters without them, or (b) no optimizer names any, and more names are
//!   known words of a model family without the prefix than with it. In every other case the name stays whole, and
//!   a [`Note`] says so.
//! - A tensor of the model is a buffer if its name says so and no optimizer state is kept for it; else a parameter.
//! - State by index is given to parameters when `param_names` says which, or when exactly one usual order of the
//!   model's parameters (as saved; matrices before the rest) agrees in count and in every shape. Else it keeps an
//!   explicit name (`optimizer.state.0`) as [`Role::Slot`](crate::Role::Slot), and a note says so.
//! - Wrapper segments (`module.`, `_orig_mod.`) stay in names; a note offers [`clean`](crate::wrapper::clean).
//!
//! Invariants: ids are unique; every leaf yields exactly one item, in input order; nothing is dropped.

use crate::{Dtype, Fqn, NameError, Shape, TensorId};

mod buffers;
mod classify;
mod container;
mod indexed;
mod layout;
mod section;
#[cfg(test)]
mod tests;

pub use buffers::is_buffer_name;
pub use classify::classify;
pub use layout::{Layout, OptimizerLayout, OptimizerStyle};

/// One element of the path to a leaf.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PathPart {
    /// Key of a mapping; may hold dots.
    Key(Box<str>),
    /// Index of a list, or an integer key.
    Index(u64),
}

/// A leaf of a state dict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    /// Flat key: the path joined by dots.
    pub key: String,
    /// Nested path, where the format keeps one.
    pub path: Option<Vec<PathPart>>,
    /// Element type and global shape; `None` for a leaf that is no tensor.
    pub tensor: Option<(Dtype, Shape)>,
    /// Position of an earlier leaf that is the same tensor (one storage, same view).
    pub alias_of: Option<usize>,
}

/// What an optimizer's `param_groups` say of parameters.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ParamGroup {
    /// Indices of its parameters (`params`).
    pub params: Vec<u64>,
    /// Their names (`param_names`), where the optimizer kept them; as many as `params`, or none.
    pub names: Vec<String>,
}

/// Which part of a training state a leaf belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// Parameters and buffers.
    Model,
    /// Optimizer state and its `param_groups`.
    Optimizer,
    /// Anything else: schedulers, data loaders, counters.
    Other,
}

/// What a leaf is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A tensor, with its identity.
    Tensor(TensorId),
    /// A value that is no tensor: passed through under its key path.
    Object,
}

/// A classified leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Position of the leaf in the input.
    pub leaf: usize,
    /// What it is.
    pub kind: Kind,
    /// Where it belongs.
    pub part: Part,
    /// What stood before its name, without the last dot: `model`, `optim.state`; empty at the root.
    pub wrapper: String,
}

/// Something a user should know of the classification.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// The container of the model was decided without a path; the text is the evidence.
    Container {
        /// The leading word.
        word: String,
        /// Whether it was taken off.
        taken_off: bool,
        /// Why.
        why: String,
    },
    /// Index-keyed state was given to parameters by this order.
    IndexOrder(String),
    /// Index-keyed state could not be given to parameters.
    IndexUnresolved(String),
    /// Optimizer state of a parameter that the model does not have.
    Orphan(TensorId),
    /// A name holds wrapper segments; the clean name is offered.
    WrapperPrefix {
        /// As saved.
        name: Fqn,
        /// Without wrappers.
        clean: String,
    },
    /// A second leaf of one identity was kept under its whole key.
    Collision {
        /// The identity that was taken.
        id: TensorId,
        /// Key that it has instead.
        key: String,
    },
    /// A second model container was kept under its whole keys.
    SecondModel(String),
}

/// A state dict understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Classified {
    /// One item per leaf, in order.
    pub items: Vec<Item>,
    /// How keys are built, for writing the same form again.
    pub layout: Layout,
    /// What a user should know.
    pub notes: Vec<Note>,
}

/// Why keys cannot be classified.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClassifyError {
    /// A key that is no name.
    #[error("key {key} cannot name a tensor: {source}")]
    Name {
        /// The key, escaped.
        key: String,
        /// Why not.
        source: NameError,
    },
    /// Both a tensor's registry entry and its leaf must exist.
    #[error("leaf {0} is not in the list that was classified: pass the same leaves")]
    ForeignLeaf(usize),
    /// Two leaves with one key.
    #[error(transparent)]
    Registry(#[from] crate::RegistryError),
}

impl std::fmt::Display for Note {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Container { word, taken_off: true, why } => {
                write!(f, "`{word}.` is a container, not part of names: {why}")
            }
            Self::Container { word, taken_off: false, why } => {
                write!(f, "`{word}.` is part of the names: {why}")
            }
            Self::IndexOrder(how) => write!(f, "optimizer state by index was given to parameters: {how}"),
            Self::IndexUnresolved(why) => {
                write!(f, "optimizer state by index keeps its index as name: {why}")
            }
            Self::Orphan(id) => {
                write!(f, "{id} is optimizer state of a parameter that the model does not have")
            }
            Self::WrapperPrefix { name, clean } => {
                write!(f, "{name} holds wrapper prefixes; without them it is {clean}")
            }
            Self::Collision { id, key } => write!(f, "{id} appears twice; the second is kept as {key}"),
            Self::SecondModel(word) => {
                write!(f, "`{word}` holds a second model; its tensors keep their whole keys")
            }
        }
    }
}

impl From<&PathPart> for serde_json::Value {
    fn from(part: &PathPart) -> Self {
        match part {
            PathPart::Key(key) => Self::from(&**key),
            PathPart::Index(index) => Self::from(*index),
        }
    }
}

impl PathPart {
    /// A mapping key.
    #[must_use]
    pub fn key(text: &str) -> Self {
        Self::Key(text.into())
    }

    fn text(&self) -> std::borrow::Cow<'_, str> {
        match self {
            Self::Key(key) => (&**key).into(),
            Self::Index(index) => index.to_string().into(),
        }
    }
}

impl Leaf {
    /// A tensor under a flat key.
    #[must_use]
    pub fn tensor(key: impl Into<String>, dtype: Dtype, shape: Shape) -> Self {
        Self { key: key.into(), path: None, tensor: Some((dtype, shape)), alias_of: None }
    }

    /// A leaf that is no tensor.
    #[must_use]
    pub fn object(key: impl Into<String>) -> Self {
        Self { key: key.into(), path: None, tensor: None, alias_of: None }
    }

    /// The same leaf, at a nested path.
    #[must_use]
    pub fn at(mut self, path: Vec<PathPart>) -> Self {
        self.path = Some(path);
        self
    }
}
