//! One part's run for one microbatch: leaves in, roots out, and the way back between them.

use tch::Tensor;

use crate::{
    Error, Result,
    model::{Batch, Model, Output, Value},
    parallel::{Params, Pass, Runtime},
    torch::node,
};

/// What a stage is made of besides its place in the model.
#[derive(Clone, Copy)]
pub(super) struct Ground<'a> {
    pub(super) model: &'a dyn Model,
    pub(super) runtime: &'a dyn Runtime,
    pub(super) params: &'a dyn Params,
}

/// A part that went forward and waits to go back.
#[derive(Debug)]
pub(super) struct PartRun {
    part: usize,
    /// Leaves that require gradients.
    inputs: Vec<Tensor>,
    /// Roots: what the part gave on, or the loss.
    outputs: Vec<Tensor>,
}

impl PartRun {
    /// Runs `part`; its loss, if it is the head.
    pub(super) fn forward(
        ground: Ground<'_>,
        part: usize,
        microbatch: usize,
        batch: &Batch,
        inputs: &[Tensor],
    ) -> Result<Self> {
        let leaf = |tensor: &Tensor| Ok(tensor.f_detach()?.f_set_requires_grad(true)?);
        let inputs: Vec<Tensor> = inputs.iter().map(leaf).collect::<Result<_>>()?;
        let ops = ground.runtime.ops(microbatch);
        ground.params.begin(part, Pass::Forward)?;
        let outputs = match ground.model.forward(part, ops, batch, &inputs)? {
            Output::Carry(outputs) => {
                let expected = ground.model.carry(part, batch.rows, batch.length);
                fits(&outputs, &expected).map_err(|error| error.at("its outputs"))?;
                outputs
            }
            Output::Logits(logits) => vec![loss(ground, microbatch, batch, &logits)?],
        };
        ground.params.end(part, Pass::Forward)?;
        Ok(Self { part, inputs, outputs })
    }

    /// What it gives on, outside any graph.
    pub(super) fn carried(&self) -> Result<Vec<Tensor>> {
        self.outputs.iter().map(|output| Ok(output.f_detach()?)).collect()
    }

    /// The loss that the head gave.
    pub(super) fn loss(&self) -> Result<f32> {
        match self.outputs.as_slice() {
            [loss] if loss.numel() == 1 => Ok(f32::try_from(loss)?),
            _ => Err(Error::internal("the last part gave no logits, so that there is no loss")),
        }
    }

    /// A gradient of the loss.
    pub(super) fn seed(&self, scale: f32) -> Result<Vec<Tensor>> {
        let seed = |loss: &Tensor| Ok(loss.f_detach()?.f_full_like(f64::from(scale))?);
        self.outputs.iter().map(seed).collect()
    }

    /// The gradients of the inputs from those of the outputs; frees the graph.
    pub(super) fn backward(self, ground: Ground<'_>, grads: &[Tensor]) -> Result<Vec<Tensor>> {
        if grads.len() != self.outputs.len() {
            let (have, need) = (grads.len(), self.outputs.len());
            return Err(Error::internal(format!(
                "{have} gradients for the {need} outputs of part {}",
                self.part
            )));
        }
        // An output that nothing was learned for (a mask, positions) has no way back.
        let (roots, grads): (Vec<_>, Vec<_>) =
            self.outputs.iter().zip(grads).filter(|(output, _)| output.requires_grad()).unzip();
        ground.params.begin(self.part, Pass::Backward)?;
        node::backward(&roots, &grads)?;
        ground.params.end(self.part, Pass::Backward)?;
        self.inputs.iter().map(gradient).collect()
    }

    pub(super) const fn part(&self) -> usize {
        self.part
    }
}

/// The leaf's gradient; zeros where the part did not use it.
fn gradient(leaf: &Tensor) -> Result<Tensor> {
    let grad = leaf.f_grad()?;
    if grad.defined() { Ok(grad.f_detach()?) } else { Ok(leaf.f_detach()?.f_zeros_like()?) }
}

fn loss(ground: Ground<'_>, microbatch: usize, batch: &Batch, logits: &Value) -> Result<Tensor> {
    let targets = batch.targets.as_ref().ok_or_else(|| {
        Error::internal(format!("microbatch {microbatch} has no targets where the head runs"))
    })?;
    ground.runtime.ops(microbatch).loss(logits, &targets.f_reshape([-1])?)
}

/// That `tensors` have these shapes.
pub(super) fn fits(tensors: &[Tensor], shapes: &[Vec<i64>]) -> Result<()> {
    let found: Vec<_> = tensors.iter().map(Tensor::size).collect();
    if found == shapes {
        return Ok(());
    }
    Err(Error::internal(format!("tensors of shapes {found:?} where the model says {shapes:?}")))
}
