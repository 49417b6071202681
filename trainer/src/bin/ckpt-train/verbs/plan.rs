//! `ckpt-train plan`: what a run needs and how fast it will be, before any card is asked for.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::Args;
use trainer::{
    Error, ErrorKind, Result,
    config::{Resolved, StageSplit},
    mesh::MeshShape,
    metrics::History,
    plan::{
        self, Cluster, Cut, Family, ModelFacts, Order, Policy, Question, Recompute, Sizes, Strategy, drawing,
        parse_bytes, parse_count, parse_rate, svg,
    },
};

use crate::{cli::Source, exit};

/// Options of `plan`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ckpt-train plan --params 7e9                                        state and cards alone\n  \
    ckpt-train plan --preset llama2-70b --ranks 64 --global-batch 512   all meshes, fastest first\n  \
    ckpt-train plan --preset llama2-70b --ranks 64 --global-batch 512 --mesh 4x2x8 --draw\n  \
    ckpt-train plan -c run.toml --ranks 4                               the model and batch of a configuration")]
pub(crate) struct Plan {
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    cluster: ClusterOptions,
    #[command(flatten)]
    policy: PolicyOptions,
    /// Look at this mesh, dp x pp x tp; without it, all that fit are ranked.
    #[arg(long, value_name = "MESH")]
    mesh: Option<MeshShape>,
    /// `NO_SHARD`, `SHARD_GRAD_OP`, `FULL_SHARD` or `HYBRID_SHARD`; the fastest that fits, if not given.
    #[arg(long, value_name = "NAME")]
    strategy: Option<Strategy>,
    /// How coordinates become ranks, slowest axis first: dp,pp,tp or pp,dp,tp.
    #[arg(long, default_value = "dp,pp,tp", value_name = "AXES")]
    order: Order,
    /// Pipeline schedule.
    #[arg(long, value_name = "NAME")]
    schedule: Option<String>,
    /// Sequences of a step, over all replicas.
    #[arg(long, value_name = "N")]
    global_batch: Option<u64>,
    /// Sequences of a microbatch.
    #[arg(long, value_name = "N")]
    micro_batch: Option<u64>,
    /// Microbatches of a replica: checked against global batch = microbatches x micro-batch x dp.
    #[arg(long, value_name = "N")]
    microbatches: Option<u64>,
    /// Tokens of a sequence.
    #[arg(long, value_name = "N")]
    seq_len: Option<u64>,
    /// Balance stages by what they took in a run: the folder of its metrics.
    #[arg(long, value_name = "METRICS")]
    measured: Option<PathBuf>,
    /// How many meshes are listed.
    #[arg(long, default_value_t = 10, value_name = "N")]
    top: usize,
    /// Draw the mesh: nodes, groups and links. Without --mesh, the fastest.
    #[arg(long)]
    draw: bool,
    /// With --draw: a line for every rank too.
    #[arg(long, requires = "draw")]
    coordinates: bool,
    /// Write the drawing as SVG to FILE.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Model (or a configuration, -c)")]
struct ModelOptions {
    /// A known model: llama2-7b, llama3-70b, gpt2 and their like.
    #[arg(long, value_name = "NAME")]
    preset: Option<String>,
    /// Its parameters, if they are not to be counted from its sizes: 70e9, 70B.
    #[arg(long, value_name = "COUNT", value_parser = parse_count)]
    params: Option<u64>,
    /// Layers.
    #[arg(long, value_name = "N")]
    layers: Option<u64>,
    /// Width of the residual stream.
    #[arg(long, value_name = "N")]
    dim: Option<u64>,
    /// Query heads.
    #[arg(long, value_name = "N")]
    heads: Option<u64>,
    /// Key and value heads; as many as query heads, if not given.
    #[arg(long, value_name = "N")]
    kv_heads: Option<u64>,
    /// Width of a head; dim / heads, if not given.
    #[arg(long, value_name = "N")]
    head_dim: Option<u64>,
    /// Width of the feed-forward layer.
    #[arg(long, value_name = "N")]
    ffn: Option<u64>,
    /// Vocabulary entries.
    #[arg(long, value_name = "N")]
    vocab: Option<u64>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Machines")]
struct ClusterOptions {
    /// Ranks: one card each; the mesh's, if not given.
    #[arg(long, value_name = "N")]
    ranks: Option<u64>,
    /// Cards of a node.
    #[arg(long, default_value_t = 8, value_name = "N")]
    per_node: u64,
    /// A known card: its memory, rate and links.
    #[arg(long, default_value = "a100-80g", value_name = "NAME")]
    card: String,
    /// Memory of a card, if another: 80GB.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    memory: Option<f64>,
    /// Memory kept for context, communication buffers and gaps.
    #[arg(long, default_value = "2GB", value_name = "BYTES", value_parser = parse_bytes)]
    reserve: f64,
    /// Rate of a card, if another, in TFLOP/s.
    #[arg(long, value_name = "N")]
    tflops: Option<f64>,
    /// The share of it that the model's products reach.
    #[arg(long, default_value_t = 0.5, value_name = "SHARE")]
    efficiency: f64,
    /// A card's link within its node, one direction: 300GB/s.
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    intra: Option<f64>,
    /// A card's link to other nodes, one direction: 25GB/s, 25GbE, 400Gbit/s.
    #[arg(long, default_value = "25GB/s", value_name = "RATE", value_parser = parse_rate)]
    inter: f64,
    /// The share of computing time behind which data-parallel traffic hides.
    #[arg(long, default_value_t = 0.5, value_name = "SHARE")]
    overlap: f64,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "How numbers are held")]
struct PolicyOptions {
    /// Weights and activations: f32 or bf16; the masters and moments are f32. f32 with a configuration, else bf16.
    #[arg(long, value_name = "TYPE")]
    dtype: Option<String>,
    /// What is computed again on the way back: none, selective (attention's scores), op (all but products), full, or n for every n-th layer.
    #[arg(long, value_name = "WHAT")]
    recompute: Option<Recompute>,
    /// Attention stores its scores (no fused attention).
    #[arg(long)]
    scores: bool,
    /// Weights stay gathered over all microbatches of a step.
    #[arg(long)]
    keep_gathered: bool,
    /// Tokens are cut over tensor ranks between their linears (sequence parallelism).
    #[arg(long)]
    sequence_parallel: bool,
    /// Units gathered ahead.
    #[arg(long, value_name = "N")]
    prefetch: Option<u64>,
}

pub(super) fn run(options: &Plan) -> Result<u8> {
    let config = options.source.given().then(|| options.source.resolve()).transpose()?;
    if let Some(params) = options.model.params.filter(|_| config.is_none() && options.model.has_no_sizes()) {
        return short(params, options);
    }
    let question = options.question(config.as_ref())?;
    let report = plan::plan(&question)?;
    let drawn = report.asked.as_ref().map(|it| it.candidate.cut);
    let drawn: Option<Cut> = drawn.or_else(|| report.ranked.first().map(|it| it.candidate.cut));
    if let (Some(path), Some(cut)) = (&options.svg, drawn) {
        fs::write(path, svg(&cut, &report.cluster)).map_err(|error| {
            Error::new(ErrorKind::Io, format!("cannot write {}: {error}", path.display())).caused_by(error)
        })?;
        eprintln!("wrote  {}", path.display());
    }
    let text = if options.json {
        json(&report)?
    } else {
        let drawing =
            drawn.filter(|_| options.draw).map(|cut| drawing(&cut, &report.cluster, options.coordinates));
        drawing.map_or_else(|| report.to_string(), |drawing| format!("{report}\n{drawing}"))
    };
    super::print(&text)?;
    Ok(if report.fits() { exit::DONE.number } else { exit::DIFFERENT.number })
}

/// State and cards of a number of parameters.
fn short(params: u64, options: &Plan) -> Result<u8> {
    let memory =
        options.cluster.memory.map_or_else(|| plan::card(&options.cluster.card).map(|it| it.memory), Ok)?;
    let state = plan::state_bytes(params as f64);
    let cards = plan::cards_at_least(state, memory);
    if options.json {
        return super::print(&json(
            &serde_json::json!({ "params": params, "state": state, "memory": memory, "cards": cards }),
        )?);
    }
    super::print(&format!(
        "state    {} parameters x 16 B (16-bit copy 2, its gradient 2, f32 master 4, Adam's moments 8) = {}\n\
         cards    at least {cards} of {}, activations not counted\n\
         more     give --layers --dim --heads --ffn --vocab, or a --preset, and --ranks, to have meshes ranked\n",
        plan::count(params as f64),
        plan::bytes(state),
        plan::bytes(memory)
    ))
}

/// Layers and seconds of each stage of a run.
fn measured(folder: &Path) -> Result<Vec<(u64, f64)>> {
    let run = History::read(folder)?;
    let (seconds, layers) = (run.stage_seconds(), run.layers().unwrap_or_default());
    let found: Vec<_> = layers
        .iter()
        .enumerate()
        .filter_map(|(stage, layers)| Some((*layers, *seconds.get(&stage)?)))
        .collect();
    if found.is_empty() || found.len() != layers.len() {
        let said = format!("{} has times of {} of {} stages", folder.display(), found.len(), layers.len());
        return Err(Error::new(ErrorKind::NotFound, said)
            .hint("give the metrics of all ranks of a run of this trainer"));
    }
    Ok(found)
}

fn json(value: &impl serde::Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(value);
    text.map(|text| text + "\n").map_err(|error| Error::internal(error.to_string()).caused_by(error))
}

impl ModelOptions {
    const fn has_no_sizes(&self) -> bool {
        let none = self.layers.is_none() && self.dim.is_none() && self.heads.is_none();
        none && self.preset.is_none() && self.ffn.is_none() && self.vocab.is_none()
    }

