//! Placement for the names of a checkpoint: from the checkpoint itself, a preset, a rules file, single rules.
//!
//! Later sources win: what the checkpoint records, then the preset (named, or detected from the names), then the
//! rules file, then single rules. A tensor that nothing covers is an error only where a mesh of several ranks needs
//! its placement; [`name`] reports it then, naming the nearest rule.

use std::borrow::Cow;

use fqn::{
    Registry,
    preset::{self, ModelFacts, Rules, RulesError},
};
use reshard::{Divisibility, Mesh, check_divisibility};

use crate::{Error, ErrorKind, Result};

/// What the user says of names.
#[derive(Debug, Clone, Default)]
pub struct NamingRequest {
    /// Preset by name; detected where `None`.
    pub preset: Option<String>,
    /// Text of a rules file.
    pub rules: Option<String>,
    /// Single rules, `GLOB=PLACEMENT`.
    pub place: Vec<String>,
    /// Numbers of the model that shapes do not tell.
    pub facts: ModelFacts,
    /// Rules in place of those that a preset has: what [`super::restack`] made of them.
    pub base: Option<Base>,
}

/// Rules that others came before, and where they came from, for people.
#[derive(Debug, Clone)]
pub struct Base {
    /// The rules.
    pub rules: Rules,
    /// As [`Named::origin`].
    pub origin: String,
}

/// What names came to.
#[derive(Debug, Clone)]
pub struct Named {
    /// The registry, with placement where a rule says so.
    pub registry: Registry,
    /// Rules in force, for what a mesh must divide.
    pub rules: Option<Rules>,
    /// Numbers of the model, given and inferred.
    pub facts: ModelFacts,
    /// Where placement came from, for people.
    pub origin: String,
    /// Why there is no placement, where there is none.
    uncovered: Option<RulesError>,
}

/// Places the tensors of `registry`.
///
/// # Errors
/// `Incompatible`: an unknown preset, rules that are none, facts that shapes contradict.
pub fn name(registry: &Registry, request: &NamingRequest) -> Result<Named> {
    let own = Some(own_rules(request)?).filter(places);
    let (base, origin) = base_rules(registry, request)?;
    let explicit = own.is_some() || request.preset.is_some();
    let recorded = registry.entries().iter().any(|entry| entry.placement.is_some());
    let origin = match (&own, origin.as_str()) {
        (Some(_), "") => "the rules given".to_owned(),
        (Some(_), base) => format!("the rules given, then {base}"),
        (None, _) => origin,
    };
    let rules = match (own, base) {
        (Some(own), Some(base)) => Some(own.before(base.into_owned())),
        (own, base) => own.or_else(|| base.map(Cow::into_owned)),
    };
    let mut registry = registry.clone();
    let mut uncovered = None;
    let origin = match &rules {
        _ if recorded && !explicit => "recorded in the checkpoint".to_owned(),
        None => "none: no preset fits the names".to_owned(),
        Some(rules) => {
            uncovered = rules.apply_with(&mut registry, &request.facts).err();
            origin
        }
    };
    let facts = match &rules {
        Some(rules) => {
            request.facts.inferred(rules, &registry).map_err(|e| Error::incompatible(e.to_string()))?
        }
        None => request.facts,
    };
    if let (true, Some(error)) = (explicit, &uncovered) {
        return Err(Error::incompatible(error.to_string()).hint(
            "rules that are given must fit every tensor; later --place rules win, see `ckpt help placement`",
        ));
    }
    Ok(Named { registry, rules, facts, origin, uncovered })
}

impl Named {
    /// Checks that the model lies on `mesh`: every tensor is placed, and heads, KV heads, feed-forward width,
    /// experts and layers divide.
    ///
    /// # Errors
    /// `Incompatible`, with meshes near by that fit, or the names that no rule covers.
    pub fn check_mesh(&self, mesh: &Mesh) -> Result<()> {
        if mesh.ranks() == 1 {
            return Ok(());
        }
        if let Some(error) = &self.uncovered {
            return Err(Error::incompatible(error.to_string()).hint(
                "give placement with --rules FILE or --place 'GLOB=tp:0,dp:0', see `ckpt help placement`",
            ));
        }
        if let Some(entry) = self.registry.entries().iter().find(|entry| entry.placement.is_none()) {
            return Err(Error::incompatible(format!("{}: nothing says how it lies on a mesh", entry.id())).hint(
                "no preset fits these names; give placement with --rules FILE or --place 'GLOB=tp:0,dp:0', see `ckpt help placement`",
            ));
        }
        check_divisibility(mesh, &self.demands()).map_err(|e| Error::incompatible(e.to_string()).caused_by(e))
    }

