//! Llama: rotary positions, grouped-query attention, SwiGLU, RMS norms; parameters under TorchTitan's names, rotary pairs
//! side by side.

use serde::{Deserialize, Serialize};
use serde_json::json;
use tch::Tensor;

use super::{
    Batch, Linear, Lookup, Model, Norm, Ops, Output, Param, ParamSpec, PartSpec, Value,
    attention::{Heads, Rotary},
    sizes::{self, ParamList},
};
use crate::{Error, Result};

/// Sizes of a Llama.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LlamaConfig {
    /// Width of the residual stream.
    pub dim: i64,
    /// Number of layers.
    pub layers: u32,
    /// Query heads.
    pub heads: i64,
    /// Key and value heads; as many as query heads, if not given.
    #[serde(default)]
    pub kv_heads: Option<i64>,
    /// Width of a head; `dim / heads`, if not given.
    #[serde(default)]
    pub head_dim: Option<i64>,
    /// Width of the feed-forward layer.
    pub ffn: i64,
    /// Vocabulary entries.
    pub vocab: i64,
    /// Longest sequence.
    pub max_length: i64,
    /// Base of the rotary angles.
    #[serde(default = "theta")]
    pub rope_theta: f64,
    /// Epsilon of the norms.
    #[serde(default = "epsilon")]
    pub norm_eps: f64,
    /// Whether the output head is the embedding's table.
    #[serde(default)]
    pub tie_embeddings: bool,
    /// Standard deviation of initial weights; those that end a residual branch get it over √(2 · layers).
    #[serde(default = "deviation")]
    pub init_std: f64,
}

const fn theta() -> f64 {
    10_000.0
}

const fn epsilon() -> f64 {
    1e-5
}

const fn deviation() -> f64 {
    0.02
}

/// A Llama.
#[derive(Debug)]
pub struct Llama {
    config: LlamaConfig,
    head_dim: i64,
    kv_heads: i64,
    params: Vec<ParamSpec>,
    parts: Vec<PartSpec>,
    rotary: Rotary,
}

/// Places of a layer's parameters in its part, and of the head's in its own.
const ATTENTION_NORM: usize = 0;
const QKV: [usize; 3] = [1, 2, 3];
const WO: usize = 4;
const FFN_NORM: usize = 5;
const GATE_UP: [usize; 2] = [6, 7];
const DOWN: usize = 8;

impl Llama {
    /// The model of these sizes.
    ///
    /// # Errors
    /// `Config` for sizes that do not go together; they are named.
    pub fn new(config: LlamaConfig) -> Result<Self> {
        let (head_dim, kv_heads) = checked(&config)?;
        let (params, parts) = parameters(&config, head_dim, kv_heads)?;
        let rotary = Rotary::new(head_dim, config.max_length, config.rope_theta)?;
        Ok(Self { config, head_dim, kv_heads, params, parts, rotary })
    }

    /// Its sizes.
    #[must_use]
    pub const fn config(&self) -> &LlamaConfig {
        &self.config
    }

    fn param(&self, part: usize, place: usize) -> Result<Param> {
        let index = self.parts.get(part).and_then(|spec| spec.params.get(place).copied());
        let index = index.ok_or_else(|| Error::internal(format!("part {part} has no parameter {place}")))?;
        Ok(Param { part, index })
    }

    fn linear(&self, part: usize, place: usize) -> Result<Linear> {
        Ok(Linear { weight: self.param(part, place)?, bias: None })
    }

    fn norm(&self, ops: &dyn Ops, x: &Tensor, part: usize, place: usize) -> Result<Value> {
        let norm = Norm::Rms(self.config.norm_eps);
        ops.norm(&Value::whole(x.shallow_clone()), norm, self.param(part, place)?, None)
    }

    fn layer(&self, part: usize, ops: &dyn Ops, batch: &Batch, x: &Tensor) -> Result<Tensor> {
        let x = x.f_add(self.attention(part, ops, batch, x)?.tensor()?)?;
        Ok(x.f_add(self.feed_forward(part, ops, &x)?.tensor()?)?)
    }

    fn attention(&self, part: usize, ops: &dyn Ops, batch: &Batch, x: &Tensor) -> Result<Value> {
        let x = self.norm(ops, x, part, ATTENTION_NORM)?;
        let layers = QKV.map(|place| self.linear(part, place)).into_iter().collect::<Result<Vec<_>>>()?;
        let qkv = ops.linear(&x, &layers)?;
        let heads = Heads { rows: batch.rows, length: batch.length, head_dim: self.head_dim };
        let mixed = Value::each(&qkv.iter().collect::<Vec<_>>(), |pieces| match pieces {
            [q, k, v] => heads.attend(q, k, v, Some(&self.rotary)),
            _ => Err(Error::internal("attention without queries, keys and values")),
        })?;
        drop(qkv);
        only(ops.linear(&mixed, &[self.linear(part, WO)?])?)
    }

    fn feed_forward(&self, part: usize, ops: &dyn Ops, x: &Tensor) -> Result<Value> {
        let x = self.norm(ops, x, part, FFN_NORM)?;
        let layers = GATE_UP.map(|place| self.linear(part, place)).into_iter().collect::<Result<Vec<_>>>()?;
        let both = ops.linear(&x, &layers)?;
        let inner = Value::each(&both.iter().collect::<Vec<_>>(), |pieces| match pieces {
            [gate, up] => Ok(gate.f_silu()?.f_mul(up)?),
            _ => Err(Error::internal("a feed-forward layer without gate and up")),
        })?;
        drop(both);
        only(ops.linear(&inner, &[self.linear(part, DOWN)?])?)
    }
}