    fn facts(&self, config: Option<&Resolved>) -> Result<ModelFacts> {
        let known = match (&self.preset, config) {
            (Some(name), _) => Some(plan::model(name)?),
            (None, Some(config)) => Some(plan::facts(&config.config.model)?),
            (None, None) => None,
        };
        let facts = match known {
            Some(facts) if self.layers.is_none() && self.dim.is_none() => facts,
            known => self.counted(known.map(|it| it.sizes))?,
        };
        self.params.map_or(Ok(facts.clone()), |params| facts.with_total(params))
    }

    /// From the sizes on the command line, over those of a known model.
    fn counted(&self, known: Option<Sizes>) -> Result<ModelFacts> {
        let or = |given: Option<u64>, known: Option<u64>| given.or(known).unwrap_or(0);
        let dim = or(self.dim, known.map(|it| it.dim));
        let heads = or(self.heads, known.map(|it| it.heads));
        let sizes = Sizes {
            dim,
            layers: or(self.layers, known.map(|it| it.layers)),
            heads,
            kv_heads: or(self.kv_heads, known.map(|it| it.kv_heads).or(Some(heads))),
            head_dim: self.head_dim.unwrap_or_else(|| dim.checked_div(heads).unwrap_or(0)),
            ffn: or(self.ffn, known.map(|it| it.ffn)),
            vocab: or(self.vocab, known.map(|it| it.vocab)),
            positions: 0,
            tied: false,
        };
        ModelFacts::counted("given", Family::Llama, sizes)
    }
}

impl Plan {
    fn question(&self, config: Option<&Resolved>) -> Result<Question> {
        let model = self.model.facts(config)?;
        let training = config.map(|it| &it.config.training);
        let parallelism = config.map(|it| &it.config.parallelism);
        // A configuration's mesh is looked at, unless other ranks are asked for.
        let own = parallelism.map(|it| it.mesh).filter(|_| self.cluster.ranks.is_none());
        let mesh = self.mesh.or(own);
        let global = self.global_batch.or(training.map(|it| it.global_batch));
        Ok(Question {
            cluster: self.cluster(mesh)?,
            policy: self.policy(config)?,
            mesh,
            strategy: self.strategy.or(config.filter(|_| own.is_some()).map(|it| plan::strategy(&it.config))),
            order: self.order,
            schedule: self.schedule.clone().or(parallelism.map(|it| it.schedule.clone())).unwrap_or_else(|| "1F1B".to_owned()),
            global: global.ok_or_else(|| {
                Error::config("the global batch is not given: sequences of a step, over all replicas")
                    .hint("give --global-batch: speed and memory depend on it; 512 sequences of 4,096 tokens are 2 million tokens")
            })?,
            micro: self.micro_batch.or(training.map(|it| it.micro_batch)).unwrap_or(1),
            seq: self.seq_len.or(training.map(|it| it.seq_len)).unwrap_or(4096),
            microbatches: self.microbatches,
            measured: self.measured.as_deref().map(measured).transpose()?,
            split: parallelism.and_then(|it| match &it.stage_split {
                StageSplit::Layers(layers) => Some(layers.clone()),
                StageSplit::Auto => None,
            }),
            top: self.top.max(1),
            model,
        })
    }

