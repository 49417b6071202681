//! Dialects: both directions, row orders against a reshape of the whole, names that no rule covers.

use proptest::prelude::*;

use super::*;
use crate::{Dtype, Entry, Registry, Role, Shape, preset::ModelFacts};

fn param(name: &str, shape: &[u64]) -> Entry {
    Entry::new(Fqn::new(name).unwrap(), Role::Param, Dtype::F32, Shape::new(shape))
}

fn hf_model() -> Registry {
    let mut registry = Registry::new();
    let mut add = |entry| registry.push(entry).map(|_| ()).unwrap();
    add(param("model.embed_tokens.weight", &[16, 8]));
    for layer in 0..2 {
        let at = |tail: &str| format!("model.layers.{layer}.{tail}.weight");
        add(param(&at("self_attn.q_proj"), &[8, 8]));
        add(Entry { role: Role::ExpAvg, ..param(&at("self_attn.q_proj"), &[8, 8]) });
        add(Entry { role: Role::Slot("step".into()), ..param(&at("self_attn.q_proj"), &[]) });
        add(param(&at("self_attn.k_proj"), &[4, 8]));
        add(param(&at("self_attn.v_proj"), &[4, 8]));
        add(param(&at("self_attn.o_proj"), &[8, 8]));
        add(param(&at("mlp.gate_proj"), &[12, 8]));
        add(param(&at("mlp.up_proj"), &[12, 8]));
        add(param(&at("mlp.down_proj"), &[8, 12]));
        add(param(&at("input_layernorm"), &[8]));
        add(param(&at("post_attention_layernorm"), &[8]));
    }
    add(param("model.norm.weight", &[8]));
    add(param("lm_head.weight", &[16, 8]));
    registry
}

const FACTS: ModelFacts = ModelFacts {
    heads: Some(2),
    kv_heads: Some(1),
    head_dim: None,
    hidden: None,
    ffn: None,
    vocab: None,
    layers: None,
    next_layers: None,
    experts: None,
};

#[test]
fn pairs_become_halves_as_view_transpose_reshape_says() {
    // One head of six rows: pairs (0,1) (2,3) (4,5) become first parts 0 2 4, then second parts 1 3 5.
    let map = rope_map(&Shape::new(&[6, 3]), 1, RopeOrder::Pairs, RopeOrder::Halves).unwrap();
    let sources: Vec<u64> = map.row_runs(0..6).unwrap().flat_map(|r| r.source..r.source + r.count).collect();
    assert_eq!(sources, [0, 2, 4, 1, 3, 5]);
    let back = rope_map(&Shape::new(&[6, 3]), 1, RopeOrder::Halves, RopeOrder::Pairs).unwrap();
    assert_eq!(back, map.inverse());
}

#[test]
fn a_hugging_face_llama_becomes_a_torchtitan_one_and_back() {
    let hf = hf_model();
    assert_eq!(llama().detect(&hf).unwrap().dialect, "hf");
    let titan = llama().translate(&hf, "hf", "torchtitan", &FACTS).unwrap();
    assert_eq!(llama().detect(&titan.registry).unwrap().dialect, "torchtitan");
    let names: Vec<String> = titan.translations.iter().map(|t| t.to.to_string()).collect();
    for expected in [
        "tok_embeddings.weight",
        "layers.1.attention.wq.weight",
        "layers.1.attention.wq.weight@exp_avg",
        "layers.0.feed_forward.w2.weight",
        "layers.0.ffn_norm.weight",
        "norm.weight",
        "output.weight",
    ] {
        assert!(names.iter().any(|n| n == expected), "{expected} in {names:?}");
    }
    let back = llama().translate(&titan.registry, "torchtitan", "hf", &FACTS).unwrap();
    assert_eq!(back.registry, hf);
    for (there, here) in titan.translations.iter().zip(&back.translations) {
        assert!(there.map.then(&here.map).unwrap().is_identity());
    }
}

#[test]
fn only_q_and_k_are_permuted_and_slots_follow_their_parameter() {
    let titan = llama().translate(&hf_model(), "hf", "torchtitan", &FACTS).unwrap();
    for t in &titan.translations {
        let name = t.to.fqn.as_str();
        let scalar = t.map.source().rank() == 0;
        let moved = !scalar && (name.ends_with("wq.weight") || name.ends_with("wk.weight"));
        assert_eq!(!t.map.is_identity(), moved, "{name} {}", t.to.role);
    }
}

