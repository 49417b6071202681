//! Tests of the operations: the models against plain autograd, virtual ranks against real ones, memory, failures.

mod failures;
mod group;
mod loss;
mod memory;
mod models;
mod plain;
mod sequence;

use std::{rc::Rc, sync::Arc};

use tch::{Kind, Tensor};

use super::{Params, Pass, Runtime, Tokens, TpOps, Whole};
use crate::{
    Result,
    exact::{Sums, VirtualTp},
    model::{Batch, Family, Model, Output, Value},
    placement,
    transport::Group,
};

const LLAMA: &str = "dim=32\nlayers=2\nheads=8\nkv_heads=8\nffn=64\nvocab=48\nmax_length=16";
const GROUPED: &str =
    "dim=128\nlayers=2\nheads=16\nkv_heads=8\nffn=192\nvocab=50\nmax_length=16\nrope_theta=500.0";
const TIED: &str = "dim=64\nlayers=1\nheads=8\nffn=96\nvocab=40\nmax_length=16\ntie_embeddings=true";
const GPT2: &str = "dim=64\nlayers=2\nheads=8\nvocab=48\nmax_length=16";

fn built(family: Family, sizes: &str) -> Arc<dyn Model> {
    family.build(toml::from_str(sizes).unwrap()).unwrap()
}

/// Values in -1..1 that are a function of the seed.
fn noise(shape: &[i64], seed: u64) -> Tensor {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let values: Vec<f32> = (0..shape.iter().product::<i64>())
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            f32::from(u16::try_from(state >> 48).unwrap()) / 32768.0 - 1.0
        })
        .collect();
    Tensor::from_slice(&values).view(shape)
}

/// Weights that are far from their initial values, so that biases and norms count.
fn weights(model: &dyn Model) -> Vec<Tensor> {
    let specs = model.params().iter().enumerate();
    let weight = |(at, spec): (usize, &crate::model::ParamSpec)| {
        let values = noise(&spec.shape, at as u64 + 7);
        if spec.shape.len() == 1 { values * 0.2 + 1.0 } else { values * 0.2 }
    };
    specs.map(weight).collect()
}

fn batch(rows: i64, length: i64, vocab: i64) -> Batch {
    let ids = |seed| {
        ((noise(&[rows, length], seed) + 1.0) * (vocab as f64 / 2.0)).to_kind(Kind::Int64).clamp(0, vocab - 1)
    };
    let targets = ids(12);
    let _ = targets.select(1, 1).fill_(-100);
    Batch { rows, length, tokens: Some(ids(11)), targets: Some(targets) }
}

fn vocab(model: &dyn Model) -> i64 {
    model.params()[0].shape[0]
}

/// One rank, with whole weights in memory.
struct Rank {
    model: Arc<dyn Model>,
    whole: Rc<Whole>,
    ops: TpOps,
}

impl Rank {
    fn new(family: Family, sizes: &str, tp: Option<Rc<dyn Group>>, total: usize, sums: Sums) -> Self {
        Self::with(family, sizes, tp, total, (sums, Tokens::Whole))
    }

    fn with(
        family: Family,
        sizes: &str,
        tp: Option<Rc<dyn Group>>,
        total: usize,
        how: (Sums, Tokens),
    ) -> Self {
        let model = built(family, sizes);
        let (index, size) = tp.as_ref().map_or((0, 1), |group| (group.index(), group.size()));
        let virtual_tp = VirtualTp::of(index, size, total).unwrap();
        let cuts = placement::cuts(&placement::registry(family, &*model).unwrap()).unwrap();
        let whole = Rc::new(Whole::new(&*model, &weights(&*model), &cuts, virtual_tp).unwrap());
        let ops = TpOps::new(&*model, whole.clone(), tp, virtual_tp, how).unwrap();
        Self { model, whole, ops }
    }

    fn alone(family: Family, sizes: &str, total: usize) -> Self {
        Self::new(family, sizes, None, total, Sums::Exact)
    }

    fn train(&self, batch: &Batch) -> (Tensor, f32) {
        let found = train(&*self.model, &self.ops, &*self.whole, batch).unwrap();
        self.ops.weight_gradients(0..self.model.parts().len(), 3).unwrap();
        found
    }
}

/// A part that went forward.
struct Went {
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
}

/// Forward, part by part, each from leaves; the logits.
fn forward(model: &dyn Model, ops: &TpOps, params: &dyn Params, batch: &Batch) -> Result<(Vec<Went>, Value)> {
    let (mut went, mut carry) = (Vec::new(), Vec::new());
    let mut logits = None;
    for part in 0..model.parts().len() {
        let inputs: Vec<Tensor> =
            carry.iter().map(|it: &Tensor| it.detach().set_requires_grad(true)).collect();
        params.begin(part, Pass::Forward)?;
        let outputs = match model.forward(part, ops.ops(3), batch, &inputs)? {
            Output::Carry(outputs) => {
                let sizes: Vec<_> = outputs.iter().map(Tensor::size).collect();
                let mut expected = model.carry(part, batch.rows, batch.length);
                expected.iter_mut().for_each(|shape| shape[0] = ops.kept(shape[0]));
                assert_eq!(sizes, expected);
                outputs
            }
            Output::Logits(found) => {
                logits = Some(found);
                vec![]
            }
        };
        params.end(part, Pass::Forward)?;
        carry = outputs.iter().map(Tensor::detach).collect();
        went.push(Went { inputs, outputs });
    }
    Ok((went, logits.unwrap()))
}

/// Forward and backward; logits (whole) and loss.
fn train(model: &dyn Model, ops: &TpOps, params: &dyn Params, batch: &Batch) -> Result<(Tensor, f32)> {
    use crate::model::Ops;
    let (mut went, logits) = forward(model, ops, params, batch)?;
    let loss = ops.loss(&logits, batch.targets.as_ref().unwrap())?;
    went.last_mut().unwrap().outputs = vec![loss.shallow_clone()];
    let whole = ops.assemble(&logits)?;
    drop(logits);
    let mut grads = vec![loss.ones_like()];
    for (part, run) in went.into_iter().enumerate().rev() {
        params.begin(part, Pass::Backward)?;
        let (roots, with): (Vec<&Tensor>, Vec<&Tensor>) =
            (run.outputs.iter().collect(), grads.iter().collect());
        crate::torch::node::backward(&roots, &with)?;
        params.end(part, Pass::Backward)?;
        grads = run.inputs.iter().map(Tensor::grad).collect();
    }
    Ok((whole, f32::try_from(loss.detach())?))
}

/// Largest difference, as a share of the largest value.
fn distance(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.size(), b.size());
    let largest = b.abs().max().double_value(&[]).max(1e-12);
    (a - b).abs().max().double_value(&[]) / largest
}
