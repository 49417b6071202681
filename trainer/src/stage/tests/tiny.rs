//! A model whose boundaries carry two tensors, one of which passes through some parts untouched. Its head may be tied to
//! its embedding.

use fqn::{Dtype, Entry, Fqn, Registry, Role, Shape};
use reshard::{StageSplit, Stages};
use tch::Tensor;

use crate::{
    Error, Result,
    model::{Batch, Init, Linear, Lookup, Model, Ops, Output, Param, ParamSpec, PartSpec, Value},
};

pub(super) const WIDTH: i64 = 6;
pub(super) const ENTRIES: i64 = 11;

#[derive(Debug)]
pub(super) struct Tiny {
    params: Vec<ParamSpec>,
    parts: Vec<PartSpec>,
    /// The layer that fails, and in which microbatch (told by the first token).
    pub(super) fails: Option<(usize, i64)>,
}

impl Tiny {
    pub(super) fn new(layers: usize, tied: bool) -> Self {
        let mut params = vec![spec("model.embed.weight", &[ENTRIES, WIDTH])];
        let mut parts = vec![PartSpec { name: "embedding".to_owned(), layer: None, params: vec![0] }];
        for layer in 0..layers {
            let first = params.len();
            for (name, shape) in [("a.weight", vec![WIDTH, WIDTH]), ("a.bias", vec![WIDTH])] {
                params.push(spec(&format!("model.layers.{layer}.{name}"), &shape));
            }
            let number = u32::try_from(layer).unwrap();
            let name = format!("layers.{layer}");
            parts.push(PartSpec { name, layer: Some(number), params: vec![first, first + 1] });
        }
        let head = if tied { 0 } else { params.len() };
        if !tied {
            params.push(spec("lm_head.weight", &[ENTRIES, WIDTH]));
        }
        parts.push(PartSpec { name: "head".to_owned(), layer: None, params: vec![head] });
        Self { params, parts, fails: None }
    }

    /// A model that forgot one of its parameters.
    pub(super) fn with_unused(name: &str) -> Self {
        let mut model = Self::new(2, false);
        model.params.push(spec(name, &[1]));
        model
    }

    pub(super) fn stages(&self, split: &str) -> Stages {
        let split: StageSplit = split.parse().unwrap();
        let count = match &split {
            StageSplit::Explicit(sizes) => sizes.len() as u64,
            _ => 1,
        };
        let mut registry = Registry::new();
        for (part, index) in self.parts.iter().flat_map(|part| part.params.iter().map(move |at| (part, *at)))
        {
            let spec = &self.params[index];
            let shape: Vec<u64> = spec.shape.iter().map(|extent| u64::try_from(*extent).unwrap()).collect();
            let mut entry = Entry::new(spec.fqn.clone(), Role::Param, Dtype::F32, Shape::new(&shape));
            entry.layer = part.layer;
            let _ = registry.push(entry);
        }
        split.resolve(&registry, count).unwrap()
    }

    pub(super) fn param(&self, part: usize, at: usize) -> Param {
        Param { part, index: self.parts[part].params[at] }
    }
}

fn spec(name: &str, shape: &[i64]) -> ParamSpec {
    ParamSpec { fqn: Fqn::new(name).unwrap(), shape: shape.to_vec(), init: Init::Normal(0.5), decay: true }
}

impl Model for Tiny {
    fn params(&self) -> &[ParamSpec] {
        &self.params
    }

    fn parts(&self) -> &[PartSpec] {
        &self.parts
    }

    fn carry(&self, part: usize, rows: i64, length: i64) -> Vec<Vec<i64>> {
        let tokens = rows * length;
        let last = part + 1 == self.parts.len();
        if last { Vec::new() } else { vec![vec![tokens, WIDTH], vec![rows, length, WIDTH]] }
    }

    fn forward(&self, part: usize, ops: &dyn Ops, batch: &Batch, carry: &[Tensor]) -> Result<Output> {
        let shape = [batch.rows, batch.length, WIDTH];
        if part == 0 {
            let tokens = batch.tokens.as_ref().ok_or_else(|| Error::internal("no tokens"))?;
            let rows = ops.embed(&[Lookup { ids: &tokens.reshape([-1]), table: self.param(0, 0) }])?;
            let hidden = rows.tensor()?;
            return Ok(Output::Carry(vec![hidden.tanh(), hidden.reshape(shape) * 0.5]));
        }
        let [hidden, skip] = carry else { return Err(Error::internal("two tensors are carried")) };
        let mixed = hidden + skip.reshape([-1, WIDTH]);
        if part + 1 == self.parts.len() {
            let head = Linear { weight: self.param(part, 0), bias: None };
            return Ok(Output::Logits(ops.linear(&Value::whole(mixed), &[head])?.remove(0)));
        }
        if self.fails.is_some_and(|(layer, first)| layer + 1 == part && batch.rows == first) {
            return Err(Error::internal("the layer broke"));
        }
        let layer = Linear { weight: self.param(part, 0), bias: Some(self.param(part, 1)) };
        let moved = ops.linear(&Value::whole(mixed.shallow_clone()), &[layer, layer])?;
        let sum = moved[0].tensor()?.tanh() * moved[1].tensor()? + hidden;
        // Every other layer leaves the second tensor as it is.
        let skip =
            if part.is_multiple_of(2) { skip.shallow_clone() } else { skip * 0.75 + mixed.reshape(shape) };
        Ok(Output::Carry(vec![sum, skip]))
    }

    fn hf_config(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
}
