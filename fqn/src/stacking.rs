//! [`Stacking`]: experts, or layers, as tensors of their own or as one tensor with a dimension for them, by name.
//!
//! A pair of names says it: `layers.{layer}.mlp.experts.{expert}.w1.weight` and `layers.{layer}.moe.experts.w1`. The capture
//! that the stacked name lacks is the index along the new dimension. Names only: `reshard`'s assemblies say which box is
//! which, and a tensor of one side is copied from boxes of the other.
//!
//! Invariants: a stack's members have indices 0 to n − 1, each once, one shape, one dtype and one role; tensors whose names
//! do not match stay as they are; stacking and unstacking undo each other.

use std::collections::{BTreeMap, HashMap};

use crate::{
    AxisCut, Entry, Fqn, PlacementError, PlacementRule, Registry, RegistryError, Shape, StageRule, TensorId,
    pattern::{Pattern, PatternError, Template},
};

#[cfg(test)]
mod tests;

/// How names of members and of their stack belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stacking {
    apart: (Pattern, Template),
    stacked: (Pattern, Template),
    /// The capture that only members have.
    index: String,
    axis: usize,
}

/// One tensor of a result and the tensors of the input that it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Positions in the input's registry: one, or the members of a stack in order.
    pub sources: Vec<usize>,
    /// For a tensor taken out of a stack: its place along the dimension.
    pub slice: Option<u64>,
}

/// Why tensors can't be stacked or unstacked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StackError {
    /// A name that is no pattern.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// A pair of names that differ in more, or less, than one index.
    #[error("{apart:?} must hold exactly one capture that {stacked:?} lacks, and every one that it has")]
    Captures {
        /// Name of a member.
        apart: String,
        /// Name of the stack.
        stacked: String,
    },
    /// A member that is missing or comes twice.
    #[error("{stack} needs members 0 to {last}, but {missing} is missing or comes twice")]
    Members {
        /// The stack.
        stack: TensorId,
        /// Highest index there is.
        last: u64,
        /// The first index that is wrong.
        missing: u64,
    },
    /// Members that differ.
    #[error("{first} and {other} can't be members of one stack: they differ in shape, dtype, or fused parts")]
    Unlike {
        /// One member.
        first: TensorId,
        /// One that differs from it.
        other: TensorId,
    },
    /// A stack without the dimension, or with more members than names can number.
    #[error("{stack} of shape {shape} has no dimension {axis} of members")]
    Axis {
        /// The stack.
        stack: TensorId,
        /// Its shape.
        shape: Shape,
        /// The dimension.
        axis: usize,
    },
    /// A name that can't be.
    #[error("{from} would be called {to:?}, which is no name")]
    Name {
        /// The tensor.
        from: TensorId,
        /// The name.
        to: String,
    },
    /// A name that is taken.
    #[error(transparent)]
    Taken(#[from] RegistryError),
    /// A placement that has no counterpart.
    #[error("placement of {id}: {source}")]
    Placement {
        /// The tensor.
        id: TensorId,
        /// Why.
        source: PlacementError,
    },
}

/// Most members of a stack that are taken apart: a bound on what a hostile shape can make.
const MOST_MEMBERS: u64 = 1 << 16;

impl Stacking {
    /// Members called `apart` as one tensor called `stacked`, side by side along its dimension `axis`.
    ///
    /// # Errors
    /// Names that are no patterns, or whose captures do not differ in exactly one.
    pub fn new(apart: &str, stacked: &str, axis: usize) -> Result<Self, StackError> {
        let both = |text: &str| Ok::<_, PatternError>((Pattern::new(text)?, Template::new(text)?));
        let (apart, stacked) = (both(apart)?, both(stacked)?);
        let (inner, outer) = (apart.0.capture_names(), stacked.0.capture_names());
        let mut only = inner.iter().filter(|name| !outer.contains(name));
        let index = match (only.next(), only.next()) {
            (Some(index), None) if outer.iter().all(|name| inner.contains(name)) => (*index).to_owned(),
            _ => {
                let (apart, stacked) = (apart.0.to_string(), stacked.0.to_string());
                return Err(StackError::Captures { apart, stacked });
            }
        };
        Ok(Self { apart, stacked, index, axis })
    }

