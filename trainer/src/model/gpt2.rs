//! A model of GPT-2's kind: learned positions, layer norms, biases, GELU, a head that is the embedding's table. Its weights
//! are `[out, in]`, and queries, keys and values have a weight each, so its names are its own.

use serde::{Deserialize, Serialize};
use serde_json::json;
use tch::{Kind, Tensor};

use super::{
    Batch, Linear, Lookup, Model, Norm, Ops, Output, Param, ParamSpec, PartSpec, Value,
    attention::Heads,
    llama::only,
    sizes::{self, ParamList},
};
use crate::{Error, Result};

/// Sizes of a GPT-2.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpt2Config {
    /// Width of the residual stream.
    pub dim: i64,
    /// Number of layers.
    pub layers: u32,
    /// Heads.
    pub heads: i64,
    /// Width of the feed-forward layer; `4 · dim`, if not given.
    #[serde(default)]
    pub ffn: Option<i64>,
    /// Vocabulary entries.
    pub vocab: i64,
    /// Longest sequence: so many positions are learned.
    pub max_length: i64,
    /// Epsilon of the norms.
    #[serde(default = "epsilon")]
    pub norm_eps: f64,
    /// Standard deviation of initial weights; those that end a residual branch get it over √(2 · layers).
    #[serde(default = "deviation")]
    pub init_std: f64,
}

const fn epsilon() -> f64 {
    1e-5
}

const fn deviation() -> f64 {
    0.02
}

/// A model of GPT-2's kind.
#[derive(Debug)]
pub struct Gpt2 {
    config: Gpt2Config,
    ffn: i64,
    params: Vec<ParamSpec>,
    parts: Vec<PartSpec>,
}

/// Places of a layer's parameters in its part; a bias follows its weight.
const LN_1: usize = 0;
const QKV: [usize; 3] = [2, 4, 6];
const OUT: usize = 8;
const LN_2: usize = 10;
const FC_IN: usize = 12;
const FC_OUT: usize = 14;

impl Gpt2 {
    /// The model of these sizes.
    ///
    /// # Errors
    /// `Config` for sizes that do not go together; they are named.
    pub fn new(config: Gpt2Config) -> Result<Self> {
        let ffn = checked(&config)?;
        let (params, parts) = parameters(&config, ffn)?;
        Ok(Self { config, ffn, params, parts })
    }

    /// Its sizes.
    #[must_use]
    pub const fn config(&self) -> &Gpt2Config {
        &self.config
    }

    fn param(&self, part: usize, place: usize) -> Result<Param> {
        let index = self.parts.get(part).and_then(|spec| spec.params.get(place).copied());
        let index = index.ok_or_else(|| Error::internal(format!("part {part} has no parameter {place}")))?;
        Ok(Param { part, index })
    }

    fn linear(&self, part: usize, place: usize) -> Result<Linear> {
        Ok(Linear { weight: self.param(part, place)?, bias: Some(self.param(part, place + 1)?) })
    }

    fn norm(&self, ops: &dyn Ops, x: &Tensor, part: usize, place: usize) -> Result<Value> {
        let (norm, x) = (Norm::Layer(self.config.norm_eps), Value::whole(x.shallow_clone()));
        ops.norm(&x, norm, self.param(part, place)?, Some(self.param(part, place + 1)?))
    }

    fn embedding(&self, ops: &dyn Ops, batch: &Batch) -> Result<Tensor> {
        let tokens = batch.tokens()?;
        if batch.length > self.config.max_length {
            let (length, longest) = (batch.length, self.config.max_length);
            return Err(Error::config(format!(
                "a sequence of {length} tokens; the model knows {longest} positions"
            ))
            .hint("raise the model's max_length"));
        }
        let places = tokens.f_ones_like()?.f_cumsum(-1, Kind::Int64)?.f_sub_scalar(1)?;
        let words = Lookup { ids: tokens, table: self.param(0, 0)? };
        let places = Lookup { ids: &places, table: self.param(0, 1)? };
        Ok(ops.embed(&[words, places])?.tensor()?.shallow_clone())
    }

    fn layer(&self, part: usize, ops: &dyn Ops, batch: &Batch, x: &Tensor) -> Result<Tensor> {
        let x = x.f_add(self.attention(part, ops, batch, x)?.tensor()?)?;
        Ok(x.f_add(self.feed_forward(part, ops, &x)?.tensor()?)?)
    }

    fn attention(&self, part: usize, ops: &dyn Ops, batch: &Batch, x: &Tensor) -> Result<Value> {
        let x = self.norm(ops, x, part, LN_1)?;
        let layers = QKV.map(|place| self.linear(part, place)).into_iter().collect::<Result<Vec<_>>>()?;
        let qkv = ops.linear(&x, &layers)?;
        let head_dim = self.config.dim / self.config.heads;
        let heads = Heads { rows: batch.rows, length: batch.length, head_dim };
        let mixed = Value::each(&qkv.iter().collect::<Vec<_>>(), |pieces| match pieces {
            [q, k, v] => heads.attend(q, k, v, None),
            _ => Err(Error::internal("attention without queries, keys and values")),
        })?;
        drop(qkv);
        only(ops.linear(&mixed, &[self.linear(part, OUT)?])?)
    }

