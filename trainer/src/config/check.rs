//! Whether values that are fine alone fit together: the mesh, exact mode, stages, the model, the number of ranks.

use fqn::AxisName;
use reshard::{Divisibility, check_divisibility};

use super::{
    Config, ConfigError, Device, Mode, ModelTable, Numbers, Parallelism, StageSplit, TransportKind, keys,
};
use crate::{
    Error, Result,
    exact::VirtualTp,
    mesh::MeshShape,
    parallel::lengths_that_fit,
    plan::{Cut, Order, Strategy},
    stage,
};

/// Refuses a configuration that lacks what has no default.
pub(super) fn required(config: &Config) -> Result<(), ConfigError> {
    if config.data.folder.is_empty() {
        let meaning = keys::key("data.folder").map_or("", |key| key.meaning);
        return Err(ConfigError::Missing { key: "data.folder", meaning });
    }
    Ok(())
}

/// Stages that a rank runs where nothing else is said: as few as the schedule takes, one or two. 0: what the file says.
pub(super) fn own_stages(parallelism: &Parallelism) -> u64 {
    if parallelism.schedule_file().is_some() {
        return 0;
    }
    let known = schedule::named(&parallelism.schedule);
    known.map_or(1, |schedule| *schedule.stages_per_rank().start() as u64)
}

/// Checks that need nothing but the configuration.
pub(super) fn together(config: &Config) -> Result<()> {
    config.parallelism.mesh.mesh()?;
    for (key, time) in
        [("comm.start_timeout", config.comm.start_timeout), ("comm.step_timeout", config.comm.step_timeout)]
    {
        if time.is_zero() {
            return contradiction(
                format!("{key} is 0: nobody could ever arrive in time"),
                "give it some seconds",
            );
        }
    }
    if config.lr_scheduler.warmup_steps > config.lr_scheduler.decay_steps {
        let said = format!(
            "lr_scheduler.warmup_steps={} is more than lr_scheduler.decay_steps={}",
            config.lr_scheduler.warmup_steps, config.lr_scheduler.decay_steps
        );
        return contradiction(said, "the rate must be up before it has fallen: warm up over fewer steps");
    }
    // A save may refer to the checkpoint before the newest: that one has ended before all ranks know of it.
    if config.checkpoint.share && config.checkpoint.keep_last == 1 {
        let said = "checkpoint.share=true with checkpoint.keep_last=1: what a save refers to could go before it is committed";
        return contradiction(said.to_owned(), "keep 2 or more, or 0 for all");
    }
    faults(config)?;
    device(config)?;
    if config.debug.is_virtual() {
        let stages = config.parallelism.mesh.pp as u64 * config.parallelism.stages_per_rank;
        stage::times(&config.debug.virtual_device, usize::try_from(stages).unwrap_or(usize::MAX))?;
    }
    exact(config)?;
    tokens(config)?;
    split(&config.parallelism)
}

fn contradiction(said: String, hint: &'static str) -> Result<()> {
    Err(ConfigError::Contradiction(said, hint).into())
}

/// What runs on a GPU, and what carries its tensors.
fn device(config: &Config) -> Result<()> {
    let transport = config.comm.transport;
    let name = transport.name();
    if config.training.device == Device::Cpu {
        if transport == TransportKind::Nccl {
            return contradiction(
                "comm.transport=nccl with training.device=cpu: NCCL carries tensors of GPUs".to_owned(),
                "choose training.device=cuda, or comm.transport=gloo",
            );
        }
        return Ok(());
    }
    if !matches!(transport, TransportKind::Nccl | TransportKind::Auto) {
        return contradiction(
            format!("comm.transport={name} with training.device=cuda: it carries tensors of processors"),
            "leave comm.transport out, or choose nccl",
        );
    }
    if config.debug.is_virtual() {
        return contradiction(
            "debug.virtual_device with training.device=cuda: imagined devices compute nothing".to_owned(),
            "leave training.device out",
        );
    }
    if config.training.mode == Mode::Exact {
        return contradiction(
            "training.mode=exact with training.device=cuda: that its bits are the same on every mesh is proven on processors only"
                .to_owned(),
            "choose training.mode=fast",
        );
    }
    if config.optimizer.fused {
        return contradiction(
            "optimizer.fused=true with training.device=cuda: the call of torch's fused AdamW is for processors only".to_owned(),
            "leave optimizer.fused out",
        );
    }
    Ok(())
}

/// Faults on purpose are meant for ranks that exist.
fn faults(config: &Config) -> Result<()> {
    let (debug, mesh) = (&config.debug, config.parallelism.mesh);
    for (name, step, rank) in [
        ("fail_save", debug.fail_save_step, debug.fail_save_rank),
        ("nan", debug.nan_step, debug.nan_rank),
        ("die", debug.die_step, debug.die_rank),
        ("hang", debug.hang_step, debug.hang_rank),
        ("message", debug.message_step, debug.message_rank),
    ] {
        if step > 0 && rank >= mesh.ranks() as u64 {
            let said = format!(
                "debug.{name}_rank={rank} is not on parallelism.mesh={mesh}, which has {} ranks",
                mesh.ranks()
            );
            return contradiction(said, "ranks count from 0");
        }
    }
    Ok(())
}

