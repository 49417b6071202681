//! Application of rules to a registry: all of it, or nothing and the names that are in the way.

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use super::{ModelFacts, Rule, Rules, RulesError, Uncovered};
use crate::{Entry, Fqn, FusionPart, PlacementRule, Registry, Role, Shape, StageRule, fold};

/// What an application did.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Applied {
    /// Tensors that a rule placed.
    pub placed: usize,
    /// Optimizer slots that took their parameter's rule.
    pub followed: usize,
    /// Scalars and tensors of no parameter, replicated.
    pub replicated: usize,
    /// Names changed by rename rules, before and after.
    pub renamed: Vec<(Fqn, Fqn)>,
}

impl Rules {
    /// Renames by the rename rules, then places every tensor and notes its layer and expert.
    ///
    /// # Errors
    /// Names that no rule covers (all are listed, each with the nearest rule); a rule that doesn't fit its tensor.
    /// The registry is unchanged then.
    pub fn apply(&self, registry: &mut Registry) -> Result<Applied, RulesError> {
        self.apply_with(registry, &ModelFacts::default())
    }

    /// [`Self::apply`] for rules whose fused parts are as wide as numbers of the model.
    ///
    /// # Errors
    /// As [`Self::apply`]; parts that need a number which `facts` lacks, or that don't divide their tensor.
    pub fn apply_with(&self, registry: &mut Registry, facts: &ModelFacts) -> Result<Applied, RulesError> {
        let mut next = registry.clone();
        let mut applied = Applied { renamed: self.rename(&mut next)?, ..Applied::default() };
        let model = Model::of(self, &next);
        let mut uncovered = Vec::new();
        let mut places = Vec::with_capacity(next.len());
        for entry in next.entries() {
            match model.place(entry, &mut applied)? {
                Some(place) => places.push((place, model.fusion(entry, facts)?)),
                None => {
                    uncovered.push(Uncovered { id: entry.id(), nearest: self.nearest(entry.fqn.as_str()) });
                }
            }
        }
        if !uncovered.is_empty() {
            return Err(RulesError::Uncovered(uncovered));
        }
        let mut places = places.into_iter();
        next.edit(|entry| {
            if let Some((place, fusion)) = places.next() {
                entry.placement = Some(place);
                if !fusion.is_empty() {
                    entry.fusion = fusion;
                }
            }
            entry.layer = entry.layer.or_else(|| fold::layer_of(entry.fqn.as_str()));
            entry.expert = entry.expert.or_else(|| fold::expert_of(entry.fqn.as_str()));
        })?;
        *registry = next;
        Ok(applied)
    }

    fn rename(&self, registry: &mut Registry) -> Result<Vec<(Fqn, Fqn)>, RulesError> {
        let mut names: HashMap<Fqn, Fqn> = HashMap::new();
        let mut order = Vec::new();
        for entry in registry.entries().iter().filter(|e| e.role != Role::Other && !self.renames.is_empty()) {
            if names.contains_key(&entry.fqn) {
                continue;
            }
            let Some(to) =
                self.renames.iter().find_map(|r| r.to.fill(&r.pattern.captures(entry.fqn.as_str())?))
            else {
                continue;
            };
            let new = Fqn::new(&to).map_err(|e| RulesError::Rename {
                from: entry.fqn.clone(),
                to,
                why: e.to_string(),
            })?;
            names.insert(entry.fqn.clone(), new.clone());
            order.push((entry.fqn.clone(), new));
        }
        registry.edit(|entry| {
            if let Some(new) = names.get(&entry.fqn).filter(|_| entry.role != Role::Other) {
                entry.fqn = new.clone();
            }
            if let Some(new) = entry.tie.as_ref().and_then(|tie| names.get(tie)) {
                entry.tie = Some(new.clone());
            }
        })?;
        Ok(order)
    }

    /// The rule whose pattern is most like `name`, indices apart.
    fn nearest(&self, name: &str) -> Option<String> {
        let like = |rule: &Rule| strsim::jaro_winkler(rule.pattern.as_str(), name);
        let best = self.rules.iter().max_by(|a, b| like(a).total_cmp(&like(b)))?;
        Some(best.pattern.to_string())
    }
}

