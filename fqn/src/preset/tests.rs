//! Presets and rules: detection, precedence, facts, what must divide.

use super::*;
use crate::{Dtype, Entry, Registry, Role};

mod cuts;

fn param(name: &str, shape: &[u64]) -> Entry {
    Entry::new(Fqn::new(name).unwrap(), Role::Param, Dtype::F32, Shape::new(shape))
}

fn llama(names: &[(&str, &[u64])]) -> Registry {
    let mut registry = Registry::new();
    for &(name, shape) in names {
        registry.push(param(name, shape)).unwrap();
    }
    registry
}

fn hf(head: bool) -> Registry {
    let mut registry = llama(&[
        ("model.embed_tokens.weight", &[128, 64]),
        ("model.layers.0.self_attn.q_proj.weight", &[64, 64]),
        ("model.layers.0.self_attn.k_proj.weight", &[32, 64]),
        ("model.layers.0.self_attn.v_proj.weight", &[32, 64]),
        ("model.layers.0.self_attn.o_proj.weight", &[64, 64]),
        ("model.layers.0.mlp.gate_proj.weight", &[96, 64]),
        ("model.layers.0.mlp.up_proj.weight", &[96, 64]),
        ("model.layers.0.mlp.down_proj.weight", &[64, 96]),
        ("model.layers.0.input_layernorm.weight", &[64]),
        ("model.layers.0.post_attention_layernorm.weight", &[64]),
        ("model.norm.weight", &[64]),
    ]);
    if head {
        registry.push(param("lm_head.weight", &[128, 64])).unwrap();
    }
    registry
}

fn place(registry: &Registry, name: &str, role: Role) -> String {
    let id = TensorId { fqn: Fqn::new(name).unwrap(), role };
    registry.get(&id).unwrap().placement.as_ref().unwrap().to_string()
}

#[test]
fn the_llama_preset_is_detected_and_places_every_tensor() {
    let mut registry = hf(true);
    let q = "model.layers.0.self_attn.q_proj.weight";
    registry.push(Entry { role: Role::ExpAvg, ..param(q, &[64, 64]) }).unwrap();
    registry.push(Entry { role: Role::Slot("step".into()), ..param(q, &[]) }).unwrap();
    let (found, fits) = detect(&registry);
    assert_eq!(found.unwrap().preset.as_ref().unwrap().name, "llama-hf");
    assert_eq!(fits[0].to_string(), "llama-hf: its rules cover 12 of 12 names");
    let applied = found.unwrap().apply(&mut registry).unwrap();
    assert_eq!((applied.placed, applied.followed, applied.replicated), (12, 1, 1));
    assert_eq!(place(&registry, q, Role::Param), "tp:0,dp:0,pp:layer");
    assert_eq!(place(&registry, q, Role::ExpAvg), "tp:0,dp:0,pp:layer");
    assert_eq!(place(&registry, q, Role::Slot("step".into())), "replicate");
    assert_eq!(place(&registry, "model.layers.0.self_attn.o_proj.weight", Role::Param), "tp:1,dp:0,pp:layer");
    assert_eq!(place(&registry, "model.embed_tokens.weight", Role::Param), "tp:0,dp:0,pp:first");
    assert_eq!(registry.entries()[1].layer, Some(0));
}

#[test]
fn a_model_without_a_head_ties_its_embedding_to_first_and_last_stage() {
    let mut registry = hf(false);
    detect(&registry).0.unwrap().apply(&mut registry).unwrap();
    assert_eq!(place(&registry, "model.embed_tokens.weight", Role::Param), "tp:0,dp:0,pp:first+last");
}

