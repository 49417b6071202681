//! One rank of a run, from its groups to its last save.

use std::{
    collections::VecDeque,
    num::NonZeroUsize,
    rc::Rc,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use dcp::store::Root;

use super::{
    Job, Observer, Terms,
    batches::Wants,
    faults::Faults,
    observe::{Begun, StepDone},
    report::{Report, SaveReport, Verdict},
};
use crate::{
    Error, ErrorKind, Place, Result,
    checkpoint::{Choice, Described, Resume, RunState, Saved, Saver, SaverOptions, SlowSave},
    config::OnSaveFailure,
    exact::VirtualTp,
    fsdp::{self, Groups, State, Strategy, clip_coefficient},
    mesh::{Axis, Coordinates},
    parallel::{Params, TpOps},
    stage::{GradReduce, Links, PipelineRunner, Stage, StageInputs},
    transport::{Group, Purpose, Transport},
};

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// All steps are done.
    Done,
    /// It was asked to stop, saved, and stopped.
    Stopped,
}

/// What a rank did.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// How it ended.
    pub ended: Ended,
    /// Steps done since the beginning of the run.
    pub step: u64,
    /// The last loss: mean over tokens.
    pub loss: Option<f32>,
    /// Most parts of the model that were gathered at once.
    pub peak_gathered: usize,
    /// Waiting for the shards' copy, summed over steps.
    pub stall: Duration,
}

/// One rank, between its start and its end.
pub(super) struct Rank<'a> {
    job: &'a Job,
    transport: &'a dyn Transport,
    world: Rc<dyn Group>,
    at: Coordinates,
    state: Rc<State>,
    runtime: TpOps,
    described: Described,
    run: RunState,
    saver: Saver,
    observer: &'a mut dyn Observer,
    terms: &'a Terms,
    /// Attempts at saves of this incarnation: a failed one leaves its folder behind.
    attempts: u32,
    stall: Duration,
    /// Reading the samples of this step.
    reading: Duration,
    saved: VecDeque<Saved>,
}

impl<'a> Rank<'a> {
    /// Joins its groups, compares configurations, and takes up what there is to go on from.
    pub(super) fn begin(
        job: &'a Job,
        transport: &'a dyn Transport,
        observer: &'a mut dyn Observer,
        terms: &'a Terms,
    ) -> Result<Self> {
        let at = job.outline.mesh.coordinates(transport.rank())?;
        let members: Vec<usize> = (0..job.ranks()).collect();
        let world = transport.group("world", &members)?;
        agree(job, &*world)?;
        let group = |name, axis| transport.group(name, &job.outline.mesh.group(at, axis));
        let (dp, pp, tp) = (group("dp", Axis::Dp)?, group("pp", Axis::Pp)?, group("tp", Axis::Tp)?);
        let virtual_tp = VirtualTp::of(at.tp, job.outline.mesh.tp, job.virtual_tp)?;
        let state = Rc::new(State::new(&fsdp::Setup {
            model: &*job.outline.model,
            registry: &job.outline.registry,
            mesh: job.outline.mesh,
            at,
            parts: &job.outline.parts_of_ranks(),
            virtual_tp,
            sums: job.sums,
            microbatches: usize::try_from(job.config.batches.microbatches).unwrap_or(usize::MAX),
            strategy: Strategy::default(),
            device: tch::Device::Cpu,
            groups: Groups { world: Rc::clone(&world), dp, pp },
        })?);
        let params = Rc::clone(&state) as Rc<dyn Params>;
        let tp = (job.outline.mesh.tp > 1).then_some(tp);
        let runtime = TpOps::new(&*job.outline.model, params, tp, virtual_tp, job.sums)?;
        let (root, choice) = resume(job)?.agree(&*world)?;
        let described = job.described()?.in_epoch(choice.epoch, choice.parent());
        let run = take_up(job, &state, &root, &choice, &described, observer)?;
        let saver = Saver::new(saver_options(job, root, transport.rank(), choice.epoch, observer)?);
        let (attempts, stall, reading, saved) = (0, Duration::ZERO, Duration::ZERO, VecDeque::new());
        Ok(Self {
            job,
            transport,
            world,
            at,
            state,
            runtime,
            described,
            run,
            saver,
            observer,
            terms,
            attempts,
            stall,
            reading,
            saved,
        })
    }

