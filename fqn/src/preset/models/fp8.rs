//! Models as they are published in fp8: scales of blocks, and layers of multi-token prediction beyond the counted ones.

use super::*;

/// DeepSeek V3 of 5 layers and 4 experts, as published: with scales and a sixth layer, of multi-token prediction.
fn published() -> (Registry, &'static Rules, serde_json::Value) {
    let (registry, rules) = placed(&deepseek(5, 4, true), "deepseek-hf");
    let config = serde_json::json!({
        "num_attention_heads": 128, "num_key_value_heads": 128, "hidden_size": 7168, "intermediate_size": 18_432,
        "moe_intermediate_size": 2048, "n_routed_experts": 4, "kv_lora_rank": 512, "vocab_size": 129_280,
        "num_hidden_layers": 5, "num_nextn_predict_layers": 1
    });
    (registry, rules, config)
}

#[test]
fn block_scales_and_the_layer_of_multi_token_prediction_are_placed_too() {
    let (registry, rules, config) = published();
    assert_eq!(
        place(&registry, "model.layers.4.mlp.experts.3.down_proj.weight_scale_inv"),
        "tp:1,dp:0,ep:expert,pp:layer"
    );
    assert_eq!(place(&registry, "model.layers.5.shared_head.head.weight"), "tp:0,dp+ep:0,pp:layer");
    assert_eq!(
        demands(&registry, rules, &config),
        [
            "ep 4 experts",
            "tp 128 heads",
            "tp 18432 feed-forward columns",
            "tp 2048 feed-forward columns of an expert",
            "tp 16 blocks of scales",
            "tp 128 blocks of scales",
            "tp 144 blocks of scales",
            "tp 192 blocks of scales",
            "tp 256 blocks of scales",
            "pp 6 layers"
        ]
    );
}

#[test]
fn a_cut_inside_the_block_of_a_scale_is_refused() {
    let (registry, rules, config) = published();
    let facts = ModelFacts::from_config(&config).inferred(rules, &registry).unwrap();
    let constraints = rules.constraints(&registry, &facts);
    let refused = |tp| {
        let mut all = constraints.iter().filter(|c| c.axis.as_str() == "tp");
        all.find_map(|c| c.check(tp).err()).map(|error| error.to_string())
    };
    assert_eq!(refused(16), None);
    assert_eq!(
        refused(32).unwrap(),
        "tp=32 does not divide the model's 16 blocks of scales: model.layers.3.mlp.shared_experts.gate_proj.\
         weight_scale_inv cannot be cut so; use a divisor of 16"
    );
}

#[test]
fn a_configuration_counts_layers_of_multi_token_prediction_apart_and_files_may_lack_them() {
    let (registry, rules, mut config) = published();
    let layers = |config: &serde_json::Value, registry: &Registry| {
        ModelFacts::from_config(config).inferred(rules, registry).map(|facts| facts.layers)
    };
    assert_eq!(layers(&config, &registry), Ok(Some(6)));
    let (without, _) = placed(&deepseek(5, 4, false), "deepseek-hf");
    assert_eq!(layers(&config, &without), Ok(Some(5)));
    for wrong in [0, 2] {
        config["num_nextn_predict_layers"] = wrong.into();
        let refused = layers(&config, &registry).unwrap_err().to_string();
        assert!(refused.starts_with("layers is given as 5, but model.layers.5."), "{refused}");
        assert!(refused.ends_with("says 6"), "{refused}");
    }
}

/// Qwen3 30B-A3B in fp8, of 2 layers and 4 experts, with the shared expert that other mixtures of Qwen have.
fn qwen() -> Model {
    let (mut model, d) = (Model::default(), 2048);
    model.add("model.embed_tokens.weight", &[151_936, d]);
    for layer in 0..2 {
        let at = format!("model.layers.{layer}");
        model.weights(
            &at,
            &[
                ("self_attn.q_proj", &[32 * 128, d]),
                ("self_attn.k_proj", &[4 * 128, d]),
                ("self_attn.v_proj", &[4 * 128, d]),
                ("self_attn.o_proj", &[d, 32 * 128]),
                ("self_attn.q_norm", &[128]),
                ("self_attn.k_norm", &[128]),
                ("input_layernorm", &[d]),
                ("post_attention_layernorm", &[d]),
                ("mlp.gate", &[4, d]),
                ("mlp.shared_expert_gate", &[1, d]),
            ],
        );
        feed_forward(&mut model, &format!("{at}.mlp.shared_expert"), 768, d);
        for expert in 0..4 {
            feed_forward(&mut model, &format!("{at}.mlp.experts.{expert}"), 768, d);
        }
    }
    model.scale();
    model.add("model.norm.weight", &[d]);
    model.add("lm_head.weight", &[151_936, d]);
    model
}