#[test]
fn torchtitan_and_gpt2_names_find_their_presets() {
    let titan = llama(&[
        ("tok_embeddings.weight", &[8, 4]),
        ("layers.0.attention.wq.weight", &[4, 4]),
        ("layers.0.feed_forward.w1.weight", &[8, 4]),
        ("output.weight", &[8, 4]),
    ]);
    assert_eq!(detect(&titan).0.unwrap().preset.as_ref().unwrap().name, "llama-torchtitan");
    let gpt =
        llama(&[("wpe.weight", &[8, 4]), ("h.0.attn.c_attn.weight", &[4, 12]), ("h.0.mlp.c_fc.bias", &[16])]);
    assert_eq!(detect(&gpt).0.unwrap().preset.as_ref().unwrap().name, "gpt2");
    assert!(detect(&llama(&[("w", &[1])])).0.is_none());
}

#[test]
fn uncovered_names_are_all_listed_and_nothing_changes() {
    let mut registry = hf(true);
    registry.push(param("model.layers.0.self_attn.qproj.weight", &[4])).unwrap();
    registry.push(param("vision.weight", &[4])).unwrap();
    let before = registry.clone();
    let refused = named("llama-hf").unwrap().apply(&mut registry).unwrap_err();
    assert!(matches!(&refused, RulesError::Uncovered(list) if list.len() == 2));
    let text = refused.to_string();
    assert!(text.contains("self_attn.qproj.weight (nearest rule \"model.layers.*.self_attn"), "{text}");
    assert_eq!(registry, before);
}

#[test]
fn user_rules_win_over_the_preset_and_may_rename() {
    let mut registry = hf(true);
    registry.push(param("my.model.extra.weight", &[4])).unwrap();
    let user = Rules::from_toml(
        "[[rule]]\nmatch = \"{model.norm,extra}.weight\"\nplace = \"replicate\"\n[[rename]]\nmatch = \"my.model.{**rest}\"\nto = \"{rest}\"\n",
    );
    let rules = user.unwrap().before(named("llama-hf").unwrap().clone());
    let applied = rules.apply(&mut registry).unwrap();
    assert_eq!(applied.renamed.len(), 1);
    assert_eq!(place(&registry, "model.norm.weight", Role::Param), "replicate");
    assert_eq!(place(&registry, "extra.weight", Role::Param), "replicate");
}

#[test]
fn what_is_wrong_in_a_rules_file_is_named_with_its_line() {
    for (text, expected) in [
        (
            "[[rule]]\nmatch = \"a\"\nplaec = \"tp:0\"\n",
            "line 3: unknown key \"plaec\" in [rule], did you mean \"place\"?",
        ),
        ("[[rules]]\n", "did you mean \"rule\"?"),
        ("[[rule]]\nmatch = \"a\"\n", "line 1: [rule] has no \"place\""),
        ("[[rule]]\nmatch = \"a\"\nplace = 3\n", "line 3: \"place\" must be a text"),
        ("[[rule]]\nmatch = \"a\"\nplace = \"tp\"\n", "line 3: \"tp\" in placement"),
        ("[[rule]]\nmatch = \"a..b\"\nplace = \"tp:0\"\n", "line 2: empty segment"),
        (
            "[[rule]]\nmatch = \"a\"\nplace = \"tp:0\"\ndivides = \"legs\"\n",
            "line 4: \"divides\" must be one of heads",
        ),
        ("[[rename]]\nmatch = \"a.*\"\nto = \"{x}\"\n", "line 3: {x} in \"{x}\" is not captured"),
        ("rule = 3\n", "must be a list of tables"),
        ("[[rule", "not TOML"),
    ] {
        let refused = Rules::from_toml(text).unwrap_err().to_string();
        assert!(refused.contains(expected), "{refused:?} lacks {expected:?}");
    }
}

#[test]
fn a_rule_that_does_not_fit_its_tensor_is_an_error() {
    let apply = |place: &str, name: &str| {
        let rules = Rules::from_toml(&format!("[[rule]]\nmatch = \"**\"\nplace = \"{place}\"\n")).unwrap();
        rules.apply(&mut llama(&[(name, &[4])])).unwrap_err()
    };
    assert!(matches!(apply("tp:1", "w"), RulesError::NoDimension { dim: 1, .. }));
    assert!(matches!(apply("pp:layer", "w"), RulesError::NoLayer { .. }));
}

