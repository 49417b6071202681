//! Checks of a configuration on one machine, whatever its number of ranks. There is no second implementation of the step that
//! could say something else than the first: what is checked is the code that will run.
//!
//! | how | what runs | what it proves |
//! |---|---|---|
//! | [`check`] | the first step of every rank, one after another, the others imagined, on a model that is shrunk to what the mesh still divides; then all records are held against each other | all groups come to be in the same order on all members; every send has its receive with the same header; every collective has the same operation, purpose, dtype and shapes on all members; nobody waits for what never comes |
//! | [`check_in_threads`] | the same step on all ranks at once, as threads | the same, by running it, and that values agree where ranks compare them |
//! | [`check_alone`] | the first step of one rank at its real sizes, the others imagined | that it fits into memory, what it takes, what it sends beside what planning says |
//!
//! What none can prove: how fast links are, and what a step takes while all ranks share a machine.

mod alone;
mod ledger;
mod recorded;
mod threads;

use std::{fmt, path::Path, time::Duration};

pub use self::{
    alone::{Alone, check_alone, unshrunk},
    ledger::Line,
    recorded::check,
    threads::{check_in_threads, one_store},
};
use super::{Job, Observer, Summary};
use crate::{
    Error, Result,
    config::{Mode, Resolved},
    mesh::{Axis, MeshShape},
    transport::Traffic,
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
    /// Whether ranks ran at once, as threads.
    threads: bool,
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
    let mut settings = one_step(micro, length, folder)?;
    let heads = values.model.keys.get("heads").and_then(toml::Value::as_integer).unwrap_or(1);
    let dim = if values.model.kind == "llama" { SMALL.cast_signed() } else { heads * 2 };
    settings.extend([
        format!("training.global_batch={micro}"),
        "training.micro_batch=1".to_owned(),
        format!("training.seq_len={length}"),
        format!("model.max_length={length}"),
        format!("model.dim={dim}"),
        format!("model.ffn={}", ranks * 2),
        format!("model.vocab={}", BYTES.next_multiple_of(ranks)),
    ]);
    if values.model.kind == "llama" {
        settings.push("model.head_dim=2".to_owned());
    }
    Ok(settings)
}

/// Settings of one step that reads a little text in `folder`, and neither loads nor saves anything.
fn one_step(sequences: u64, tokens: u64, folder: &Path) -> Result<Vec<String>> {
    let text = folder.join("text");
    std::fs::create_dir_all(&text)?;
    let bytes = sequences.saturating_add(1).saturating_mul(tokens.saturating_add(1)).saturating_mul(2);
    let bytes = usize::try_from(bytes).map_err(|_| Error::config("a batch larger than memory"))?;
    let words = b"this text stands for all others ".iter().copied().cycle().take(bytes);
    std::fs::write(text.join("a.txt"), words.collect::<Vec<_>>())?;
    Ok(vec![
        format!("data.folder={}", text.display()),
        "checkpoint.root=memory://check".to_owned(),
        "checkpoint.interval=0".to_owned(),
        "checkpoint.resume=auto".to_owned(),
        "training.steps=1".to_owned(),
        "training.device=cpu".to_owned(),
        "comm.transport=auto".to_owned(),
        "lr_scheduler.warmup_steps=0".to_owned(),
        "lr_scheduler.decay_steps=1".to_owned(),
    ])
}

/// The model's sizes, for people.
fn sizes(config: &Resolved) -> String {
    let keys = &config.config.model.keys;
    let size = |name: &str| keys.get(name).map_or_else(|| "?".to_owned(), ToString::to_string);
    let tokens = config.config.training.seq_len;
    format!("dim {}, ffn {}, vocabulary {}, {tokens} tokens", size("dim"), size("ffn"), size("vocab"))
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
                "most_under_way": self.threads.then_some(traffic.peak_under_way),
            }))
        };
        let ranks = self.traffic.iter().enumerate().map(rank).collect::<Result<Vec<_>>>()?;
        let all = serde_json::json!({
            "mesh": self.mesh.to_string(), "shrunk": self.shrunk, "threads": self.threads, "seconds": self.took.as_secs_f64(),
            "peak_bytes": self.memory, "ranks": ranks,
        });
        serde_json::to_string_pretty(&all).map_err(|error| Error::internal(error.to_string()))
    }
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MeshShape { dp, pp, tp } = self.mesh;
        let ranks = self.mesh.ranks();
        let how = if self.threads { "as threads" } else { "one after another" };
        writeln!(f, "mesh      {}: {ranks} ranks {how}, model shrunk to {}", self.mesh, self.shrunk)?;
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
            let most = if self.threads { format!(", has at most {most} under way") } else { String::new() };
            writeln!(f, "  pp {stage:<4} a rank sends {sent}, receives {received}{most}")?;
        }
        let (seconds, memory) = (self.took.as_secs_f64(), self.memory / (1 << 20));
        writeln!(f, "step      begun and ended by all ranks: groups, collectives, shapes and dtypes agree")?;
        writeln!(f, "cost      {seconds:.1} s, at most {memory} MiB")
    }
}
