//! [`Recording`]: the observer of a real run: console, metrics, the log of consumed samples.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use super::{Begun, Job, Observer, Row, StepDone, Summary, recorded};
use crate::{
    Result,
    checkpoint::{Loaded, Saved},
    config::LoadProof,
    data::log,
    metrics::{Clock as _, Recorder, Save, Start, Step, SystemClock, Trace, Value},
};

/// Name of the log of consumed samples, in the folder of the metrics.
pub const SAMPLES: &str = "samples.jsonl";

/// Writes down what one rank does.
#[derive(Debug)]
pub struct Recording<'a> {
    job: &'a Job,
    rank: usize,
    folder: PathBuf,
    files: Option<Files>,
    /// When the save in flight began.
    saving_us: u64,
}

#[derive(Debug)]
struct Files {
    recorder: Recorder,
    /// On rank 0: one log for the whole run.
    samples: Option<log::Writer>,
    /// Of the steps that are traced.
    trace: Option<Trace>,
}

/// What was read, and what proved it, in words.
#[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
fn read(loaded: Loaded) -> String {
    let times = loaded.read as f64 / loaded.own.max(1) as f64;
    let by = match loaded.proof {
        LoadProof::Group => "the fingerprints of the group",
        LoadProof::Blocks => "blocks",
    };
    format!("read {} bytes, {times:.2} times its own, proven by {by}", loaded.read)
}

/// What is recorded of a rank's row of the schedule. Live activations are in microbatches of the whole rank.
fn measured(row: &Row) -> Vec<(String, Value)> {
    let live = &row.live;
    let mut values = vec![
        ("pipeline/peak_live".to_owned(), Value::F64(row.of_rank(live.peak))),
        ("pipeline/peak_live_whole".to_owned(), Value::F64(row.of_rank(live.peak_whole))),
        ("pipeline/peak_live_queued".to_owned(), Value::F64(row.of_rank(live.peak_queued))),
        ("pipeline/weight_staleness".to_owned(), Value::U64(row.staleness())),
    ];
    for (stage, account) in &row.stages {
        let weight = account.joined + account.split;
        for (name, value) in [
            ("forward(s)", account.forward.as_secs_f64()),
            ("input_gradients(s)", account.input.as_secs_f64()),
            ("weight_gradients(s)", weight.as_secs_f64()),
            ("weight_gradients_put_off", account.split_share()),
            ("splittable_parameters", account.splittable_share()),
        ] {
            values.push((format!("pipeline/stage_{stage}/{name}"), Value::F64(value)));
        }
    }
    values
}

impl<'a> Recording<'a> {
    /// The recording of a rank; its files are opened when the run begins.
    #[must_use]
    pub fn new(job: &'a Job, rank: usize) -> Self {
        let folder = Path::new(&job.config.config.metrics.folder).to_path_buf();
        Self { job, rank, folder, files: None, saving_us: 0 }
    }

    fn recorder(&mut self) -> Option<&mut Recorder> {
        self.files.as_mut().map(|files| &mut files.recorder)
    }

    fn say(&self, line: &str) {
        if self.rank == 0 {
            // A console that is gone is no reason to stop training.
            let _ = writeln!(io::stderr(), "{line}");
        }
    }
}