#[test]
fn facts_come_from_config_and_shapes_and_contradictions_are_refused() {
    let rules = named("llama-hf").unwrap();
    let config = serde_json::json!({"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64});
    let facts = ModelFacts::from_config(&config).inferred(rules, &hf(true)).unwrap();
    assert_eq!((facts.heads, facts.kv_heads, facts.head_dim), (Some(4), Some(2), Some(16)));
    assert_eq!((facts.ffn, facts.vocab, facts.layers), (Some(96), Some(128), Some(1)));
    let bare = ModelFacts::default().inferred(rules, &hf(true)).unwrap();
    assert_eq!((bare.heads, bare.layers), (None, Some(1)));
    let wrong = ModelFacts { heads: Some(7), ..ModelFacts::default() };
    assert!(matches!(wrong.inferred(rules, &hf(true)), Err(FactError::Uneven { count: 7, .. })));
    let ffn = ModelFacts { ffn: Some(95), ..ModelFacts::default() };
    assert!(matches!(ffn.inferred(rules, &hf(true)), Err(FactError::Disagrees { given: 95, found: 96, .. })));
    let kv = ModelFacts { heads: Some(4), kv_heads: Some(4), ..ModelFacts::default() };
    assert!(matches!(kv.inferred(rules, &hf(true)), Err(FactError::Disagrees { given: 4, found: 2, .. })));
}

#[test]
fn a_mesh_that_does_not_divide_heads_ffn_or_layers_is_refused() {
    let rules = named("llama-hf").unwrap();
    let given = ModelFacts { heads: Some(4), kv_heads: Some(2), ..ModelFacts::default() };
    let facts = given.inferred(rules, &hf(true)).unwrap();
    let constraints = rules.constraints(&hf(true), &facts);
    let of = |unit| constraints.iter().find(|c| c.unit == unit).unwrap();
    assert!(of(Unit::Heads).check(4).is_ok());
    let refused = of(Unit::KvHeads).check(4).unwrap_err().to_string();
    assert!(refused.contains("tp=4 does not divide the model's 2 KV heads"), "{refused}");
    assert!(of(Unit::Ffn).check(5).is_err() && of(Unit::Ffn).check(8).is_ok());
    assert!(of(Unit::Layers).check(2).is_err());
    assert!(of(Unit::Heads).check(0).is_err());
    assert!(!constraints.iter().any(|c| c.unit == Unit::Vocab));
}

#[test]
fn flags_are_rules_and_the_last_one_given_wins() {
    let flags = ["layers.*.wq.weight=tp:0,dp:0", "layers.0.*.weight=replicate", "experts.*=ep:expert"];
    let rules = Rules::from_flags(&flags).unwrap();
    let place = |name: &str| rules.rule_for(name).unwrap().place.to_string();
    assert_eq!(place("layers.1.wq.weight"), "tp:0,dp:0");
    assert_eq!(place("layers.0.wq.weight"), "replicate");
    assert_eq!(place("experts.3"), "ep:expert");
    assert_eq!(Rules::from_flags::<&str>(&[]).unwrap(), Rules::default());
}

#[test]
fn a_flag_that_is_no_rule_is_named_with_what_is_wrong() {
    for (flag, why) in [
        ("layers.*.wq", "it is not GLOB=PLACEMENT"),
        ("a..b=tp:0", "empty segment"),
        ("a=tp", "neither `axis:dim`"),
        ("a=tpp:0", "no mesh axis is called \"tpp\", did you mean \"tp\"?"),
        ("a=dp+shard:0", "no mesh axis is called \"shard\""),
        ("a=dp:0,epp:expert", "no mesh axis is called \"epp\", did you mean \"ep\"?"),
    ] {
        let refused = Rules::from_flags(&["b=replicate", flag]).unwrap_err().to_string();
        assert!(refused.contains(why) && refused.contains(&format!("{flag:?}")), "{refused}");
    }
}

fn fused(rule: &str, shape: &[u64], facts: &ModelFacts) -> Result<Vec<(String, usize, u64)>, String> {
    let rules =
        Rules::from_toml(&format!("[[rule]]\nmatch = \"**\"\n{rule}\n")).map_err(|e| e.to_string())?;
    let mut registry = llama(&[("w", shape)]);
    registry.push(Entry { role: Role::ExpAvg, ..param("w", shape) }).unwrap();
    rules.apply_with(&mut registry, facts).map_err(|e| e.to_string())?;
    assert_eq!(registry.entries()[0].fusion, registry.entries()[1].fusion);
    let parts = registry.entries()[0].fusion.iter();
    Ok(parts.map(|part| (part.name.clone(), part.axis, part.extent)).collect())
}

#[test]
fn a_rule_declares_fused_parts_equal_in_proportion_or_by_numbers_of_the_model() {
    let none = ModelFacts::default();
    let own = |list: &[(&str, usize, u64)]| Ok(list.iter().map(|&(n, a, e)| (n.to_owned(), a, e)).collect());
    assert_eq!(
        fused("place = \"tp:1\"\nparts = \"gate,up\"", &[4, 12], &none),
        own(&[("gate", 1, 6), ("up", 1, 6)])
    );
    assert_eq!(
        fused("place = \"tp:0\"\nparts = \"z=4,x=4,B=2,C=2,dt\"", &[26], &none),
        own(&[("z", 0, 8), ("x", 0, 8), ("B", 0, 4), ("C", 0, 4), ("dt", 0, 2)])
    );
    let facts = ModelFacts { heads: Some(4), kv_heads: Some(2), ..none };
    let qkv = "place = \"tp:0,dp:0\"\nparts = \"q=heads,k=kv_heads,v=kv_heads\"";
    assert_eq!(fused(qkv, &[64, 3], &facts), own(&[("q", 0, 32), ("k", 0, 16), ("v", 0, 16)]));
    for (rule, facts, why) in [
        (qkv, &none, "part q is as wide as the number of heads, which is not known"),
        ("place = \"tp:0\"\nparts = \"a,b,c\"", &none, "a,b,c do not divide 64 in proportion"),
        ("place = \"dp:0\"\nparts = \"a,b\"", &none, "line 1: parts follow each other along the tp cut"),
        ("place = \"tp:0\"\nparts = \"a,a\"", &none, "comes twice"),
        ("place = \"tp:0\"\nparts = \"a=0\"", &none, "line 4: part a is neither a number nor"),
        ("place = \"tpx:0\"", &none, "line 3: no mesh axis is called \"tpx\", did you mean \"tp\"?"),
    ] {
        let refused = fused(rule, &[64, 3], facts).unwrap_err();
        assert!(refused.contains(why), "{refused}");
    }
}

#[test]
fn what_fused_parts_must_divide_is_each_part_and_each_number_that_they_count() {
    let text = "[[rule]]\nmatch = \"**.qkv\"\nplace = \"tp:0\"\nparts = \"q=heads,k=kv_heads,v=kv_heads\"\n\
        [[rule]]\nmatch = \"**.gate_up\"\nplace = \"tp:0\"\nparts = \"gate,up\"\ndivides = \"ffn\"\n";
    let rules = Rules::from_toml(text).unwrap();
    let facts = ModelFacts { heads: Some(8), kv_heads: Some(2), ..ModelFacts::default() };
    let mut registry = llama(&[("layers.0.qkv", &[48, 4]), ("layers.0.gate_up", &[24, 4])]);
    rules.apply_with(&mut registry, &facts).unwrap();
    let all = rules.constraints(&registry, &facts.inferred(&rules, &registry).unwrap());
    let told: Vec<_> = all.iter().map(|c| (c.unit, c.count)).collect();
    assert_eq!(told, [(Unit::Heads, 8), (Unit::KvHeads, 2), (Unit::Ffn, 12)]);
}
