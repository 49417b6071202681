//! [`PipelineRunner`]: what the actions of a program mean for one rank: its stages, the mail between stages, the transport, and
//! the reduction of gradients.
//!
//! Invariants: what one stage gives another lies in the mail until an action takes it, once; stages on the same rank find
//! it there without communication; every message goes out and is expected with the same header. A RECV only says that a
//! message is due where all ranks have room for the messages of a step: it is waited for when a computation needs it
//! (see `posted`), and that wait is noted as the RECV, whose time it is.

mod mail;

use std::collections::{BTreeMap, HashMap};

use schedule::{Action, Placement, Program, Step};
use tch::Tensor;

use crate::{
    Error, Result,
    model::Batch,
    parallel::{Params, Pass},
    transport::{Kind, Transport},
};

use super::{
    Account, Executor, Live, Stage,
    interpret::{interpret, perform},
    posted::{self, Letter, Posted},
};

/// Sums a stage's gradients over the data-parallel group.
pub trait GradReduce {
    /// All microbatches of these parts are done.
    ///
    /// # Errors
    /// The transport's; a gradient that is missing.
    fn reduce(&self, parts: std::ops::Range<usize>) -> Result<()>;
}

/// What a runner needs besides its stages.
#[derive(Clone, Copy)]
pub struct Links<'a> {
    /// Messages.
    pub transport: &'a dyn Transport,
    /// The transport's rank of each pipeline rank.
    pub peers: &'a [usize],
    /// Weights: UNSHARD and RESHARD hold and release all parts of a stage.
    pub params: &'a dyn Params,
    /// Gradients.
    pub reduce: &'a dyn GradReduce,
}

/// The loss of one microbatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LossSum {
    /// Its index among all microbatches of the step, over all replicas.
    pub global: usize,
    /// The sum over its tokens: the bits of an f32.
    pub bits: u32,
}

/// What a rank's row came to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RowOutcome {
    /// The losses of all microbatches, where the last stage is.
    pub losses: Vec<LossSum>,
    /// Microbatches that lived on the rank's stages, each on each stage counted: divided by the number of stages, the
    /// activations of one microbatch of the whole rank are the unit.
    pub live: Live,
    /// What each stage of the rank did, by its index.
    pub stages: BTreeMap<usize, Account>,
}

/// Runs one rank's row of a program for one step.
pub struct PipelineRunner<'a> {
    links: Links<'a>,
    placement: &'a Placement,
    step: u64,
    batches: &'a [Batch],
    stages: BTreeMap<usize, Stage<'a>>,
    mail: HashMap<Letter, Vec<Tensor>>,
    /// Receives that wait until somebody needs what they bring; none where there is no room for that.
    posted: Option<Posted>,
    live: Live,
}

impl<'a> PipelineRunner<'a> {
    /// Runs the row of pipeline rank `rank` once: `batches` are the replica's microbatches of training step `step`, and
    /// `stages` those of the rank. `first` is the global index of the replica's first microbatch.
    ///
    /// # Errors
    /// Stages or batches that are not the program's; the first failure of an action, with its place in the schedule.
    pub fn run(
        program: &'a Program,
        rank: usize,
        links: Links<'a>,
        stages: Vec<Stage<'a>>,
        batches: &'a [Batch],
        (step, first): (u64, usize),
    ) -> Result<RowOutcome> {
        let table = program.table();
        let placement = &table.placement;
        let stages: BTreeMap<_, _> = stages.into_iter().map(|stage| (stage.index(), stage)).collect();
        let posted = posted::has_room(program, links.transport).then(Posted::default);
        let (mail, live) = (HashMap::new(), Live::default());
        let mut runner = Self { links, placement, step, batches, stages, mail, posted, live };
        runner.fits(program, rank)?;
        interpret(program, rank, &mut runner)?;
        links.transport.flush()?;
        runner.finished(first)
    }

