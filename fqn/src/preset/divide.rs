//! What a mesh must divide: constraints on axis sizes, from rules, shapes and facts. `reshard` checks a mesh by them.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{ModelFacts, Rules, Unit};
use crate::{AxisName, Fqn, Registry, Role, StageRule};

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
    /// Plural noun for messages.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Heads => "heads",
            Self::KvHeads => "KV heads",
            Self::Ffn => "feed-forward columns",
            Self::Vocab => "vocabulary rows",
            Self::Experts => "experts",
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
        let mut found: BTreeMap<(AxisName, Unit, u64), Constraint> = BTreeMap::new();
        let mut layer = None;
        for entry in registry.entries().iter().filter(|e| e.role == Role::Param) {
            let Some(rule) = self.rule_for(entry.fqn.as_str()) else { continue };
            if rule.place.stage == StageRule::Layer {
                layer.get_or_insert_with(|| entry.fqn.clone());
            }
            let cut = rule.unit_cut().and_then(|(axis, dim)| Some((axis, *entry.shape.get(dim)?)));
            let (Some(unit), Some((axis, extent))) = (rule.divides, cut) else { continue };
            let known = match unit {
                Unit::Heads => facts.heads,
                Unit::KvHeads => facts.kv_heads,
                Unit::Vocab => continue,
                Unit::Ffn | Unit::Experts | Unit::Layers => Some(extent),
            };
            let count = known.unwrap_or(extent);
            found.entry((axis.clone(), unit, count)).or_insert_with(|| Constraint {
                axis: axis.clone(),
                unit,
                count,
                example: entry.fqn.clone(),
                approximate: known.is_none(),
            });
        }
        let layers = layer.zip(facts.layers).and_then(|(example, count)| {
            let axis = AxisName::new("pp").ok()?;
            Some(Constraint { axis, unit: Unit::Layers, count, example, approximate: false })
        });
        found.into_values().chain(layers).collect()
    }
}