impl Observer for Recording<'_> {
    fn begun(&mut self, begun: &Begun) -> Result<()> {
        let named = |seq: u64| (begun.step, format!("seq:{seq} step {}", begun.step));
        let restart_us = u64::try_from(begun.took.as_micros()).unwrap_or(u64::MAX);
        let facts = recorded::facts(self.job, self.rank)?;
        let start =
            Start { incarnation: begun.epoch, resumed_from: begun.from.map(named), restart_us, facts };
        let setting = recorded::setting(self.job, self.rank);
        let recorder = Recorder::open(&self.folder, setting, &start, Arc::new(SystemClock))?;
        let path = self.folder.join(SAMPLES);
        let samples = (self.rank == 0)
            .then(|| log::Writer::open(&path, begun.epoch, begun.step, begun.cursor))
            .transpose()?;
        let trace = recorded::trace(self.job, &self.folder, self.rank)?;
        self.files = Some(Files { recorder, samples, trace });
        let parallelism = &self.job.config.config.parallelism;
        let schedule = parallelism.schedule_file().unwrap_or(&parallelism.schedule);
        let (mesh, root) = (self.job.outline.mesh, &self.job.config.config.checkpoint.root);
        self.say(&match begun.from {
            None => format!(
                "start  mesh {mesh}, schedule {schedule}, {} parameters, saving to {root}",
                self.job.parameters()
            ),
            Some(seq) => format!(
                "resume  mesh {mesh}, schedule {schedule}, from checkpoint seq:{seq} of step {} in {root}, loaded in {:.2} s{}",
                begun.step,
                begun.took.as_secs_f64(),
                begun.loaded.map_or_else(String::new, |loaded| format!(", rank 0 {}", read(loaded)))
            ),
        });
        Ok(())
    }

    fn step(&mut self, step: &StepDone) -> Result<()> {
        let samples = self.job.stream.step_samples(step.cursor, self.job.config.batches.global);
        let Some(files) = self.files.as_mut() else { return Ok(()) };
        if let Some(log) = files.samples.as_mut() {
            log.step(step.step, step.cursor, &samples)?;
        }
        #[expect(clippy::cast_possible_truncation, reason = "the norm's f32 is what clipping sees")]
        let grad_norm = step.norm as f32;
        for (name, value) in measured(&step.row) {
            files.recorder.add(step.step, &name, &value)?;
        }
        files.recorder.step(
            &Step {
                step: step.step,
                loss: step.loss,
                grad_norm,
                lr: step.rate,
                tokens: step.tokens,
                seconds: step.took.as_secs_f64(),
                data_seconds: step.reading.as_secs_f64(),
                stall_seconds: step.stall.as_secs_f64(),
                pace: step.pace.clone(),
            },
            &mut io::stdout(),
        )?;
        if let Some(trace) = files.trace.as_mut().filter(|_| recorded::traces(self.job, step.step)) {
            trace.step(step.step, &step.pace.spans)?;
        }
        let varies = files.recorder.varies();
        if let Some(spread) = varies {
            self.say(&format!(
                "warn  steps take very different times: (p90 - p10) / median is {:.0} % over the last 20; `ckpt-train doctor \
                 --run {}` says why",
                100.0 * spread,
                self.folder.display()
            ));
        }
        Ok(())
    }

    fn saving(&mut self, step: u64, back_pressure: Duration) -> Result<()> {
        if back_pressure > Duration::from_millis(100) {
            let waited = back_pressure.as_secs_f64();
            self.say(&format!("warn  the save before step {step} was still under way: waited {waited:.2} s"));
        }
        self.saving_us = SystemClock.now_us();
        let value = Value::F64(back_pressure.as_secs_f64());
        self.recorder().map_or(Ok(()), |recorder| recorder.value(step, "checkpoint/back_pressure(s)", &value))
    }

    fn saved(&mut self, saved: &Saved) -> Result<()> {
        if let Some(seq) = saved.sequence {
            let how = match saved.shared {
                0 => String::new(),
                shared => format!(", rank 0 wrote {} bytes and shared {shared}", saved.bytes),
            };
            self.say(&format!("saved  step {} as seq:{seq}{how}", saved.step));
        }
        let took = saved.staging + saved.writing + saved.committing;
        let (job, begin) = (self.job, self.saving_us);
        if let Some(trace) =
            self.files.as_mut().and_then(|it| it.trace.as_mut()).filter(|_| recorded::traces(job, saved.step))
        {
            trace.save(saved.step, begin, took.as_secs_f64())?;
        }
        let save = Save {
            step: saved.step,
            bytes: saved.bytes,
            shared: saved.shared,
            stage_seconds: saved.staging.as_secs_f64(),
            write_seconds: saved.writing.as_secs_f64(),
            commit_seconds: saved.committing.as_secs_f64(),
        };
        self.recorder().map_or(Ok(()), |recorder| recorder.save(&save))
    }

    fn warn(&mut self, text: &str) -> Result<()> {
        self.say(&format!("warn  {text}"));
        Ok(())
    }

    fn ended(&mut self, _: &Summary) -> Result<()> {
        if let Some(summary) = self.recorder().map(|recorder| recorder.summary().to_string()) {
            self.say(&summary);
        }
        Ok(())
    }

    fn speaker(&self) -> Arc<dyn Fn(&str) + Send + Sync> {
        Arc::new(|line| {
            let _ = writeln!(io::stderr(), "{line}");
        })
    }
}