    fn fits(&self, program: &Program, rank: usize) -> Result<()> {
        let table = program.table();
        let (have, need) = (self.stages.keys().copied().collect::<Vec<_>>(), self.placement.stages_of(rank));
        if have != need {
            return Err(Error::internal(format!("pipeline rank {rank} has stages {have:?}, not {need:?}")));
        }
        if self.batches.len() != table.microbatches || self.links.peers.len() != table.ranks.len() {
            return Err(Error::internal(format!(
                "{} batches and {} peers for a schedule of {} microbatches on {} ranks",
                self.batches.len(),
                self.links.peers.len(),
                table.microbatches,
                table.ranks.len()
            )));
        }
        let last = self.placement.stages().saturating_sub(1);
        let wrong = |stage: &&Stage<'_>| {
            stage.is_first() != (stage.index() == 0) || stage.is_last() != (stage.index() == last)
        };
        self.stages.values().find(wrong).map_or(Ok(()), |stage| {
            let (index, parts) = (stage.index(), stage.parts());
            Err(Error::internal(format!("stage {index} of {} can't have parts {parts:?}", last + 1)))
        })
    }

    fn finished(self, first: usize) -> Result<RowOutcome> {
        let posted = self.posted.as_ref().and_then(Posted::left);
        if let Some(letter) = self.mail.keys().next().copied().or(posted) {
            return Err(Error::internal(format!("nobody took {letter:?}")));
        }
        if let Some(stage) = self.stages.values().find(|stage| stage.live() > 0) {
            let (live, index) = (stage.live(), stage.index());
            return Err(Error::internal(format!(
                "{live} microbatches of stage {index} did not end their backward"
            )));
        }
        let last = self.stages.values().find(|stage| stage.is_last());
        let loss = |microbatch| {
            let sum = last?.loss(microbatch)?;
            Some(LossSum { global: first + microbatch, bits: sum.to_bits() })
        };
        let losses = (0..self.batches.len()).filter_map(loss).collect();
        let stages = self.stages.iter().map(|(index, stage)| (*index, *stage.account())).collect();
        Ok(RowOutcome { losses, live: self.live, stages })
    }

    fn forward(&mut self, stage: usize, microbatch: usize) -> Result<()> {
        let first = self.stage(stage)?.is_first();
        let letter = Letter { stage, kind: Kind::Forward, microbatch };
        let inputs = if first { Vec::new() } else { self.take(letter)? };
        let batch = batch(self.batches, microbatch)?;
        let it = self.stage(stage)?;
        let (outputs, last) = (it.forward(microbatch, batch, inputs)?, it.is_last());
        self.live.forward();
        if !last {
            self.mail.insert(Letter { stage: stage + 1, kind: Kind::Forward, microbatch }, outputs);
        }
        Ok(())
    }

    fn backward(&mut self, stage: usize, microbatch: usize, weights: bool) -> Result<()> {
        let last = self.stage(stage)?.is_last();
        let letter = Letter { stage, kind: Kind::Backward, microbatch };
        let grads = if last { Vec::new() } else { self.take(letter)? };
        let batch = batch(self.batches, microbatch)?;
        let it = self.stage(stage)?;
        let grads = match weights {
            true => it.backward(microbatch, batch, grads)?,
            false => it.backward_inputs(microbatch, batch, grads)?,
        };
        if weights {
            self.live.backward();
        } else {
            self.live.inputs();
        }
        if let Some(before) = stage.checked_sub(1) {
            self.mail.insert(Letter { stage: before, kind: Kind::Backward, microbatch }, grads);
        }
        Ok(())
    }

    fn weights(&mut self, stage: usize, microbatch: usize) -> Result<()> {
        self.stage(stage)?.backward_weights(microbatch)?;
        self.live.weights();
        Ok(())
    }

    fn hold(&mut self, stage: usize, held: bool) -> Result<()> {
        for part in self.stage(stage)?.parts().clone() {
            match held {
                true => self.links.params.begin(part, Pass::Forward)?,
                false => self.links.params.end(part, Pass::Forward)?,
            }
        }
        Ok(())
    }

    fn reduce(&mut self, stage: usize) -> Result<()> {
        let parts = self.stage(stage)?.parts().clone();
        self.links.reduce.reduce(parts)
    }

    fn stage(&mut self, index: usize) -> Result<&mut Stage<'a>> {
        self.stages
            .get_mut(&index)
            .ok_or_else(|| Error::internal(format!("stage {index} is not on this rank")))
    }
}

fn batch(batches: &[Batch], microbatch: usize) -> Result<&Batch> {
    batches.get(microbatch).ok_or_else(|| Error::internal(format!("there is no microbatch {microbatch}")))
}

impl Executor for PipelineRunner<'_> {
    /// A receive that is posted takes no time, and is noted when it is waited for; so are the parts of a composite, in their turns.
    fn note(&self, action: &Action) {
        let posts = self.posted.is_some() && matches!(action.step, Step::RecvF(_) | Step::RecvB(_));
        if !posts && !matches!(action.step, Step::Overlap { .. }) {
            self.links.transport.note(action);
        }
    }

    fn ready(&mut self, action: &Action) -> Result<()> {
        Letter::needed_by(*action).map_or(Ok(()), |letter| self.collect(letter))
    }

    fn run(&mut self, action: &Action) -> Result<()> {
        let stage = action.stage;
        match action.step {
            Step::F(m) => self.forward(stage, m),
            Step::I(m) => self.backward(stage, m, false),
            Step::W(m) => self.weights(stage, m),
            Step::B(m) => self.backward(stage, m, true),
            Step::SendF(m) => self.send(action, Kind::Forward, m),
            Step::RecvF(m) => self.receive(action, Kind::Forward, m),
            Step::SendB(m) => self.send(action, Kind::Backward, m),
            Step::RecvB(m) => self.receive(action, Kind::Backward, m),
            Step::Unshard => self.hold(stage, true),
            Step::Reshard => self.hold(stage, false),
            Step::ReduceGrad => self.reduce(stage),
            Step::Overlap { .. } => action.parts().try_for_each(|part| perform(self, &part)),
        }
    }
}

impl std::fmt::Debug for Links<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Links").field("peers", &self.peers).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for PipelineRunner<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PipelineRunner")
            .field("step", &self.step)
            .field("stages", &self.stages)
            .finish_non_exhaustive()
    }
}
