//! The presets against the tensors of published models: names and shapes as their configurations give them.

use super::*;
use crate::{Dtype, Entry, Registry, Role, StageRule};

mod fp8;

/// Names and shapes of a model.
#[derive(Default)]
struct Model(Vec<(String, Vec<u64>)>);

impl Model {
    fn add(&mut self, name: impl Into<String>, shape: &[u64]) {
        self.0.push((name.into(), shape.to_vec()));
    }

    /// Weights called `<at>.<name>.weight`.
    fn weights(&mut self, at: &str, list: &[(&str, &[u64])]) {
        for (name, shape) in list {
            self.add(format!("{at}.{name}.weight"), shape);
        }
    }

    /// Adds a scale for every block of 128 x 128 of each projection.
    fn scale(&mut self) {
        let scaled = self.0.iter().filter(|(name, shape)| shape.len() == 2 && name.contains("_proj"));
        let scaled: Vec<_> = scaled.map(|(name, shape)| (name.clone(), shape.clone())).collect();
        for (name, shape) in scaled {
            let blocks: Vec<u64> = shape.iter().map(|extent| extent.div_ceil(128)).collect();
            self.add(format!("{name}_scale_inv"), &blocks);
        }
    }

    fn parameters(&self) -> u64 {
        self.0.iter().map(|(_, shape)| shape.iter().product::<u64>()).sum()
    }

    fn registry(&self) -> Registry {
        let mut registry = Registry::new();
        for (name, shape) in &self.0 {
            let entry = Entry::new(Fqn::new(name).unwrap(), Role::Param, Dtype::BF16, Shape::new(shape));
            registry.push(entry).unwrap();
        }
        registry
    }
}

/// GPT-NeoX 20B: 44 layers of 6,144, 64 heads, an untied head.
fn neox() -> Model {
    let (mut model, d) = (Model::default(), 6144);
    model.add("gpt_neox.embed_in.weight", &[50_432, d]);
    for layer in 0..44 {
        let at = |name: &str| format!("gpt_neox.layers.{layer}.{name}");
        for (name, rows, columns) in [
            ("attention.query_key_value", 3 * d, d),
            ("attention.dense", d, d),
            ("mlp.dense_h_to_4h", 4 * d, d),
            ("mlp.dense_4h_to_h", d, 4 * d),
        ] {
            model.add(at(&format!("{name}.weight")), &[rows, columns]);
            model.add(at(&format!("{name}.bias")), &[rows]);
        }
        for name in ["input_layernorm", "post_attention_layernorm"] {
            model.add(at(&format!("{name}.weight")), &[d]);
            model.add(at(&format!("{name}.bias")), &[d]);
        }
    }
    model.add("gpt_neox.final_layer_norm.weight", &[d]);
    model.add("gpt_neox.final_layer_norm.bias", &[d]);
    model.add("embed_out.weight", &[50_432, d]);
    model
}

/// Mixtral 8x7B: 32 layers of 4,096, 32 heads and 8 KV heads of 128, 8 experts of 14,336.
fn mixtral() -> Model {
    let (mut model, d) = (Model::default(), 4096);
    model.add("model.embed_tokens.weight", &[32_000, d]);
    for layer in 0..32 {
        let at = format!("model.layers.{layer}");
        model.weights(
            &at,
            &[
                ("self_attn.q_proj", &[d, d]),
                ("self_attn.k_proj", &[1024, d]),
                ("self_attn.v_proj", &[1024, d]),
                ("self_attn.o_proj", &[d, d]),
                ("block_sparse_moe.gate", &[8, d]),
                ("input_layernorm", &[d]),
                ("post_attention_layernorm", &[d]),
            ],
        );
        for expert in 0..8 {
            let at = format!("{at}.block_sparse_moe.experts.{expert}");
            model.weights(&at, &[("w1", &[14_336, d]), ("w2", &[d, 14_336]), ("w3", &[14_336, d])]);
        }
    }
    model.add("model.norm.weight", &[d]);
    model.add("lm_head.weight", &[32_000, d]);
    model
}

/// Gate, up and down of a feed-forward layer.
fn feed_forward(model: &mut Model, at: &str, width: u64, d: u64) {
    model.weights(at, &[("gate_proj", &[width, d]), ("up_proj", &[width, d]), ("down_proj", &[d, width])]);
}

