//! Every key of the configuration: its name, type and meaning.

use std::fmt;

use dcp::codec::Codecs;

use super::{
    lapse,
    sections::{
        CommMode, Decay, Device, FlopsFormula, LoadProof, MessageFault, Mode, Numbers, OnDamage,
        OnSaveFailure, Recomputed, Reshard, Resume, ScheduleDialect, Strategy, Ties, TransportKind,
    },
};
use crate::mesh::MeshShape;

/// A key.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// `section.name`.
    pub path: &'static str,
    /// What values it takes.
    pub kind: Kind,
    /// What it means.
    pub meaning: &'static str,
}

/// What values a key takes.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// A whole number, at least this.
    Whole(u64),
    /// A number, at least the first and below the second.
    Number(f64, f64),
    /// Two numbers, each at least 0 and below 1.
    Betas,
    /// Any text; not empty.
    Text,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A size, or -1 for what is left.
    Degree,
    /// Always, never, or by default; true and false mean the first two.
    Reshard,
    /// A schedule: one of these names, or the path of a CSV file.
    Schedule,
    /// A length of time.
    Time,
    /// Sizes of dp, pp and tp.
    Mesh,
    /// `auto`, or layers of each stage.
    Split,
    /// True or false.
    Flag,
    /// The path of a file; empty for none.
    Path,
    /// `op`, or a whole number of at least 1.
    Selective,
    /// How what is stored is compressed: a codec for all roles, or some by role.
    Codecs,
}

/// Schedules by their canonical names: those that can be generated, and the one that is made for the stages.
pub(super) fn schedules() -> Vec<&'static str> {
    schedule::known().into_iter().chain([crate::run::AUTO]).collect()
}

const ANY: f64 = f64::INFINITY;

macro_rules! keys {
    ($($path:literal $kind:expr, $meaning:literal;)*) => {
        /// All keys, in the order in which they are printed.
        pub const KEYS: &[Key] = &[$(Key { path: $path, kind: $kind, meaning: $meaning },)*];
    };
}

