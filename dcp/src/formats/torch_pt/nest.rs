//! Paths to a nested state dict: which containers there are, in which order, around the leaves.

use std::collections::HashMap;

use super::{
    containers::{Container, Kind},
    objects,
};
use crate::{
    Error, PathPart, Result,
    pickle::{Arena, NodeId},
};

/// A state dict while leaves are put into it. A leaf is a number that the caller knows.
#[derive(Debug, Default)]
pub(super) struct Nest {
    root: Option<Node>,
}

#[derive(Debug)]
enum Node {
    Leaf(usize),
    Inner(Inner),
}

#[derive(Debug, Default)]
struct Inner {
    entries: Vec<(PathPart, Node)>,
    places: HashMap<PathPart, usize>,
}

impl Nest {
    /// Puts a leaf at `path`; an empty path makes it the whole.
    ///
    /// # Errors
    /// `Incompatible` when something else is there, or in the way.
    pub(super) fn put(&mut self, path: &[PathPart], leaf: usize) -> Result<()> {
        let taken =
            || Error::incompatible("another entry has this place in the state dict, or is in the way to it");
        let Some((last, way)) = path.split_last() else {
            return match self.root.replace(Node::Leaf(leaf)) {
                None => Ok(()),
                Some(_) => Err(taken()),
            };
        };
        let mut at = self.root.get_or_insert_with(|| Node::Inner(Inner::default()));
        for part in way {
            let Node::Inner(inner) = at else { return Err(taken()) };
            at = inner.entry(part).ok_or_else(taken)?;
        }
        match at {
            Node::Inner(inner) if !inner.places.contains_key(last) => {
                inner.insert(last.clone(), Node::Leaf(leaf));
                Ok(())
            }
            _ => Err(taken()),
        }
    }

    /// Makes the containers in `arena`, of the kinds that `containers` tell, around what `leaf` makes, leaf by leaf in
    /// the order in which they stand.
    ///
    /// # Errors
    /// What `leaf` fails with; attributes of a container that are no pickle.
    pub(super) fn build<B: Builder>(&self, containers: &[Container], builder: &mut B) -> Result<NodeId> {
        let kinds = containers.iter().map(|container| (container.path.as_slice(), container)).collect();
        let mut building = Building { kinds, path: Vec::new(), builder };
        match &self.root {
            Some(node) => building.node(node),
            None => Ok(building.builder.arena().dict(&[])),
        }
    }
}

/// Makes leaves.
pub(super) trait Builder {
    /// Where values are made.
    fn arena(&mut self) -> &mut Arena;
    /// Makes a leaf.
    fn leaf(&mut self, leaf: usize) -> Result<NodeId>;
}

impl Inner {
    fn insert(&mut self, part: PathPart, node: Node) {
        self.places.insert(part.clone(), self.entries.len());
        self.entries.push((part, node));
    }

    /// The node at `part`, a new container if there is none.
    fn entry(&mut self, part: &PathPart) -> Option<&mut Node> {
        if !self.places.contains_key(part) {
            self.insert(part.clone(), Node::Inner(Self::default()));
        }
        let at = self.places.get(part)?;
        self.entries.get_mut(*at).map(|(_, node)| node)
    }

    /// Whether the keys are 0, 1, 2, … in order.
    fn counts(&self) -> bool {
        let mut expected = (0_u64..).map(PathPart::Index);
        self.entries.iter().all(|(part, _)| expected.next().as_ref() == Some(part))
    }
}

struct Building<'a, B> {
    kinds: HashMap<&'a [PathPart], &'a Container>,
    path: Vec<PathPart>,
    builder: &'a mut B,
}

impl<B: Builder> Building<'_, B> {
    fn node(&mut self, node: &Node) -> Result<NodeId> {
        match node {
            Node::Leaf(leaf) => self.builder.leaf(*leaf),
            Node::Inner(inner) => self.inner(inner),
        }
    }

    fn inner(&mut self, inner: &Inner) -> Result<NodeId> {
        let container = self.kinds.get(self.path.as_slice()).copied();
        // A list that lost an item is none any more: its numbers stay as keys.
        let counts = inner.counts();
        let kind = match container.map(|container| container.kind) {
            Some(Kind::List | Kind::Tuple) if !counts => Kind::Dict,
            Some(kind) => kind,
            None if counts => Kind::List,
            None => Kind::Dict,
        };
        let mut pairs = Vec::with_capacity(inner.entries.len());
        for (part, node) in ordered(inner, container) {
            let key = self.key(part, kind)?;
            self.path.push(part.clone());
            pairs.push((key, self.node(node)?));
            self.path.pop();
        }
        let values = || pairs.iter().map(|(_, value)| *value).collect::<Vec<_>>();
        match kind {
            Kind::List => Ok(self.builder.arena().list(&values())),
            Kind::Tuple => Ok(self.builder.arena().tuple(&values())),
            Kind::Dict => Ok(self.builder.arena().dict(&pairs)),
            Kind::OrderedDict => self.ordered_dict(&pairs, container),
        }
    }

    fn key(&mut self, part: &PathPart, kind: Kind) -> Result<NodeId> {
        let arena = self.builder.arena();
        Ok(match part {
            PathPart::Key(text) => arena.str(text),
            PathPart::Index(_) if matches!(kind, Kind::List | Kind::Tuple) => arena.none(),
            PathPart::Index(index) => arena.int(
                i64::try_from(*index)
                    .map_err(|_| Error::incompatible(format!("key {index} exceeds 63 bits")))?,
            ),
        })
    }

    fn ordered_dict(&mut self, pairs: &[(NodeId, NodeId)], container: Option<&Container>) -> Result<NodeId> {
        let arena = self.builder.arena();
        let class = arena.global("collections", "OrderedDict");
        let none = arena.tuple(&[]);
        let dict = arena.reduce(class, none);
        let flat: Vec<NodeId> = pairs.iter().flat_map(|(key, value)| [*key, *value]).collect();
        if !flat.is_empty() {
            arena.set_items(dict, &flat);
        }
        if let Some(state) = container.and_then(|container| container.state.as_deref()) {
            let state = objects::put_pickle(arena, state)?;
            arena.set_state(dict, state);
        }
        Ok(dict)
    }
}

/// The entries in the order that is kept for them; those that it does not tell come last.
fn ordered<'a>(inner: &'a Inner, container: Option<&Container>) -> Vec<&'a (PathPart, Node)> {
    let order = container.map_or(&[][..], |container| container.order.as_slice());
    let places: HashMap<&PathPart, usize> = order.iter().zip(0..).collect();
    let mut entries: Vec<_> = inner.entries.iter().collect();
    entries.sort_by_key(|(part, _)| places.get(part).copied().unwrap_or(usize::MAX));
    entries
}
