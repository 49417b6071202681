//! [`Observer`]: who is told what a rank does. The console, the metrics files and the log of consumed samples are behind
//! it; tests look through it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use fqn::Fqn;
use reshard::Region;
use tch::Tensor;

use super::Summary;
use crate::{
    Result,
    checkpoint::{Loaded, Saved},
    metrics::Pace,
    stage::{Account, Live},
};

/// How a run begins on a rank.
#[derive(Debug, Clone, PartialEq)]
pub struct Begun {
    /// The incarnation.
    pub epoch: u64,
    /// Number of the checkpoint that it goes on from.
    pub from: Option<u64>,
    /// Steps that are done.
    pub step: u64,
    /// Samples that are consumed.
    pub cursor: u64,
    /// Looking for the checkpoint's data and loading it, or initialising.
    pub took: Duration,
    /// What was read of it.
    pub loaded: Option<Loaded>,
}

/// A step that is done.
#[derive(Debug, Clone, PartialEq)]
pub struct StepDone {
    /// Its number, from 1.
    pub step: u64,
    /// Mean over tokens.
    pub loss: f32,
    /// Of all gradients, before clipping.
    pub norm: f64,
    /// Learning rate.
    pub rate: f64,
    /// Tokens of the step.
    pub tokens: u64,
    /// From its begin to the end of its update.
    pub took: Duration,
    /// Of that, reading its samples.
    pub reading: Duration,
    /// Of that, waiting for the shards' copy, before the update.
    pub stall: Duration,
    /// Samples consumed before it.
    pub cursor: u64,
    /// Whether a save is in flight.
    pub saving: bool,
    /// How the rank's row of the schedule went.
    pub row: Row,
    /// What its actions, messages and collectives took.
    pub pace: Pace,
}

/// How a rank's row of the schedule went in a step.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Row {
    /// Live microbatches on its stages.
    pub live: Live,
    /// What each of its stages did, by index.
    pub stages: BTreeMap<usize, Account>,
}

impl Row {
    /// `count` of live microbatches on the rank's stages, in activations of one microbatch of the whole rank.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "few microbatches on few stages")]
    pub fn of_rank(&self, count: usize) -> f64 {
        count as f64 / self.stages.len().max(1) as f64
    }

    /// Updates of the weights between a microbatch's forward and backward, at most: always 0.
    #[must_use]
    pub fn staleness(&self) -> u64 {
        self.stages.values().map(|stage| stage.staleness).max().unwrap_or(0)
    }
}

/// Gradients of a rank's shards: name, where it lies in the whole tensor, elements.
pub type NamedGradients = Vec<(Fqn, Region, Tensor)>;

/// Who is told. What an observer does not care for, it leaves out: by default nothing is done.
pub trait Observer {
    /// The run begins, or goes on.
    ///
    /// # Errors
    /// What can't be written.
    fn begun(&mut self, begun: &Begun) -> Result<()> {
        let _ = begun;
        Ok(())
    }

    /// A step is done.
    ///
    /// # Errors
    /// What can't be written.
    fn step(&mut self, step: &StepDone) -> Result<()> {
        let _ = step;
        Ok(())
    }

    /// The step's gradients: summed over the whole batch, not clipped yet. Whoever wants them asks for them; nobody else pays.
    ///
    /// # Errors
    /// What can't be written; what `named` refuses.
    fn gradients(&mut self, step: u64, named: &dyn Fn() -> Result<NamedGradients>) -> Result<()> {
        let _ = (step, named);
        Ok(())
    }

    /// A save begins, after waiting so long for the one before.
    ///
    /// # Errors
    /// What can't be written.
    fn saving(&mut self, step: u64, back_pressure: Duration) -> Result<()> {
        let _ = (step, back_pressure);
        Ok(())
    }

    /// A save is done on this rank.
    ///
    /// # Errors
    /// What can't be written.
    fn saved(&mut self, saved: &Saved) -> Result<()> {
        let _ = saved;
        Ok(())
    }

    /// Something that people should know.
    ///
    /// # Errors
    /// What can't be written.
    fn warn(&mut self, text: &str) -> Result<()> {
        let _ = text;
        Ok(())
    }

    /// The run has ended on this rank.
    ///
    /// # Errors
    /// What can't be written.
    fn ended(&mut self, summary: &Summary) -> Result<()> {
        let _ = summary;
        Ok(())
    }

    /// For lines from other threads.
    fn speaker(&self) -> Arc<dyn Fn(&str) + Send + Sync> {
        Arc::new(|_| {})
    }
}