/// DeepSeek V3: 61 layers of 7,168, of which the first 3 are dense (18,432), 256 routed experts and a shared one of 2,048;
/// latent attention of 128 heads (query rank 1,536, key and value rank 512, 128 + 64 wide keys, 128 wide values). The
/// block scales of its fp8 weights, and the layer of multi-token prediction, where asked for.
fn deepseek(layers: u64, experts: u64, scales: bool) -> Model {
    let (mut model, d) = (Model::default(), 7168);
    model.add("model.embed_tokens.weight", &[129_280, d]);
    for layer in 0..layers {
        let at = format!("model.layers.{layer}");
        model.weights(
            &at,
            &[
                ("self_attn.q_a_proj", &[1536, d]),
                ("self_attn.q_a_layernorm", &[1536]),
                ("self_attn.q_b_proj", &[128 * 192, 1536]),
                ("self_attn.kv_a_proj_with_mqa", &[512 + 64, d]),
                ("self_attn.kv_a_layernorm", &[512]),
                ("self_attn.kv_b_proj", &[128 * 256, 512]),
                ("self_attn.o_proj", &[d, 128 * 128]),
                ("input_layernorm", &[d]),
                ("post_attention_layernorm", &[d]),
            ],
        );
        if layer < 3 {
            feed_forward(&mut model, &format!("{at}.mlp"), 18_432, d);
            continue;
        }
        model.add(format!("{at}.mlp.gate.weight"), &[experts, d]);
        model.add(format!("{at}.mlp.gate.e_score_correction_bias"), &[experts]);
        feed_forward(&mut model, &format!("{at}.mlp.shared_experts"), 2048, d);
        for expert in 0..experts {
            feed_forward(&mut model, &format!("{at}.mlp.experts.{expert}"), 2048, d);
        }
    }
    if scales {
        model.scale();
        let next = format!("model.layers.{layers}");
        model.weights(
            &next,
            &[
                ("enorm", &[d]),
                ("hnorm", &[d]),
                ("eh_proj", &[d, 2 * d]),
                ("embed_tokens", &[129_280, d]),
                ("shared_head.norm", &[d]),
                ("shared_head.head", &[129_280, d]),
            ],
        );
    }
    model.add("model.norm.weight", &[d]);
    model.add("lm_head.weight", &[129_280, d]);
    model
}

/// DeepSeek V3 as TorchTitan holds it: the experts of a layer in three tensors.
fn titan() -> Model {
    let (mut model, d) = (Model::default(), 7168);
    model.add("tok_embeddings.weight", &[129_280, d]);
    for layer in 0..61 {
        let at = format!("layers.{layer}");
        model.weights(
            &at,
            &[
                ("attention.wq_a", &[1536, d]),
                ("attention.q_norm", &[1536]),
                ("attention.wq_b", &[128 * 192, 1536]),
                ("attention.wkv_a", &[576, d]),
                ("attention.kv_norm", &[512]),
                ("attention.wkv_b", &[128 * 256, 512]),
                ("attention.wo", &[d, 128 * 128]),
                ("attention_norm", &[d]),
                ("ffn_norm", &[d]),
            ],
        );
        let wide = |width: u64| [("w1", [width, d]), ("w2", [d, width]), ("w3", [width, d])];
        if layer < 3 {
            for (name, shape) in wide(18_432) {
                model.add(format!("{at}.feed_forward.{name}.weight"), &shape);
            }
            continue;
        }
        model.add(format!("{at}.moe.router.gate.weight"), &[256, d]);
        model.add(format!("{at}.moe.expert_bias"), &[256]);
        for (name, shape) in wide(2048) {
            model.add(format!("{at}.moe.shared_experts.{name}.weight"), &shape);
            model.add(format!("{at}.moe.experts.{name}"), &[256, shape[0], shape[1]]);
        }
    }
    model.add("norm.weight", &[d]);
    model.add("output.weight", &[129_280, d]);
    model
}

/// The registry with the rules of the preset that its names find, which must be `expected` and cover all.
fn placed(model: &Model, expected: &str) -> (Registry, &'static Rules) {
    let mut registry = model.registry();
    let (rules, fits) = detect(&registry);
    let rules = rules.unwrap_or_else(|| panic!("{fits:?}"));
    assert_eq!(rules.preset.as_ref().unwrap().name, expected);
    let applied = rules.apply(&mut registry).unwrap();
    assert_eq!(applied.placed, model.0.len());
    (registry, rules)
}

fn place(registry: &Registry, name: &str) -> String {
    registry.get(&TensorId::param(name).unwrap()).unwrap().placement.as_ref().unwrap().to_string()
}

/// What a mesh must divide, as `axis unit count`.
fn demands(registry: &Registry, rules: &Rules, config: &serde_json::Value) -> Vec<String> {
    let facts = ModelFacts::from_config(config).inferred(rules, registry).unwrap();
    let all = rules.constraints(registry, &facts);
    assert!(all.iter().all(|constraint| !constraint.approximate), "{all:?}");
    all.iter().map(|c| format!("{} {} {}", c.axis, c.count, c.unit.text())).collect()
}

