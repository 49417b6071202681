//! The classification itself: sections first, then the model's names, then optimizer state against them.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
};

use super::{
    Classified, ClassifyError, Item, Kind, Layout, Leaf, Note, OptimizerLayout, OptimizerStyle, ParamGroup,
    Part, PathPart, buffers, container, indexed,
    section::{self, Inner, MODELS, Section},
};
use crate::{Alias, Entry, Fqn, Registry, Role, TensorId, fold, wrapper};

/// Says what each leaf is. `groups` are the optimizer's `param_groups`, where the caller could read them.
///
/// # Errors
/// A tensor whose key is no name.
pub fn classify(leaves: &[Leaf], groups: &[ParamGroup]) -> Result<Classified, ClassifyError> {
    let root_is_optimizer = section::root_is_optimizer(leaves);
    let sections: Vec<Section<'_>> =
        leaves.iter().map(|leaf| section::section(leaf, root_is_optimizer)).collect();
    let mut work = Work { leaves, sections, notes: Vec::new(), container: None, root_taken_off: false };
    work.find_container();
    let names = work.model_names();
    let known: HashSet<&str> = names.iter().map(|(_, name)| &**name).collect();
    let states = work.states(&known);
    let mut out = Output::new(leaves.len());
    let by_index = work.resolve_indices(&names, &states, groups, &mut out.notes);
    work.place_model(&names, &states, &by_index, &mut out)?;
    work.place_states(&states, &by_index, &known, &mut out)?;
    work.place_rest(&mut out)?;
    let layout =
        Layout { model: work.container.clone(), optimizer: work.optimizer_layout(&states, &by_index) };
    let mut notes = work.notes;
    notes.append(&mut out.notes);
    Ok(Classified { items: out.items.into_iter().flatten().collect(), layout, notes })
}

struct Work<'a> {
    leaves: &'a [Leaf],
    sections: Vec<Section<'a>>,
    notes: Vec<Note>,
    container: Option<String>,
    /// The container was found in flat keys, and is taken off them.
    root_taken_off: bool,
}

/// Optimizer state of one leaf.
struct State<'a> {
    leaf: usize,
    of: Of<'a>,
    slot: Cow<'a, str>,
    prefix: &'a [PathPart],
    style: OptimizerStyle,
}

enum Of<'a> {
    Name(&'a str),
    Index(u64),
}

type ByIndex = HashMap<u64, String>;

impl<'a> Work<'a> {
    fn is_tensor(&self, leaf: usize) -> bool {
        self.leaves.get(leaf).is_some_and(|l| l.tensor.is_some())
    }

    fn find_container(&mut self) {
        let mut present: Vec<&str> = Vec::new();
        for (at, section) in self.sections.iter().enumerate() {
            if let Section::Model { container, .. } = section
                && self.is_tensor(at)
                && !present.contains(container)
            {
                present.push(container);
            }
        }
        present.sort_by_key(|word| MODELS.iter().position(|m| m == word));
        if let Some((first, rest)) = present.split_first() {
            self.container = Some((*first).to_owned());
            self.notes.extend(rest.iter().map(|word| Note::SecondModel((*word).to_owned())));
            return;
        }
        let flat = |at: usize| self.leaves.get(at).is_some_and(|l| l.path.is_none() && l.tensor.is_some());
        let roots: Vec<&str> =
            self.sections.iter().enumerate().filter(|(at, _)| flat(*at)).filter_map(root).collect();
        let optimized = self.optimized_names();
        let decision = container::decide(&roots, &optimized);
        self.notes.extend(decision.note);
        self.root_taken_off = decision.container.is_some();
        self.container = decision.container;
    }

