//! What a rank calls: at the start, after each step, after each save, at the end.

use std::{io::Write, path::Path, sync::Arc};

use super::{Clock, Journal, Summary, Value, console, resident};
use crate::Result;

/// How a run begins.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Start {
    /// How often the run was begun before.
    pub incarnation: u64,
    /// The checkpoint that it goes on from: its step and name.
    pub resumed_from: Option<(u64, String)>,
    /// What reading it took, in microseconds.
    pub restart_us: u64,
}

/// What a step measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// From 1.
    pub step: u64,
    /// Mean loss over the global batch.
    pub loss: f32,
    /// Norm of the gradients before they are scaled down.
    pub grad_norm: f32,
    /// Learning rate.
    pub lr: f64,
    /// Tokens of the global batch.
    pub tokens: u64,
    /// Length of the step.
    pub seconds: f64,
    /// Of that, waiting for data.
    pub data_seconds: f64,
    /// Of that, waiting for a checkpoint.
    pub stall_seconds: f64,
}

/// What a save took.
#[derive(Debug, Clone, PartialEq)]
pub struct Save {
    /// The step that was saved.
    pub step: u64,
    /// Bytes that this rank wrote.
    pub bytes: u64,
    /// Bytes that it did not write, as a checkpoint before has them.
    pub shared: u64,
    /// Copying out of the training's way.
    pub stage_seconds: f64,
    /// Writing.
    pub write_seconds: f64,
    /// Committing.
    pub commit_seconds: f64,
}

/// Records what a rank measures.
#[derive(Debug)]
pub struct Recorder {
    journal: Journal,
    clock: Arc<dyn Clock>,
    rank: usize,
    log_freq: u64,
    summary: Summary,
    first: bool,
}

impl Recorder {
    /// Opens the rank's file and records how the run begins.
    ///
    /// # Errors
    /// `Io`.
    pub fn open(
        folder: &Path,
        rank: usize,
        log_freq: u64,
        start: &Start,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        let mut journal = Journal::open(folder, rank)?;
        let (step, now) = (start.resumed_from.as_ref().map_or(0, |(step, _)| *step), clock.now_us());
        journal.add(step, now, "incarnation", &Value::U64(start.incarnation))?;
        if let Some((_, name)) = &start.resumed_from {
            journal.add(step, now, "resumed_from", &Value::Text(name.clone()))?;
            journal.add(step, now, "restart(s)", &Value::F64(start.restart_us as f64 / 1e6))?;
        }
        journal.flush()?;
        let log_freq = log_freq.max(1);
        Ok(Self { journal, clock, rank, log_freq, summary: Summary::default(), first: true })
    }

    /// Records a step; on rank 0 and every so many steps, also prints its line to `console`.
    ///
    /// # Errors
    /// `Io`.
    pub fn step(&mut self, step: &Step, console: &mut dyn Write) -> Result<()> {
        let (now, (resident, most)) = (self.clock.now_us(), resident());
        let tps = if step.seconds > 0.0 { step.tokens as f64 / step.seconds } else { 0.0 };
        for (name, value) in [
            ("loss_metrics/global_avg_loss", Value::F32(step.loss)),
            ("grad_norm", Value::F32(step.grad_norm)),
            ("lr", Value::F64(step.lr)),
            ("throughput(tps)", Value::F64(tps)),
            ("time_metrics/end_to_end(s)", Value::F64(step.seconds)),
            ("time_metrics/data_loading(s)", Value::F64(step.data_seconds)),
            ("memory/max_resident(GiB)", Value::F64(gib(most))),
            ("checkpoint/stall(s)", Value::F64(step.stall_seconds)),
        ] {
            self.journal.add(step.step, now, name, &value)?;
        }
        self.journal.flush()?;
        self.summary.step(step, most);
        let due = std::mem::take(&mut self.first) || step.step.is_multiple_of(self.log_freq);
        if self.rank == 0 && due {
            // A console that is gone is no reason to stop training.
            let _ = writeln!(console, "{}", console::line(step, tps, resident));
            let _ = console.flush();
        }
        Ok(())
    }

    /// Records a save that is committed; `checkpoint/shared_bytes` only where it shares any.
    ///
    /// # Errors
    /// `Io`.
    pub fn save(&mut self, save: &Save) -> Result<()> {
        let now = self.clock.now_us();
        let bandwidth = if save.write_seconds > 0.0 { gib(save.bytes) / save.write_seconds } else { 0.0 };
        for (name, value) in [
            ("checkpoint/stage(s)", Value::F64(save.stage_seconds)),
            ("checkpoint/write(s)", Value::F64(save.write_seconds)),
            ("checkpoint/commit(ms)", Value::F64(save.commit_seconds * 1e3)),
            ("checkpoint/bytes", Value::U64(save.bytes)),
            ("checkpoint/bandwidth(GiB/s)", Value::F64(bandwidth)),
        ] {
            self.journal.add(save.step, now, name, &value)?;
        }
        if save.shared > 0 {
            self.journal.add(save.step, now, "checkpoint/shared_bytes", &Value::U64(save.shared))?;
        }
        self.summary.saves += 1;
        self.journal.flush()
    }

    /// Records something of a step, to be written with it by [`Recorder::step`].
    ///
    /// # Errors
    /// `Internal` for what can't be written as JSON.
    pub fn add(&mut self, step: u64, name: &str, value: &Value) -> Result<()> {
        self.journal.add(step, self.clock.now_us(), name, value)
    }

    /// Records anything else.
    ///
    /// # Errors
    /// `Io`.
    pub fn value(&mut self, step: u64, name: &str, value: &Value) -> Result<()> {
        self.journal.add(step, self.clock.now_us(), name, value)?;
        self.journal.flush()
    }

    /// What was done so far.
    #[must_use]
    pub const fn summary(&self) -> &Summary {
        &self.summary
    }
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}