/// Exact mode sums over aligned binary trees: what a rank holds must be a whole subtree.
fn exact(config: &Config) -> Result<()> {
    if config.training.mode != Mode::Exact {
        return Ok(());
    }
    if config.training.mixed_precision_reduce == Numbers::Bfloat16 {
        return contradiction(
            "training.mixed_precision_reduce=bfloat16 in exact mode: what is rounded would depend on where ranks are cut"
                .to_owned(),
            "reduce in float32, or choose training.mode=fast",
        );
    }
    let count = config.training.microbatches;
    // One rank that has them all has a whole tree of any number.
    if config.parallelism.mesh.dp > 1 && !count.is_power_of_two() {
        let said = format!(
            "in exact mode the microbatches of a replica must be a power of two, but training.global_batch={} / \
             (training.micro_batch={} x dp={}) = {count}",
            config.training.global_batch, config.training.micro_batch, config.parallelism.mesh.dp
        );
        return contradiction(said, "choose other batch sizes, or training.mode=fast");
    }
    let total = usize::try_from(config.exact.virtual_tp).unwrap_or(usize::MAX);
    VirtualTp::of(0, config.parallelism.mesh.tp, total).map(|_| ()).map_err(|error| {
        error.at(format!("exact.virtual_tp={total}, parallelism.mesh={}", config.parallelism.mesh))
    })
}

/// Tokens that are cut over tensor-parallel ranks divide over them.
fn tokens(config: &Config) -> Result<()> {
    let (parallelism, training) = (&config.parallelism, &config.training);
    let (key, ranks) = match training.mode {
        Mode::Exact => ("exact.virtual_tp", config.exact.virtual_tp),
        Mode::Fast => ("tp", parallelism.mesh.tp as u64),
    };
    let (micro, length) = (training.micro_batch, training.seq_len);
    if !parallelism.sequence_parallel || lengths_that_fit(micro, length, ranks).contains(&length) {
        return Ok(());
    }
    let fitting: Vec<_> =
        lengths_that_fit(micro, length, ranks).iter().map(|it| format!("training.seq_len={it}")).collect();
    let said = format!(
        "parallelism.sequence_parallel=true cuts the training.micro_batch={micro} x training.seq_len={length} = {} tokens of a \
         microbatch over {key}={ranks} (parallelism.mesh={}), which does not divide them; {} would do",
        micro.saturating_mul(length),
        parallelism.mesh,
        fitting.join(" or ")
    );
    contradiction(
        said,
        "choose such a seq_len, another micro_batch or mesh, or parallelism.sequence_parallel=false",
    )
}

/// A list of layers has an entry for every stage.
fn split(parallelism: &Parallelism) -> Result<()> {
    if parallelism.stages_per_rank == 0 {
        return Ok(());
    }
    let stages = parallelism.mesh.pp as u64 * parallelism.stages_per_rank;
    match &parallelism.stage_split {
        StageSplit::Layers(layers) if layers.len() as u64 != stages => contradiction(
            format!(
                "parallelism.stage_split lists {} stages, but pp={} x parallelism.stages_per_rank={} = {stages} \
                 (schedule {}){}",
                layers.len(),
                parallelism.mesh.pp,
                parallelism.stages_per_rank,
                parallelism.schedule,
                several(parallelism, layers.len())
            ),
            "give one number of layers for each stage, or \"auto\"",
        ),
        _ => Ok(()),
    }
}

/// Why so many stages are not this schedule's, if it needs several on each rank: the ranks that they would do for.
fn several(parallelism: &Parallelism, listed: usize) -> String {
    let least = schedule::named(&parallelism.schedule).map_or(1, |it| *it.stages_per_rank().start());
    if least < 2 {
        return String::new();
    }
    let fits = (1..=listed).filter(|ranks| listed.is_multiple_of(*ranks) && listed / ranks >= least);
    let fits = fits.map(|ranks| ranks.to_string()).collect::<Vec<_>>().join(" or ");
    let fits = if fits.is_empty() { "no number of".to_owned() } else { fits };
    format!(
        ": {} needs {least} or more stages on each rank, the same number on all, so {listed} stages do for {fits} ranks only",
        parallelism.schedule
    )
}

/// Refuses a mesh of another number of ranks than there are.
///
/// # Errors
/// `Config`, with both numbers.
pub fn check_world(mesh: MeshShape, world: usize) -> Result<()> {
    if mesh.ranks() == world {
        return Ok(());
    }
    let (dp, pp, tp) = (mesh.dp as u64, mesh.pp as u64, mesh.tp as u64);
    let cut = Cut { dp, pp, tp, shard: dp, strategy: Strategy::FullShard, order: Order::DpPpTp };
    let near = match cut.near(world as u64).as_slice() {
        [] => String::new(),
        near => format!("; meshes of {world}: {}", near.join(", ")),
    };
    let said = format!(
        "parallelism.mesh={mesh} has dp={dp} x pp={pp} x tp={tp} = {} ranks, but there are {world} processes{near}",
        mesh.ranks()
    );
    contradiction(
        said,
        "start as many processes as the mesh has ranks (launch --nproc), or choose a mesh of as many (--parallelism.mesh=2x1x1)",
    )
}

