//! [`Stage`]: the computations of a run of parts, microbatch by microbatch.
//!
//! Invariants: a microbatch goes F → B, or F → I → W, once each; what it needs lives from F to the end of B or W, and how
//! many live at once is counted; in B each part's weight gradients are computed as soon as the part went back.

use std::{collections::BTreeMap, ops::Range};

use tch::Tensor;

use crate::{
    Error, Place, Result,
    model::{Batch, Model},
    parallel::{Params, Runtime},
};

use super::part::{Ground, PartRun, fits};

/// What a stage is made of.
#[derive(Clone)]
pub struct StageInputs<'a> {
    /// Its index.
    pub index: usize,
    /// Its parts of the model.
    pub parts: Range<usize>,
    /// The model.
    pub model: &'a dyn Model,
    /// Operations.
    pub runtime: &'a dyn Runtime,
    /// Weights.
    pub params: &'a dyn Params,
    /// What the sum of the loss is multiplied by: one over the number of tokens that the whole step counts.
    pub scale: f32,
}

/// A run of parts, and the microbatches that are between their forward and the end of their backward.
pub struct Stage<'a> {
    index: usize,
    parts: Range<usize>,
    ground: Ground<'a>,
    scale: f32,
    live: BTreeMap<usize, Live>,
    losses: BTreeMap<usize, f32>,
    peak: usize,
}

/// A microbatch between F and the end of its backward.
enum Live {
    Forward(Vec<PartRun>),
    /// Only weight gradients are left.
    Weights,
}

impl<'a> Stage<'a> {
    /// An idle stage.
    ///
    /// # Errors
    /// `Internal` for parts that the model lacks.
    pub fn new(inputs: StageInputs<'a>) -> Result<Self> {
        let StageInputs { index, parts, model, runtime, params, scale } = inputs;
        let has = model.parts().len();
        if parts.is_empty() || parts.end > has {
            return Err(Error::internal(format!(
                "stage {index} of parts {parts:?}, of {has} that the model has"
            )));
        }
        let ground = Ground { model, runtime, params };
        Ok(Self { index, parts, ground, scale, live: BTreeMap::new(), losses: BTreeMap::new(), peak: 0 })
    }

    /// Its index.
    #[must_use]
    pub const fn index(&self) -> usize {
        self.index
    }

    /// Its parts.
    #[must_use]
    pub const fn parts(&self) -> &Range<usize> {
        &self.parts
    }

    /// Whether it takes tokens.
    #[must_use]
    pub const fn is_first(&self) -> bool {
        self.parts.start == 0
    }

    /// Whether it gives the loss.
    #[must_use]
    pub fn is_last(&self) -> bool {
        self.parts.end == self.ground.model.parts().len()
    }

    /// Shapes of what arrives from the stage before; none for the first.
    #[must_use]
    pub fn shapes_in(&self, batch: &Batch) -> Vec<Vec<i64>> {
        let before = self.parts.start.checked_sub(1);
        before.map_or_else(Vec::new, |part| self.ground.model.carry(part, batch.rows, batch.length))
    }

    /// Shapes of what goes to the next stage; none for the last.
    #[must_use]
    pub fn shapes_out(&self, batch: &Batch) -> Vec<Vec<i64>> {
        if self.is_last() {
            return Vec::new();
        }
        self.ground.model.carry(self.parts.end - 1, batch.rows, batch.length)
    }

    /// F: runs the parts. Gives what the next stage takes; the last stage keeps the loss.
    ///
    /// # Errors
    /// A microbatch that lives already, inputs of other shapes, what the model refuses.
    pub fn forward(&mut self, microbatch: usize, batch: &Batch, inputs: Vec<Tensor>) -> Result<Vec<Tensor>> {
        if self.live.contains_key(&microbatch) {
            return Err(self.wrong(microbatch, "went forward already"));
        }
        fits(&inputs, &self.shapes_in(batch)).place(format_args!("inputs of stage {}", self.index))?;
        let (mut runs, mut carry) = (Vec::with_capacity(self.parts.len()), inputs);
        for part in self.parts.clone() {
            let run = PartRun::forward(self.ground, part, microbatch, batch, &carry);
            let run = run.place(self.part_name(part))?;
            carry = run.carried()?;
            runs.push(run);
        }
        if let Some(head) = runs.last().filter(|_| self.is_last()) {
            self.losses.insert(microbatch, head.loss().place(format_args!("stage {}", self.index))?);
            carry.clear();
        }
        self.live.insert(microbatch, Live::Forward(runs));
        self.peak = self.peak.max(self.live.len());
        Ok(carry)
    }