#[test]
fn gpt_neox_20b_is_placed_whole() {
    let model = neox();
    assert_eq!(model.parameters(), 20_554_567_680);
    let (registry, rules) = placed(&model, "gpt-neox-hf");
    assert_eq!(place(&registry, "gpt_neox.layers.43.attention.query_key_value.bias"), "tp:0,dp:0,pp:layer");
    assert_eq!(place(&registry, "gpt_neox.layers.0.mlp.dense_4h_to_h.weight"), "tp:1,dp:0,pp:layer");
    assert_eq!(place(&registry, "embed_out.weight"), "tp:0,dp:0,pp:last");
    let config =
        serde_json::json!({"num_attention_heads": 64, "hidden_size": 6144, "intermediate_size": 24_576});
    assert_eq!(
        demands(&registry, rules, &config),
        ["tp 64 heads", "tp 24576 feed-forward columns", "pp 44 layers"]
    );
}

#[test]
fn mixtral_8x7b_is_placed_whole_and_its_experts_by_index() {
    let model = mixtral();
    assert_eq!(model.parameters(), 46_702_792_704);
    let (registry, rules) = placed(&model, "mixtral-hf");
    let expert = "model.layers.31.block_sparse_moe.experts.7.w2.weight";
    assert_eq!(place(&registry, expert), "tp:1,dp:0,ep:expert,pp:layer");
    let entry = registry.get(&TensorId::param(expert).unwrap()).unwrap();
    assert_eq!((entry.layer, entry.expert), (Some(31), Some(7)));
    assert_eq!(place(&registry, "model.layers.0.block_sparse_moe.gate.weight"), "dp+ep:0,pp:layer");
    let config = serde_json::json!({
        "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096, "intermediate_size": 14_336,
        "num_local_experts": 8, "vocab_size": 32_000, "num_hidden_layers": 32
    });
    assert_eq!(
        demands(&registry, rules, &config),
        [
            "ep 8 experts",
            "tp 32 heads",
            "tp 8 KV heads",
            "tp 14336 feed-forward columns of an expert",
            "pp 32 layers"
        ]
    );
    let wrong = ModelFacts { experts: Some(16), ..ModelFacts::default() };
    let refused = wrong.inferred(rules, &registry).unwrap_err().to_string();
    assert!(
        refused.starts_with("experts is given as 16, but model.layers.0.block_sparse_moe.experts.7"),
        "{refused}"
    );
}

#[test]
fn deepseek_v3_is_placed_whole_dense_layers_latent_projections_and_experts() {
    let model = deepseek(61, 256, false);
    assert_eq!(model.parameters() / 1_000_000_000, 671);
    let (registry, rules) = placed(&model, "deepseek-hf");
    for (name, expected) in [
        ("model.layers.2.mlp.down_proj.weight", "tp:1,dp+ep:0,pp:layer"),
        ("model.layers.3.mlp.experts.255.gate_proj.weight", "tp:0,dp:0,ep:expert,pp:layer"),
        ("model.layers.60.mlp.shared_experts.up_proj.weight", "tp:0,dp+ep:0,pp:layer"),
        ("model.layers.3.mlp.gate.e_score_correction_bias", "pp:layer"),
        ("model.layers.9.self_attn.q_a_proj.weight", "dp+ep:0,pp:layer"),
        ("model.layers.9.self_attn.kv_b_proj.weight", "tp:0,dp+ep:0,pp:layer"),
    ] {
        assert_eq!(place(&registry, name), expected, "{name}");
    }
    let config = serde_json::json!({
        "num_attention_heads": 128, "num_key_value_heads": 128, "hidden_size": 7168, "intermediate_size": 18_432,
        "moe_intermediate_size": 2048, "n_routed_experts": 256, "kv_lora_rank": 512, "vocab_size": 129_280,
        "num_hidden_layers": 61
    });
    assert_eq!(
        demands(&registry, rules, &config),
        [
            "ep 256 experts",
            "tp 128 heads",
            "tp 18432 feed-forward columns",
            "tp 2048 feed-forward columns of an expert",
            "pp 61 layers"
        ]
    );
}

#[test]
fn torchtitans_deepseek_stacks_experts_and_is_placed_whole() {
    let model = titan();
    assert_eq!(model.parameters(), deepseek(61, 256, false).parameters());
    let (registry, rules) = placed(&model, "deepseek-torchtitan");
    assert_eq!(place(&registry, "layers.3.moe.experts.w2"), "ep:0,tp:2,dp:1,pp:layer");
    let entry = registry.get(&TensorId::param("layers.3.moe.experts.w2").unwrap()).unwrap();
    assert_eq!(entry.placement.as_ref().unwrap().stage, StageRule::Layer);
    let facts = ModelFacts { heads: Some(128), ..ModelFacts::default() };
    let all = rules.constraints(&registry, &facts.inferred(rules, &registry).unwrap());
    let experts = all.iter().find(|c| c.unit == Unit::Experts).unwrap();
    assert_eq!((experts.axis.as_str(), experts.count), ("ep", 256));
    let refused = experts.check(48).unwrap_err().to_string();
    assert!(refused.starts_with("ep=48 does not divide the model's 256 experts"), "{refused}");
    assert!(all.iter().any(|c| c.unit == Unit::ExpertFfn && c.count == 2048));
}
