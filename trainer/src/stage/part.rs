//! One part's run for one microbatch: leaves in, roots out, and the way back between them; at once kept as a graph, or made
//! again from its inputs when it goes back.
//!
//! Invariant: what goes in and out, forwards and backwards, consists of the [`Precision`](crate::parallel::Precision) that products
//! are computed on, at every part and so wherever stages are cut; in between all is f32.

use tch::Tensor;

use super::{Keep, Recompute};
use crate::{
    Error, Result,
    model::{Batch, Model, Output, Value},
    parallel::{Params, Pass, Runtime, Tape, wide},
    torch::node,
};

/// What a stage is made of besides its place in the model.
#[derive(Clone, Copy)]
pub(super) struct Ground<'a> {
    pub(super) model: &'a dyn Model,
    pub(super) runtime: &'a dyn Runtime,
    pub(super) params: &'a dyn Params,
    pub(super) recompute: &'a Recompute,
}

impl Ground<'_> {
    /// Shapes of what `part` gives on here.
    pub(super) fn carried(&self, part: usize, batch: &Batch) -> Vec<Vec<i64>> {
        carried(self.model, part, (batch.rows, batch.length), |tokens| self.runtime.kept(tokens))
    }
}

/// Shapes of what `part` gives on for so many sequences of so many tokens, on a rank that keeps `kept` of them.
pub(crate) fn carried(
    model: &dyn Model,
    part: usize,
    (rows, length): (i64, i64),
    kept: impl Fn(i64) -> i64,
) -> Vec<Vec<i64>> {
    let mut shapes = model.carry(part, rows, length);
    for tokens in shapes.iter_mut().filter_map(|shape| shape.first_mut()) {
        *tokens = kept(*tokens);
    }
    shapes
}

/// A part that went forward and waits to go back.
#[derive(Debug)]
pub(super) struct PartRun {
    part: usize,
    microbatch: usize,
    kept: Kept,
}

/// What stays until backward.
#[derive(Debug)]
enum Kept {
    Graph(Graph),
    /// To be computed again; the tape has what the products gave.
    Inputs(Vec<Tensor>, Tape),
}

#[derive(Debug)]
struct Graph {
    /// Leaves that require gradients, in f32.
    inputs: Vec<Tensor>,
    /// Roots, in f32: what the part gave on, or the loss.
    outputs: Vec<Tensor>,
}

impl PartRun {
    /// Runs `part`; gives its outputs, outside any graph: what it gives on, or its loss, if it is the head.
    pub(super) fn forward(
        ground: Ground<'_>,
        part: usize,
        microbatch: usize,
        batch: &Batch,
        inputs: &[Tensor],
    ) -> Result<(Self, Vec<Tensor>)> {
        ground.params.begin(part, Pass::Forward)?;
        let (kept, outputs) = match ground.recompute.of(part) {
            Keep::All => {
                let graph = Graph::new(ground, part, microbatch, batch, inputs)?;
                let outputs = given(ground, part, &graph.outputs)?;
                (Kept::Graph(graph), outputs)
            }
            keep => {
                let _untracked = tch::no_grad_guard();
                if keep == Keep::Products {
                    ground.runtime.record();
                }
                let outputs = outputs(ground, part, microbatch, batch, inputs);
                let tape = if keep == Keep::Products { ground.runtime.recorded() } else { Tape::default() };
                let inputs = inputs.iter().map(|it| Ok(it.f_detach()?)).collect::<Result<_>>()?;
                (Kept::Inputs(inputs, tape), given(ground, part, &outputs?)?)
            }
        };
        ground.params.end(part, Pass::Forward)?;
        Ok((Self { part, microbatch, kept }, outputs))
    }

    /// The gradients of the inputs from those of the outputs; frees what was kept.
    pub(super) fn backward(self, ground: Ground<'_>, batch: &Batch, grads: &[Tensor]) -> Result<Vec<Tensor>> {
        let Self { part, microbatch, kept } = self;
        let again = matches!(kept, Kept::Inputs(..));
        let weights = again || ground.model.backward_needs_weights(part);
        if weights {
            ground.params.begin(part, Pass::Backward)?;
        }
        let graph = match kept {
            Kept::Graph(graph) => graph,
            Kept::Inputs(inputs, tape) => {
                ground.runtime.replay(tape);
                let graph = Graph::new(ground, part, microbatch, batch, &inputs);
                let replayed = ground.runtime.replayed();
                let graph = graph?;
                replayed?;
                graph
            }
        };
        let inputs = graph.backward(part, grads)?;
        if weights {
            ground.params.end(part, Pass::Backward)?;
        }
        let precision = ground.params.precision();
        inputs.iter().map(|leaf| precision.operand(&gradient(leaf)?)).collect()
    }

    pub(super) const fn part(&self) -> usize {
        self.part
    }
}

impl Graph {
    fn new(
        ground: Ground<'_>,
        part: usize,
        microbatch: usize,
        batch: &Batch,
        inputs: &[Tensor],
    ) -> Result<Self> {
        let leaf = |tensor: &Tensor| Ok(wide(tensor)?.f_detach()?.f_set_requires_grad(true)?);
        let inputs: Vec<Tensor> = inputs.iter().map(leaf).collect::<Result<_>>()?;
        let outputs = outputs(ground, part, microbatch, batch, &inputs)?;
        Ok(Self { inputs, outputs })
    }

    /// Runs the way back; gives the leaves.
    fn backward(self, part: usize, grads: &[Tensor]) -> Result<Vec<Tensor>> {
        if grads.len() != self.outputs.len() {
            let (have, need) = (grads.len(), self.outputs.len());
            return Err(Error::internal(format!("{have} gradients for the {need} outputs of part {part}")));
        }
        // An output that nothing was learned for (a mask, positions) has no way back.
        let (roots, grads): (Vec<_>, Vec<_>) =
            self.outputs.iter().zip(grads).filter(|(output, _)| output.requires_grad()).unzip();
        let grads = grads.into_iter().map(wide).collect::<Result<Vec<_>>>()?;
        node::backward(&roots, &grads.iter().collect::<Vec<_>>())?;
        Ok(self.inputs)
    }
}

/// Outputs outside any graph, as they go to the next part; the loss goes nowhere and stays f32.
fn given(ground: Ground<'_>, part: usize, outputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let (precision, last) = (ground.params.precision(), part + 1 == ground.model.parts().len());
    let give = |output: &Tensor| {
        let output = output.f_detach()?;
        if last { Ok(output) } else { precision.operand(&output) }
    };
    outputs.iter().map(give).collect()
}

/// What the part gives on, or its loss, in f32.
fn outputs(
    ground: Ground<'_>,
    part: usize,
    microbatch: usize,
    batch: &Batch,
    inputs: &[Tensor],
) -> Result<Vec<Tensor>> {
    let ops = ground.runtime.ops(microbatch);
    match ground.model.forward(part, ops, batch, inputs)? {
        Output::Carry(outputs) => {
            let expected = ground.carried(part, batch);
            fits(&outputs, &expected).map_err(|error| error.at("its outputs"))?;
            Ok(outputs)
        }
        Output::Logits(logits) => Ok(vec![loss(ground, microbatch, batch, &logits)?]),
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
