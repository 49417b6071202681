//! The matrix: every schedule × pipeline, data and tensor parallelism × sharding × model, as settings of a tiny run.
//!
//! The batch of a step is 16 microbatches over all replicas, so that with two of them on four pipeline ranks each still has
//! as many as the most demanding schedule wants (`DualPipeV`: twice the ranks). The models have six layers: with two stages on each
//! of four ranks embedding and head are stages of their own.
//!
//! Cells whose numbers are others by right (tokens cut over ranks, products in bf16) are compared with a process of the same numbers:
//! [`Case::reference`].

use std::{fmt, path::Path};

use crate::{
    Error, Place as _, Result,
    config::{Override, resolve},
    run::Job,
};

/// Sequences of a step, each a microbatch.
pub const GLOBAL_BATCH: usize = 16;

/// Models: with tied embeddings and biases, and without.
pub const MODELS: [&str; 2] = ["llama", "gpt2"];

/// How weights are sharded over replicas.
pub const STRATEGIES: [&str; 3] = ["full_shard", "shard_grad_op", "no_shard"];

/// Settings that other numbers follow from, on one process too.
const NUMBERS: [&str; 2] = [SEQUENCE, PRECISION];
const SEQUENCE: &str = "parallelism.sequence_parallel";
const PRECISION: &str = "training.mixed_precision_param";

/// A cell of the matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// The schedule, by its canonical name.
    pub schedule: &'static str,
    /// The model.
    pub model: &'static str,
    /// Pipeline ranks.
    pub pp: usize,
    /// Replicas.
    pub dp: usize,
    /// Tensor-parallel ranks.
    pub tp: usize,
    /// How weights are sharded.
    pub strategy: &'static str,
    /// Anything else: keys and values.
    pub more: Vec<(&'static str, String)>,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { schedule, model, pp, dp, tp, strategy, more } = self;
        write!(f, "{schedule} {model} dp={dp} pp={pp} tp={tp} {strategy}")?;
        more.iter().try_for_each(|(key, value)| write!(f, " {key}={value}"))
    }
}

/// A folder for text to train on and for what runs leave.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a>(pub &'a Path);

impl Place<'_> {
    /// Writes the text.
    ///
    /// # Errors
    /// `Io`.
    pub fn prepare(self) -> Result<()> {
        let words = b"etaoin shrdlu\n";
        let letter = |at: u32| words.get((at.wrapping_mul(2_654_435_761) >> 13) as usize % words.len());
        let text: Vec<u8> = (0..20_000).filter_map(letter).copied().collect();
        std::fs::create_dir_all(self.0.join("text"))?;
        std::fs::write(self.0.join("text/a.txt"), text).place("text")
    }

    /// The job of these settings, over those of a tiny run of `steps` steps that saves nothing.
    ///
    /// # Errors
    /// `Config` for what does not fit together.
    pub fn job(self, model: &str, steps: usize, settings: &[(&str, String)]) -> Result<Job> {
        let folder = self.0.display();
        let mut all = vec![
            ("model.kind", model.to_owned()),
            ("model.layers", "6".to_owned()),
            ("model.dim", "32".to_owned()),
            ("model.heads", "4".to_owned()),
            ("model.ffn", "48".to_owned()),
            ("model.vocab", "256".to_owned()),
            ("training.global_batch", GLOBAL_BATCH.to_string()),
            ("training.micro_batch", "1".to_owned()),
            ("training.seq_len", "8".to_owned()),
            ("training.steps", steps.to_string()),
            ("optimizer.lr", "1e-3".to_owned()),
            ("exact.virtual_tp", "2".to_owned()),
            ("data.folder", format!("{folder}/text")),
            ("checkpoint.root", format!("{folder}/root")),
            ("checkpoint.interval", "0".to_owned()),
            ("parallelism.ties", "sync".to_owned()),
        ];
        all.extend(settings.iter().cloned());
        let parsed = all.iter().map(|(key, value)| format!("{key}={value}").parse());
        let overrides = parsed.collect::<std::result::Result<Vec<Override>, _>>()?;
        Job::new(resolve(None, &overrides)?)
    }
}

impl Case {
    /// One process without any pipeline, to compare with.
    #[must_use]
    pub const fn alone(model: &'static str) -> Self {
        Self { schedule: "GPipe", model, pp: 1, dp: 1, tp: 1, strategy: "full_shard", more: Vec::new() }
    }

    /// The one process that it has the bits of.
    #[must_use]
    pub fn reference(&self) -> Self {
        let more = self.more.iter().filter(|(key, _)| NUMBERS.contains(key)).cloned().collect();
        Self { more, ..Self::alone(self.model) }
    }