keys! {
    "model.kind" Kind::Choice(&["llama", "gpt2"]), "the model";
    "model.dim" Kind::Whole(1), "width of the residual stream";
    "model.layers" Kind::Whole(1), "number of layers";
    "model.heads" Kind::Whole(1), "query heads";
    "model.kv_heads" Kind::Whole(1), "key and value heads (llama); model.heads if left out";
    "model.head_dim" Kind::Whole(1), "width of a head (llama); dim / heads if left out";
    "model.ffn" Kind::Whole(1), "width of the feed-forward layer; 4 x dim if left out (gpt2)";
    "model.vocab" Kind::Whole(1), "vocabulary entries; 256 if left out, as every byte is a token";
    "model.max_length" Kind::Whole(1), "longest sequence; training.seq_len if left out";
    "model.rope_theta" Kind::Number(0.0, ANY), "base of the rotary angles (llama)";
    "model.norm_eps" Kind::Number(0.0, ANY), "epsilon of the norms";
    "model.tie_embeddings" Kind::Flag, "whether the head is the embedding's table (llama; always so in gpt2)";
    "model.init_std" Kind::Number(0.0, ANY), "standard deviation of initial weights";
    "optimizer.lr" Kind::Number(0.0, ANY), "peak learning rate";
    "optimizer.betas" Kind::Betas, "decay of the first and of the second moment";
    "optimizer.eps" Kind::Number(0.0, ANY), "added to the root of the second moment";
    "optimizer.weight_decay" Kind::Number(0.0, ANY), "decoupled weight decay, of matrices only";
    "optimizer.fused" Kind::Flag, "torch's fused AdamW: faster, within 1e-6 of its single-tensor form, whose bits are the default's";
    "lr_scheduler.warmup_steps" Kind::Whole(0), "steps over which the rate rises from 0";
    "lr_scheduler.decay_type" Kind::Choice(Decay::NAMES), "how the rate falls after the warm-up";
    "lr_scheduler.decay_steps" Kind::Whole(1), "step at which it has fallen all the way; training.steps if left out";
    "lr_scheduler.min_lr_factor" Kind::Number(0.0, 1.000_000_1), "where it ends, as a part of optimizer.lr";
    "training.steps" Kind::Whole(1), "optimizer steps of the whole run";
    "training.global_batch" Kind::Whole(1), "sequences per step, over all replicas: microbatches x micro_batch x dp";
    "training.micro_batch" Kind::Whole(1), "sequences per microbatch";
    "training.microbatches" Kind::Whole(1), "microbatches per replica and step; follows from the others if left out";
    "training.seq_len" Kind::Whole(1), "tokens per sequence";
    "training.seed" Kind::Whole(0), "of the initial weights, dropout and the order of samples";
    "training.max_norm" Kind::Number(0.0, ANY), "gradients are scaled down to this norm; 0 leaves them";
    "training.mode" Kind::Choice(Mode::NAMES), "exact: the same bits on every mesh; fast: sums in any order, so that losses on two meshes agree to 1e-5 at first";
    "training.device" Kind::Choice(Device::NAMES), "where weights lie and products are computed: cpu, or cuda: the GPU whose number is the rank's on its machine; cuda needs comm.transport=nccl and training.mode=fast";
    "training.mixed_precision_param" Kind::Choice(Numbers::NAMES), "what weights are gathered in and products computed on; masters, moments and weight gradients are float32 in any case";
    "training.mixed_precision_reduce" Kind::Choice(Numbers::NAMES), "what gradients are exchanged in (they are summed in float32); bfloat16 in fast mode only";
    "exact.virtual_tp" Kind::Whole(1), "virtual tensor-parallel ranks of exact mode; the mesh's tp if left out, so set it where meshes will change";
    "parallelism.mesh" Kind::Mesh, "dp x pp x tp";
    "parallelism.dp_replicate" Kind::Degree, "of dp, times that all weights are held; -1: what dp_shard leaves";
    "parallelism.dp_shard" Kind::Degree, "of dp, ranks that one copy of the weights is sharded over; -1: what dp_replicate leaves";
    "parallelism.schedule" Kind::Schedule, "pipeline schedule, or the path of a CSV file that holds one";
    "parallelism.schedule_csv" Kind::Path, "CSV file that holds the schedule, as torch writes them: with communication, it runs as it is; without, it is added; wins over parallelism.schedule";
    "parallelism.schedule_dialect" Kind::Choice(ScheduleDialect::NAMES), "what the letters of the file mean: newer (B: full backward), older (B: gradient of inputs, BW: full), or auto";
    "parallelism.stages_per_rank" Kind::Whole(0), "stages that each pipeline rank runs; 0, or left out: as few as the schedule takes, or what its file says";
    "parallelism.stage_split" Kind::Split, "layers of each stage; 0 for a first one of the embedding alone, or a last one of the head";
    "parallelism.live_microbatches" Kind::Whole(0), "schedule Auto: so many microbatches' activations at most on a rank; 0: as many as there are pipeline ranks";
    "parallelism.ties" Kind::Choice(Ties::NAMES), "a parameter that two pipeline ranks use, as a tied embedding is: reject, or sync: both hold it, and exchange its gradient once a step";
    "parallelism.tp_across_nodes" Kind::Flag, "whether a tensor-parallel group may lie on several machines";
    "parallelism.sequence_parallel" Kind::Flag, "whether tensor-parallel ranks keep 1/tp of a microbatch's tokens each between linears, instead of all of them: less memory, 1/tp of the bytes from stage to stage, other bits in exact mode (it is part of the virtual mesh); micro_batch x seq_len must divide";
    "fsdp.strategy" Kind::Choice(Strategy::NAMES), "what data-parallel ranks share out: all (full_shard, shard_grad_op), all within dp_shard ranks (hybrid_shard), nothing (no_shard: DDP); follows from dp_replicate and dp_shard if left out";
    "fsdp.reshard_after_forward" Kind::Reshard, "whether gathered weights are freed after forward; default: without a pipeline";
    "fsdp.prefetch" Kind::Flag, "whether the weights of a part are gathered while the part before it is computed: one part more in memory";
    "activation_checkpoint.mode" Kind::Choice(Recomputed::NAMES), "which layers are computed again in backward, instead of being kept from forward to it: none, all (full), or selectively; same bits in less memory";
    "activation_checkpoint.selective" Kind::Selective, "op: all layers, but for what their products gave; a number n: every n-th layer, whole";
    "activation_checkpoint.queue" Kind::Flag, "whether I of a layer that is computed again leaves its weight gradients to W, and keeps what they are made of so long; false: I computes them, and nothing of it is left to W";
    "data.folder" Kind::Text, "folder of text files, whose bytes are the tokens";
    "checkpoint.root" Kind::Text, "folder or URL of the native store";
    "checkpoint.run" Kind::Text, "name of the run's line of checkpoints";
    "checkpoint.interval" Kind::Whole(0), "steps from save to save, and one at the end; 0: none at all";
    "checkpoint.keep_last" Kind::Whole(0), "checkpoints to keep; 0 keeps all";
    "checkpoint.grace" Kind::Time, "how long the data of a checkpoint that is no longer kept stays for those who read it";
    "checkpoint.codec" Kind::Codecs, "compression of what is stored, for all roles or by role: none, zstd or planes; planes,param=none compresses the moments alone";
    "checkpoint.share" Kind::Flag, "whether tensors that are as they were in the last checkpoint refer to it instead of being written again; its data then stays as long";
    "checkpoint.on_damage" Kind::Choice(OnDamage::NAMES), "when the newest checkpoint is damaged: resume from the one before, or stop";
    "checkpoint.on_save_failure" Kind::Choice(OnSaveFailure::NAMES), "when a background save failed";
    "checkpoint.verify" Kind::Choice(LoadProof::NAMES), "what proves what is loaded: sums of all ranks, or the blocks around each box";
    "checkpoint.resume" Kind::Choice(Resume::NAMES), "auto: from the newest checkpoint if there is one";
    "metrics.folder" Kind::Text, "where rank_00000.jsonl and its like are written";
    "metrics.log_freq" Kind::Whole(1), "steps from console line to console line";
    "metrics.tensorboard" Kind::Flag, "whether rank 0 also writes TensorBoard's event files, to metrics.folder/tensorboard";
    "metrics.peak_tflops" Kind::Number(0.0, ANY), "rate of one rank's card in TFLOP/s, which mfu is a share of; 0: mfu is not shown";
    "metrics.flops_formula" Kind::Choice(FlopsFormula::NAMES), "operations of a token: palm has 6 for each parameter but the table, and attention's; 6n has 6 for each parameter";
    "metrics.flops_per_token" Kind::Number(0.0, ANY), "operations of a token, where no formula fits; 0: by the formula";
    "metrics.trace_first" Kind::Whole(0), "first step that is traced, to metrics.folder/trace; 0: none is";
    "metrics.trace_steps" Kind::Whole(1), "how many steps are traced";
    "comm.transport" Kind::Choice(TransportKind::NAMES), "auto: among processes gloo, or nccl for training.device=cuda; threads within one (local); fake: rank 0 alone, the others imagined, which trains nothing (see ckpt-train check --rank)";
    "comm.mode" Kind::Choice(CommMode::NAMES), "async: a message is under way while its sender goes on; sync: a send waits until it is taken";
    "comm.buffers" Kind::Whole(1), "messages of a rank that may be under way in async mode before a send waits";
    "comm.start_timeout" Kind::Time, "how long ranks wait for each other from the start to the end of the first step";
    "comm.step_timeout" Kind::Time, "how long a rank waits for a message within a step after that";
    "comm.dump_folder" Kind::Text, "where every rank writes what it was doing when one gives up";
    "comm.dump_actions" Kind::Whole(1), "the last actions of a rank that are remembered for that";
    "debug.slow_save_step" Kind::Whole(0), "slow down the save of this step; 0: of none";
    "debug.slow_save" Kind::Time, "by so much";
    "debug.fail_save_step" Kind::Whole(0), "the save of this step fails after its first blob; 0: none does";
    "debug.fail_save_rank" Kind::Whole(0), "on this rank";
    "debug.nan_step" Kind::Whole(0), "make the losses of this step NaN; 0: never";
    "debug.nan_rank" Kind::Whole(0), "on this rank";
    "debug.die_step" Kind::Whole(0), "die by SIGKILL at this step, in the first incarnation; 0: never";
    "debug.die_rank" Kind::Whole(0), "on this rank";
    "debug.hang_step" Kind::Whole(0), "stop answering at this step, in the first incarnation; 0: never";
    "debug.hang_rank" Kind::Whole(0), "on this rank";
    "debug.tensors_step" Kind::Whole(0), "write the weights before this step's update and its gradients to a file of each rank; 0: never";
    "debug.tensors_folder" Kind::Text, "the folder of those files";
    "debug.virtual_device" Kind::Text, "off; or milliseconds that a stage's actions sleep instead of computing: F=10,I=10,W=10,transfer=0.5, a number for each stage F=10/12";
    "debug.message_fault" Kind::Choice(MessageFault::NAMES), "what happens to the first message that a rank sends in a step";
    "debug.message_step" Kind::Whole(0), "in this step; 0: in none";
    "debug.message_rank" Kind::Whole(0), "of this rank";
}