    /// Trains until all steps are done or somebody asks to stop. A save in flight is brought to its end also when the run
    /// fails.
    pub(super) fn train(mut self) -> Result<Summary> {
        match self.all_steps() {
            Ok((ended, loss)) => self.close(ended, loss),
            Err(error) => {
                if let Some(Ok(saved)) = self.saver.settle(error.kind() == ErrorKind::Peer) {
                    self.observer.saved(&saved)?;
                }
                Err(error)
            }
        }
    }

    fn all_steps(&mut self) -> Result<(Ended, Option<f32>)> {
        let (steps, mut loss) = (self.job.config.config.training.steps, None);
        while self.run.step < steps {
            let verdict = self.step().place(format!("step {}", self.run.step + 1))?;
            loss = self.run.losses.last().map(|(_, loss)| *loss);
            self.save_if_due(self.run.step == steps || verdict.stop)?;
            if verdict.stop && self.run.step < steps {
                return Ok((Ended::Stopped, loss));
            }
        }
        Ok((Ended::Done, loss))
    }

    fn step(&mut self) -> Result<Verdict> {
        self.faults().before(self.run.step + 1)?;
        let began = Instant::now();
        let losses = self.forward_backward()?;
        let finished = self.saver.finished();
        let report = Report {
            losses: losses.clone(),
            save: finished.map(|outcome| self.note_save(outcome)),
            stop: self.terms.stop.load(Ordering::Relaxed),
        };
        let step = self.run.step + 1;
        let microbatches = self.run.geometry.microbatches;
        let verdict = report.exchange(&*self.world, step, microbatches, self.job.sums)?;
        self.judge_saves(&verdict)?;
        let mine = losses.iter().map(|(_, bits)| f64::from(f32::from_bits(*bits))).reduce(|a, b| a + b);
        let gradients = self.state.gradients()?;
        let norm = self.state.norm(&gradients, mine)?;
        let coefficient = match self.job.config.config.training.max_norm {
            most if most > 0.0 => clip_coefficient(most, norm),
            _ => 1.0,
        };
        let rate = self.job.rates.rate(step);
        let waited = self.state.update(gradients, &self.job.optimizer, rate, coefficient)?;
        self.stall += waited;
        #[expect(clippy::cast_precision_loss, reason = "tokens of a step are far fewer than 2^24")]
        let loss = verdict.loss / self.tokens() as f32;
        let cursor = self.run.cursor;
        self.run.advance(loss);
        self.observer.step(&StepDone {
            step,
            loss,
            norm,
            rate,
            tokens: self.tokens(),
            took: began.elapsed(),
            reading: self.reading,
            stall: waited,
            cursor,
            saving: self.saver.is_busy(),
        })?;
        Ok(verdict)
    }

