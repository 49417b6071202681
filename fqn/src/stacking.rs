//! [`Stacking`]: experts, or layers, as tensors of their own or as one tensor with a dimension for them, by name.
//!
//! A pair of names says it: `layers.{layer}.mlp.experts.{expert}.w1.weight=layers.{layer}.moe.experts.w1@0`, the same text
//! whichever way it is used. The capture that the stacked name lacks is the index along the new dimension, which comes after
//! the `@`. Names only: `reshard`'s assemblies say which box is which, and a tensor of one side is copied from boxes of the
//! other.
//!
//! A scalar slot of the optimizer (Adam's `step`) is no member and no stack: a stack has one, that of its first member, and
//! every member taken out of it has that; whether all members have the same is for whoever reads them
//! ([`Stacking::counters`]). Aliases name tensors in formats of others, where the other side does not exist: they
//! stay behind.
//!
//! Invariants: a stack's members have indices 0 to n − 1, each once, the same in all roles; they have one shape, one dtype and one role, and lie on meshes
//! alike; tensors whose names do not match stay as they are; stacking and unstacking undo each other; what is known of a
//! tensor and can't be said of the other side (a tie, padding of members) is refused.

use std::collections::{BTreeMap, HashMap};

use crate::{
    Entry, Fqn, Registry, Shape, TensorId,
    pattern::{Captures, Pattern, PatternError, Template},
};

mod carry;
mod error;
mod rules;
#[cfg(test)]
mod tests;
mod text;

pub use error::StackError;

/// How names of members and of their stack belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stacking {
    apart: (Pattern, Template),
    stacked: (Pattern, Template),
    /// The capture that only members have.
    index: Index,
    axis: usize,
}

/// Which way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Way {
    /// Members become a stack.
    Stack,
    /// A stack becomes its members.
    Unstack,
}

/// What members are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Index {
    Layer,
    Expert,
}

impl Index {
    const fn name(self) -> &'static str {
        match self {
            Self::Layer => "layer",
            Self::Expert => "expert",
        }
    }
}

/// One tensor of a result and the tensors of the input that it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Positions in the input's registry: one, or the members of a stack in order.
    pub sources: Vec<usize>,
    /// For a tensor taken out of a stack: its place along the dimension. `None` for one that is taken whole.
    pub slice: Option<u64>,
}

/// Members of a stack by their indices, as positions in the registry.
type Members = BTreeMap<u64, usize>;

/// Most members of a stack that are taken apart: a bound on what a hostile shape can make.
const MOST_MEMBERS: u64 = 1 << 16;

/// Most members of all stacks together: some times those of the largest models.
const MOST_TENSORS: u64 = 1 << 20;

impl Stacking {
    /// Members called `apart` as one tensor called `stacked`, side by side along its dimension `axis`.
    ///
    /// # Errors
    /// Names that are no patterns, or whose captures do not differ in exactly one, `{layer}` or `{expert}`.
    pub fn new(apart: &str, stacked: &str, axis: usize) -> Result<Self, StackError> {
        // A capture of several segments is a hole like any other.
        let both = |text: &str| {
            Ok::<_, PatternError>((Pattern::new(text)?, Template::new(&text.replace("{**", "{"))?))
        };
        let (apart, stacked) = (both(apart)?, both(stacked)?);
        let (inner, outer) = (apart.0.capture_names(), stacked.0.capture_names());
        let mut only = inner.iter().filter(|name| !outer.contains(name));
        let index = match (only.next(), only.next()) {
            (Some(index), None) if outer.iter().all(|name| inner.contains(name)) => *index,
            _ => {
                let (apart, stacked) = (apart.0.to_string(), stacked.0.to_string());
                return Err(StackError::Captures { apart, stacked });
            }
        };
        let index = [Index::Layer, Index::Expert]
            .into_iter()
            .find(|of| of.name() == index)
            .ok_or_else(|| StackError::Index { capture: index.to_owned(), apart: apart.0.to_string() })?;
        Ok(Self { apart, stacked, index, axis })
    }

    /// [`Self::stack`] or [`Self::unstack`].
    ///
    /// # Errors
    /// As they have.
    pub fn apply(&self, way: Way, registry: &Registry) -> Result<(Registry, Vec<Origin>), StackError> {
        match way {
            Way::Stack => self.stack(registry),
            Way::Unstack => self.unstack(registry),
        }
    }

    /// Whether a tensor called `name` is changed on this way: whether it is a member, or a stack.
    #[must_use]
    pub fn concerns(&self, way: Way, name: &str) -> bool {
        match way {
            Way::Stack => self.apart.0.captures(name).is_some_and(|it| self.place_of(&it).is_some()),
            Way::Unstack => self.stack_captures(name).is_some(),
        }
    }

