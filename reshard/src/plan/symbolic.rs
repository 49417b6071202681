//! [`Plan`]: meshes, rules and identities, never lists of moves. Whoever runs it derives moves tensor by tensor, so a plan
//! for two million chunks is a few kilobytes and every worker derives the same.

use fqn::{PlacementRule, Registry, TensorId};
use serde::{Deserialize, Serialize};

use super::Cost;
use crate::{Layout, LayoutError, Mesh, StageSplit};

/// Version of the plan's JSON. A reader refuses others.
pub const PLAN_VERSION: u32 = 2;

/// The placement rule of one tensor, as the plan applies it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorRule {
    /// The tensor.
    pub tensor: TensorId,
    /// Its rule.
    pub rule: PlacementRule,
}

/// What to reshard, from what to what.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// [`PLAN_VERSION`].
    pub version: u32,
    /// Identity of the source: the digest of its catalog, as text.
    pub source: String,
    /// Id of the attempt: names the target's folder, so that a resumed plan finds its own.
    pub attempt: String,
    /// Mesh the source was laid out for, where it is known.
    pub from: Option<Mesh>,
    /// Mesh to lay the target out for.
    pub to: Mesh,
    /// How layers split over the target's stages.
    pub stage_split: StageSplit,
    /// The rule of every tensor, in the registry's order.
    pub rules: Vec<TensorRule>,
    /// What it takes.
    pub cost: Cost,
}

impl Plan {
    /// The canonical text that a plan's digest is taken of: compact JSON without the cost, which follows from the rest.
    ///
    /// # Errors
    /// None in practice: every field has a JSON form.
    pub fn digest_text(&self) -> serde_json::Result<String> {
        let Self { version, source, attempt, from, to, stage_split, rules, cost: _ } = self;
        serde_json::to_string(&(version, source, attempt, from, to, stage_split, rules))
    }

    /// The target's layout: the plan's rules put on `registry`, which is the source's.
    ///
    /// # Errors
    /// As [`Layout::new`]; a tensor for which the plan has no rule counts as one without.
    pub fn layout(&self, registry: &Registry) -> Result<Layout, LayoutError> {
        let rules: std::collections::HashMap<_, _> =
            self.rules.iter().map(|r| (&r.tensor, &r.rule)).collect();
        let mut ruled = Registry::new();
        for entry in registry.entries() {
            let placement = rules.get(&entry.id()).map(|rule| (*rule).clone());
            // Ids stay as they are, so that no push can fail.
            let _ = ruled.push(fqn::Entry { placement, ..entry.clone() });
        }
        Layout::new(&ruled, &self.to, &self.stage_split)
    }
}
