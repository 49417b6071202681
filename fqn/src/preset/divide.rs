//! What a mesh must divide: constraints on axis sizes, from rules, shapes and facts. `reshard` checks a mesh by them.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{ModelFacts, Parts, Rule, Rules, Unit};
use crate::{AxisName, Entry, Fqn, Registry, Role, StageRule, fold};

/// The size of `axis` must divide `count`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Constraint {
    /// Axis of a mesh.
    pub axis: AxisName,
    /// What is counted.
    pub unit: Unit,
    /// How many there are: heads, or elements where heads are unknown.
    pub count: u64,
    /// A tensor that it is for.
    pub example: Fqn,
    /// The count of heads is not known: `count` is elements, and a mesh that passes may still cut a head.
    pub approximate: bool,
}

/// A mesh that does not divide the model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{axis}={size} does not divide the model's {count} {}: {example} cannot be cut so; use a divisor of {count}", unit.text())]
pub struct Indivisible {
    /// Axis.
    pub axis: AxisName,
    /// Its size.
    pub size: u64,
    /// What is counted.
    pub unit: Unit,
    /// How many there are.
    pub count: u64,
    /// A tensor that it is for.
    pub example: Fqn,
}

impl Unit {
    /// Name in rules files, of those that have one.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Heads => "heads",
            Self::KvHeads => "kv_heads",
            Self::Ffn => "ffn",
            Self::ExpertFfn => "expert_ffn",
            Self::Vocab => "vocab",
            Self::Experts => "experts",
            Self::Blocks => "blocks",
            Self::Layers => "layers",
        }
    }

    /// The unit that a rules file calls `text`. Layers are no cut's.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let widths = [Self::Heads, Self::KvHeads, Self::Ffn, Self::ExpertFfn, Self::Vocab];
        widths.into_iter().chain([Self::Experts, Self::Blocks]).find(|unit| unit.name() == text)
    }

    /// Plural noun for messages.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Heads => "heads",
            Self::KvHeads => "KV heads",
            Self::Ffn => "feed-forward columns",
            Self::ExpertFfn => "feed-forward columns of an expert",
            Self::Vocab => "vocabulary rows",
            Self::Experts => "experts",
            Self::Blocks => "blocks of scales",
            Self::Layers => "layers",
        }
    }
}

impl Constraint {
    /// Checks a size of the axis.
    ///
    /// # Errors
    /// A size that does not divide the count.
    pub fn check(&self, size: u64) -> Result<(), Indivisible> {
        if size > 0 && self.count.is_multiple_of(size) {
            return Ok(());
        }
        let (axis, example) = (self.axis.clone(), self.example.clone());
        Err(Indivisible { axis, size, unit: self.unit, count: self.count, example })
    }
}

impl Rules {
    /// What a mesh must divide, one constraint per axis, unit and count, in stable order.
    #[must_use]
    pub fn constraints(&self, registry: &Registry, facts: &ModelFacts) -> Vec<Constraint> {
        let mut found = Found { facts, of: BTreeMap::new() };
        let experts = experts(self, registry);
        let mut layer = None;
        for entry in registry.entries().iter().filter(|e| e.role == Role::Param) {
            let Some(rule) = self.rule_for(entry.fqn.as_str()) else { continue };
            if rule.place.stage == StageRule::Layer {
                layer.get_or_insert_with(|| entry.fqn.clone());
            }
            found.cut(rule, entry);
            found.experts(rule, entry, experts);
        }
        let layers = layer.zip(facts.layers).and_then(|(example, count)| {
            let axis = AxisName::new("pp").ok()?;
            Some(Constraint { axis, unit: Unit::Layers, count, example, approximate: false })
        });
        found.of.into_values().chain(layers).collect()
    }
}

/// Experts that tensors of their own name: one more than the highest index.
pub(super) fn experts(rules: &Rules, registry: &Registry) -> Option<u64> {
    let named = |entry: &Entry| {
        rules.rule_for(entry.fqn.as_str())?.place.expert_axis().and(fold::expert_of(entry.fqn.as_str()))
    };
    let params = registry.entries().iter().filter(|entry| entry.role == Role::Param);
    params.filter_map(named).max().map(|last| u64::from(last) + 1)
}

struct Found<'a> {
    facts: &'a ModelFacts,
    of: BTreeMap<(AxisName, Unit, u64), Constraint>,
}

impl Found<'_> {
    /// What the cut that the rule counts in must divide, and, for fused parts, what each of them must.
    fn cut(&mut self, rule: &Rule, entry: &Entry) {
        for unit in rule.parts.iter().flat_map(Parts::units) {
            if let (Some((axis, _)), Some(count)) = (rule.cut_over("tp"), self.facts.count_of(unit)) {
                self.add(axis, unit, count, entry, false);
            }
        }
        let cut = rule.unit_cut().and_then(|(axis, dim)| Some((axis, part_extent(entry, dim)?)));
        let (Some(unit), Some((axis, extent))) = (rule.divides, cut) else { return };
        let known = match unit {
            Unit::Heads => self.facts.heads,
            Unit::KvHeads => self.facts.kv_heads,
            Unit::Vocab => return,
            Unit::Ffn | Unit::ExpertFfn | Unit::Experts | Unit::Blocks | Unit::Layers => Some(extent),
        };
        self.add(axis, unit, known.unwrap_or(extent), entry, known.is_none());
    }

    /// Experts over their axis: the extent that it cuts, or the tensors that it shares out.
    fn experts(&mut self, rule: &Rule, entry: &Entry, named: Option<u64>) {
        let stacked = rule.cut_over("ep").and_then(|(axis, dim)| Some((axis, *entry.shape.get(dim)?)));
        // A cut of dp and ep as one is data parallelism.
        let stacked = stacked.filter(|_| {
            rule.place
                .cuts()
                .iter()
                .any(|cut| cut.axes.len() == 1 && cut.axes.iter().any(|a| a.as_str() == "ep"))
        });
        let apart = rule.place.expert_axis().zip(named);
        if let Some((axis, count)) = stacked.or(apart) {
            self.add(axis, Unit::Experts, count, entry, false);
        }
    }

    fn add(&mut self, axis: &AxisName, unit: Unit, count: u64, entry: &Entry, approximate: bool) {
        self.of.entry((axis.clone(), unit, count)).or_insert_with(|| Constraint {
            axis: axis.clone(),
            unit,
            count,
            example: entry.fqn.clone(),
            approximate,
        });
    }
}

/// What a cut of dimension `dim` must divide: its extent, or what divides every fused part of it.
pub(super) fn part_extent(entry: &Entry, dim: usize) -> Option<u64> {
    let parts = entry.fusion.iter().filter(|part| part.axis == dim).map(|part| part.extent);
    let common = parts.reduce(crate::region::gcd);
    common.or_else(|| entry.shape.get(dim).copied())
}
