//! [`ModelFacts`]: the few numbers of a model that a mesh must divide, given or inferred from shapes.

use serde::{Deserialize, Serialize};

use super::{
    Rules, Unit,
    divide::{experts, part_extent},
};
use crate::{Entry, Fqn, Registry, Role, fold};

/// Numbers of a model. `None` is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelFacts {
    /// Query heads.
    pub heads: Option<u64>,
    /// Key and value heads.
    pub kv_heads: Option<u64>,
    /// Elements of a head.
    pub head_dim: Option<u64>,
    /// Width of the residual stream.
    pub hidden: Option<u64>,
    /// Width of the feed-forward layer.
    pub ffn: Option<u64>,
    /// Rows of the embedding.
    pub vocab: Option<u64>,
    /// Layers.
    pub layers: Option<u64>,
    /// Layers of multi-token prediction. Published checkpoints hold them after the others, and count them apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_layers: Option<u64>,
    /// Experts of a layer.
    pub experts: Option<u64>,
}

/// Why facts do not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FactError {
    /// A given number and a shape disagree.
    #[error("{what} is given as {given}, but {fqn} says {found}")]
    Disagrees {
        /// Which number.
        what: &'static str,
        /// As given.
        given: u64,
        /// As the shape says.
        found: u64,
        /// Tensor that says so.
        fqn: Fqn,
    },
    /// Rows that the heads don't split.
    #[error("{fqn} has extent {extent} over {what}, which {count} does not divide")]
    Uneven {
        /// Which count.
        what: &'static str,
        /// The count.
        count: u64,
        /// Extent that it should divide.
        extent: u64,
        /// Tensor.
        fqn: Fqn,
    },
}

impl ModelFacts {
    /// Facts from a model's configuration: the keys of Hugging Face's `config.json` or of Meta's `params.json`.
    /// Keys that are absent stay unknown.
    #[must_use]
    pub fn from_config(config: &serde_json::Value) -> Self {
        let nested = config.get("text_config").filter(|c| c.is_object()).unwrap_or(config);
        let number = |keys: &[&str]| keys.iter().find_map(|key| nested.get(key)?.as_u64());
        let heads = number(&["num_attention_heads", "n_head", "n_heads"]);
        let hidden = number(&["hidden_size", "n_embd", "dim"]);
        // Heads of latent attention have several sizes, and none of them is the hidden size shared out.
        let latent = nested.get("kv_lora_rank").is_some_and(serde_json::Value::is_u64);
        let derived = heads.zip(hidden).filter(|(h, d)| *h > 0 && d.is_multiple_of(*h)).map(|(h, d)| d / h);
        Self {
            heads,
            // Both formats mean "as many as query heads" by leaving it out.
            kv_heads: number(&["num_key_value_heads", "n_kv_heads"]).or(heads),
            head_dim: number(&["head_dim"]).or(derived).filter(|_| !latent),
            hidden,
            ffn: number(&["intermediate_size", "n_inner"]),
            vocab: number(&["vocab_size"]),
            layers: number(&["num_hidden_layers", "n_layer", "n_layers"]),
            next_layers: number(&["num_nextn_predict_layers"]),
            experts: number(&["num_local_experts", "n_routed_experts", "num_experts"]),
        }
    }

    /// Adds what the shapes of `registry` say by the classes of `rules`, and checks what is given against them.
    /// Head counts are not in shapes: they stay unknown unless one of them or the head size is given.
    ///
    /// # Errors
    /// A given number that a shape contradicts. A vocabulary given smaller than the embedding is padding, and fine.
    pub fn inferred(mut self, rules: &Rules, registry: &Registry) -> Result<Self, FactError> {
        let (q, kv) = (extent(rules, registry, Unit::Heads), extent(rules, registry, Unit::KvHeads));
        if let (None, Some(heads), Some((rows, _))) = (self.head_dim, self.heads, &q) {
            self.head_dim = Some(heads).filter(|h| *h > 0 && rows.is_multiple_of(*h)).map(|h| rows / h);
        }
        self.heads = counted(self.heads, self.head_dim, q.as_ref(), "heads")?;
        self.kv_heads = counted(self.kv_heads, self.head_dim, kv.as_ref(), "KV heads")?;
        self.ffn = stated(self.ffn, extent(rules, registry, Unit::Ffn), "ffn")?;
        self.experts = stated(self.experts, experts_of(rules, registry), "experts")?;
        self.vocab = self.vocab.or(extent(rules, registry, Unit::Vocab).map(|(rows, _)| rows));
        let last =
            registry.entries().iter().filter_map(|e| Some((fold::layer_of(e.fqn.as_str())?, &e.fqn))).max();
        let last = last.map(|(at, fqn)| (u64::from(at) + 1, fqn.clone()));
        self.layers = stated(self.layers_with_next(last.as_ref()), last, "layers")?;
        Ok(self)
    }

