//! `config.json` for a model that came without one: what shapes tell, what must be told, nothing guessed.

use std::collections::HashMap;

use fqn::{Dtype, Shape};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{Error, Result};

/// Facts about a Llama model that no shape tells. From the command line, or a source's own record.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelFacts {
    /// Attention heads (queries).
    pub num_attention_heads: Option<u64>,
    /// Base of the rotary embedding.
    pub rope_theta: Option<f64>,
    /// Epsilon of the norms.
    pub rms_norm_eps: Option<f64>,
    /// Longest sequence that positions are made for.
    pub max_position_embeddings: Option<u64>,
    /// Token that begins a sequence; optional.
    pub bos_token_id: Option<u64>,
    /// Token that ends one; optional.
    pub eos_token_id: Option<u64>,
}

/// Makes the `config.json` of a Llama model from its tensors (Hugging Face names) and `facts`.
///
/// # Errors
/// `Incompatible`: names that are not a Llama model's, shapes that contradict each other, or facts that are
/// missing, all of them named.
pub fn derive<'a>(
    tensors: impl IntoIterator<Item = (&'a str, Dtype, &'a Shape)>,
    facts: &ModelFacts,
) -> Result<Map<String, Value>> {
    let tensors: HashMap<&str, (Dtype, &Shape)> =
        tensors.into_iter().map(|(name, dtype, shape)| (name, (dtype, shape))).collect();
    let shapes = Shapes::of(&tensors)?;
    let known = facts.check()?;
    let head_dim = divide(shapes.q_rows, known.heads, "rows of q_proj", "attention heads")?;
    let kv_heads = divide(shapes.kv_rows, head_dim, "rows of k_proj", "rows of a head")?;
    divide(known.heads, kv_heads, "attention heads", "key-value heads")?;
    let config = json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": tensors.contains_key("model.layers.0.self_attn.q_proj.bias"),
        "attention_dropout": 0.0,
        "bos_token_id": facts.bos_token_id,
        "eos_token_id": facts.eos_token_id,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": shapes.hidden,
        "intermediate_size": shapes.intermediate,
        "max_position_embeddings": known.positions,
        "mlp_bias": tensors.contains_key("model.layers.0.mlp.gate_proj.bias"),
        "num_attention_heads": known.heads,
        "num_hidden_layers": shapes.layers,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": known.eps,
        "rope_theta": known.theta,
        "tie_word_embeddings": !tensors.contains_key("lm_head.weight"),
        "torch_dtype": shapes.dtype.torch_name(),
        "use_cache": true,
        "vocab_size": shapes.vocab,
    });
    match config {
        Value::Object(map) => Ok(map),
        _ => Err(Error::internal("a config that is no object")),
    }
}

struct Known {
    heads: u64,
    theta: f64,
    eps: f64,
    positions: u64,
}

impl ModelFacts {
    /// Facts as an earlier `config.json` states them.
    #[must_use]
    pub fn from_config(config: &Map<String, Value>) -> Self {
        let number = |key: &str| config.get(key).and_then(Value::as_u64);
        let float = |key: &str| config.get(key).and_then(Value::as_f64);
        let nested = || config.get("rope_parameters")?.get("rope_theta")?.as_f64();
        Self {
            num_attention_heads: number("num_attention_heads"),
            rope_theta: float("rope_theta").or_else(nested),
            rms_norm_eps: float("rms_norm_eps"),
            max_position_embeddings: number("max_position_embeddings"),
            bos_token_id: number("bos_token_id"),
            eos_token_id: number("eos_token_id"),
        }
    }

    fn check(&self) -> Result<Known> {
        let (Some(heads), Some(theta), Some(eps), Some(positions)) =
            (self.num_attention_heads, self.rope_theta, self.rms_norm_eps, self.max_position_embeddings)
        else {
            let missing = [
                ("num_attention_heads", self.num_attention_heads.is_none()),
                ("rope_theta", self.rope_theta.is_none()),
                ("rms_norm_eps", self.rms_norm_eps.is_none()),
                ("max_position_embeddings", self.max_position_embeddings.is_none()),
            ];
            let names: Vec<&str> =
                missing.iter().filter(|(_, missing)| *missing).map(|(name, _)| *name).collect();
            return Err(Error::incompatible(format!(
                "config.json can't be made: shapes do not tell {}",
                names.join(", ")
            ))
            .hint("give the folder with the model's own config.json by `--config DIR`"));
        };
        Ok(Known { heads, theta, eps, positions })
    }
}

struct Shapes {
    vocab: u64,
    hidden: u64,
    intermediate: u64,
    layers: u64,
    q_rows: u64,
    kv_rows: u64,
    dtype: Dtype,
}