    /// What the name of a stack captures; none of a member, whose name may look like one.
    fn stack_captures<'n>(&self, name: &'n str) -> Option<Captures<'n>> {
        self.stacked.0.captures(name).filter(|_| !self.concerns(Way::Stack, name))
    }

    /// Dimension of the stack that its members lie along.
    #[must_use]
    pub const fn axis(&self) -> usize {
        self.axis
    }

    /// Scalars of the optimizer of which a stack has one: the positions of all its members', for each stack that has some.
    ///
    /// # Errors
    /// Names that can't be.
    pub fn counters(&self, registry: &Registry) -> Result<Vec<Vec<usize>>, StackError> {
        let mut found: BTreeMap<TensorId, Vec<usize>> = BTreeMap::new();
        for (at, entry) in registry.entries().iter().enumerate().filter(|(_, entry)| is_counter(entry)) {
            if let Some((id, _)) = self.stack_of(entry)? {
                found.entry(id).or_default().push(at);
            }
        }
        Ok(found.into_values().collect())
    }

    /// The registry with the members of each stack as one tensor, at the place of the first of them, and where each tensor
    /// comes from.
    ///
    /// # Errors
    /// Members that are missing, come twice or differ, or of which something can't be said of a stack; names that are taken.
    pub fn stack(&self, registry: &Registry) -> Result<(Registry, Vec<Origin>), StackError> {
        let mut stacks: HashMap<TensorId, Members> = HashMap::new();
        let mut order: Vec<Result<TensorId, usize>> = Vec::new();
        for (at, entry) in registry.entries().iter().enumerate() {
            let Some((id, index)) = self.stack_of(entry)? else {
                order.push(Err(at));
                continue;
            };
            let members = stacks.entry(id.clone()).or_default();
            if members.is_empty() {
                order.push(Ok(id.clone()));
            }
            if members.insert(index, at).is_some() {
                return Err(StackError::Members { stack: id, last: index, missing: index });
            }
        }
        complete(&stacks)?;
        let mut done = (Registry::new(), Vec::new());
        for place in order {
            let (entry, sources) = match place {
                Err(at) => (registry.entries().get(at).cloned(), vec![at]),
                Ok(id) => {
                    let members = stacks.remove(&id).unwrap_or_default();
                    let entry = self.stacked(registry, id, &members)?;
                    let first = if is_counter(&entry) { 1 } else { members.len() };
                    (Some(entry), members.into_values().take(first).collect())
                }
            };
            if let Some(entry) = entry {
                done.0.push(entry)?;
                done.1.push(Origin { sources, slice: None });
            }
        }
        Ok(done)
    }

    /// The registry with every stack taken apart, its members at its place, and where each tensor comes from.
    ///
    /// # Errors
    /// A stack that lacks the dimension, or of which something can't be said of members; names that are taken.
    pub fn unstack(&self, registry: &Registry) -> Result<(Registry, Vec<Origin>), StackError> {
        let mut done = (Registry::new(), Vec::new());
        let counts = self.counts(registry);
        self.check_total(registry, &counts)?;
        for (at, entry) in registry.entries().iter().enumerate() {
            let Some(captures) = self.stack_captures(entry.fqn.as_str()) else {
                done.0.push(entry.clone())?;
                done.1.push(Origin { sources: vec![at], slice: None });
                continue;
            };
            let (count, slice) = self.members_of(entry, &counts)?;
            for index in 0..count {
                let text = self.apart.1.fill_with(&captures, self.index.name(), &index.to_string());
                let name = |to: String| StackError::Name { from: entry.id(), to };
                let text = text.ok_or_else(|| name(self.apart.1.as_str().to_owned()))?;
                let fqn = Fqn::new(&text).map_err(|_| name(text))?;
                done.0.push(self.member(entry, fqn, index, slice)?)?;
                done.1.push(Origin { sources: vec![at], slice: slice.then_some(index) });
            }
        }
        Ok(done)
    }

    /// Members of each stack, by its name: as its parameter says, or, without one, the first slot that has the dimension.
    fn counts<'r>(&self, registry: &'r Registry) -> HashMap<&'r Fqn, u64> {
        let of = |model| registry.entries().iter().filter(move |entry| entry.role.is_model() == model);
        let mut counts = HashMap::new();
        for entry in of(true).chain(of(false)).filter(|e| self.concerns(Way::Unstack, e.fqn.as_str())) {
            if let Some(count) = entry.shape.get(self.axis) {
                counts.entry(&entry.fqn).or_insert(*count);
            }
        }
        counts
    }

    /// Counts members before any is made.
    fn check_total(&self, registry: &Registry, counts: &HashMap<&Fqn, u64>) -> Result<(), StackError> {
        let mut total = 0_u64;
        for stack in registry.entries().iter().filter(|e| self.concerns(Way::Unstack, e.fqn.as_str())) {
            total = total.saturating_add(self.members_of(stack, counts)?.0);
            if total > MOST_TENSORS {
                return Err(StackError::TooMany { stack: stack.id() });
            }
        }
        Ok(())
    }

    /// How many members come out of `stack`, and whether each is a slice of it. An optimizer slot has as many as its
    /// parameter; one of a single element is every member's.
    fn members_of(&self, stack: &Entry, counts: &HashMap<&Fqn, u64>) -> Result<(u64, bool), StackError> {
        let own = stack.shape.get(self.axis).copied();
        let count = counts.get(&stack.fqn).copied().filter(|_| stack.role.is_optimizer());
        let slice = count.is_none_or(|count| own == Some(count));
        let single = stack.shape.elements() == Some(1);
        let members = if slice { own } else { count.filter(|_| single) };
        let members = members.filter(|members| (1..=MOST_MEMBERS).contains(members)).ok_or_else(|| {
            StackError::Axis { stack: stack.id(), shape: stack.shape.clone(), axis: self.axis }
        })?;
        Ok((members, slice))
    }

    /// The stack that `entry` belongs to, and its place there.
    fn stack_of(&self, entry: &Entry) -> Result<Option<(TensorId, u64)>, StackError> {
        let Some(captures) = self.apart.0.captures(entry.fqn.as_str()) else { return Ok(None) };
        let (Some(index), Some(text)) = (self.place_of(&captures), self.stacked.1.fill(&captures)) else {
            return Ok(None);
        };
        let fqn = Fqn::new(&text).map_err(|_| StackError::Name { from: entry.id(), to: text })?;
        Ok(Some((TensorId { fqn, role: entry.role.clone() }, u64::from(index))))
    }

    /// The place along the dimension that a member's name says.
    fn place_of(&self, captures: &Captures<'_>) -> Option<u32> {
        captures.get(self.index.name()).and_then(crate::fold::index_of)
    }

    fn stacked(&self, registry: &Registry, id: TensorId, members: &Members) -> Result<Entry, StackError> {
        let each = || members.values().filter_map(|at| registry.entries().get(*at));
        if let Some(missing) = (0..).zip(members.keys()).find(|(at, index)| at != *index).map(|(at, _)| at) {
            let last = members.keys().next_back().copied().unwrap_or(0);
            return Err(StackError::Members { stack: id, last, missing });
        }
        let Some(first) = each().next() else {
            return Err(StackError::Members { stack: id, last: 0, missing: 0 });
        };
        if let Some(other) = each().find(|other| !self.alike(first, other)) {
            return Err(StackError::Unlike { first: first.id(), other: other.id() });
        }
        if is_counter(first) {
            return Ok(Entry { fqn: id.fqn, ..self.shared(first)? });
        }
        if self.axis > first.shape.rank() {
            return Err(StackError::Axis { stack: id, shape: first.shape.clone(), axis: self.axis });
        }
        let mut dims = crate::Dims::from_slice(&first.shape);
        dims.insert(self.axis, members.len() as u64);
        self.stack_entry(first, id.fqn, Shape::from(dims))
    }

    /// What comes out of `stack` as member number `index`: a slice of it, or all of it.
    fn member(&self, stack: &Entry, fqn: Fqn, index: u64, slice: bool) -> Result<Entry, StackError> {
        let mut entry = if slice {
            let mut dims = crate::Dims::from_slice(&stack.shape);
            dims.remove(self.axis);
            self.member_entry(stack, fqn, Shape::from(dims))?
        } else {
            Entry { fqn, ..self.known(stack)? }
        };
        let index = u32::try_from(index).ok();
        match self.index {
            Index::Expert => entry.expert = index,
            Index::Layer => entry.layer = index,
        }
        Ok(entry)
    }
}