    /// The given number of layers, with those of multi-token prediction where the names hold them.
    fn layers_with_next(&self, found: Option<&(u64, Fqn)>) -> Option<u64> {
        let all = self.layers?.checked_add(self.next_layers.unwrap_or(0));
        all.filter(|all| found.is_some_and(|(found, _)| found == all)).or(self.layers)
    }
}

impl ModelFacts {
    /// The count of a unit, where it is a number of the model.
    pub(super) const fn count_of(&self, unit: Unit) -> Option<u64> {
        match unit {
            Unit::Heads => self.heads,
            Unit::KvHeads => self.kv_heads,
            Unit::Ffn => self.ffn,
            Unit::Vocab => self.vocab,
            Unit::Experts => self.experts,
            Unit::Layers => self.layers,
            Unit::ExpertFfn | Unit::Blocks => None,
        }
    }
}

/// Experts of a stacked tensor, else those that tensors of their own name.
fn experts_of(rules: &Rules, registry: &Registry) -> Option<(u64, Fqn)> {
    extent(rules, registry, Unit::Experts).or_else(|| {
        let count = experts(rules, registry)?;
        let last =
            |entry: &&Entry| fold::expert_of(entry.fqn.as_str()).map(|at| u64::from(at) + 1) == Some(count);
        Some((count, registry.entries().iter().find(last)?.fqn.clone()))
    })
}

/// Extent that the unit's cut sees: of the first parameter, in a rule of that unit.
fn extent(rules: &Rules, registry: &Registry, unit: Unit) -> Option<(u64, Fqn)> {
    registry.entries().iter().filter(|e| e.role == Role::Param).find_map(|entry| {
        let counts = |rule: &&super::Rule| rule.divides == Some(unit) && !counted_in_parts(rule);
        let rule = rules.rule_for(entry.fqn.as_str()).filter(counts)?;
        let (_, dim) = rule.unit_cut()?;
        Some((part_extent(entry, dim)?, entry.fqn.clone()))
    })
}

/// Whether the dimension is shared out by numbers of the model: its extent alone then tells none of them.
fn counted_in_parts(rule: &super::Rule) -> bool {
    rule.parts.as_ref().is_some_and(|parts| parts.units().next().is_some())
}

fn stated(
    given: Option<u64>,
    found: Option<(u64, Fqn)>,
    what: &'static str,
) -> Result<Option<u64>, FactError> {
    match (given, found) {
        (Some(given), Some((found, fqn))) if given != found => {
            Err(FactError::Disagrees { what, given, found, fqn })
        }
        (given, found) => Ok(given.or(found.map(|(value, _)| value))),
    }
}

fn counted(
    given: Option<u64>,
    head_dim: Option<u64>,
    extent: Option<&(u64, Fqn)>,
    what: &'static str,
) -> Result<Option<u64>, FactError> {
    let Some((extent, fqn)) = extent else { return Ok(given) };
    let (extent, fqn) = (*extent, fqn.clone());
    if let Some(count) = given.filter(|&count| count == 0 || !extent.is_multiple_of(count)) {
        return Err(FactError::Uneven { what, count, extent, fqn });
    }
    let found =
        head_dim.filter(|&size| size > 0 && extent.is_multiple_of(size)).map(|size| (extent / size, fqn));
    stated(given, found, what)
}
