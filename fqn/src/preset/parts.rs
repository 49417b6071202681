//! [`Parts`]: the fused parts of a tensor as a rule declares them, so that a tensor-parallel cut falls inside each.
//!
//! Text: `gate,up` are equal parts, `z=8,x=8,dt=1` parts in proportion, `q=heads,k=kv_heads,v=kv_heads` parts by a number of
//! the model. They follow each other along the dimension that the rule's tp cut is on.

use std::{fmt, str::FromStr};

use super::{ModelFacts, Rule, RulesError, Unit};
use crate::{Entry, FusionPart};

/// Named parts in order, each with what it counts for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parts(Vec<(String, Weight)>);

/// What a part counts for, relative to the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Weight {
    Count(u64),
    Of(Unit),
}

impl Parts {
    /// Numbers of the model that the parts are counted in.
    pub(super) fn units(&self) -> impl Iterator<Item = Unit> + '_ {
        self.0.iter().filter_map(|(_, weight)| if let Weight::Of(unit) = weight { Some(*unit) } else { None })
    }

    /// Parts of a dimension of `extent` elements.
    fn of(&self, axis: usize, extent: u64, facts: &ModelFacts) -> Result<Vec<FusionPart>, String> {
        let weights = self.0.iter().map(|(name, weight)| match weight {
            Weight::Count(count) => Ok((name, *count)),
            Weight::Of(unit) => {
                let known = facts.count_of(*unit).ok_or_else(|| {
                    format!("part {name} is as wide as the number of {}, which is not known", unit.text())
                })?;
                Ok((name, known))
            }
        });
        let weights = weights.collect::<Result<Vec<_>, String>>()?;
        let total = weights.iter().try_fold(0_u64, |sum, (_, weight)| sum.checked_add(*weight));
        let each =
            total.filter(|total| *total > 0 && extent.is_multiple_of(*total)).map(|total| extent / total);
        let each = each.ok_or_else(|| format!("{self} do not divide {extent} in proportion"))?;
        // No product exceeds the extent.
        Ok(weights
            .into_iter()
            .map(|(name, weight)| FusionPart { name: name.clone(), axis, extent: weight * each })
            .collect())
    }
}

impl Rule {
    /// The fused parts that the rule gives `entry`; none where it declares none or the registry has its own.
    pub(super) fn fusion(&self, entry: &Entry, facts: &ModelFacts) -> Result<Vec<FusionPart>, RulesError> {
        let declared = self.parts.as_ref().filter(|_| entry.fusion.is_empty());
        let cut = self.cut_over("tp").and_then(|(_, dim)| Some((dim, *entry.shape.get(dim)?)));
        let (Some(parts), Some((dim, extent))) = (declared, cut) else { return Ok(Vec::new()) };
        parts.of(dim, extent, facts).map_err(|why| RulesError::Parts {
            id: entry.id(),
            rule: self.pattern.to_string(),
            why,
        })
    }
}

impl FromStr for Parts {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts: Vec<(String, Weight)> = Vec::new();
        for part in text.split(',').map(str::trim) {
            let (name, weight) = part.split_once('=').unwrap_or((part, "1"));
            let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
            if name.is_empty() || !name.bytes().all(fits) || parts.iter().any(|(other, _)| other == name) {
                return Err(format!(
                    "{:?} is no name of a part, or comes twice",
                    name.escape_default().to_string()
                ));
            }
            let weight = match (weight.parse::<u64>(), Unit::parse(weight)) {
                (Ok(count @ 1..), _) => Weight::Count(count),
                (_, Some(unit @ (Unit::Heads | Unit::KvHeads))) => Weight::Of(unit),
                _ => return Err(format!("part {name} is neither a number nor heads or kv_heads wide")),
            };
            parts.push((name.to_owned(), weight));
        }
        Ok(Self(parts))
    }
}

impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.iter().map(|(name, weight)| match weight {
            Weight::Count(1) => name.clone(),
            Weight::Count(count) => format!("{name}={count}"),
            Weight::Of(unit) => format!("{name}={}", unit.name()),
        });
        f.pad(&text.collect::<Vec<_>>().join(","))
    }
}
