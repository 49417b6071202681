//! Models: sequential computation and nothing else. A model is a list of *parts* (embedding, layers, head); each is a
//! function from tensors to tensors, written against [`Ops`], whose parallel meaning the runtime supplies.
//!
//! Invariants: nothing in this folder knows how many processes there are or which one it runs in (CI greps for it);
//! parameters are named by the FQN of the whole model; sizes such as head counts come from shapes, so that a piece of a
//! head-wise value is treated like the whole.

mod attention;
mod family;
mod gpt2;
mod llama;
mod ops;
mod sizes;
#[cfg(test)]
mod tests;
mod value;

pub use family::Family;
pub use gpt2::{Gpt2, Gpt2Config};
pub use llama::{Llama, LlamaConfig};
pub use ops::{Linear, Lookup, Norm, Ops};
pub use value::Value;

use fqn::Fqn;
use tch::Tensor;

use crate::{Error, Result};

/// A use of a parameter: which one, in which part. A tied parameter has two uses, with a gradient each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Param {
    /// Index in [`Model::parts`].
    pub part: usize,
    /// Index in [`Model::params`].
    pub index: usize,
}

/// How a parameter begins. Values are functions of (seed, FQN, index of the element): see `init`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Init {
    /// Normal, with this standard deviation.
    Normal(f64),
    /// Everywhere the same.
    Constant(f64),
}

/// A parameter of the unsplit model.
#[derive(Debug, Clone, PartialEq)]
pub struct ParamSpec {
    /// Its name.
    pub fqn: Fqn,
    /// Its shape; dtype is f32.
    pub shape: Vec<i64>,
    /// Its initial value.
    pub init: Init,
    /// Whether weight decay applies.
    pub decay: bool,
}

/// A part of a model: what FSDP gathers at once, and what a stage split never cuts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartSpec {
    /// For people: `embedding`, `layers.3`, `head`.
    pub name: String,
    /// The layer that it is, if it is one.
    pub layer: Option<u32>,
    /// Uses of parameters, as indices in [`Model::params`].
    pub params: Vec<usize>,
}

/// One microbatch, as every part may see it.
#[derive(Debug)]
pub struct Batch {
    /// Sequences.
    pub rows: i64,
    /// Tokens of each.
    pub length: i64,
    /// Token ids, `[rows, length]` i64; where the first part runs.
    pub tokens: Option<Tensor>,
    /// What follows each token, `[rows, length]` i64, -100 for what is not counted; where the head runs.
    pub targets: Option<Tensor>,
}

impl Batch {
    /// The token ids.
    ///
    /// # Errors
    /// `Internal` where they are not at hand.
    pub fn tokens(&self) -> Result<&Tensor> {
        self.tokens.as_ref().ok_or_else(|| Error::internal("no tokens where the embedding runs"))
    }
}

/// What a part gives on.
#[derive(Debug)]
pub enum Output {
    /// Tensors for the next part: what a stage boundary carries.
    Carry(Vec<Tensor>),
    /// From the head: one score per vocabulary entry, `[rows * length, vocabulary]`.
    Logits(Value),
}

/// A model.
pub trait Model: Send + Sync + std::fmt::Debug {
    /// Parameters in order. Those of one layer are together.
    fn params(&self) -> &[ParamSpec];

    /// Parts in order of computation: the first takes tokens, the last gives logits.
    fn parts(&self) -> &[PartSpec];

    /// Shapes of what `part` gives on, for a batch of `rows` × `length`; empty for the head. All f32, with a row for each token.
    fn carry(&self, part: usize, rows: i64, length: i64) -> Vec<Vec<i64>>;

    /// Runs one part.
    ///
    /// # Errors
    /// What the operations refuse.
    fn forward(&self, part: usize, ops: &dyn Ops, batch: &Batch, carry: &[Tensor]) -> Result<Output>;

    /// Whether the backward of `part` asks for weights. An embedding's does not, as nobody needs the gradient of tokens: then
    /// they are not gathered for it.
    fn backward_needs_weights(&self, part: usize) -> bool {
        part > 0
    }

    /// The configuration that `transformers` reads for the exported weights.
    fn hf_config(&self) -> serde_json::Value;
}
