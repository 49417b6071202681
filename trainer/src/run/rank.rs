//! One rank of a run, from its groups to its last save.

use std::{
    collections::VecDeque,
    rc::Rc,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use dcp::commit::Seq;

use super::{
    Job, Observer, Terms,
    batches::Wants,
    begin::{agree, saver_options, take_up},
    faults::Faults,
    observe::{Row, StepDone},
    report::{Report, SaveReport, Verdict},
    tensors,
};
use crate::{
    Error, ErrorKind, Place, Result,
    checkpoint::{Described, Outcome, RunState, Saved, Saver},
    config::Numbers,
    exact::VirtualTp,
    fsdp::{self, Groups, State, clip_coefficient},
    launch::NodeMap,
    mesh::{Axis, Coordinates},
    metrics::Watch,
    parallel::{Params, Precision, TpOps},
    stage::{GradReduce, Links, PipelineRunner, RowOutcome, Stage, StageInputs},
    transport::{Group, Transport},
};

const fn precision(numbers: Numbers) -> Precision {
    match numbers {
        Numbers::Float32 => Precision::Float32,
        Numbers::Bfloat16 => Precision::Bfloat16,
    }
}

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
    pub(super) job: &'a Job,
    transport: &'a dyn Transport,
    pub(super) world: Rc<dyn Group>,
    at: Coordinates,
    pub(super) state: Rc<State>,
    runtime: TpOps,
    pub(super) described: Arc<Described>,
    pub(super) run: RunState,
    pub(super) saver: Saver,
    pub(super) observer: &'a mut dyn Observer,
    terms: &'a Terms,
    /// What the actions of a step take.
    watch: Rc<Watch>,
    /// Attempts at saves of this incarnation: a failed one leaves its folder behind.
    pub(super) attempts: u32,
    pub(super) stall: Duration,
    /// Reading the samples of this step.
    reading: Duration,
    /// The run's newest checkpoint, as far as all ranks know: the same on each.
    pub(super) newest: Option<Seq>,
    pub(super) saved: VecDeque<Saved>,
    /// Saves that have ended, for the next report.
    pub(super) reports: Vec<SaveReport>,
}

impl<'a> Rank<'a> {
    /// Joins its groups, compares configurations, and takes up what there is to go on from.
    pub(super) fn begin(
        job: &'a Job,
        transport: &'a dyn Transport,
        observer: &'a mut dyn Observer,
        terms: &'a Terms,
        watch: Rc<Watch>,
    ) -> Result<Self> {
        let at = job.outline.mesh.coordinates(transport.rank())?;
        let members: Vec<usize> = (0..job.ranks()).collect();
        let world = transport.group("world", &members)?;
        agree(job, &*world)?;
        if job.outline.mesh.tp > 1 && !job.config.config.parallelism.tp_across_nodes {
            NodeMap::gather(&*world, job.outline.mesh)?.check()?;
        }
        transport.link(&job.outline.neighbours())?;
        let group = |name, axis| transport.group(name, &job.outline.mesh.group(at, axis));
        let (mesh, data, training) =
            (job.outline.mesh, job.config.sharding.data, &job.config.config.training);
        let shard = transport.group("dp_shard", &data.shard_group(mesh, at))?;
        let replicate = transport.group("dp_replicate", &data.replica_group(mesh, at))?;
        let (pp, tp) = (group("pp", Axis::Pp)?, group("tp", Axis::Tp)?);
        let virtual_tp = VirtualTp::of(at.tp, job.outline.mesh.tp, job.virtual_tp)?;
        let state = Rc::new(State::new(&fsdp::Setup {
            model: &*job.outline.model,
            registry: &job.outline.registry,
            mesh,
            data,
            at,
            parts: &job.outline.parts_of_ranks(),
            stages: &job.outline.stages,
            prefetch: job.config.config.fsdp.prefetch,
            virtual_tp,
            sums: job.sums,
            compute: precision(training.mixed_precision_param),
            reduce: precision(training.mixed_precision_reduce),
            microbatches: usize::try_from(job.config.batches.microbatches).unwrap_or(usize::MAX),
            device: transport.device(),
            groups: Groups { world: Rc::clone(&world), shard, replicate, pp },
        })?);
        let params = Rc::clone(&state) as Rc<dyn Params>;
        let tp = (job.outline.mesh.tp > 1).then_some(tp);
        let runtime = TpOps::new(&*job.outline.model, params, tp, virtual_tp, (job.sums, job.tokens))?;
        let described = job.described()?;
        let (root, choice, run) = take_up(job, &*world, &state, &described, observer)?;
        let described = described.in_epoch(choice.epoch, choice.parent());
        if let Some(advice) = job.outline.advice() {
            observer.warn(&advice)?;
        }
        let saver = Saver::new(saver_options(job, root, transport.rank(), choice.epoch, observer)?);
        let (attempts, stall, reading, saved) = (0, Duration::ZERO, Duration::ZERO, VecDeque::new());
        Ok(Self {
            job,
            transport,
            world,
            at,
            state,
            runtime,
            described: Arc::new(described),
            run,
            saver,
            observer,
            terms,
            watch,
            attempts,
            stall,
            reading,
            newest: choice.parent(),
            saved,
            reports: Vec::new(),
        })
    }