    /// Parameters that optimizer state names, as far as flat keys can be split: by their last dot.
    fn optimized_names(&self) -> HashSet<&'a str> {
        let name = |section: &Section<'a>| match section {
            Section::State { inner: Inner::Joined(text), .. } => text.rsplit_once('.').map(|(name, _)| name),
            _ => None,
        };
        self.sections.iter().filter_map(name).collect()
    }

    /// Leaf and name of every tensor of the model.
    fn model_names(&self) -> Vec<(usize, Cow<'a, str>)> {
        let named = |(at, section): (usize, &Section<'a>)| {
            let name: Cow<'a, str> = match section {
                Section::Model { container, name } if Some(*container) == self.container.as_deref() => {
                    name.clone()
                }
                Section::Root(key) if self.root_taken_off => key.split_once('.')?.1.into(),
                Section::Root(key) if self.container.is_none() => (*key).into(),
                _ => return None,
            };
            self.is_tensor(at).then_some((at, name))
        };
        self.sections.iter().enumerate().filter_map(named).collect()
    }

    fn states(&self, known: &HashSet<&str>) -> Vec<State<'_>> {
        let mut found = Vec::new();
        for (leaf, section) in self.sections.iter().enumerate() {
            let Section::State { prefix, inner } = section else { continue };
            if !self.is_tensor(leaf) {
                continue;
            }
            let (of, slot, style) = match inner {
                Inner::Split(name, slot) => (Of::Name(name.as_ref()), slot.as_str(), inner.style()),
                Inner::Index(index, slot) => (Of::Index(*index), slot.as_str(), inner.style()),
                Inner::Joined(text) => match split_joined(text, known) {
                    Some((Of::Index(index), slot)) => (Of::Index(index), slot, OptimizerStyle::Indexed),
                    Some((of, slot)) => (of, slot, inner.style()),
                    None => continue,
                },
            };
            found.push(State { leaf, of, slot: slot.into(), prefix, style });
        }
        found
    }

    fn resolve_indices(
        &self,
        names: &[(usize, Cow<'a, str>)],
        states: &[State<'_>],
        groups: &[ParamGroup],
        notes: &mut Vec<Note>,
    ) -> ByIndex {
        let parameters: Vec<_> = names
            .iter()
            .filter_map(|(leaf, name)| {
                let leaf = self.leaves.get(*leaf)?;
                let (_, shape) = leaf.tensor.as_ref()?;
                let own = leaf.alias_of.is_none() && !buffers::is_buffer_name(name, shape.rank());
                own.then_some(indexed::Parameter { name, shape })
            })
            .collect();
        let slots: Vec<_> = states
            .iter()
            .filter_map(|state| match state.of {
                Of::Index(index) => Some((index, &self.leaves.get(state.leaf)?.tensor.as_ref()?.1)),
                Of::Name(_) => None,
            })
            .filter(|(_, shape)| shape.rank() > 0)
            .collect();
        if !states.iter().any(|state| matches!(state.of, Of::Index(_))) {
            return ByIndex::new();
        }
        match indexed::resolve(&parameters, &slots, groups) {
            Ok((map, how)) => {
                let map = map.into_iter().map(|(index, name)| (index, name.to_owned())).collect();
                notes.push(Note::IndexOrder(how));
                map
            }
            Err(why) => {
                notes.push(Note::IndexUnresolved(why));
                ByIndex::new()
            }
        }
    }

    fn place_model(
        &self,
        names: &[(usize, Cow<'a, str>)],
        states: &[State<'_>],
        by_index: &ByIndex,
        out: &mut Output,
    ) -> Result<(), ClassifyError> {
        let optimized: HashSet<&str> = states.iter().filter_map(|state| state.parameter(by_index)).collect();
        for (leaf, name) in names {
            let Some(rank) = self.leaves.get(*leaf).and_then(|l| l.tensor.as_ref()).map(|(_, s)| s.rank())
            else {
                continue;
            };
            let buffer = buffers::is_buffer_name(name, rank) && !optimized.contains(&**name);
            let id = TensorId { fqn: fqn(name)?, role: if buffer { Role::Buffer } else { Role::Param } };
            out.tensor(self.leaves, *leaf, id, Part::Model, self.container.clone().unwrap_or_default())?;
        }
        Ok(())
    }

    fn place_states(
        &self,
        states: &[State<'_>],
        by_index: &ByIndex,
        known: &HashSet<&str>,
        out: &mut Output,
    ) -> Result<(), ClassifyError> {
        for state in states {
            let prefix = join(state.prefix);
            let dot = if prefix.is_empty() { "" } else { "." };
            let place = format!("{prefix}{dot}state");
            let id = match (&state.of, state.parameter(by_index)) {
                (_, Some(name)) => TensorId { fqn: fqn(name)?, role: Role::of_slot(&state.slot) },
                (Of::Index(index), None) => TensorId {
                    fqn: fqn(&format!("{place}.{index}"))?,
                    role: Role::Slot(state.slot.as_ref().into()),
                },
                (Of::Name(_), None) => continue,
            };
            if !known.is_empty() && matches!(state.of, Of::Name(_)) && !known.contains(id.fqn.as_str()) {
                out.notes.push(Note::Orphan(id.clone()));
            }
            out.tensor(self.leaves, state.leaf, id, Part::Optimizer, place)?;
        }
        Ok(())
    }

    /// Objects, and tensors that belong to neither model nor optimizer.
    fn place_rest(&self, out: &mut Output) -> Result<(), ClassifyError> {
        for (at, (leaf, section)) in self.leaves.iter().zip(&self.sections).enumerate() {
            if out.has(at) {
                continue;
            }
            let (part, wrapper) = match section {
                Section::State { prefix, .. } | Section::Groups { prefix } => (Part::Optimizer, join(prefix)),
                Section::Model { container, .. } if Some(*container) == self.container.as_deref() => {
                    (Part::Model, (*container).to_owned())
                }
                _ => (Part::Other, String::new()),
            };
            if leaf.tensor.is_some() {
                let id = TensorId { fqn: fqn(&leaf.key)?, role: Role::Other };
                out.tensor(self.leaves, at, id, part, String::new())?;
            } else {
                out.put(Item { leaf: at, kind: Kind::Object, part, wrapper });
            }
        }
        Ok(())
    }

    fn optimizer_layout(&self, states: &[State<'_>], by_index: &ByIndex) -> Option<OptimizerLayout> {
        let first = states.first();
        let group = self.sections.iter().find_map(|section| match section {
            Section::Groups { prefix } | Section::State { prefix, .. } => Some(prefix.as_slice()),
            _ => None,
        });
        let prefix = first.map(|s| s.prefix).or(group)?.to_vec();
        let indices =
            by_index.iter().filter_map(|(&index, name)| Some((Fqn::new(name).ok()?, index))).collect();
        Some(OptimizerLayout { prefix, style: first.map(|s| s.style).unwrap_or_default(), indices })
    }
}

fn root<'a>((_, section): (usize, &Section<'a>)) -> Option<&'a str> {
    match section {
        Section::Root(key) => Some(key),
        _ => None,
    }
}

impl State<'_> {
    fn parameter<'s>(&'s self, by_index: &'s ByIndex) -> Option<&'s str> {
        match self.of {
            Of::Name(name) => Some(name),
            Of::Index(index) => by_index.get(&index).map(String::as_str),
        }
    }
}

/// Cuts `<fqn>.<slot>`: at the longest name that the model has; else a leading index; else the last dot.
fn split_joined<'t>(text: &'t str, known: &HashSet<&str>) -> Option<(Of<'t>, &'t str)> {
    let cuts = text.rmatch_indices('.').filter_map(|(at, _)| Some((text.get(..at)?, text.get(at + 1..)?)));
    let (name, slot) = match cuts.clone().find(|(name, _)| known.contains(name)) {
        Some(cut) => cut,
        None => {
            if let Some((index, slot)) = text.split_once('.').and_then(|(i, s)| Some((i.parse().ok()?, s))) {
                return Some((Of::Index(index), slot));
            }
            cuts.into_iter().next()?
        }
    };
    Some((Of::Name(name), slot))
}

fn fqn(name: &str) -> Result<Fqn, ClassifyError> {
    Fqn::new(name).map_err(|source| ClassifyError::Name {
        key: name.chars().take(200).flat_map(char::escape_default).collect(),
        source,
    })
}

fn join(parts: &[PathPart]) -> String {
    parts.iter().map(PathPart::text).collect::<Vec<_>>().join(".")
}

struct Output {
    items: Vec<Option<Item>>,
    taken: HashSet<TensorId>,
    notes: Vec<Note>,
}

impl Output {
    fn new(leaves: usize) -> Self {
        Self { items: vec![None; leaves], taken: HashSet::new(), notes: Vec::new() }
    }

    fn has(&self, leaf: usize) -> bool {
        self.items.get(leaf).is_some_and(Option::is_some)
    }

    fn put(&mut self, item: Item) {
        if let Some(place) = self.items.get_mut(item.leaf) {
            *place = Some(item);
        }
    }

    fn tensor(
        &mut self,
        leaves: &[Leaf],
        leaf: usize,
        mut id: TensorId,
        part: Part,
        wrapper: String,
    ) -> Result<(), ClassifyError> {
        if self.taken.contains(&id) {
            let key = leaves.get(leaf).map(|l| l.key.clone()).unwrap_or_default();
            let mut other = TensorId { fqn: fqn(&key)?, role: Role::Other };
            while self.taken.contains(&other) {
                other.fqn = fqn(&format!("{}#{leaf}", other.fqn))?;
            }
            self.notes.push(Note::Collision { id, key });
            id = other;
        }
        let cleaned = wrapper::clean(id.fqn.as_str());
        if id.role.is_model() && !cleaned.found.is_empty() {
            self.notes.push(Note::WrapperPrefix { name: id.fqn.clone(), clean: cleaned.name });
        }
        self.taken.insert(id.clone());
        self.put(Item { leaf, kind: Kind::Tensor(id), part, wrapper });
        Ok(())
    }
}

impl Classified {
    /// The tensors as a registry, each with its key and path as the alias `of`, its layer and its expert.
    ///
    /// # Errors
    /// `leaves` that are not those that were classified.
    pub fn registry(&self, leaves: &[Leaf], of: &str) -> Result<Registry, ClassifyError> {
        let mut registry = Registry::new();
        for item in &self.items {
            let Kind::Tensor(id) = &item.kind else { continue };
            let leaf = leaves.get(item.leaf).ok_or(ClassifyError::ForeignLeaf(item.leaf))?;
            let (dtype, shape) = leaf.tensor.clone().ok_or(ClassifyError::ForeignLeaf(item.leaf))?;
            let path = leaf.path.iter().flatten().map(Into::into).collect();
            registry.push(Entry {
                layer: fold::layer_of(id.fqn.as_str()),
                expert: fold::expert_of(id.fqn.as_str()),
                aliases: vec![Alias { of: of.to_owned(), key: leaf.key.clone(), path }],
                ..Entry::new(id.fqn.clone(), id.role.clone(), dtype, shape)
            })?;
        }
        Ok(registry)
    }
}
