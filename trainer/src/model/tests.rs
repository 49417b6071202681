//! Tests of what models say of themselves: names, shapes, initial values, refusals. What they compute is tested with the
//! operations, in `parallel`.

use std::collections::BTreeSet;

use fqn::preset::ModelFacts;

use super::*;

const LLAMA: &str = "dim=32\nlayers=2\nheads=8\nkv_heads=4\nffn=48\nvocab=64\nmax_length=16";
const GPT2: &str = "dim=32\nlayers=2\nheads=8\nvocab=64\nmax_length=16";

fn build(family: Family, sizes: &str) -> Result<std::sync::Arc<dyn Model>> {
    family.build(toml::from_str(sizes).unwrap())
}

#[test]
fn sizes_that_do_not_go_together_are_named() {
    let cases = [
        (Family::Llama, "\nheads=8", "\nheads=12", "model.heads = 12 does not divide model.dim = 32"),
        (Family::Llama, "kv_heads=4", "kv_heads=3", "model.kv_heads = 3 does not divide model.heads = 8"),
        (Family::Llama, "heads=8\nkv_heads=4", "heads=32\nkv_heads=4", "model.head_dim is 1"),
        (Family::Llama, "ffn=48", "ffn=0", "model.ffn is 0"),
        (Family::Llama, "ffn=48", "ffn=48\nrope_theta=-1.0", "model.rope_theta is -1"),
        (Family::Llama, "ffn=48", "ffn=48\nffnn=3", "unknown field `ffnn`"),
        (Family::Llama, "vocab=64\n", "", "missing field `vocab`"),
        (Family::Gpt2, "heads=8", "heads=7", "model.heads = 7 does not divide model.dim = 32"),
        (Family::Gpt2, "layers=2", "layers=0", "model.layers is 0"),
        (Family::Gpt2, "vocab=64", "vocab=64\nkv_heads=2", "unknown field `kv_heads`"),
    ];
    for (family, good, bad, says) in cases {
        let sizes = if family == Family::Llama { LLAMA } else { GPT2 };
        let error = build(family, &sizes.replace(good, bad)).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
        assert_eq!(error.kind(), crate::ErrorKind::Config);
    }
    assert!("lama".parse::<Family>().unwrap_err().to_string().contains("models are llama, gpt2"));
}

#[test]
fn every_parameter_is_used_and_only_tied_ones_twice() {
    let tied = format!("{LLAMA}\ntie_embeddings=true");
    for (family, sizes, twice) in
        [(Family::Llama, LLAMA, 0), (Family::Llama, tied.as_str(), 1), (Family::Gpt2, GPT2, 1)]
    {
        let model = build(family, sizes).unwrap();
        let uses: Vec<usize> = model.parts().iter().flat_map(|part| part.params.clone()).collect();
        let distinct: BTreeSet<usize> = uses.iter().copied().collect();
        assert_eq!(distinct, (0..model.params().len()).collect());
        assert_eq!(uses.len(), distinct.len() + twice);
        let names: BTreeSet<_> = model.params().iter().map(|spec| spec.fqn.as_str()).collect();
        assert_eq!(names.len(), distinct.len());
        assert!(model.params().iter().all(|spec| spec.decay == (spec.shape.len() == 2)));
    }
}

#[test]
fn the_configuration_for_transformers_has_the_numbers_that_a_mesh_must_divide() {
    let facts = ModelFacts::from_config(&build(Family::Llama, LLAMA).unwrap().hf_config());
    assert_eq!((facts.heads, facts.kv_heads, facts.head_dim), (Some(8), Some(4), Some(4)));
    assert_eq!((facts.hidden, facts.ffn, facts.vocab, facts.layers), (Some(32), Some(48), Some(64), Some(2)));
    let facts = ModelFacts::from_config(&build(Family::Gpt2, GPT2).unwrap().hf_config());
    assert_eq!((facts.heads, facts.ffn, facts.vocab, facts.layers), (Some(8), Some(128), Some(64), Some(2)));
}

#[test]
fn residual_branches_end_in_smaller_weights() {
    let model = build(Family::Llama, LLAMA).unwrap();
    let init = |name: &str| model.params().iter().find(|spec| spec.fqn.as_str() == name).unwrap().init;
    assert_eq!(init("layers.1.attention.wq.weight"), Init::Normal(0.02));
    for ends in ["layers.1.attention.wo.weight", "layers.1.feed_forward.w2.weight"] {
        assert_eq!(init(ends), Init::Normal(0.01));
    }
    assert_eq!(init("norm.weight"), Init::Constant(1.0));
}

#[test]
fn a_llama_has_the_names_that_are_exported_to_hugging_face() {
    let model = build(Family::Llama, LLAMA).unwrap();
    let preset = fqn::preset::named("llama-torchtitan").unwrap();
    for spec in model.params() {
        assert!(preset.rule_for(spec.fqn.as_str()).is_some(), "{}", spec.fqn);
    }
}