    fn cluster(&self, mesh: Option<MeshShape>) -> Result<Cluster> {
        let (options, card) = (&self.cluster, plan::card(&self.cluster.card)?);
        let ranks = options.ranks.or(mesh.map(|mesh| mesh.ranks() as u64)).ok_or_else(|| {
            Error::config("the number of ranks is not given").hint("give --ranks, or a --mesh such as 4x2x8")
        })?;
        Ok(Cluster {
            ranks,
            per_node: options.per_node,
            memory: options.memory.unwrap_or(card.memory),
            reserve: options.reserve,
            flops: options.tflops.map_or(card.flops, |tflops| tflops * 1e12),
            efficiency: options.efficiency,
            intra: options.intra.unwrap_or(card.intra),
            inter: options.inter,
            overlap: options.overlap,
        })
    }

    fn policy(&self, config: Option<&Resolved>) -> Result<Policy> {
        let given = config.map(|it| plan::policy(&it.config));
        let compute = match self.policy.dtype.as_deref() {
            Some("f32" | "float32") => 4.0,
            Some("bf16" | "bfloat16") => 2.0,
            None => given.map_or(2.0, |it| it.compute),
            Some(other) => {
                return Err(Error::config(format!(
                    "--dtype {:?} is none of f32 and bf16",
                    exit::harmless(other)
                )));
            }
        };
        Ok(Policy {
            compute,
            reduce: given.map_or(4.0, |it| it.reduce),
            prefetch: self.policy.prefetch.or(given.map(|it| it.prefetch)).unwrap_or(1),
            exact: given.is_some_and(|it| it.exact),
            scores: self.policy.scores,
            recompute: self.policy.recompute.or(given.map(|it| it.recompute)).unwrap_or(Recompute::Full),
            keep: self.policy.keep_gathered || given.is_some_and(|it| it.keep),
            sequence: self.policy.sequence_parallel || given.is_some_and(|it| it.sequence),
        })
    }
}
