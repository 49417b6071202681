//! [`Job`]: everything about a run that is the same on every rank, decided before any rank begins.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use sha2::{Digest, Sha256};

use super::Outline;
use crate::{
    Error, Result,
    checkpoint::{Described, Geometry, RunState},
    config::{self, Decay, Mode, Resolved},
    data::{Corpus, Description, Stream},
    exact::Sums,
    optim::{AdamW, Decline, Schedule},
    parallel::Tokens,
    placement,
};

/// A run, ready to begin on any of its ranks.
#[derive(Debug)]
pub struct Job {
    /// Its configuration.
    pub config: Resolved,
    pub(super) outline: Outline,
    pub(super) stream: Stream,
    pub(super) data: Description,
    pub(super) sums: Sums,
    /// G: virtual tensor-parallel ranks.
    pub(super) virtual_tp: usize,
    /// How tokens lie between the regions of tensor parallelism.
    pub(super) tokens: Tokens,
    pub(super) optimizer: AdamW,
    pub(super) rates: Schedule,
}

impl Job {
    /// Decides everything; reads the names and sizes of the data, nothing else.
    ///
    /// # Errors
    /// `Config` for what does not fit together, `Data` for what can't be trained on.
    pub fn new(config: Resolved) -> Result<Self> {
        let outline = Outline::new(&config)?;
        let values = &config.config;
        let corpus = Arc::new(Corpus::open(Path::new(&values.data.folder))?);
        let data = corpus.describe()?;
        let stream = Stream::new(corpus, values.training.seq_len, values.training.seed)?;
        let sums = match values.training.mode {
            Mode::Exact => Sums::Exact,
            Mode::Fast => Sums::Fast,
        };
        let virtual_tp = match sums {
            Sums::Exact => positive(values.exact.virtual_tp, "exact.virtual_tp")?,
            Sums::Fast => outline.mesh.tp,
        };
        placement::check_tp(outline.family, &*outline.model, &outline.registry, virtual_tp)?;
        let (optimizer, rates) = (optimizer(&values.optimizer), rates(values));
        optimizer.check()?;
        rates.check()?;
        let tokens = Tokens::of(values.parallelism.sequence_parallel);
        Ok(Self { outline, stream, data, sums, virtual_tp, tokens, optimizer, rates, config })
    }

    /// Number of ranks.
    #[must_use]
    pub const fn ranks(&self) -> usize {
        self.outline.mesh.ranks()
    }

    /// Shapes of the parameters, by name.
    #[must_use]
    pub fn shapes(&self) -> BTreeMap<String, Vec<i64>> {
        self.outline.model.params().iter().map(|spec| (spec.fqn.to_string(), spec.shape.clone())).collect()
    }

    /// See [`Outline::advice`].
    #[must_use]
    pub fn advice(&self) -> Option<String> {
        self.outline.advice()
    }

    /// Number of parameters; a tied one counts once.
    #[must_use]
    pub fn parameters(&self) -> i64 {
        self.outline.model.params().iter().map(|spec| spec.shape.iter().product::<i64>()).sum()
    }

    /// The state of a run that begins now.
    pub(super) fn fresh(&self) -> Result<RunState> {
        let training = &self.config.config.training;
        let geometry = Geometry {
            virtual_tp: self.virtual_tp,
            // One virtual rank owns all tokens.
            sequence_parallel: self.tokens == Tokens::Cut && self.virtual_tp > 1,
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
        let described = Described::new(
            run,
            &self.outline.registry,
            self.outline.geometry.clone(),
            self.outline.split.clone(),
        )?;
        let described = described
            .with_extra(crate::checkpoint::CONFIG, config)
            .stored(checkpoint.codec.clone(), checkpoint.share);
        Ok(match self.outline.model.hf_config() {
            serde_json::Value::Null => described,
            config => described.with_extra(dcp::formats::hf::EXTRA_CONFIG, config),
        })
    }

    /// A digest of everything that ranks must agree on.
    pub(super) fn digest(&self) -> Result<String> {
        // A schedule's file may be another one elsewhere.
        let rows = Sha256::digest(self.outline.program.table().to_string());
        let rows: String = rows.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(format!("{} {} {rows}", self.config.config.sha256()?, self.data.sha256))
    }
}

fn optimizer(values: &config::Optimizer) -> AdamW {
    let [beta1, beta2] = values.betas;
    AdamW { beta1, beta2, eps: values.eps, decay: values.weight_decay, fused: values.fused }
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

pub(super) fn positive(value: u64, key: &str) -> Result<usize> {
    usize::try_from(value)
        .ok()
        .filter(|value| *value > 0)
        .ok_or_else(|| Error::config(format!("{key} = {value}: a positive number is needed")))
}