    fn feed_forward(&self, part: usize, ops: &dyn Ops, x: &Tensor) -> Result<Value> {
        let x = self.norm(ops, x, part, LN_2)?;
        let inner = only(ops.linear(&x, &[self.linear(part, FC_IN)?])?)?;
        let inner = Value::each(&[&inner], |pieces| match pieces {
            [inner] => Ok(inner.f_gelu("tanh")?),
            _ => Err(Error::internal("a feed-forward layer without input")),
        })?;
        only(ops.linear(&inner, &[self.linear(part, FC_OUT)?])?)
    }
}

impl Model for Gpt2 {
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
            return Ok(Output::Carry(vec![self.embedding(ops, batch)?]));
        }
        let [x] = carry else {
            return Err(Error::internal(format!("part {part} got {} tensors instead of one", carry.len())));
        };
        if part < head {
            return Ok(Output::Carry(vec![self.layer(part, ops, batch, x)?]));
        }
        let x = self.norm(ops, x, head, 0)?;
        let table = Linear { weight: self.param(head, 2)?, bias: None };
        Ok(Output::Logits(only(ops.linear(&x, &[table])?)?))
    }

    /// Of a GPT-2 whose `c_attn` is queries, keys and values side by side, and whose weights are transposed.
    fn hf_config(&self) -> serde_json::Value {
        let config = &self.config;
        json!({
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "n_embd": config.dim,
            "n_layer": config.layers,
            "n_head": config.heads,
            "n_inner": self.ffn,
            "n_positions": config.max_length,
            "vocab_size": config.vocab,
            "layer_norm_epsilon": config.norm_eps,
            "activation_function": "gelu_new",
            "attn_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "resid_pdrop": 0.0,
            "tie_word_embeddings": true,
            "initializer_range": config.init_std,
            "torch_dtype": "float32",
            "bos_token_id": null,
            "eos_token_id": null,
        })
    }
}

/// Width of the feed-forward layer.
fn checked(config: &Gpt2Config) -> Result<i64> {
    let Gpt2Config { dim, heads, vocab, max_length, .. } = *config;
    sizes::positive(&[
        ("dim", dim),
        ("layers", i64::from(config.layers)),
        ("heads", heads),
        ("vocab", vocab),
        ("max_length", max_length),
    ])?;
    sizes::divides(("heads", heads), ("dim", dim))?;
    let ffn = config.ffn.unwrap_or(4 * dim);
    sizes::positive(&[("ffn", ffn)])?;
    sizes::positive_number("norm_eps", config.norm_eps)?;
    sizes::positive_number("init_std", config.init_std)?;
    Ok(ffn)
}

fn parameters(config: &Gpt2Config, ffn: i64) -> Result<(Vec<ParamSpec>, Vec<PartSpec>)> {
    let Gpt2Config { dim, vocab, max_length, init_std: std, .. } = *config;
    let ends = std / f64::from(2 * config.layers).sqrt();
    let mut list = ParamList::default();
    let table = list.matrix("transformer.wte.weight", [vocab, dim], std)?;
    let places = list.matrix("transformer.wpe.weight", [max_length, dim], std)?;
    let mut parts = vec![PartSpec { name: "embedding".to_owned(), layer: None, params: vec![table, places] }];
    for layer in 0..config.layers {
        let name = |what: &str| format!("transformer.h.{layer}.{what}");
        let mut params = norm(&mut list, &name("ln_1"), dim)?;
        for what in ["attn.q_proj", "attn.k_proj", "attn.v_proj"] {
            params.extend(linear(&mut list, &name(what), [dim, dim], std)?);
        }
        params.extend(linear(&mut list, &name("attn.out_proj"), [dim, dim], ends)?);
        params.extend(norm(&mut list, &name("ln_2"), dim)?);
        params.extend(linear(&mut list, &name("mlp.fc_in"), [ffn, dim], std)?);
        params.extend(linear(&mut list, &name("mlp.fc_out"), [dim, ffn], ends)?);
        parts.push(PartSpec { name: format!("layers.{layer}"), layer: Some(layer), params });
    }
    let mut params = norm(&mut list, "transformer.ln_f", dim)?;
    params.push(table);
    parts.push(PartSpec { name: "head".to_owned(), layer: None, params });
    Ok((list.0, parts))
}

fn norm(list: &mut ParamList, name: &str, width: i64) -> Result<Vec<usize>> {
    Ok(vec![
        list.vector(&format!("{name}.weight"), width, 1.0)?,
        list.vector(&format!("{name}.bias"), width, 0.0)?,
    ])
}

fn linear(list: &mut ParamList, name: &str, shape: [i64; 2], std: f64) -> Result<[usize; 2]> {
    let [out, _] = shape;
    Ok([list.matrix(&format!("{name}.weight"), shape, std)?, list.vector(&format!("{name}.bias"), out, 0.0)?])
}
