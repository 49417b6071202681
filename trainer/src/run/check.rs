//! A check of a configuration on one machine, whatever its number of ranks: every rank runs the first step of the real run, as a
//! thread, on a model that is shrunk to what the mesh still divides. There is no second implementation of the step that could
//! say something else than the first: what is checked is the code that will run.
//!
//! What that proves: all groups come to be in the same order on all members; every send has its receive with the same header;
//! every collective has the same operation, purpose, dtype and shapes on all members (the transport names both sides where not); and
//! the step comes to its end. A rank that waits for what never comes is named with what it waits for, when the step limit is over.
//! What it can't prove: that the real sizes fit into memory, or how long a step takes.

use std::{
    fmt,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::{Job, Observer, Summary, Terms, run_rank, start::limits, world::as_threads};
use crate::{
    Error, Result,
    config::{Mode, Resolved},
    mesh::{Axis, MeshShape},
    metrics,
    transport::{Traffic, Transport},
};

/// Positions of a sequence of the shrunk model, at least, and the widths of what no mesh divides.
const SMALL: u64 = 8;
/// Tokens are bytes.
const BYTES: u64 = 256;

/// What was found.
#[derive(Debug, Clone)]
pub struct Checked {
    mesh: MeshShape,
    shrunk: String,
    /// What each rank sent and received, by rank.
    pub traffic: Vec<Traffic>,
    /// How long the step of all ranks took, start included.
    pub took: Duration,
    /// Most bytes that this process held at once.
    pub memory: u64,
}

/// Settings that make a configuration small, and keep its mesh, schedule, batches and layers: `folder` is for a little text and an
/// empty store.
///
/// # Errors
/// A text that can't be written.
pub fn shrunk(config: &Resolved, folder: &Path) -> Result<Vec<String>> {
    let values = &config.config;
    let (mesh, training) = (values.parallelism.mesh, &values.training);
    let ranks = match training.mode {
        Mode::Exact => values.exact.virtual_tp.max(1),
        Mode::Fast => mesh.tp as u64,
    };
    // Tokens that are cut over ranks have to divide over them.
    let length = if values.parallelism.sequence_parallel { SMALL.next_multiple_of(ranks) } else { SMALL };
    let micro = training.global_batch / training.micro_batch.max(1);
    let text = folder.join("text");
    std::fs::create_dir_all(&text)?;
    let bytes = usize::try_from((micro + 1) * (length + 1) * 2).unwrap_or(usize::MAX);
    std::fs::write(
        text.join("a.txt"),
        b"all ranks are threads ".iter().copied().cycle().take(bytes).collect::<Vec<_>>(),
    )?;
    let heads = values.model.keys.get("heads").and_then(toml::Value::as_integer).unwrap_or(1);
    let dim = if values.model.kind == "llama" { SMALL.cast_signed() } else { heads * 2 };
    let mut settings = vec![
        format!("data.folder={}", text.display()),
        format!("checkpoint.root={}", folder.join("store").display()),
        "checkpoint.interval=0".to_owned(),
        "checkpoint.resume=auto".to_owned(),
        "training.steps=1".to_owned(),
        format!("training.global_batch={micro}"),
        "training.micro_batch=1".to_owned(),
        format!("training.seq_len={length}"),
        "lr_scheduler.warmup_steps=0".to_owned(),
        "lr_scheduler.decay_steps=1".to_owned(),
        format!("model.max_length={length}"),
        format!("model.dim={dim}"),
        format!("model.ffn={}", ranks * 2),
        format!("model.vocab={}", BYTES.next_multiple_of(ranks)),
    ];
    if values.model.kind == "llama" {
        settings.push("model.head_dim=2".to_owned());
    }
    Ok(settings)
}

/// Runs the first step of `config`, which is [`shrunk`], on all its ranks.
///
/// # Errors
/// What the first rank that failed says.
pub fn check(config: Resolved) -> Result<Checked> {
    let (mesh, began) = (config.config.parallelism.mesh, Instant::now());
    let limits = limits(&config.config.comm, &config.config.debug, 0)?;
    let keys = &config.config.model.keys;
    let size = |name: &str| keys.get(name).map_or_else(|| "?".to_owned(), ToString::to_string);
    let shrunk = format!(
        "dim {}, ffn {}, vocabulary {}, {} tokens",
        size("dim"),
        size("ffn"),
        size("vocab"),
        config.config.training.seq_len
    );
    let job = Job::new(config)?;
    let traffic = Mutex::new(vec![Traffic::default(); job.ranks()]);
    let terms = Terms { stop: Arc::default(), restart: 0 };
    let one = |transport: &dyn Transport| -> Result<Summary> {
        let summary = run_rank(&job, transport, &mut Silent, &terms)?;
        let mut all = traffic.lock().unwrap_or_else(PoisonError::into_inner);
        all.get_mut(transport.rank()).into_iter().for_each(|mine| *mine = transport.traffic());
        Ok(summary)
    };
    as_threads(job.ranks(), &limits, &one)?;
    let traffic = traffic.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(Checked { mesh, shrunk, traffic, took: began.elapsed(), memory: metrics::resident().1 })
}

/// Nobody is told.
struct Silent;

impl Observer for Silent {}

impl Checked {
    /// The ranks that share this one's coordinates but on `axis`.
    fn group(&self, rank: usize, axis: Axis) -> Result<Vec<usize>> {
        Ok(self.mesh.group(self.mesh.coordinates(rank)?, axis))
    }

    /// All of it as JSON.
    ///
    /// # Errors
    /// Never for ranks of the mesh.
    pub fn to_json(&self) -> Result<String> {
        let rank = |(rank, traffic): (usize, &Traffic)| -> Result<serde_json::Value> {
            let at = self.mesh.coordinates(rank)?;
            Ok(serde_json::json!({
                "rank": rank, "dp": at.dp, "pp": at.pp, "tp": at.tp,
                "messages_sent": traffic.sent.messages, "messages_received": traffic.received.messages,
                "most_under_way": traffic.peak_under_way,
            }))
        };
        let ranks = self.traffic.iter().enumerate().map(rank).collect::<Result<Vec<_>>>()?;
        let all = serde_json::json!({
            "mesh": self.mesh.to_string(), "shrunk": self.shrunk, "seconds": self.took.as_secs_f64(),
            "peak_bytes": self.memory, "ranks": ranks,
        });
        serde_json::to_string_pretty(&all).map_err(|error| Error::internal(error.to_string()))
    }
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MeshShape { dp, pp, tp } = self.mesh;
        let ranks = self.mesh.ranks();
        writeln!(f, "mesh      {}: {ranks} ranks as threads, model shrunk to {}", self.mesh, self.shrunk)?;
        for (name, axis, size) in [("dp", Axis::Dp, dp), ("pp", Axis::Pp, pp), ("tp", Axis::Tp, tp)] {
            let first = self.group(0, axis).unwrap_or_default();
            let last = self.group(ranks.saturating_sub(1), axis).unwrap_or_default();
            let list = |members: &[usize]| match members {
                [a, b, .., z] if members.len() > 3 => format!("{a}, {b}, … {z}"),
                few => few.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
            };
            writeln!(
                f,
                "groups    {name}: {} of {size}: [{}] to [{}]",
                ranks / size.max(1),
                list(&first),
                list(&last)
            )?;
        }
        let sum = |of: fn(&Traffic) -> u64| self.traffic.iter().map(of).sum::<u64>();
        let (sent, received) = (sum(|it| it.sent.messages), sum(|it| it.received.messages));
        writeln!(f, "messages  {sent} sent, {received} received, every header and number as expected")?;
        for stage in 0..pp {
            let at = self.traffic.get(stage * tp).copied().unwrap_or_default();
            let (sent, received, most) = (at.sent.messages, at.received.messages, at.peak_under_way);
            writeln!(
                f,
                "  pp {stage:<4} a rank sends {sent}, receives {received}, has at most {most} under way"
            )?;
        }
        let (seconds, memory) = (self.took.as_secs_f64(), self.memory / (1 << 20));
        writeln!(f, "step      begun and ended by all ranks: groups, collectives, shapes and dtypes agree")?;
        writeln!(f, "cost      {seconds:.1} s, at most {memory} MiB")
    }
}
