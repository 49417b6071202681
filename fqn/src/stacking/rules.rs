//! Placement rules for the tensors of the other side: what a rule says of members follows for their stack, and the other way round.

use std::collections::{BTreeMap, BTreeSet};

use super::{StackError, Stacking, Way};
use crate::{
    Fqn, Registry,
    pattern::{Captures, Pattern},
    preset::{Rule, Rules},
};

/// Captures that number tensors: a rule is for all of them.
const NUMBERS: [&str; 2] = ["layer", "expert"];

impl Stacking {
    /// Rules for the tensors that this way makes of those in `registry`, as `rules` has them for what they are made of. One for all
    /// layers and experts where all have the same.
    ///
    /// # Errors
    /// A placement that has no counterpart.
    pub fn rules(&self, way: Way, registry: &Registry, rules: &Rules) -> Result<Vec<Rule>, StackError> {
        let mut lines: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
        let mut names: BTreeMap<String, (String, Fqn, usize)> = BTreeMap::new();
        for entry in registry.entries().iter().filter(|entry| entry.role.is_model()) {
            let name = entry.fqn.as_str();
            let rule = rules.rules.iter().position(|rule| rule.pattern.matches(name));
            let made = rule.and_then(|rule| Some((rule, self.made(way, name)?)));
            let Some((rule, (all, own))) = made else { continue };
            lines.entry(all.clone()).or_default().insert(rule);
            names.entry(own).or_insert_with(|| (all, entry.fqn.clone(), rule));
        }
        let mut found: BTreeMap<String, (Fqn, usize)> = BTreeMap::new();
        for (own, (all, from, rule)) in names {
            let same = lines.get(&all).is_some_and(|rules| rules.len() == 1);
            found.entry(if same { all } else { own }).or_insert((from, rule));
        }
        let made = found.into_iter().filter_map(|(pattern, (from, rule))| {
            let pattern = Pattern::new(&pattern).ok()?;
            Some(self.rule(way, &from, pattern, rules.rules.get(rule)?))
        });
        made.collect()
    }

    /// What a tensor called `name` becomes: with every number left open, and with those that its name gives. Without a name for
    /// what is not concerned.
    fn made(&self, way: Way, name: &str) -> Option<(String, String)> {
        let (captures, to) = match way {
            Way::Stack => {
                (self.apart.0.captures(name).filter(|_| self.concerns(way, name))?, &self.stacked.1)
            }
            Way::Unstack => (self.stack_captures(name)?, &self.apart.1),
        };
        let open = |captures: &Captures<'_>, numbers: &[&str]| {
            to.filled(|hole| if numbers.contains(&hole) { Some("*") } else { captures.get(hole) })
        };
        Some((open(&captures, &NUMBERS)?, open(&captures, &[self.index.name()])?))
    }

    fn rule(&self, way: Way, from: &Fqn, pattern: Pattern, rule: &Rule) -> Result<Rule, StackError> {
        let place = self.moved(&rule.place, way == Way::Stack);
        let place = place.map_err(|source| {
            let id = crate::TensorId { fqn: from.clone(), role: crate::Role::Param };
            StackError::Placement { id, source }
        })?;
        // What is tied is in no stack.
        Ok(Rule { pattern, place, tied: None, ..rule.clone() })
    }
}