    /// All microbatches of this replica through this rank's stages, and the sums over replicas.
    fn forward_backward(&mut self) -> Result<Vec<(usize, u32)>> {
        let job = self.job;
        let stages = job.outline.program.table().placement.stages_of(self.at.pp);
        #[expect(clippy::cast_precision_loss, reason = "tokens of a step are far fewer than 2^24")]
        let scale = 1.0 / self.tokens() as f32;
        let stage = |index: usize| {
            let parts = job
                .outline
                .stages
                .get(index)
                .cloned()
                .ok_or_else(|| Error::internal("a stage without parts"))?;
            Stage::new(StageInputs {
                index,
                parts,
                model: &*job.outline.model,
                runtime: &self.runtime,
                params: &*self.state,
                scale,
            })
        };
        let stages: Vec<Stage<'_>> = stages.into_iter().map(stage).collect::<Result<_>>()?;
        let wants =
            Wants { tokens: stages.iter().any(Stage::is_first), targets: stages.iter().any(Stage::is_last) };
        let reading = Instant::now();
        let batches = job.batches(self.run.cursor, self.at.dp, wants)?;
        self.reading = reading.elapsed();
        let peers = job.outline.mesh.group(self.at, Axis::Pp);
        let links = Links {
            transport: self.transport,
            peers: &peers,
            params: &*self.state as &dyn Params,
            reduce: &*self.state as &dyn GradReduce,
        };
        let first = self.at.dp * batches.len();
        let place = (self.run.step + 1, first);
        let (losses, _) =
            PipelineRunner::run(&job.outline.program, self.at.pp, links, stages, &batches, place)?;
        let poison = self.faults().poison(self.run.step + 1);
        Ok(losses.into_iter().map(|loss| (loss.global, poison.unwrap_or(loss.bits))).collect())
    }

    fn faults(&self) -> Faults<'a> {
        let (rank, restart) = (self.transport.rank(), self.terms.restart);
        Faults { wanted: &self.job.config.config.debug, rank, restart }
    }

    fn tokens(&self) -> u64 {
        let geometry = &self.run.geometry;
        (geometry.micro_batch * geometry.microbatches * geometry.seq_len) as u64
    }

    fn save_if_due(&mut self, last: bool) -> Result<()> {
        let interval = self.job.config.config.checkpoint.interval;
        let due = interval > 0 && self.run.step.is_multiple_of(interval);
        if interval == 0 || !(due || last) {
            return Ok(());
        }
        let began = Instant::now();
        if let Some(outcome) = self.saver.wait() {
            let report = self.note_save(outcome);
            if let Some(why) = report.failure {
                self.failed(&[(self.transport.rank(), report.step, why)])?;
            }
        }
        let back_pressure = began.elapsed();
        self.attempts += 1;
        let plan = self.described.plan(&self.run, self.attempts)?;
        let lease = self.state.lease()?;
        self.saver.begin(plan, lease)?;
        self.observer.saving(self.run.step, back_pressure)
    }

    fn note_save(&mut self, outcome: Result<Saved>) -> SaveReport {
        match outcome {
            Ok(saved) => {
                let step = saved.step;
                self.saved.push_back(saved);
                SaveReport { step, failure: None }
            }
            Err(error) => SaveReport { step: 0, failure: Some(error.to_string()) },
        }
    }

    fn judge_saves(&mut self, verdict: &Verdict) -> Result<()> {
        while let Some(saved) = self.saved.pop_front() {
            self.observer.saved(&saved)?;
        }
        self.failed(&verdict.failures)
    }

    /// Policy for saves that failed, the same on all ranks.
    fn failed(&mut self, failures: &[(usize, u64, String)]) -> Result<()> {
        let Some((rank, _, why)) = failures.first() else { return Ok(()) };
        self.saver.hurry();
        let text = format!("a save failed on rank {rank}: {why}");
        match self.job.config.config.checkpoint.on_save_failure {
            OnSaveFailure::Continue => self.observer.warn(&format!("{text}; the checkpoint before stays")),
            OnSaveFailure::Stop => Err(Error::new(ErrorKind::Io, text).hint(
                "the checkpoint before is untouched; checkpoint.on_save_failure = \"continue\" trains on without",
            )),
        }
    }

    fn close(mut self, ended: Ended, loss: Option<f32>) -> Result<Summary> {
        let report =
            Report { save: self.saver.wait().map(|outcome| self.note_save(outcome)), ..Report::default() };
        let bytes = serde_json::to_vec(&report).map_err(|error| Error::internal(error.to_string()))?;
        let all = self.world.all_gather_bytes(&Purpose("last save".to_owned()), &bytes)?;
        while let Some(saved) = self.saved.pop_front() {
            self.observer.saved(&saved)?;
        }
        let reports = all.iter().map(|bytes| serde_json::from_slice::<Report>(bytes));
        for (rank, report) in reports.enumerate() {
            let report = report.map_err(|error| Error::internal(error.to_string()))?;
            if let Some(SaveReport { step, failure: Some(why) }) = report.save {
                self.failed(&[(rank, step, why)])?;
            }
        }
        let summary = Summary {
            ended,
            step: self.run.step,
            loss,
            peak_gathered: self.state.live().peak_parts,
            stall: self.stall,
        };
        self.observer.ended(&summary)?;
        Ok(summary)
    }
}