/// The key of that name.
pub(super) fn key(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.path == path)
}

/// Sections, in order.
pub(super) fn sections() -> impl Iterator<Item = &'static str> {
    let mut last = "";
    KEYS.iter().filter_map(|key| key.path.split_once('.')).filter_map(move |(section, _)| {
        let new = section != last;
        last = section;
        new.then_some(section)
    })
}

/// The name most like `unknown` among `known`, if any is like it at all.
pub(super) fn nearest<'a>(unknown: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let last = |path: &str| path.rsplit('.').next().unwrap_or(path).to_owned();
    let score = |name: &str| {
        let same_name = f64::from(u8::from(last(name) == last(unknown)));
        strsim::jaro_winkler(unknown, name).max(0.98 * strsim::jaro_winkler(&last(unknown), &last(name)))
            + same_name
    };
    let scored = known.map(|name| (score(name), name));
    let best = scored.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    (best.0 >= LIKE).then_some(best.1)
}

/// Names that are less alike than this are not suggested.
const LIKE: f64 = 0.8;

impl Kind {
    /// Whether what stands on a command line is the text itself, not TOML.
    pub(super) const fn is_text(self) -> bool {
        matches!(
            self,
            Self::Text
                | Self::Path
                | Self::Choice(_)
                | Self::Reshard
                | Self::Schedule
                | Self::Mesh
                | Self::Time
                | Self::Codecs
        )
    }

