//! [`Layout`]: how a state dict builds its keys, so that the same form can be written for other tensors.

use std::collections::HashMap;

use super::PathPart;
use crate::{Fqn, Role, TensorId};

/// Form of an optimizer's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OptimizerStyle {
    /// `state`, FQN, slot as elements of a path.
    #[default]
    Nested,
    /// One key `state.<fqn>.<slot>`.
    Flattened,
    /// `state`, parameter index, slot.
    Indexed,
}

/// Where an optimizer's state stands.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OptimizerLayout {
    /// Path of the optimizer: `optim`, or `optimizers`, 0; empty at the root.
    pub prefix: Vec<PathPart>,
    /// Form of its state.
    pub style: OptimizerStyle,
    /// Index of each parameter, for [`OptimizerStyle::Indexed`].
    pub indices: HashMap<Fqn, u64>,
}

/// Where the parts of a training state stand.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Layout {
    /// Container of the model; `None` at the root.
    pub model: Option<String>,
    /// The optimizer, if there is one.
    pub optimizer: Option<OptimizerLayout>,
}

impl Layout {
    /// torch's usual nesting: `model` and `optim`.
    #[must_use]
    pub fn nested() -> Self {
        let optimizer =
            OptimizerLayout { prefix: vec![PathPart::key("optim")], ..OptimizerLayout::default() };
        Self { model: Some("model".to_owned()), optimizer: Some(optimizer) }
    }

    /// TorchTitan's: the model at the root, `optimizer` flattened.
    #[must_use]
    pub fn torchtitan() -> Self {
        let optimizer = OptimizerLayout {
            prefix: vec![PathPart::key("optimizer")],
            style: OptimizerStyle::Flattened,
            indices: HashMap::new(),
        };
        Self { model: None, optimizer: Some(optimizer) }
    }

    /// Nested path of a tensor in this form; `None` for optimizer state where the form has no optimizer, or no index
    /// for its parameter. A master copy is called `master`, whatever its optimizer called it.
    #[must_use]
    pub fn path(&self, id: &TensorId) -> Option<Vec<PathPart>> {
        let name = id.fqn.as_str();
        match (&id.role, id.role.slot_name()) {
            (Role::Other, _) => Some(vec![PathPart::key(name)]),
            (_, None) => Some(
                self.model.as_deref().map(PathPart::key).into_iter().chain([PathPart::key(name)]).collect(),
            ),
            (_, Some(slot)) => self.optimizer.as_ref()?.path(&id.fqn, slot),
        }
    }

    /// Flat key of a tensor in this form: the path joined by dots.
    #[must_use]
    pub fn key(&self, id: &TensorId) -> Option<String> {
        let path = self.path(id)?;
        Some(path.iter().map(PathPart::text).collect::<Vec<_>>().join("."))
    }
}

impl OptimizerLayout {
    fn path(&self, fqn: &Fqn, slot: &str) -> Option<Vec<PathPart>> {
        let state = PathPart::key("state");
        let inner = match self.style {
            OptimizerStyle::Nested => vec![state, PathPart::key(fqn.as_str()), PathPart::key(slot)],
            OptimizerStyle::Flattened => vec![PathPart::key(&format!("state.{fqn}.{slot}"))],
            OptimizerStyle::Indexed => {
                vec![state, PathPart::Index(*self.indices.get(fqn)?), PathPart::key(slot)]
            }
        };
        Some(self.prefix.iter().cloned().chain(inner).collect())
    }
}
