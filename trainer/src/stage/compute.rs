//! [`Stage`]: the computations of a run of parts, microbatch by microbatch.
//!
//! Invariants: a microbatch goes F → B, or F → I → W, once each; what it needs lives from F to the end of B or W; all of it
//! sees one version of the weights; in B each part's weight gradients are computed as soon as the part went back, in I only
//! those of parts that are computed again (see [`Recompute`]).

use std::{collections::BTreeMap, ops::Range, time::Instant};

use tch::Tensor;

use crate::{
    Error, Place, Result,
    model::{Batch, Model},
    parallel::{Params, Runtime},
};

use super::{
    Account, Recompute,
    part::{Ground, PartRun, fits},
};

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
    /// What stays of each part's forward.
    pub recompute: &'a Recompute,
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
    account: Account,
}

/// A microbatch between F and the end of its backward.
struct Live {
    /// Updates that the weights had behind them at F.
    version: u64,
    state: Whole,
}

enum Whole {
    /// Parts that wait to go back; the gradient of the loss, where the head is.
    Forward(Vec<PartRun>, Option<Tensor>),
    /// Only weight gradients are left.
    Weights,
}

/// What a backward does with the gradients of the weights.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Weights {
    /// Computes them.
    Now,
    /// Leaves to W what can be left.
    Later,
}

impl<'a> Stage<'a> {
    /// An idle stage.
    ///
    /// # Errors
    /// `Internal` for parts that the model lacks.
    pub fn new(inputs: StageInputs<'a>) -> Result<Self> {
        let StageInputs { index, parts, model, runtime, params, recompute, scale } = inputs;
        let has = model.parts().len();
        if parts.is_empty() || parts.end > has {
            return Err(Error::internal(format!(
                "stage {index} of parts {parts:?}, of {has} that the model has"
            )));
        }
        let account = Account::of(model, &parts, recompute);
        let ground = Ground { model, runtime, params, recompute };
        Ok(Self { index, parts, ground, scale, live: BTreeMap::new(), losses: BTreeMap::new(), account })
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

    /// Shapes of what arrives from the stage before, on this rank; none for the first.
    #[must_use]
    pub fn shapes_in(&self, batch: &Batch) -> Vec<Vec<i64>> {
        let before = self.parts.start.checked_sub(1);
        before.map_or_else(Vec::new, |part| self.ground.carried(part, batch))
    }

    /// Shapes of what goes to the next stage; none for the last.
    #[must_use]
    pub fn shapes_out(&self, batch: &Batch) -> Vec<Vec<i64>> {
        if self.is_last() {
            return Vec::new();
        }
        self.ground.carried(self.parts.end - 1, batch)
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
        let began = Instant::now();
        let version = self.ground.params.version();
        let (mut runs, mut carry) = (Vec::with_capacity(self.parts.len()), inputs);
        for part in self.parts.clone() {
            let run = PartRun::forward(self.ground, part, microbatch, batch, &carry);
            let (run, outputs) = run.place(self.part_name(part))?;
            carry = outputs;
            runs.push(run);
        }
        let mut seed = None;
        if self.is_last() {
            let (loss, gradient) = self.loss_of(&carry).place(format_args!("stage {}", self.index))?;
            self.losses.insert(microbatch, loss);
            seed = Some(gradient);
            carry.clear();
        }
        self.live.insert(microbatch, Live { version, state: Whole::Forward(runs, seed) });
        self.account.forward += began.elapsed();
        Ok(carry)
    }

    /// The loss that the head gave, and the gradient that its backward begins with.
    fn loss_of(&self, outputs: &[Tensor]) -> Result<(f32, Tensor)> {
        match outputs {
            [loss] if loss.numel() == 1 => {
                Ok((f32::try_from(loss)?, loss.f_full_like(f64::from(self.scale))?))
            }
            _ => Err(Error::internal("the last part gave no logits, so that there is no loss")),
        }
    }

    /// B: goes back from the gradients of the outputs (none for the last stage) to those of the inputs, and computes the
    /// gradients of the weights.
    ///
    /// # Errors
    /// A microbatch that did not go forward, gradients of other shapes, what a node of the graph refuses.
    pub fn backward(&mut self, microbatch: usize, batch: &Batch, grads: Vec<Tensor>) -> Result<Vec<Tensor>> {
        let grads = self.go_back(microbatch, batch, grads, Weights::Now)?;
        self.live.remove(&microbatch);
        Ok(grads)
    }

    /// I: as B, but gradients of weights stay queued: of all parts but those whose forward is computed again.
    ///
    /// # Errors
    /// As [`Stage::backward`].
    pub fn backward_inputs(
        &mut self,
        microbatch: usize,
        batch: &Batch,
        grads: Vec<Tensor>,
    ) -> Result<Vec<Tensor>> {
        self.go_back(microbatch, batch, grads, Weights::Later)
    }

    /// W: computes the gradients of the weights that I queued. Asks for no weights: they may be freed or sharded.
    ///
    /// # Errors
    /// A microbatch without I, what takes the gradients.
    pub fn backward_weights(&mut self, microbatch: usize) -> Result<()> {
        let Some(Live { version, state: Whole::Weights }) = self.live.remove(&microbatch) else {
            return Err(self.wrong(microbatch, "has no weight gradients to compute"));
        };
        self.same_weights(microbatch, version)?;
        let began = Instant::now();
        self.ground.runtime.weight_gradients(self.parts.clone(), microbatch)?;
        self.account.split += began.elapsed();
        Ok(())
    }

    /// The sum of the losses of `microbatch`'s tokens, once it went forward through the last stage.
    #[must_use]
    pub fn loss(&self, microbatch: usize) -> Option<f32> {
        self.losses.get(&microbatch).copied()
    }

    /// What it did so far.
    #[must_use]
    pub const fn account(&self) -> &Account {
        &self.account
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
        mut grads: Vec<Tensor>,
        weights: Weights,
    ) -> Result<Vec<Tensor>> {
        fits(&grads, &self.shapes_out(batch)).place(format_args!("gradients for stage {}", self.index))?;
        let Some(Live { version, state: Whole::Forward(runs, seed) }) = self.live.remove(&microbatch) else {
            return Err(self.wrong(microbatch, "is not between forward and backward"));
        };
        self.same_weights(microbatch, version)?;
        self.live.insert(microbatch, Live { version, state: Whole::Weights });
        grads.extend(seed);
        for run in runs.into_iter().rev() {
            let (part, began) = (run.part(), Instant::now());
            grads = run.backward(self.ground, batch, &grads).place(self.part_name(part))?;
            let passed_on = began.elapsed();
            self.account.input += passed_on;
            if weights == Weights::Now || !self.ground.recompute.splits(part) {
                let queued = self.ground.runtime.weight_gradients(part..part + 1, microbatch);
                queued.place(self.part_name(part))?;
                self.account.joined += began.elapsed().saturating_sub(passed_on);
            } else {
                self.ground.runtime.postpone(part..part + 1, microbatch);
            }
        }
        Ok(grads)
    }

    /// That nothing was updated since the microbatch's forward: with a step's synchronous schedule nothing can be.
    fn same_weights(&mut self, microbatch: usize, version: u64) -> Result<()> {
        let now = self.ground.params.version();
        self.account.staleness = self.account.staleness.max(now.abs_diff(version));
        if now == version {
            return Ok(());
        }
        Err(self.wrong(
            microbatch,
            &format!("went forward with the weights of update {version} and goes back with those of {now}"),
        ))
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