    /// The value in its canonical form, if it is one that the key takes.
    pub(super) fn take(self, value: &toml::Value) -> Option<toml::Value> {
        use toml::Value;
        let number = |value: &Value| match value {
            #[expect(clippy::cast_precision_loss, reason = "no setting needs 53 bits")]
            Value::Integer(whole) => Some(*whole as f64),
            Value::Float(number) => Some(*number),
            _ => None,
        };
        match self {
            Self::Whole(least) => {
                let whole = value.as_integer().and_then(|whole| u64::try_from(whole).ok())?;
                (whole >= least).then(|| value.clone())
            }
            Self::Number(least, below) => {
                number(value).filter(|x| (least..below).contains(x)).map(Value::Float)
            }
            Self::Betas => {
                let betas: Option<Vec<f64>> = value.as_array()?.iter().map(number).collect();
                let betas = betas.filter(|b| b.len() == 2 && b.iter().all(|x| (0.0..1.0).contains(x)))?;
                Some(Value::Array(betas.into_iter().map(Value::Float).collect()))
            }
            Self::Flag => value.as_bool().map(Value::Boolean),
            Self::Codecs => value.as_str()?.parse::<Codecs>().ok().map(|it| Value::from(it.to_string())),
            Self::Selective => {
                let number = value.as_integer().or_else(|| value.as_str().and_then(|text| text.parse().ok()));
                let number =
                    number.filter(|every| *every > 0).map(|every: i64| Value::from(every.to_string()));
                number.or_else(|| value.as_str().filter(|text| *text == "op").map(Value::from))
            }
            Self::Path => value.as_str().map(Value::from),
            Self::Text => value.as_str().filter(|text| !text.trim().is_empty()).map(Value::from),
            Self::Choice(words) => value.as_str().filter(|text| words.contains(text)).map(Value::from),
            // 0 stands for what is left, and cannot be given.
            Self::Degree => {
                let size = value.as_integer().filter(|size| *size >= 1 || *size == -1)?;
                Some(Value::Integer(size.max(0)))
            }
            Self::Reshard => {
                let word = match (value, value.as_str()) {
                    (Value::Boolean(true), _) | (_, Some("true")) => Reshard::Always.name(),
                    (Value::Boolean(false), _) | (_, Some("false")) => Reshard::Never.name(),
                    (_, text) => text.filter(|text| Reshard::NAMES.contains(text))?,
                };
                Some(Value::from(word))
            }
            Self::Schedule => schedule(value.as_str()?).map(Value::from),
            Self::Time => {
                let time = value.as_str().map_or_else(|| lapse::seconds(number(value)?), lapse::parse);
                time.map(|time| Value::from(lapse::text(time)))
            }
            Self::Mesh => value.as_str()?.parse::<MeshShape>().ok().map(|mesh| Value::from(mesh.to_string())),
            Self::Split => match value {
                Value::String(text) => (text == "auto").then(|| value.clone()),
                Value::Array(layers) if !layers.is_empty() => {
                    layers.iter().all(|n| n.as_integer().is_some_and(|n| n >= 0)).then(|| value.clone())
                }
                _ => None,
            },
        }
    }
}