/// What placing needs to know of the whole registry.
struct Model<'a> {
    rules: &'a Rules,
    /// Rule and shape of every parameter and buffer.
    of: HashMap<&'a Fqn, (Option<&'a Rule>, &'a Shape)>,
    /// Tensors that are tied by the registry, or by the lack of an output head.
    tied: HashSet<&'a Fqn>,
}

impl<'a> Model<'a> {
    fn of(rules: &'a Rules, registry: &'a Registry) -> Self {
        let model = || registry.entries().iter().filter(|e| e.role.is_model());
        let of: HashMap<_, _> =
            model().map(|e| (&e.fqn, (rules.rule_for(e.fqn.as_str()), &e.shape))).collect();
        let head = rules.preset.as_ref().and_then(|p| p.head.as_ref());
        let headless = head.is_some_and(|head| !model().any(|e| head.matches(e.fqn.as_str())));
        let tied = model().filter(|e| headless || e.tie.is_some()).map(|e| &e.fqn).collect();
        Self { rules, of, tied }
    }

    /// The fused parts of a parameter, and of the slots that have its shape.
    fn fusion(&self, entry: &Entry, facts: &ModelFacts) -> Result<Vec<FusionPart>, RulesError> {
        let rule =
            self.of.get(&entry.fqn).filter(|(_, shape)| **shape == entry.shape).and_then(|(rule, _)| *rule);
        rule.filter(|_| entry.role != Role::Other).map_or(Ok(Vec::new()), |rule| rule.fusion(entry, facts))
    }

    /// `None` where no rule covers the tensor.
    fn place(&self, entry: &Entry, applied: &mut Applied) -> Result<Option<PlacementRule>, RulesError> {
        if entry.role == Role::Other || (entry.role.is_optimizer() && entry.shape.rank() == 0) {
            applied.replicated += 1;
            return Ok(Some(PlacementRule::default()));
        }
        let (rule, parameter) = match self.of.get(&entry.fqn) {
            Some(&(rule, shape)) => (rule, shape),
            None => (self.rules.rule_for(entry.fqn.as_str()), &entry.shape),
        };
        let Some(rule) = rule else { return Ok(None) };
        let place = rule.tied.as_ref().filter(|_| self.tied.contains(&entry.fqn)).unwrap_or(&rule.place);
        if entry.role.is_optimizer() && *parameter != entry.shape {
            // A factored slot (row or column statistics) has no cut that follows from its parameter's.
            let mut place = place.uncut();
            if let StageRule::Layers(dim) = place.stage
                && entry.shape.get(dim) != parameter.get(dim)
            {
                place.stage = StageRule::All;
            }
            check(entry, rule, &place)?;
            applied.replicated += 1;
            return Ok(Some(place));
        }
        check(entry, rule, place)?;
        *(if entry.role.is_optimizer() { &mut applied.followed } else { &mut applied.placed }) += 1;
        Ok(Some(place.clone()))
    }
}

fn check(entry: &Entry, rule: &Rule, place: &PlacementRule) -> Result<(), RulesError> {
    let pattern = || rule.pattern.to_string();
    let layers = if let StageRule::Layers(dim) = place.stage { Some(dim) } else { None };
    let mut dims = place.cuts().iter().map(|cut| cut.dim).chain(layers);
    if let Some(dim) = dims.find(|dim| *dim >= entry.shape.rank()) {
        let (place, shape) = (place.to_string(), Box::new(entry.shape.clone()));
        return Err(RulesError::NoDimension { id: entry.id(), rule: pattern(), place, shape, dim });
    }
    let layer = entry.layer.or_else(|| fold::layer_of(entry.fqn.as_str()));
    if place.stage == StageRule::Layer && layer.is_none() {
        return Err(RulesError::NoLayer { id: entry.id(), rule: pattern() });
    }
    if place.expert_axis().is_some() && entry.expert.or_else(|| fold::expert_of(entry.fqn.as_str())).is_none()
    {
        return Err(RulesError::NoExpert { id: entry.id(), rule: pattern() });
    }
    Ok(())
}