    /// Trains until all steps are done or somebody asks to stop. A save in flight is brought to its end also when the run
    /// fails.
    pub(super) fn train(mut self) -> Result<Summary> {
        match self.all_steps() {
            Ok((ended, loss)) => self.close(ended, loss),
            Err(error) => {
                let last = self.saver.settle(error.kind() == ErrorKind::Peer);
                if let Some(Outcome { result: Ok(saved), .. }) = last {
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
            self.transport.starting(false);
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
        let (losses, row) = self.forward_backward()?;
        let report = Report {
            losses: losses.clone(),
            saves: self.ended_saves(),
            stop: self.terms.stop.load(Ordering::Relaxed),
        };
        let step = self.run.step + 1;
        let microbatches = self.run.geometry.microbatches;
        let verdict = report.exchange(&*self.world, step, microbatches, self.job.sums)?;
        self.judge_saves(&verdict)?;
        let mine = losses.iter().map(|(_, bits)| f64::from(f32::from_bits(*bits))).reduce(|a, b| a + b);
        let gradients = self.state.gradients()?;
        let norm = self.state.norm(&gradients, mine)?;
        tensors::write(&self.job.config.config.debug, step, self.transport.rank(), &self.state, &gradients)?;
        self.observer.gradients(step, &|| self.state.named(&gradients))?;
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
        let pace = self.watch.take();
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
            row,
            pace,
        })?;
        Ok(verdict)
    }

    /// All microbatches of this replica through this rank's stages, and the sums over replicas.
    fn forward_backward(&mut self) -> Result<(Vec<(usize, u32)>, Row)> {
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
                recompute: &job.outline.recompute,
                scale,
            })
        };
        let stages: Vec<Stage<'_>> = stages.into_iter().map(stage).collect::<Result<_>>()?;
        let wants =
            Wants { tokens: stages.iter().any(Stage::is_first), targets: stages.iter().any(Stage::is_last) };
        let reading = Instant::now();
        let batches = job.batches(self.run.cursor, self.at.dp, wants, self.transport.device())?;
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
        // What was seen before belongs to no step.
        drop(self.watch.take());
        let RowOutcome { losses, live, stages } =
            PipelineRunner::run(&job.outline.program, self.at.pp, links, stages, &batches, place)?;
        let poison = self.faults().poison(self.run.step + 1);
        let losses = losses.into_iter().map(|loss| (loss.global, poison.unwrap_or(loss.bits))).collect();
        Ok((losses, Row { live, stages }))
    }

    fn faults(&self) -> Faults<'a> {
        let (rank, restart) = (self.transport.rank(), self.terms.restart);
        Faults { wanted: &self.job.config.config.debug, rank, restart }
    }

    fn tokens(&self) -> u64 {
        let geometry = &self.run.geometry;
        (geometry.micro_batch * geometry.microbatches * geometry.seq_len) as u64
    }
}