#[test]
fn a_head_count_that_cannot_be_known_is_asked_for() {
    let none = ModelFacts::default();
    let refused = llama().translate(&hf_model(), "hf", "torchtitan", &none).unwrap_err().to_string();
    assert!(refused.contains("--heads") && refused.contains("config.json"), "{refused}");
    let size = ModelFacts { head_dim: Some(4), ..none };
    let by_size = llama().translate(&hf_model(), "hf", "torchtitan", &size).unwrap();
    assert_eq!(by_size, llama().translate(&hf_model(), "hf", "torchtitan", &FACTS).unwrap());
}

#[test]
fn a_wrong_head_count_is_refused() {
    let wrong = ModelFacts { heads: Some(3), ..FACTS };
    assert!(matches!(
        llama().translate(&hf_model(), "hf", "torchtitan", &wrong),
        Err(TranslateError::Heads { .. })
    ));
    let unequal = ModelFacts { heads: Some(4), ..FACTS };
    let refused = llama().translate(&hf_model(), "hf", "torchtitan", &unequal).unwrap_err();
    assert!(refused.to_string().contains("one of --heads, --kv-heads is wrong"), "{refused}");
}

#[test]
fn every_name_that_no_rule_covers_is_listed() {
    let mut registry = hf_model();
    registry.push(param("model.layers.0.adapter.weight", &[2])).unwrap();
    registry.push(param("vision.weight", &[2])).unwrap();
    let Err(TranslateError::Unmatched { names, .. }) =
        llama().translate(&registry, "hf", "torchtitan", &FACTS)
    else {
        panic!("translated");
    };
    assert_eq!(
        names.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["model.layers.0.adapter.weight", "vision.weight"]
    );
    assert!(matches!(
        llama().translate(&registry, "hf", "nemo", &FACTS),
        Err(TranslateError::UnknownDialect { .. })
    ));
}

#[test]
fn derived_tables_are_left_out_and_ties_are_renamed() {
    let mut registry = hf_model();
    registry.push(Entry { role: Role::Buffer, ..param("model.rotary_emb.inv_freq", &[2]) }).unwrap();
    let embed = Fqn::new("model.embed_tokens.weight").unwrap();
    registry
        .edit(|e| {
            if e.fqn == embed {
                e.tie = Some(embed.clone());
            }
        })
        .unwrap();
    let titan = llama().translate(&registry, "hf", "torchtitan", &FACTS).unwrap();
    assert_eq!(titan.derived.len(), 1);
    assert_eq!(titan.registry.entries()[0].tie.as_ref().unwrap().as_str(), "tok_embeddings.weight");
}

#[test]
fn newer_torchtitan_names_are_read() {
    let new = llama().rename("layers.3.attention.qkv_linear.wq.weight", "torchtitan", "hf");
    assert_eq!(new.as_deref(), Some("model.layers.3.self_attn.q_proj.weight"));
    assert!(is_known_name("transformer.h.0.attn.c_attn.weight"));
    assert!(!is_known_name("layers.0.weight"));
}

#[test]
fn dialect_data_that_does_not_fit_is_refused() {
    let head = "family = \"x\"\n[dialect.a]\ntitle = \"A\"\nrope = \"pairs\"\n[dialect.b]\ntitle = \"B\"\nrope = \"halves\"\n";
    let read = |rest: &str| Family::from_toml(&format!("{head}{rest}")).map(|_| ()).unwrap_err().to_string();
    assert!(read("[[tensor]]\na = [\"x.*\"]\nb = [\"y.{layer}\"]\n").contains("needs {layer}"));
    assert!(read("[[tensor]]\na = [\"x\"]\nc = [\"y\"]\n").contains("neither a dialect"));
    assert!(read("[[tensor]]\na = \"x\"\n").contains("list of texts"));
}

proptest! {
    /// The reference of converters, spelt out: `w.view(h, d/2, 2).transpose(1, 2).reshape(h·d)` on row numbers.
    #[test]
    fn the_rotary_map_agrees_with_view_transpose_reshape(heads in 1u64..6, half in 1u64..6) {
        let shape = Shape::new(&[heads * half * 2, 2]);
        let map = rope_map(&shape, heads, RopeOrder::Pairs, RopeOrder::Halves).unwrap();
        for head in 0..heads {
            for pair in 0..half {
                for part in 0..2 {
                    let source = head * 2 * half + pair * 2 + part;
                    let target = head * 2 * half + part * half + pair;
                    prop_assert_eq!(map.map_row(source), Some(target));
                }
            }
        }
    }
}