    /// What [`Self::check_mesh`] could not check, for want of numbers that no shape tells.
    #[must_use]
    pub fn unchecked(&self, mesh: &Mesh) -> Option<String> {
        let tp = mesh.axis("tp").filter(|&extent| extent > 1)?;
        let blind = self.rules.is_some() && self.facts.heads.is_none() && self.facts.kv_heads.is_none();
        blind.then(|| {
            format!(
                "head counts are unknown, so whether they divide over tp={tp} was not checked; \
                 --config DIR or --heads and --kv-heads tell them"
            )
        })
    }

    fn demands(&self) -> Vec<Divisibility> {
        let constraints = self.rules.iter().flat_map(|rules| rules.constraints(&self.registry, &self.facts));
        let demand = |constraint: preset::Constraint| Divisibility {
            what: constraint.unit.text().to_owned(),
            count: constraint.count,
            uneven: constraint.axis.is_pipeline(),
            tensors: constraint.example.to_string(),
            axis: constraint.axis,
        };
        constraints.map(demand).collect()
    }
}

/// The rules of the preset that was named, or that fits the names, and where they came from.
pub(super) fn base_rules<'a>(
    registry: &Registry,
    request: &'a NamingRequest,
) -> Result<(Option<Cow<'a, Rules>>, String)> {
    if let Some(Base { rules, origin }) = &request.base {
        return Ok((Some(Cow::Borrowed(rules)), origin.clone()));
    }
    let title = |rules: &Rules| rules.preset.as_ref().map_or_else(String::new, |preset| preset.title.clone());
    if let Some(name) = &request.preset {
        let rules = preset::named(name).ok_or_else(|| {
            let known =
                preset::presets().iter().filter_map(|rules| Some(rules.preset.as_ref()?.name.as_str()));
            Error::new(ErrorKind::Incompatible, format!("no preset is called {name:?}"))
                .hint(format!("presets: {}", known.collect::<Vec<_>>().join(", ")))
        })?;
        return Ok((Some(Cow::Borrowed(rules)), format!("preset {name} ({})", title(rules))));
    }
    let (found, _) = preset::detect(registry);
    let origin = found.map_or_else(String::new, |rules| {
        let name = rules.preset.as_ref().map_or("", |preset| preset.name.as_str());
        format!("preset {name} ({}), detected from the names", title(rules))
    });
    Ok((found.map(Cow::Borrowed), origin))
}

/// Single rules, then all that the file says: of placement, of names, of stacks.
pub(super) fn own_rules(request: &NamingRequest) -> Result<Rules> {
    let single = Rules::from_flags(&request.place)
        .map_err(|e| Error::incompatible(format!("--place: {e}")).caused_by(e))?;
    let file = request.rules.as_deref().map(Rules::from_toml).transpose();
    let file = file.map_err(|e| Error::incompatible(format!("rules file: {e}")).caused_by(e))?;
    Ok(single.before(file.unwrap_or_default()))
}

/// Whether they place or rename a tensor: what is only said of stacks and of rank state says nothing of where tensors lie.
fn places(rules: &Rules) -> bool {
    !rules.rules.is_empty() || !rules.renames.is_empty()
}

#[cfg(test)]
mod tests {
    use fqn::{Dtype, Entry, Fqn, Role, Shape};

    use super::*;