impl Model for Llama {
    fn params(&self) -> &[ParamSpec] {
        &self.params
    }

    fn parts(&self) -> &[PartSpec] {
        &self.parts
    }

    fn carry(&self, part: usize, rows: i64, length: i64) -> Vec<Vec<i64>> {
        if part + 1 < self.parts.len() { vec![vec![rows * length, self.config.dim]] } else { vec![] }
    }

    fn forward(&self, part: usize, ops: &dyn Ops, batch: &Batch, carry: &[Tensor]) -> Result<Output> {
        let head = self.parts.len() - 1;
        if part == 0 {
            let rows = ops.embed(&[Lookup { ids: batch.tokens()?, table: self.param(0, 0)? }])?;
            return Ok(Output::Carry(vec![rows.tensor()?.shallow_clone()]));
        }
        let [x] = carry else {
            return Err(Error::internal(format!("part {part} got {} tensors instead of one", carry.len())));
        };
        if part < head {
            return Ok(Output::Carry(vec![self.layer(part, ops, batch, x)?]));
        }
        let x = self.norm(ops, x, head, 0)?;
        Ok(Output::Logits(only(ops.linear(&x, &[self.linear(head, 1)?])?)?))
    }

    fn hf_config(&self) -> serde_json::Value {
        let config = &self.config;
        json!({
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": config.dim,
            "intermediate_size": config.ffn,
            "num_hidden_layers": config.layers,
            "num_attention_heads": config.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": config.vocab,
            "max_position_embeddings": config.max_length,
            "rope_theta": config.rope_theta,
            "rms_norm_eps": config.norm_eps,
            "tie_word_embeddings": config.tie_embeddings,
            "hidden_act": "silu",
            "attention_bias": false,
            "mlp_bias": false,
            "initializer_range": config.init_std,
            "torch_dtype": "float32",
            "bos_token_id": null,
            "eos_token_id": null,
        })
    }
}

/// The one value of an operation on one layer.
pub(super) fn only(mut values: Vec<Value>) -> Result<Value> {
    values.pop().ok_or_else(|| Error::internal("an operation gave nothing"))
}

/// Width of a head and number of key and value heads.
fn checked(config: &LlamaConfig) -> Result<(i64, i64)> {
    let LlamaConfig { dim, heads, ffn, vocab, max_length, .. } = *config;
    let kv_heads = config.kv_heads.unwrap_or(heads);
    sizes::positive(&[
        ("dim", dim),
        ("layers", i64::from(config.layers)),
        ("heads", heads),
        ("kv_heads", kv_heads),
        ("ffn", ffn),
        ("vocab", vocab),
        ("max_length", max_length),
    ])?;
    sizes::divides(("kv_heads", kv_heads), ("heads", heads))?;
    if config.head_dim.is_none() {
        sizes::divides(("heads", heads), ("dim", dim))?;
    }
    let head_dim = config.head_dim.unwrap_or(dim / heads);
    sizes::positive(&[("head_dim", head_dim)])?;
    if head_dim % 2 != 0 {
        return Err(Error::config(format!(
            "model.head_dim is {head_dim}; rotary positions turn pairs, so it must be even"
        )));
    }
    for (name, value) in
        [("rope_theta", config.rope_theta), ("norm_eps", config.norm_eps), ("init_std", config.init_std)]
    {
        sizes::positive_number(name, value)?;
    }
    Ok((head_dim, kv_heads))
}

fn parameters(config: &LlamaConfig, head_dim: i64, kv_heads: i64) -> Result<(Vec<ParamSpec>, Vec<PartSpec>)> {
    let LlamaConfig { dim, heads, ffn, vocab, init_std: std, .. } = *config;
    let ends = std / f64::from(2 * config.layers).sqrt();
    let mut list = ParamList::default();
    let table = list.matrix("tok_embeddings.weight", [vocab, dim], std)?;
    let mut parts = vec![PartSpec { name: "embedding".to_owned(), layer: None, params: vec![table] }];
    for layer in 0..config.layers {
        let name = |what: &str| format!("layers.{layer}.{what}.weight");
        let params = vec![
            list.vector(&name("attention_norm"), dim, 1.0)?,
            list.matrix(&name("attention.wq"), [heads * head_dim, dim], std)?,
            list.matrix(&name("attention.wk"), [kv_heads * head_dim, dim], std)?,
            list.matrix(&name("attention.wv"), [kv_heads * head_dim, dim], std)?,
            list.matrix(&name("attention.wo"), [dim, heads * head_dim], ends)?,
            list.vector(&name("ffn_norm"), dim, 1.0)?,
            list.matrix(&name("feed_forward.w1"), [ffn, dim], std)?,
            list.matrix(&name("feed_forward.w3"), [ffn, dim], std)?,
            list.matrix(&name("feed_forward.w2"), [dim, ffn], ends)?,
        ];
        parts.push(PartSpec { name: format!("layers.{layer}"), layer: Some(layer), params });
    }
    let norm = list.vector("norm.weight", dim, 1.0)?;
    let output = if config.tie_embeddings { table } else { list.matrix("output.weight", [vocab, dim], std)? };
    parts.push(PartSpec { name: "head".to_owned(), layer: None, params: vec![norm, output] });
    Ok((list.0, parts))
}
