//! Where a leaf stands: which section of the training state its path or key leads into.

use std::{borrow::Cow, collections::HashSet};

use super::{Leaf, OptimizerStyle, PathPart};

/// Top-level words that hold a model, best first.
pub(super) const MODELS: [&str; 7] =
    ["model", "model_state_dict", "state_dict", "module", "net", "network", "model_states"];

/// Those of them that are also ordinary module names, so that a flat key alone proves nothing.
pub(super) const AMBIGUOUS: [&str; 4] = ["model", "module", "net", "network"];

const OPTIMIZERS: [&str; 9] = [
    "optim",
    "optimizer",
    "optimizers",
    "optim_state",
    "optimizer_state",
    "optim_state_dict",
    "optimizer_state_dict",
    "optimizer_states",
    "opt",
];

/// Top-level words of the rest of a training state.
const OTHERS: [&str; 15] = [
    "lr_scheduler",
    "lr_schedulers",
    "lr_scheduler_state_dict",
    "scheduler",
    "scheduler_state_dict",
    "dataloader",
    "train_state",
    "rng_state",
    "cuda_rng_state",
    "random_states",
    "step",
    "global_step",
    "epoch",
    "grad_scaler",
    "scaler",
];

/// A leaf's place, with names still as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Section<'a> {
    /// In a model container known from the path.
    Model { container: &'a str, name: Cow<'a, str> },
    /// At the root, as one key: a model's name, unless a container is found.
    Root(&'a str),
    /// Optimizer state; `inner` is `<fqn>` and slot.
    State { prefix: Vec<PathPart>, inner: Inner<'a> },
    /// `param_groups` of an optimizer.
    Groups { prefix: Vec<PathPart> },
    /// Anything else.
    Other,
}

/// What follows `state` in an optimizer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Inner<'a> {
    /// Parameter and slot as elements of their own.
    Split(Cow<'a, str>, String),
    /// Parameter index and slot.
    Index(u64, String),
    /// `<fqn>.<slot>` in one text.
    Joined(&'a str),
}

impl Inner<'_> {
    pub(super) const fn style(&self) -> OptimizerStyle {
        match self {
            Self::Split(..) => OptimizerStyle::Nested,
            Self::Index(..) => OptimizerStyle::Indexed,
            Self::Joined(_) => OptimizerStyle::Flattened,
        }
    }
}

/// Whether the root itself is an optimizer's state dict.
pub(super) fn root_is_optimizer(leaves: &[Leaf]) -> bool {
    let heads: HashSet<&str> = leaves.iter().map(head).collect();
    heads.contains("state") && heads.contains("param_groups")
}

fn head(leaf: &Leaf) -> &str {
    let first = match leaf.path.as_deref().and_then(<[PathPart]>::first) {
        Some(PathPart::Key(key)) => key,
        Some(PathPart::Index(_)) => "",
        None => &leaf.key,
    };
    first.split('.').next().unwrap_or(first)
}

pub(super) fn section(leaf: &Leaf, optimizer_root: bool) -> Section<'_> {
    match leaf.path.as_deref() {
        Some(path) if !path.is_empty() => by_path(path, &leaf.key, optimizer_root),
        _ => by_key(&leaf.key, optimizer_root),
    }
}

fn by_path<'a>(path: &'a [PathPart], key: &'a str, optimizer_root: bool) -> Section<'a> {
    if optimizer_root {
        return optimizer(&[], path).unwrap_or(Section::Other);
    }
    let (Some(PathPart::Key(first)), rest) = (path.first(), path.get(1..).unwrap_or_default()) else {
        return Section::Other;
    };
    let second_is_index = matches!(rest.first(), Some(PathPart::Index(_)));
    match (&**first, rest) {
        (word, _) if OPTIMIZERS.contains(&word) && !rest.is_empty() => {
            let cut = if second_is_index { 2 } else { 1 };
            let (prefix, inner) = path.split_at(cut.min(path.len()));
            optimizer(prefix, inner).unwrap_or(Section::Other)
        }
        (word, [_, ..]) if MODELS.contains(&word) => Section::Model { container: word, name: joined(rest) },
        // A single element is a whole key; one such as `optimizer.state.x` was flattened by whoever saved it.
        (_, []) => by_key(key, false),
        _ => Section::Other,
    }
}

fn optimizer<'a>(prefix: &[PathPart], path: &'a [PathPart]) -> Option<Section<'a>> {
    let prefix = prefix.to_vec();
    let PathPart::Key(first) = path.first()? else { return None };
    let inner = match (&**first, path.get(1..)?) {
        ("state", [PathPart::Index(index), slot @ ..]) if !slot.is_empty() => {
            Inner::Index(*index, joined(slot).into_owned())
        }
        ("state", [PathPart::Key(name), slot @ ..]) if !slot.is_empty() => match name.parse() {
            Ok(index) => Inner::Index(index, joined(slot).into_owned()),
            Err(_) => Inner::Split(name.as_ref().into(), joined(slot).into_owned()),
        },
        (flat, []) if flat.starts_with("param_groups.") => return Some(Section::Groups { prefix }),
        (flat, []) => Inner::Joined(flat.strip_prefix("state.")?),
        ("param_groups", _) => return Some(Section::Groups { prefix }),
        _ => return None,
    };
    Some(Section::State { prefix, inner })
}

fn by_key(key: &str, optimizer_root: bool) -> Section<'_> {
    if optimizer_root {
        let state = key
            .strip_prefix("state.")
            .map(|rest| Section::State { prefix: vec![], inner: Inner::Joined(rest) });
        let groups = key == "param_groups" || key.starts_with("param_groups.");
        return state.unwrap_or(if groups { Section::Groups { prefix: vec![] } } else { Section::Other });
    }
    let Some((word, rest)) = key.split_once('.') else {
        return if OTHERS.contains(&key) { Section::Other } else { Section::Root(key) };
    };
    if OTHERS.contains(&word) {
        return Section::Other;
    }
    if !OPTIMIZERS.contains(&word) {
        return Section::Root(key);
    }
    let mut prefix = vec![PathPart::key(word)];
    let mut inner = rest;
    if let Some((index, after)) = rest.split_once('.').and_then(|(i, after)| Some((i.parse().ok()?, after))) {
        prefix.push(PathPart::Index(index));
        inner = after;
    }
    if inner == "param_groups" || inner.starts_with("param_groups.") {
        return Section::Groups { prefix };
    }
    match inner.strip_prefix("state.") {
        Some(state) => Section::State { prefix, inner: Inner::Joined(state) },
        // `opt.weight` is a module like any other.
        None => Section::Root(key),
    }
}

fn joined(parts: &[PathPart]) -> Cow<'_, str> {
    match parts {
        [one] => one.text(),
        many => many.iter().map(PathPart::text).collect::<Vec<_>>().join(".").into(),
    }
}
