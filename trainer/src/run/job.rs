//! [`Job`]: everything about a run that is the same on every rank, decided before any rank begins.

use std::{ops::Range, path::Path, sync::Arc};

use fqn::Registry;
use reshard::{Mesh, StageSplit, Stages};

use crate::{
    Error, Place, Result,
    checkpoint::{Described, Geometry, RunState},
    config::{self, Decay, Mode, Resolved},
    data::{Corpus, Description, Stream},
    exact::Sums,
    mesh::MeshShape,
    model::{Family, Model},
    optim::{AdamW, Decline, Schedule},
    placement,
    schedule::{self, Gather, Program, Shape},
    stage,
};

/// A run, ready to begin on any of its ranks.
#[derive(Debug)]
pub struct Job {
    /// Its configuration.
    pub config: Resolved,
    pub(super) model: Arc<dyn Model>,
    pub(super) registry: Registry,
    pub(super) mesh: MeshShape,
    pub(super) geometry: Mesh,
    pub(super) split: StageSplit,
    /// Parts of each stage.
    pub(super) stages: Vec<Range<usize>>,
    pub(super) program: Program,
    pub(super) stream: Stream,
    pub(super) data: Description,
    pub(super) sums: Sums,
    /// G: virtual tensor-parallel ranks.
    pub(super) virtual_tp: usize,
    pub(super) optimizer: AdamW,
    pub(super) rates: Schedule,
}

impl Job {
    /// Decides everything; reads the names and sizes of the data, nothing else.
    ///
    /// # Errors
    /// `Config` for what does not fit together, `Data` for what can't be trained on.
    pub fn new(config: Resolved) -> Result<Self> {
        let values = &config.config;
        let family: Family = values.model.kind.parse()?;
        let model = family.build(values.model.keys.clone())?;
        let registry = placement::registry(family, &*model)?;
        let mesh = values.parallelism.mesh;
        let split = split(&values.parallelism.stage_split);
        let count = mesh.pp * positive(values.parallelism.stages_per_rank, "parallelism.stages_per_rank")?;
        let layers =
            split.resolve(&registry, count as u64).map_err(|error| Error::config(error.to_string()))?;
        let stages = stages(&*model, &layers, count)?;
        let microbatches = positive(config.batches.microbatches, "training.microbatches")?;
        let shape = Shape { stages: count, ranks: mesh.pp, microbatches };
        let table = schedule::generate(schedule::named(&values.parallelism.schedule)?, shape)?;
        let program = schedule::lower(&table, Gather::PerPart)?;
        let corpus = Arc::new(Corpus::open(Path::new(&values.data.folder))?);
        let data = corpus.describe()?;
        let stream = Stream::new(corpus, values.training.seq_len, values.training.seed)?;
        let sums = match values.training.mode {
            Mode::Exact => Sums::Exact,
            Mode::Fast => Sums::Fast,
        };
        let virtual_tp = match sums {
            Sums::Exact => positive(values.exact.virtual_tp, "exact.virtual_tp")?,
            Sums::Fast => mesh.tp,
        };
        placement::check_tp(family, &*model, &registry, virtual_tp)?;
        let (optimizer, rates) = (optimizer(&values.optimizer), rates(values));
        optimizer.check()?;
        rates.check()?;
        let geometry = mesh.mesh()?;
        Ok(Self {
            model,
            registry,
            mesh,
            geometry,
            split,
            stages,
            program,
            stream,
            data,
            sums,
            virtual_tp,
            optimizer,
            rates,
            config,
        })
    }

    /// Number of ranks.
    #[must_use]
    pub const fn ranks(&self) -> usize {
        self.mesh.ranks()
    }

    /// Number of parameters; a tied one counts once.
    #[must_use]
    pub fn parameters(&self) -> i64 {
        self.model.params().iter().map(|spec| spec.shape.iter().product::<i64>()).sum()
    }

    /// What it computes, for the launcher and for people: stages with their names.
    ///
    /// # Errors
    /// As [`Job::new`].
    pub fn inventory(&self) -> Result<stage::Inventory> {
        let layers = self
            .split
            .resolve(&self.registry, self.stages.len() as u64)
            .map_err(|error| Error::config(error.to_string()))?;
        stage::inventory(&*self.model, &layers)
    }

    /// The state of a run that begins now.
    pub(super) fn fresh(&self) -> Result<RunState> {
        let training = &self.config.config.training;
        let geometry = Geometry {
            virtual_tp: self.virtual_tp,
            micro_batch: positive(training.micro_batch, "training.micro_batch")?,
            microbatches: positive(self.config.batches.total(), "training.global_batch")?,
            seq_len: positive(training.seq_len, "training.seq_len")?,
        };
        Ok(RunState::fresh(training.seed, self.data.sha256.clone(), self.sums, geometry))
    }

    /// What its checkpoints hold.
    pub(super) fn described(&self) -> Result<Described> {
        let checkpoint = &self.config.config.checkpoint;
        let run =
            checkpoint.run.parse().map_err(|error| Error::config(format!("checkpoint.run: {error}")))?;
        let config = self.config.config.to_json()?;
        let described = Described::new(run, &self.registry, self.geometry.clone(), self.split.clone())?;
        let described = described.with_extra(crate::checkpoint::CONFIG, config);
        Ok(match self.model.hf_config() {
            serde_json::Value::Null => described,
            config => described.with_extra(dcp::formats::hf::EXTRA_CONFIG, config),
        })
    }

    /// The parts that each pipeline rank runs.
    pub(super) fn parts_of_ranks(&self) -> Vec<Vec<usize>> {
        let placement = &self.program.table().placement;
        let parts =
            |rank| placement.stages_of(rank).into_iter().filter_map(|stage| self.stages.get(stage).cloned());
        (0..self.mesh.pp).map(|rank| parts(rank).flatten().collect()).collect()
    }

    /// A digest of everything that ranks must agree on.
    pub(super) fn digest(&self) -> Result<String> {
        Ok(format!("{} {}", self.config.config.sha256()?, self.data.sha256))
    }
}

fn optimizer(values: &config::Optimizer) -> AdamW {
    let [beta1, beta2] = values.betas;
    AdamW { beta1, beta2, eps: values.eps, decay: values.weight_decay }
}

fn rates(values: &config::Config) -> Schedule {
    let (peak, scheduler) = (values.optimizer.lr, &values.lr_scheduler);
    Schedule {
        decline: match scheduler.decay_type {
            Decay::Constant => Decline::Constant,
            Decay::Linear => Decline::Linear,
            Decay::Cosine => Decline::Cosine,
        },
        peak,
        floor: peak * scheduler.min_lr_factor,
        warmup: scheduler.warmup_steps,
        total: scheduler.warmup_steps + scheduler.decay_steps,
    }
}

fn stages(model: &dyn Model, layers: &Stages, count: usize) -> Result<Vec<Range<usize>>> {
    (0..count).map(|index| stage::parts_of_stage(model, layers, index)).collect::<Result<_>>().place("stages")
}

fn split(split: &config::StageSplit) -> StageSplit {
    match split {
        config::StageSplit::Auto => StageSplit::Auto,
        config::StageSplit::Layers(layers) => StageSplit::Explicit(layers.clone()),
    }
}

fn positive(value: u64, key: &str) -> Result<usize> {
    usize::try_from(value)
        .ok()
        .filter(|value| *value > 0)
        .ok_or_else(|| Error::config(format!("{key} = {value}: a positive number is needed")))
}
