//! Where the parameters of each model family lie on a mesh: placement rules as data, and how tensor parallelism cuts what.

use std::sync::LazyLock;

use fqn::{
    AxisName, AxisPlacement, Dtype, Entry, Registry, Role, Shape,
    preset::{self, ModelFacts, Rules},
};

use crate::{
    Error, Result,
    model::{Family, Model},
    parallel::Cut,
};

/// The rules of a family.
#[must_use]
pub fn rules(family: Family) -> &'static Rules {
    static RULES: LazyLock<[Rules; 2]> = LazyLock::new(|| {
        #[expect(clippy::expect_used, reason = "the data is part of the suite; a test reads it")]
        let gpt2 = Rules::from_toml(include_str!("gpt2.toml")).expect("embedded rules are valid");
        #[expect(clippy::expect_used, reason = "the preset is part of the suite; a test names it")]
        let llama = preset::named("llama-torchtitan").expect("the preset exists").clone();
        [llama, gpt2]
    });
    let [llama, gpt2] = &*RULES;
    match family {
        Family::Llama => llama,
        Family::Gpt2 => gpt2,
    }
}

/// The parameters of a model, each with its placement.
///
/// # Errors
/// `Internal` for a parameter that the rules do not place.
pub fn registry(family: Family, model: &dyn Model) -> Result<Registry> {
    let mut registry = Registry::new();
    for spec in model.params() {
        let shape =
            spec.shape.iter().map(|extent| u64::try_from(*extent).unwrap_or_default()).collect::<Vec<_>>();
        let entry = Entry::new(spec.fqn.clone(), Role::Param, Dtype::F32, Shape::new(&shape));
        registry.push(entry).map_err(|error| Error::internal(error.to_string()))?;
    }
    rules(family)
        .apply(&mut registry)
        .map_err(|error| Error::internal(format!("placement of {family}: {error}")))?;
    Ok(registry)
}

/// How tensor parallelism cuts each parameter, in the registry's order.
///
/// # Errors
/// `Internal` for a parameter without a placement.
pub fn cuts(registry: &Registry) -> Result<Vec<Cut>> {
    let tp = AxisName::new("tp").map_err(|error| Error::internal(error.to_string()))?;
    let cut = |entry: &Entry| match entry.placement.as_ref().map(|rule| rule.on(&tp)) {
        Some(AxisPlacement::Shard(dim)) => Ok(Cut::Dim(dim)),
        Some(_) => Ok(Cut::Whole),
        None => Err(Error::internal(format!("{} has no placement", entry.fqn))),
    };
    registry.entries().iter().map(cut).collect()
}

/// Refuses a number of tensor-parallel ranks, virtual ones too, that would cut a head or leave ranks without one.
///
/// # Errors
/// `Config`, with what is not divided.
pub fn check_tp(family: Family, model: &dyn Model, registry: &Registry, ranks: usize) -> Result<()> {
    let facts = ModelFacts::from_config(&model.hf_config());
    let size = u64::try_from(ranks).unwrap_or(u64::MAX);
    for constraint in rules(family).constraints(registry, &facts) {
        if constraint.axis.as_str() == "tp" {
            constraint.check(size).map_err(|error| Error::config(error.to_string()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(family: Family, sizes: &str) -> std::sync::Arc<dyn Model> {
        family.build(toml::from_str(sizes).unwrap()).unwrap()
    }

    const LLAMA: &str = "dim=32\nlayers=2\nheads=8\nkv_heads=4\nffn=48\nvocab=64\nmax_length=16";
    const GPT2: &str = "dim=32\nlayers=2\nheads=8\nvocab=64\nmax_length=16";

    #[test]
    fn every_parameter_of_every_family_is_placed() {
        for (family, sizes) in [(Family::Llama, LLAMA), (Family::Gpt2, GPT2)] {
            let model = built(family, sizes);
            let registry = registry(family, &*model).unwrap();
            assert_eq!(registry.len(), model.params().len());
            assert_eq!(cuts(&registry).unwrap().len(), model.params().len());
            for entry in registry.entries() {
                assert!(entry.placement.as_ref().unwrap().to_string().contains("dp:0"), "{}", entry.fqn);
            }
        }
    }

    #[test]
    fn a_tied_table_lies_on_the_first_and_the_last_stage() {
        let tied = format!("{LLAMA}\ntie_embeddings=true");
        for (family, sizes, table) in [
            (Family::Llama, tied.as_str(), "tok_embeddings.weight"),
            (Family::Gpt2, GPT2, "transformer.wte.weight"),
        ] {
            let registry = registry(family, &*built(family, sizes)).unwrap();
            let entry = registry.entries().iter().find(|entry| entry.fqn.as_str() == table).unwrap();
            assert_eq!(entry.placement.as_ref().unwrap().to_string(), "tp:0,dp:0,pp:first+last");
        }
    }

    #[test]
    fn a_tp_that_does_not_divide_heads_is_refused_by_name() {
        let model = built(Family::Llama, LLAMA);
        let registry = registry(Family::Llama, &*model).unwrap();
        for good in [1, 2, 4] {
            check_tp(Family::Llama, &*model, &registry, good).unwrap();
        }
        let error = check_tp(Family::Llama, &*model, &registry, 8).unwrap_err().to_string();
        assert!(error.contains("tp=8") && error.contains("4 KV heads"), "{error}");
        let model = built(Family::Gpt2, GPT2);
        let registry = super::registry(Family::Gpt2, &*model).unwrap();
        assert!(check_tp(Family::Gpt2, &*model, &registry, 3).unwrap_err().to_string().contains("heads"));
    }
}