    /// Its run of two steps.
    ///
    /// # Errors
    /// `Config` for what does not fit together.
    pub fn job(&self, place: Place<'_>) -> Result<Job> {
        let Self { schedule, model, pp, dp, tp, strategy, more } = self;
        let mut settings = vec![
            ("parallelism.schedule", (*schedule).to_owned()),
            ("parallelism.mesh", format!("{dp}x{pp}x{tp}")),
            ("fsdp.strategy", (*strategy).to_owned()),
        ];
        settings.extend(more.iter().cloned());
        place.job(model, 2, &settings).map_err(|error: Error| error.at(self))
    }
}

/// All cells: every schedule on every mesh, sharded each way, for each model; with layers that are computed again; and with tokens that
/// are cut over tensor-parallel ranks.
#[must_use]
pub fn full() -> Vec<Case> {
    let mut cases = Vec::new();
    for schedule in schedules() {
        for (pp, dp, tp) in meshes() {
            let strategies = if dp > 1 { &STRATEGIES[..] } else { &["full_shard"] };
            for (strategy, model) in strategies.iter().flat_map(|it| MODELS.map(|model| (*it, model))) {
                cases.push(Case { schedule, model, pp, dp, tp, strategy, more: Vec::new() });
            }
        }
    }
    cases.extend(again());
    cases.extend(sliced());
    cases
}

/// A part of them that takes seconds: every schedule on two and on four pipeline ranks, once with each model, data and tensor
/// parallelism and sharding in turns.
#[must_use]
pub fn quick() -> Vec<Case> {
    // Sixteen threads for a cell are for the whole matrix.
    let meshes = [(2, 1, 1), (4, 2, 1), (2, 1, 2), (4, 1, 2), (2, 2, 1), (4, 1, 1), (2, 2, 2), (4, 2, 1)];
    let turns =
        meshes.into_iter().cycle().zip(MODELS.into_iter().cycle()).zip(STRATEGIES.into_iter().cycle());
    let twice = schedules().into_iter().flat_map(|schedule| [schedule; 2]);
    let case = |(schedule, (((pp, dp, tp), model), strategy))| Case {
        schedule,
        model,
        pp,
        dp,
        tp,
        strategy: if dp > 1 { strategy } else { "full_shard" },
        more: Vec::new(),
    };
    let mut cases: Vec<Case> = twice.zip(turns).map(case).collect();
    cases.extend(again().into_iter().step_by(3));
    cases.extend(sliced().into_iter().step_by(3));
    cases
}

/// All that have a name, and the one that is made for the stages.
#[must_use]
pub fn schedules() -> Vec<&'static str> {
    schedule::known().into_iter().chain(["Auto"]).collect()
}

fn meshes() -> impl Iterator<Item = (usize, usize, usize)> {
    [2, 4]
        .into_iter()
        .flat_map(|pp| [1, 2].into_iter().flat_map(move |dp| [1, 2].map(move |tp| (pp, dp, tp))))
}

/// Layers that are computed again, with split backwards and without, sharded and tensor-parallel.
fn again() -> Vec<Case> {
    const MODE: &str = "activation_checkpoint.mode";
    const WHICH: &str = "activation_checkpoint.selective";
    let modes = [("full", "op"), ("selective", "2"), ("selective", "op")];
    let mut cases = Vec::new();
    for schedule in ["1F1B", "ZBVZeroBubble"] {
        for ((mode, which), (queue, model)) in modes
            .into_iter()
            .flat_map(|mode| [("false", "llama"), ("true", "gpt2")].map(|other| (mode, other)))
        {
            let more = [(MODE, mode), (WHICH, which), ("activation_checkpoint.queue", queue)];
            let more = more.map(|(key, value)| (key, value.to_owned())).to_vec();
            cases.push(Case { schedule, model, pp: 2, dp: 2, tp: 2, strategy: "full_shard", more });
        }
    }
    cases
}

/// Tokens that are cut over tensor-parallel ranks (sequence parallelism), real and virtual ones: every schedule, with meshes,
/// sharding, models, products in bf16 and layers that are computed again in turns.
fn sliced() -> Vec<Case> {
    let meshes = [(2, 1, 2), (4, 2, 2), (2, 2, 1), (4, 1, 2), (2, 2, 2)];
    let extras: [&[(&str, &str)]; 4] = [
        &[],
        &[("activation_checkpoint.mode", "full"), ("activation_checkpoint.queue", "true")],
        &[(PRECISION, "bfloat16")],
        &[("activation_checkpoint.mode", "selective"), ("activation_checkpoint.selective", "op")],
    ];
    let turns = meshes
        .into_iter()
        .cycle()
        .zip(MODELS.into_iter().cycle())
        .zip(STRATEGIES.into_iter().cycle())
        .zip(extras.into_iter().cycle());
    let case = |(schedule, ((((pp, dp, tp), model), strategy), extra)): (_, (_, &[(&'static str, &str)]))| {
        let more = [(SEQUENCE, "true")].iter().chain(extra).map(|(key, value)| (*key, (*value).to_owned()));
        let strategy = if dp > 1 { strategy } else { "full_shard" };
        Case { schedule, model, pp, dp, tp, strategy, more: more.collect() }
    };
    schedules().into_iter().zip(turns).map(case).collect()
}