/// Every role has the members that its parameter has, or else the first role that is there: what lacks one would have them counted
/// otherwise, and could not be taken apart again.
fn complete(stacks: &HashMap<TensorId, Members>) -> Result<(), StackError> {
    let mut of: BTreeMap<&Fqn, Vec<(&TensorId, &Members)>> = BTreeMap::new();
    for (id, members) in stacks {
        of.entry(&id.fqn).or_default().push((id, members));
    }
    for roles in of.values_mut() {
        roles.sort_by_key(|(id, _)| (!id.role.is_model(), *id));
        let Some(((whole, all), others)) = roles.split_first() else { continue };
        for (id, members) in others {
            let lacks = |a: &Members, b: &Members| b.keys().find(|member| !a.contains_key(member)).copied();
            let (of, other, missing) = match (lacks(members, all), lacks(all, members)) {
                (Some(missing), _) => (*id, *whole, missing),
                (None, Some(missing)) => (*whole, *id, missing),
                (None, None) => continue,
            };
            return Err(StackError::Roles { stack: of.clone(), other: other.clone(), missing });
        }
    }
    Ok(())
}

/// Whether the tensor is a scalar of the optimizer, of which a stack has one.
fn is_counter(entry: &Entry) -> bool {
    entry.role.is_optimizer() && entry.shape.rank() == 0
}