/// Ranks with other configurations or data would train another model each.
fn agree(job: &Job, world: &dyn Group) -> Result<()> {
    let mine = job.digest()?;
    let all = world.all_gather_bytes(&Purpose("configuration".to_owned()), mine.as_bytes())?;
    match all.iter().position(|theirs| theirs.as_slice() != mine.as_bytes()) {
        None => Ok(()),
        Some(rank) => Err(Error::config(format!(
            "rank {} and rank {rank} have different configurations or data",
            world.index()
        ))
        .hint("start all ranks with the same file, overrides and data; --print-config shows what each has")),
    }
}

fn resume(job: &Job) -> Result<Resume> {
    let checkpoint = &job.config.config.checkpoint;
    Ok(Resume {
        root: checkpoint.root.clone(),
        run: checkpoint.run.parse().map_err(|error| Error::config(format!("checkpoint.run: {error}")))?,
        on_damage: checkpoint.on_damage,
        level: dcp::load::Level::Full,
        wanted: checkpoint.resume,
    })
}

fn saver_options(
    job: &Job,
    root: Root,
    rank: usize,
    epoch: u64,
    observer: &dyn Observer,
) -> Result<SaverOptions> {
    let config = &job.config.config;
    let slow = (config.debug.slow_save_step > 0)
        .then_some(SlowSave { step: config.debug.slow_save_step, wait: config.debug.slow_save });
    Ok(SaverOptions {
        root,
        run: config
            .checkpoint
            .run
            .parse()
            .map_err(|error| Error::config(format!("checkpoint.run: {error}")))?,
        rank: u32::try_from(rank).map_err(|_| Error::config("more ranks than a checkpoint can have"))?,
        epoch,
        keep_last: usize::try_from(config.checkpoint.keep_last).ok().and_then(NonZeroUsize::new),
        grace: config.checkpoint.grace,
        patience: config.comm.step_timeout,
        slow,
        say: observer.speaker(),
    })
}

/// Loads what was chosen, or begins.
fn take_up(
    job: &Job,
    state: &State,
    root: &Root,
    choice: &Choice,
    described: &Described,
    observer: &mut dyn Observer,
) -> Result<RunState> {
    let fresh = job.fresh()?;
    let began = Instant::now();
    for warning in &choice.warnings {
        observer.warn(warning)?;
    }
    let Some(resumed) = choice.open(root, described.registry())? else {
        state.initialise(fresh.seed)?;
        observer.begun(&Begun {
            epoch: choice.epoch,
            from: None,
            step: 0,
            took: began.elapsed(),
            cursor: 0,
        })?;
        return Ok(fresh);
    };
    for note in resumed.state.check(&fresh)? {
        observer.warn(&note)?;
    }
    let held = state.tensors()?;
    let boxes = held.iter().filter(|held| !held.region.is_empty()).map(|held| (&held.id, &held.region));
    resumed.read_all(boxes, |id, region, bytes| state.load(id, region, bytes))?;
    state.set_step_count(resumed.state.step);
    let run = resumed.state.going_on_as(&fresh);
    let (from, step, cursor) = (choice.sequence, run.step, run.cursor);
    observer.begun(&Begun { epoch: choice.epoch, from, step, took: began.elapsed(), cursor })?;
    Ok(run)
}
