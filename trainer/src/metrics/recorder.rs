//! What a rank calls: at the start, after each step, after each save, at the end.
//!
//! Every rank knows the loss of the whole step, since it is summed over all ranks before anybody acts on it; so rank 0
//! prints it, once, whichever rank the last stage is on.

use std::{io::Write, path::Path, sync::Arc};

use super::{Clock, Events, Flops, Journal, Pace, Speed, Spread, Summary, Value, console, resident};
use crate::Result;

/// Folder of TensorBoard's files, in that of the metrics.
const TENSORBOARD: &str = "tensorboard";

/// How a run begins.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Start {
    /// How often the run was begun before.
    pub incarnation: u64,
    /// The checkpoint that it goes on from: its step and name.
    pub resumed_from: Option<(u64, String)>,
    /// What reading it took, in microseconds.
    pub restart_us: u64,
    /// What stays the same over the run and what readers should know: mesh, schedule, layers of each stage.
    pub facts: Vec<(String, Value)>,
}

/// How a rank records.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Setting {
    /// The rank.
    pub rank: usize,
    /// Steps from console line to console line.
    pub log_freq: u64,
    /// A token's operations, where they are known.
    pub flops: Option<Flops>,
    /// Whether rank 0 writes TensorBoard's files too.
    pub tensorboard: bool,
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
    /// What its actions took.
    pub pace: Pace,
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
    events: Option<Events>,
    clock: Arc<dyn Clock>,
    setting: Setting,
    summary: Summary,
    spread: Spread,
    varies: Option<f64>,
    first: bool,
}

impl Recorder {
    /// Opens the rank's files and records how the run begins.
    ///
    /// # Errors
    /// `Io`.
    pub fn open(folder: &Path, setting: Setting, start: &Start, clock: Arc<dyn Clock>) -> Result<Self> {
        let mut journal = Journal::open(folder, setting.rank)?;
        let (step, now) = (start.resumed_from.as_ref().map_or(0, |(step, _)| *step), clock.now_us());
        journal.add(step, now, "incarnation", &Value::U64(start.incarnation))?;
        if let Some((_, name)) = &start.resumed_from {
            journal.add(step, now, "resumed_from", &Value::Text(name.clone()))?;
            journal.add(step, now, "restart(s)", &Value::F64(start.restart_us as f64 / 1e6))?;
        }
        for (name, value) in &start.facts {
            journal.add(step, now, name, value)?;
        }
        journal.flush()?;
        let events = (setting.tensorboard && setting.rank == 0)
            .then(|| {
                Events::create(&folder.join(TENSORBOARD), setting.rank, start.incarnation, step + 1, now)
            })
            .transpose()?;
        let setting = Setting { log_freq: setting.log_freq.max(1), ..setting };
        let (summary, spread) = (Summary::default(), Spread::default());
        Ok(Self { journal, events, clock, setting, summary, spread, varies: None, first: true })
    }

    /// Records a step; on rank 0 and every so many steps, also prints its line to `console`.
    ///
    /// # Errors
    /// `Io`.
    pub fn step(&mut self, step: &Step, console: &mut dyn Write) -> Result<()> {
        let (now, (resident, most)) = (self.clock.now_us(), resident());
        let speed = self.speed(step);
        let mut values = measured(step, &speed, most);
        values.extend(paced(step));
        for (name, value) in &values {
            self.journal.add(step.step, now, name, value)?;
        }
        self.journal.flush()?;
        if let Some(events) = &mut self.events {
            let scalar = |(name, value): &(String, Value)| Some((name.clone(), value.number()?));
            events.scalars(step.step, now, &values.iter().filter_map(scalar).collect::<Vec<_>>())?;
        }
        self.summary.step(step, most);
        self.varies = self.spread.push(step.seconds);
        let due = std::mem::take(&mut self.first) || step.step.is_multiple_of(self.setting.log_freq);
        if self.setting.rank == 0 && due {
            // A console that is gone is no reason to stop training.
            let _ = writeln!(console, "{}", console::line(step, &speed, resident));
            let _ = console.flush();
        }
        Ok(())
    }

    /// The spread of the last steps' times, once when it becomes so large that people should look into it.
    pub const fn varies(&mut self) -> Option<f64> {
        self.varies.take()
    }

    fn speed(&self, step: &Step) -> Speed {
        let tps = if step.seconds > 0.0 { step.tokens as f64 / step.seconds } else { 0.0 };
        let flops = self.setting.flops;
        Speed { tps, tflops: flops.map(|it| it.tera(tps)), mfu: flops.and_then(|it| it.mfu(tps)) }
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

/// What every step has, under TorchTitan's names where it has them.
fn measured(step: &Step, speed: &Speed, most: u64) -> Vec<(String, Value)> {
    let share = |part: f64| if step.seconds > 0.0 { 100.0 * part / step.seconds } else { 0.0 };
    let known = [
        ("loss_metrics/global_avg_loss", Value::F32(step.loss)),
        ("grad_norm", Value::F32(step.grad_norm)),
        ("lr", Value::F64(step.lr)),
        ("throughput(tps)", Value::F64(speed.tps)),
    ];
    let speeds =
        [("tflops", speed.tflops.map(Value::F64)), ("mfu(%)", speed.mfu.map(|mfu| Value::F64(100.0 * mfu)))];
    let times = [
        ("time_metrics/end_to_end(s)", Value::F64(step.seconds)),
        ("time_metrics/data_loading(s)", Value::F64(step.data_seconds)),
        ("time_metrics/data_loading(%)", Value::F64(share(step.data_seconds))),
        ("memory/max_resident(GiB)", Value::F64(gib(most))),
        ("checkpoint/stall(s)", Value::F64(step.stall_seconds)),
    ];
    let speeds = speeds.into_iter().filter_map(|(name, value)| Some((name, value?)));
    known.into_iter().chain(speeds).chain(times).map(|(name, value)| (name.to_owned(), value)).collect()
}

/// What is known of the rank's actions; nothing where none were watched.
fn paced(step: &Step) -> Vec<(String, Value)> {
    let pace = &step.pace;
    let (span, busy) = (pace.pipeline(), pace.busy());
    if span <= 0.0 {
        return Vec::new();
    }
    let mut values = vec![
        ("pipeline/span(s)".to_owned(), Value::F64(span)),
        ("pipeline/busy(s)".to_owned(), Value::F64(busy)),
        ("pipeline/idle(%)".to_owned(), Value::F64(100.0 * (1.0 - busy / span).max(0.0))),
        ("comm/messages(s)".to_owned(), Value::F64(pace.messages)),
        ("comm/collectives(s)".to_owned(), Value::F64(pace.collectives)),
    ];
    if step.seconds > 0.0 {
        let share = 100.0 * pace.communication() / step.seconds;
        values.push(("comm/share(%)".to_owned(), Value::F64(share)));
    }
    for it in &pace.stages {
        values.push((format!("pipeline/stage_{}/peak_live", it.stage), Value::U64(it.live as u64)));
    }
    values
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}