/// What of a model a mesh must divide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelSizes {
    /// Query heads.
    pub heads: u64,
    /// KV heads.
    pub kv_heads: u64,
    /// Width of the feed-forward layer.
    pub ffn: u64,
    /// Layers.
    pub layers: u64,
    /// Vocabulary.
    pub vocabulary: u64,
}

impl ModelSizes {
    /// From the model's section.
    pub(super) fn of(model: &ModelTable, seq_len: u64) -> Result<Self, ConfigError> {
        let is_llama = model.kind == "llama";
        let own = ["kv_heads", "head_dim", "rope_theta", "tie_embeddings"];
        if let Some(name) = own.iter().find(|name| !is_llama && model.keys.contains_key(**name)) {
            let said = format!("model.{name} means nothing for model.kind={}", model.kind);
            return Err(ConfigError::Contradiction(said, "leave it out, or choose model.kind=llama"));
        }
        let number =
            |name: &str| model.keys.get(name).and_then(toml::Value::as_integer).map(i64::unsigned_abs);
        let required = |key: &'static str, name| {
            let meaning = keys::key(key).map_or("", |key| key.meaning);
            number(name).ok_or(ConfigError::Missing { key, meaning })
        };
        let (dim, heads) = (required("model.dim", "dim")?, required("model.heads", "heads")?);
        let longest = required("model.max_length", "max_length")?;
        if seq_len > longest {
            let said = format!("training.seq_len={seq_len} is longer than model.max_length={longest}");
            return Err(ConfigError::Contradiction(
                said,
                "train on shorter sequences, or raise model.max_length",
            ));
        }
        Ok(Self {
            heads,
            kv_heads: number("kv_heads").unwrap_or(heads),
            ffn: match number("ffn") {
                None if !is_llama => dim.saturating_mul(4),
                _ => required("model.ffn", "ffn")?,
            },
            layers: required("model.layers", "layers")?,
            vocabulary: required("model.vocab", "vocab")?,
        })
    }
}

/// Refuses meshes, virtual ranks and stage splits that the model does not divide over.
///
/// # Errors
/// `Config`, with what does not divide and what would.
pub fn check_model(config: &Config, sizes: &ModelSizes) -> Result<()> {
    let demand = |what: &str, count, tensors: &str| -> Result<Divisibility> {
        let axis: AxisName = "tp".parse().map_err(|_| Error::internal("tp is an axis"))?;
        Ok(Divisibility { what: what.to_owned(), count, axis, tensors: tensors.to_owned(), uneven: false })
    };
    let demands = [
        demand("query heads", sizes.heads, "attention")?,
        demand("KV heads", sizes.kv_heads, "attention")?,
        demand("feed-forward columns", sizes.ffn, "feed-forward")?,
        demand("vocabulary rows", sizes.vocabulary, "embedding and head")?,
    ];
    let mesh = config.parallelism.mesh;
    check_divisibility(&mesh.mesh()?, &demands).map_err(|error| {
        Error::config(format!("parallelism.mesh={mesh}: {error}"))
            .hint("choose one of the meshes that fit, or other sizes of the model")
            .caused_by(error)
    })?;
    if config.training.mode == Mode::Exact {
        let total = config.exact.virtual_tp;
        if let Some(demand) = demands.iter().find(|demand| !demand.count.is_multiple_of(total)) {
            let said = format!(
                "exact.virtual_tp={total} does not divide the model's {} {}",
                demand.count, demand.what
            );
            return contradiction(
                said,
                "choose virtual ranks that divide heads, KV heads, feed-forward and vocabulary",
            );
        }
    }
    layers(&config.parallelism, sizes.layers)
}

/// Every layer is on one stage, and every stage has something to do.
fn layers(parallelism: &Parallelism, layers: u64) -> Result<()> {
    let stages = parallelism.mesh.pp as u64 * parallelism.stages_per_rank;
    match &parallelism.stage_split {
        StageSplit::Layers(split) => {
            let sum = split.iter().try_fold(0_u64, |sum, n| sum.checked_add(*n));
            if sum != Some(layers) {
                let text = split.iter().map(u64::to_string).collect::<Vec<_>>().join(" + ");
                let sum = sum.map_or("too many".to_owned(), |n| n.to_string());
                let said =
                    format!("parallelism.stage_split has {text} = {sum} layers, but the model has {layers}");
                return contradiction(said, "every layer is on exactly one stage");
            }
        }
        // Embedding and head can be stages of their own.
        StageSplit::Auto if stages > layers + 2 => {
            let said = format!(
                "pp={} x parallelism.stages_per_rank={} = {stages} stages, but the model has only {layers} layers \
                 beside embedding and head",
                parallelism.mesh.pp, parallelism.stages_per_rank
            );
            return contradiction(
                said,
                "choose fewer pipeline ranks, or a schedule with fewer stages per rank",
            );
        }
        StageSplit::Auto => {}
    }
    Ok(())
}