/// The canonical name of a schedule, whatever its case and hyphens, or another name that is known for it; paths of CSV files
/// as they are.
fn schedule(text: &str) -> Option<String> {
    if text.trim().eq_ignore_ascii_case(crate::run::AUTO) {
        return Some(crate::run::AUTO.to_owned());
    }
    let known = schedule::named(text).ok().map(|known| known.name().to_owned());
    known.or_else(|| text.to_ascii_lowercase().ends_with(".csv").then(|| text.to_owned()))
}

/// What was expected, for messages.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(0) => f.write_str("a whole number"),
            Self::Whole(least) => write!(f, "a whole number of at least {least}"),
            Self::Number(least, below) if below.is_infinite() => write!(f, "a number of at least {least}"),
            Self::Number(least, below) => write!(f, "a number from {least} to {below:.0}"),
            Self::Betas => f.write_str("two numbers, each at least 0 and below 1, such as [0.9, 0.95]"),
            Self::Flag => f.write_str("true or false"),
            Self::Codecs => {
                f.write_str("none, zstd or planes, or some of them by role, such as \"planes,param=none\"")
            }
            Self::Selective => f.write_str("\"op\", or a whole number of at least 1"),
            Self::Path => f.write_str("the path of a file, or \"\" for none"),
            Self::Text => f.write_str("a text that is not empty"),
            Self::Choice(words) => write!(f, "{}", words.join(" or ")),
            Self::Degree => f.write_str("a whole number of at least 1, or -1 for what is left"),
            Self::Reshard => write!(f, "{}, true or false", Reshard::NAMES.join(", ")),
            Self::Schedule => write!(f, "{}, or the path of a .csv file", schedules().join(", ")),
            Self::Time => f.write_str("a length of time such as \"500ms\", \"30s\" or \"5m\""),
            Self::Mesh => f.write_str("the sizes of dp, pp and tp, such as \"2x2x1\" or \"dp=2,pp=2\""),
            Self::Split => f.write_str("\"auto\" or a list with the number of layers of each stage"),
        }
    }
}