    fn llama() -> Registry {
        let mut registry = Registry::new();
        let mut push = |name: &str, shape: &[u64]| {
            registry
                .push(Entry::new(Fqn::new(name).unwrap(), Role::Param, Dtype::F32, Shape::new(shape)))
                .unwrap();
        };
        push("model.embed_tokens.weight", &[256, 64]);
        for layer in 0..4 {
            for (name, rows, columns) in [
                ("self_attn.q_proj", 64, 64),
                ("self_attn.k_proj", 16, 64),
                ("self_attn.v_proj", 16, 64),
                ("self_attn.o_proj", 64, 64),
                ("mlp.gate_proj", 192, 64),
                ("mlp.up_proj", 192, 64),
                ("mlp.down_proj", 64, 192),
            ] {
                push(&format!("model.layers.{layer}.{name}.weight"), &[rows, columns]);
            }
            push(&format!("model.layers.{layer}.input_layernorm.weight"), &[64]);
            push(&format!("model.layers.{layer}.post_attention_layernorm.weight"), &[64]);
        }
        push("model.norm.weight", &[64]);
        push("lm_head.weight", &[256, 64]);
        registry
    }

    #[test]
    fn a_mesh_that_does_not_divide_kv_heads_is_refused_with_meshes_that_fit() {
        let facts = ModelFacts { heads: Some(8), ..ModelFacts::default() };
        let named = name(&llama(), &NamingRequest { facts, ..NamingRequest::default() }).unwrap();
        assert_eq!(named.facts.kv_heads, Some(2));
        named.check_mesh(&"4x2x2".parse().unwrap()).unwrap();
        let refused = named.check_mesh(&"1x1x8".parse().unwrap()).unwrap_err();
        assert!(refused.to_string().contains("KV heads do not divide over tp=8"), "{refused}");
        assert_eq!(refused.kind(), ErrorKind::Incompatible);
    }

    #[test]
    fn a_single_rule_wins_over_the_preset() {
        let place = vec!["model.norm.weight=dp:0,pp:last".to_owned(), "model.norm.*=replicate".to_owned()];
        let named = name(&llama(), &NamingRequest { place, ..NamingRequest::default() }).unwrap();
        let norm = named.registry.get(&fqn::TensorId::param("model.norm.weight").unwrap()).unwrap();
        assert_eq!(norm.placement.as_ref().unwrap().to_string(), "replicate");
        assert!(named.origin.starts_with("the rules given, then preset llama-hf"), "{}", named.origin);
    }

    #[test]
    fn a_name_that_no_rule_covers_is_refused_once_a_mesh_needs_it() {
        let mut registry = llama();
        registry
            .push(Entry::new(
                Fqn::new("model.layers.0.adapter.weight").unwrap(),
                Role::Param,
                Dtype::F32,
                Shape::new(&[4]),
            ))
            .unwrap();
        let named = name(&registry, &NamingRequest::default()).unwrap();
        named.check_mesh(&"1x1x1".parse().unwrap()).unwrap();
        let refused = named.check_mesh(&"2x1x1".parse().unwrap()).unwrap_err();
        assert!(refused.to_string().contains("model.layers.0.adapter.weight"), "{refused}");
    }

    #[test]
    fn a_file_that_says_nothing_of_placement_leaves_it_to_the_checkpoint_or_the_preset() {
        let mut recorded = llama();
        recorded.edit(|entry| entry.placement = Some("replicate".parse().unwrap())).unwrap();
        let stack = "[[stack]]\nmembers = \"l.{layer}.w\"\nstack = \"l.w\"\n";
        let state = "[[rank_state]]\nmatch = \"loader.**\"\nhow = \"same\"\n";
        for text in [stack.to_owned(), state.to_owned(), format!("{stack}{state}"), String::new()] {
            let request = NamingRequest { rules: Some(text.clone()), ..NamingRequest::default() };
            let origin = |registry| name(registry, &request).unwrap().origin;
            assert_eq!(origin(&recorded), "recorded in the checkpoint", "{text}");
            assert!(origin(&llama()).starts_with("preset llama-hf"), "{text}");
            let stacks = own_rules(&request).unwrap().stacks.len();
            assert_eq!(stacks, usize::from(text.contains("stack]]")), "{text}");
        }
        let placed = format!("{stack}[[rule]]\nmatch = \"**\"\nplace = \"replicate\"\n");
        let request = NamingRequest { rules: Some(placed), ..NamingRequest::default() };
        assert!(name(&recorded, &request).unwrap().origin.starts_with("the rules given"));
    }
}