#[test]
fn qwens_mixtures_in_fp8_are_placed_whole_scales_of_keys_and_of_the_shared_expert_too() {
    let (registry, rules) = placed(&qwen(), "deepseek-hf");
    for (name, expected) in [
        ("self_attn.k_proj.weight_scale_inv", "tp:0,dp+ep:0,pp:layer"),
        ("mlp.shared_expert.up_proj.weight_scale_inv", "tp:0,dp+ep:0,pp:layer"),
        ("mlp.shared_expert.down_proj.weight_scale_inv", "tp:1,dp+ep:0,pp:layer"),
        ("mlp.experts.3.gate_proj.weight_scale_inv", "tp:0,dp:0,ep:expert,pp:layer"),
    ] {
        assert_eq!(place(&registry, &format!("model.layers.1.{name}")), expected, "{name}");
    }
    let config = serde_json::json!({
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "hidden_size": 2048,
        "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 4, "vocab_size": 151_936,
        "num_hidden_layers": 2
    });
    assert_eq!(
        demands(&registry, rules, &config),
        [
            "ep 4 experts",
            "tp 32 heads",
            "tp 4 KV heads",
            "tp 768 feed-forward columns of an expert",
            "tp 4 blocks of scales",
            "tp 6 blocks of scales",
            "tp 32 blocks of scales",
            "pp 2 layers"
        ]
    );
}

/// Qwen3 8B in fp8, of 2 layers.
fn dense_qwen() -> Model {
    let (mut model, d) = (Model::default(), 4096);
    model.add("model.embed_tokens.weight", &[151_936, d]);
    for layer in 0..2 {
        let at = format!("model.layers.{layer}");
        model.weights(
            &at,
            &[
                ("self_attn.q_proj", &[32 * 128, d]),
                ("self_attn.k_proj", &[8 * 128, d]),
                ("self_attn.v_proj", &[8 * 128, d]),
                ("self_attn.o_proj", &[d, 32 * 128]),
                ("self_attn.q_norm", &[128]),
                ("self_attn.k_norm", &[128]),
                ("input_layernorm", &[d]),
                ("post_attention_layernorm", &[d]),
            ],
        );
        feed_forward(&mut model, &format!("{at}.mlp"), 12_288, d);
    }
    model.scale();
    model.add("model.norm.weight", &[d]);
    model.add("lm_head.weight", &[151_936, d]);
    model
}

#[test]
fn qwens_dense_models_in_fp8_are_placed_whole() {
    let (registry, rules) = placed(&dense_qwen(), "llama-hf");
    for (name, expected) in [
        ("self_attn.v_proj.weight_scale_inv", "tp:0,dp:0,pp:layer"),
        ("self_attn.o_proj.weight_scale_inv", "tp:1,dp:0,pp:layer"),
        ("mlp.up_proj.weight_scale_inv", "tp:0,dp:0,pp:layer"),
        ("mlp.down_proj.weight_scale_inv", "tp:1,dp:0,pp:layer"),
    ] {
        assert_eq!(place(&registry, &format!("model.layers.1.{name}")), expected, "{name}");
    }
    let config = serde_json::json!({
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "hidden_size": 4096,
        "intermediate_size": 12_288, "vocab_size": 151_936, "num_hidden_layers": 2
    });
    assert_eq!(
        demands(&registry, rules, &config),
        [
            "tp 32 heads",
            "tp 8 KV heads",
            "tp 12288 feed-forward columns",
            "tp 8 blocks of scales",
            "tp 32 blocks of scales",
            "tp 96 blocks of scales",
            "pp 2 layers"
        ]
    );
}
