//! [`Observer`]: who is told what a rank does. The console, the metrics files and the log of consumed samples are behind
//! it; tests look through it.

use std::{sync::Arc, time::Duration};

use super::Summary;
use crate::{
    Result,
    checkpoint::{Loaded, Saved},
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
}

/// Who is told.
pub trait Observer {
    /// The run begins, or goes on.
    ///
    /// # Errors
    /// What can't be written.
    fn begun(&mut self, begun: &Begun) -> Result<()>;

    /// A step is done.
    ///
    /// # Errors
    /// What can't be written.
    fn step(&mut self, step: &StepDone) -> Result<()>;

    /// A save begins, after waiting so long for the one before.
    ///
    /// # Errors
    /// What can't be written.
    fn saving(&mut self, step: u64, back_pressure: Duration) -> Result<()>;

    /// A save is done on this rank.
    ///
    /// # Errors
    /// What can't be written.
    fn saved(&mut self, saved: &Saved) -> Result<()>;

    /// Something that people should know.
    ///
    /// # Errors
    /// What can't be written.
    fn warn(&mut self, text: &str) -> Result<()>;

    /// The run has ended on this rank.
    ///
    /// # Errors
    /// What can't be written.
    fn ended(&mut self, summary: &Summary) -> Result<()>;

    /// For lines from other threads.
    fn speaker(&self) -> Arc<dyn Fn(&str) + Send + Sync>;
}