    /// The registry with the members of each stack as one tensor, at the place of the first of them, and where each tensor
    /// comes from.
    ///
    /// # Errors
    /// Members that are missing, come twice or differ; names that are taken.
    pub fn stack(&self, registry: &Registry) -> Result<(Registry, Vec<Origin>), StackError> {
        let mut stacks: HashMap<TensorId, BTreeMap<u64, usize>> = HashMap::new();
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
        let mut done = (Registry::new(), Vec::new());
        for place in order {
            let (entry, sources) = match place {
                Err(at) => (registry.entries().get(at).cloned(), vec![at]),
                Ok(id) => {
                    let members = stacks.remove(&id).unwrap_or_default();
                    (Some(self.stacked(registry, id, &members)?), members.into_values().collect())
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
    /// A stack that lacks the dimension; names that are taken.
    pub fn unstack(&self, registry: &Registry) -> Result<(Registry, Vec<Origin>), StackError> {
        let mut done = (Registry::new(), Vec::new());
        for (at, entry) in registry.entries().iter().enumerate() {
            let Some(captures) = self.stacked.0.captures(entry.fqn.as_str()) else {
                done.0.push(entry.clone())?;
                done.1.push(Origin { sources: vec![at], slice: None });
                continue;
            };
            let none = || StackError::Axis { stack: entry.id(), shape: entry.shape.clone(), axis: self.axis };
            let count =
                entry.shape.get(self.axis).copied().filter(|n| *n <= MOST_MEMBERS).ok_or_else(none)?;
            for index in 0..count {
                let text = self.apart.1.fill_with(&captures, &self.index, &index.to_string());
                let name = |to: String| StackError::Name { from: entry.id(), to };
                let text = text.ok_or_else(|| name(self.apart.1.as_str().to_owned()))?;
                let fqn = Fqn::new(&text).map_err(|_| name(text))?;
                done.0.push(self.member(entry, fqn, index)?)?;
                done.1.push(Origin { sources: vec![at], slice: Some(index) });
            }
        }
        Ok(done)
    }

    /// The stack that `entry` belongs to, and its place there.
    fn stack_of(&self, entry: &Entry) -> Result<Option<(TensorId, u64)>, StackError> {
        let Some(captures) = self.apart.0.captures(entry.fqn.as_str()) else { return Ok(None) };
        let index = captures.get(&self.index).and_then(crate::fold::index_of);
        let (Some(index), Some(text)) = (index, self.stacked.1.fill(&captures)) else { return Ok(None) };
        let fqn = Fqn::new(&text).map_err(|_| StackError::Name { from: entry.id(), to: text })?;
        Ok(Some((TensorId { fqn, role: entry.role.clone() }, u64::from(index))))
    }

    fn stacked(
        &self,
        registry: &Registry,
        id: TensorId,
        members: &BTreeMap<u64, usize>,
    ) -> Result<Entry, StackError> {
        let each = || members.values().filter_map(|at| registry.entries().get(*at));
        if let Some(missing) = (0..).zip(members.keys()).find(|(at, index)| at != *index).map(|(at, _)| at) {
            let last = members.keys().next_back().copied().unwrap_or(0);
            return Err(StackError::Members { stack: id, last, missing });
        }
        let Some(first) = each().next() else {
            return Err(StackError::Members { stack: id, last: 0, missing: 0 });
        };
        let alike = |other: &&Entry| {
            other.shape == first.shape && other.dtype == first.dtype && other.fusion == first.fusion
        };
        if let Some(other) = each().find(|other| !alike(other)) {
            return Err(StackError::Unlike { first: first.id(), other: other.id() });
        }
        if self.axis > first.shape.rank() {
            return Err(StackError::Axis { stack: id, shape: first.shape.clone(), axis: self.axis });
        }
        let mut dims = crate::Dims::from_slice(&first.shape);
        dims.insert(self.axis, members.len() as u64);
        let mut entry = Entry::new(id.fqn, id.role, first.dtype, Shape::from(dims));
        let experts = self.index == "expert";
        (entry.layer, entry.expert) = if experts { (first.layer, None) } else { (None, first.expert) };
        entry.fusion.clone_from(&first.fusion);
        entry.fusion.iter_mut().filter(|part| part.axis >= self.axis).for_each(|part| part.axis += 1);
        entry.placement = first
            .placement
            .as_ref()
            .map(|rule| self.moved(rule, true))
            .transpose()
            .map_err(|source| StackError::Placement { id: entry.id(), source })?;
        Ok(entry)
    }

    fn member(&self, stack: &Entry, fqn: Fqn, index: u64) -> Result<Entry, StackError> {
        let mut dims = crate::Dims::from_slice(&stack.shape);
        dims.remove(self.axis);
        let mut entry = Entry::new(fqn, stack.role.clone(), stack.dtype, Shape::from(dims));
        let index = u32::try_from(index).ok();
        let experts = self.index == "expert";
        (entry.layer, entry.expert) = if experts { (stack.layer, index) } else { (index, stack.expert) };
        entry.fusion = stack.fusion.iter().filter(|part| part.axis != self.axis).cloned().collect();
        entry.fusion.iter_mut().filter(|part| part.axis > self.axis).for_each(|part| part.axis -= 1);
        entry.placement = stack
            .placement
            .as_ref()
            .map(|rule| self.moved(rule, false))
            .transpose()
            .map_err(|source| StackError::Placement { id: entry.id(), source })?;
        Ok(entry)
    }

    /// The rule with the dimension put in or taken out: what lies by its expert or layer is cut along the dimension, and the
    /// other way round. Other cuts of the dimension itself have no counterpart on members, and are left out.
    fn moved(&self, rule: &PlacementRule, into: bool) -> Result<PlacementRule, PlacementError> {
        let axis = self.axis;
        let shifted = |dim: usize| match into {
            true => Some(if dim >= axis { dim + 1 } else { dim }),
            false if dim == axis => None,
            false => Some(if dim > axis { dim - 1 } else { dim }),
        };
        let cuts = rule.cuts().iter();
        let mut cuts: Vec<AxisCut> =
            cuts.filter_map(|cut| Some(AxisCut { dim: shifted(cut.dim)?, ..cut.clone() })).collect();
        let mut stage = match rule.stage {
            StageRule::Layers(dim) => shifted(dim).map_or(StageRule::Layer, StageRule::Layers),
            other => other,
        };
        let mut expert = rule.expert_axis().cloned();
        if into && self.index == "layer" && stage == StageRule::Layer {
            stage = StageRule::Layers(axis);
        }
        if self.index == "expert" {
            if into {
                // Experts are shared out before anything cuts one of them.
                let first = expert.take().map(|name| AxisCut::from((name, axis)));
                cuts.splice(0..0, first);
            } else {
                let own = rule.cuts().iter().find(|cut| cut.dim == axis && cut.axes.len() == 1);
                expert = expert.or_else(|| own.and_then(|cut| cut.axes.first().cloned()));
            }
        }
        let rule = PlacementRule::new(cuts, stage)?;
        expert.map_or(Ok(rule.clone()), |axis| rule.of_expert(axis))
    }
}