impl Shapes {
    fn of(tensors: &HashMap<&str, (Dtype, &Shape)>) -> Result<Self> {
        let matrix = |name: &str| -> Result<(u64, u64, Dtype)> {
            let found = tensors.get(name).ok_or_else(|| not_llama(&format!("there is no {name}")))?;
            match (&**found.1, found.0) {
                ([rows, columns], dtype) => Ok((*rows, *columns, dtype)),
                _ => Err(not_llama(&format!("{name} has shape {}", found.1))),
            }
        };
        let (vocab, hidden, dtype) = matrix("model.embed_tokens.weight")?;
        let (q_rows, q_columns, _) = matrix("model.layers.0.self_attn.q_proj.weight")?;
        let (kv_rows, ..) = matrix("model.layers.0.self_attn.k_proj.weight")?;
        let (intermediate, ..) = matrix("model.layers.0.mlp.gate_proj.weight")?;
        if q_columns != hidden {
            return Err(not_llama(&format!("q_proj has {q_columns} columns, the embedding {hidden}")));
        }
        Ok(Self { vocab, hidden, intermediate, layers: count_layers(tensors)?, q_rows, kv_rows, dtype })
    }
}

fn count_layers(tensors: &HashMap<&str, (Dtype, &Shape)>) -> Result<u64> {
    let index = |name: &&str| name.strip_prefix("model.layers.")?.split('.').next()?.parse::<u64>().ok();
    let layers = tensors.keys().filter_map(index).max().map_or(0, |last| last.saturating_add(1));
    let absent = (0..layers)
        .find(|layer| !tensors.contains_key(&*format!("model.layers.{layer}.self_attn.q_proj.weight")));
    absent.map_or(Ok(layers), |layer| Err(not_llama(&format!("layer {layer} of {layers} has no q_proj"))))
}

fn divide(what: u64, by: u64, what_name: &str, by_name: &str) -> Result<u64> {
    match what.checked_div(by) {
        Some(whole) if whole > 0 && whole.checked_mul(by) == Some(what) => Ok(whole),
        _ => Err(Error::incompatible(format!("{what} {what_name} are not divisible by {by} {by_name}"))),
    }
}

fn not_llama(why: &str) -> Error {
    Error::incompatible(format!(
        "config.json can't be made: this is no Llama model with Hugging Face names: {why}"
    ))
    .hint("translate the names first, or give the model's own config with `--config DIR`")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn llama() -> Vec<(String, Shape)> {
        let mut all = vec![("model.embed_tokens.weight".to_owned(), Shape::new(&[256, 64]))];
        for layer in 0..2 {
            for (name, rows, columns) in
                [("self_attn.q_proj", 64, 64), ("self_attn.k_proj", 32, 64), ("mlp.gate_proj", 128, 64)]
            {
                all.push((format!("model.layers.{layer}.{name}.weight"), Shape::new(&[rows, columns])));
            }
        }
        all
    }

    fn derive_from(all: &[(String, Shape)], facts: &ModelFacts) -> Result<Map<String, Value>> {
        derive(all.iter().map(|(name, shape)| (name.as_str(), Dtype::BF16, shape)), facts)
    }

    fn facts() -> ModelFacts {
        ModelFacts {
            num_attention_heads: Some(4),
            rope_theta: Some(10000.0),
            rms_norm_eps: Some(1e-5),
            max_position_embeddings: Some(128),
            ..ModelFacts::default()
        }
    }

    #[test]
    fn shapes_tell_sizes_layers_key_value_heads_and_ties() {
        let config = derive_from(&llama(), &facts()).unwrap();
        let number = |key: &str| config[key].as_u64().unwrap();
        assert_eq!(
            (number("vocab_size"), number("hidden_size"), number("intermediate_size")),
            (256, 64, 128)
        );
        assert_eq!(
            (number("num_hidden_layers"), number("num_key_value_heads"), number("head_dim")),
            (2, 2, 16)
        );
        assert_eq!(
            (config["tie_word_embeddings"].as_bool(), config["torch_dtype"].as_str()),
            (Some(true), Some("bfloat16"))
        );
        assert_eq!(ModelFacts::from_config(&config), facts());
    }

    #[test]
    fn facts_that_shapes_do_not_tell_are_asked_for_all_at_once() {
        let text = derive_from(&llama(), &ModelFacts { rope_theta: Some(1e4), ..ModelFacts::default() })
            .unwrap_err()
            .to_string();
        assert!(text.contains("num_attention_heads, rms_norm_eps, max_position_embeddings"), "{text}");
        assert!(!text.contains("rope_theta"));
    }

    #[test]
    fn contradictions_are_refused() {
        let wrong = ModelFacts { num_attention_heads: Some(5), ..facts() };
        assert!(derive_from(&llama(), &wrong).unwrap_err().to_string().contains("not divisible"));
        let other = [("w".to_owned(), Shape::new(&[2]))];
        assert!(
            derive_from(&other, &facts())
                .unwrap_err()
                .to_string()
                .contains("there is no model.embed_tokens.weight")
        );
        let mut gap = llama();
        gap.retain(|(name, _)| !name.starts_with("model.layers.0.self_attn.q"));
        assert!(derive_from(&gap, &facts()).is_err());
    }
}