    /// B: goes back from the gradients of the outputs (none for the last stage) to those of the inputs, and computes the
    /// gradients of the weights.
    ///
    /// # Errors
    /// A microbatch that did not go forward, gradients of other shapes, what a node of the graph refuses.
    pub fn backward(&mut self, microbatch: usize, batch: &Batch, grads: Vec<Tensor>) -> Result<Vec<Tensor>> {
        let grads = self.go_back(microbatch, batch, grads, true)?;
        self.live.remove(&microbatch);
        Ok(grads)
    }

    /// I: as B, but the gradients of the weights stay queued.
    ///
    /// # Errors
    /// As [`Stage::backward`].
    pub fn backward_inputs(
        &mut self,
        microbatch: usize,
        batch: &Batch,
        grads: Vec<Tensor>,
    ) -> Result<Vec<Tensor>> {
        self.go_back(microbatch, batch, grads, false)
    }

    /// W: computes the gradients of the weights that I queued.
    ///
    /// # Errors
    /// A microbatch without I, what the weights refuse.
    pub fn backward_weights(&mut self, microbatch: usize) -> Result<()> {
        match self.live.remove(&microbatch) {
            Some(Live::Weights) => self.ground.runtime.weight_gradients(self.parts.clone(), microbatch),
            _ => Err(self.wrong(microbatch, "has no weight gradients to compute")),
        }
    }

    /// The sum of the losses of `microbatch`'s tokens, once it went forward through the last stage.
    #[must_use]
    pub fn loss(&self, microbatch: usize) -> Option<f32> {
        self.losses.get(&microbatch).copied()
    }

    /// The most microbatches that lived at once.
    #[must_use]
    pub const fn peak_live(&self) -> usize {
        self.peak
    }

    /// Microbatches that live now.
    #[must_use]
    pub fn live(&self) -> usize {
        self.live.len()
    }

    fn go_back(
        &mut self,
        microbatch: usize,
        batch: &Batch,
        grads: Vec<Tensor>,
        weights: bool,
    ) -> Result<Vec<Tensor>> {
        fits(&grads, &self.shapes_out(batch)).place(format_args!("gradients for stage {}", self.index))?;
        let Some(Live::Forward(runs)) = self.live.remove(&microbatch) else {
            return Err(self.wrong(microbatch, "is not between forward and backward"));
        };
        self.live.insert(microbatch, Live::Weights);
        let mut grads = match runs.last().filter(|_| self.is_last()) {
            Some(head) => head.seed(self.scale)?,
            None => grads,
        };
        for run in runs.into_iter().rev() {
            let part = run.part();
            grads = run.backward(self.ground, &grads).place(self.part_name(part))?;
            if weights {
                let queued = self.ground.runtime.weight_gradients(part..part + 1, microbatch);
                queued.place(self.part_name(part))?;
            }
        }
        Ok(grads)
    }

    fn part_name(&self, part: usize) -> String {
        let name = self.ground.model.parts().get(part).map_or("?", |part| part.name.as_str());
        format!("stage {}, {name}", self.index)
    }

    fn wrong(&self, microbatch: usize, what: &str) -> Error {
        Error::internal(format!("stage {}: microbatch {microbatch} {what}", self.index))
    }
}

impl std::fmt::Debug for StageInputs<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { index, parts, scale, .. } = self;
        f.debug_struct("StageInputs")
            .field("index", index)
            .field("parts", parts)
            .field("scale", scale)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Stage<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let live: Vec<_> = self.live.keys().collect();
        f.debug_struct("Stage")
            .field("index", &self.index)
            .field("parts", &self.parts)
            .field("live", &live)
            .finish()
    }
}
