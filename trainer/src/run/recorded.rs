//! What the configuration says of records: facts of a run, a token's operations, which steps are traced.

use std::path::Path;

use super::Job;
use crate::{
    Result,
    config::FlopsFormula,
    metrics::{Counted, Flops, Formula, Setting, Trace, Value},
    plan,
};

/// What stays the same over a run and what readers of its metrics should know.
pub(super) fn facts(job: &Job, rank: usize) -> Result<Vec<(String, Value)>> {
    let (config, outline) = (&job.config.config, &job.outline);
    let at = outline.mesh.coordinates(rank)?;
    let layers = outline.stages.iter().map(|parts| {
        let specs = outline.model.parts().get(parts.clone()).unwrap_or_default();
        specs.iter().filter(|part| part.layer.is_some()).count().to_string()
    });
    let schedule = config.parallelism.schedule_file().unwrap_or(&config.parallelism.schedule);
    let text = |name: &str, value: String| (format!("run/{name}"), Value::Text(value));
    Ok(vec![
        text("mesh", outline.mesh.to_string()),
        text("at", at.to_string()),
        text("schedule", schedule.to_owned()),
        text("microbatches", job.config.batches.microbatches.to_string()),
        text("global_batch", job.config.batches.global.to_string()),
        text("layers", layers.collect::<Vec<_>>().join(",")),
        text("dumps", config.comm.dump_folder.clone()),
    ])
}

/// How this rank records.
pub(super) fn setting(job: &Job, rank: usize) -> Setting {
    let metrics = &job.config.config.metrics;
    Setting { rank, log_freq: metrics.log_freq, flops: flops(job), tensorboard: metrics.tensorboard }
}

/// A token's operations; `None` for a model whose sizes are not known.
fn flops(job: &Job) -> Option<Flops> {
    let config = &job.config.config;
    let (metrics, seq) = (&config.metrics, config.training.seq_len);
    let peak = (metrics.peak_tflops > 0.0).then_some(metrics.peak_tflops * 1e12);
    let per_token = if metrics.flops_per_token > 0.0 {
        metrics.flops_per_token
    } else {
        let facts = plan::facts(&config.model).ok()?;
        let sizes = &facts.sizes;
        let counted = Counted {
            params: facts.params(),
            // A tied table is the head as well, which is no look-up.
            tables: if sizes.tied { 0 } else { facts.embedding },
            attention: sizes.layers * sizes.heads * sizes.head_dim * seq,
        };
        match metrics.flops_formula {
            FlopsFormula::Palm => Formula::Palm.per_token(counted),
            FlopsFormula::SixN => Formula::SixN.per_token(counted),
        }
    };
    Some(Flops { per_token, peak, ranks: job.ranks() })
}

/// The trace of this rank, if steps are traced.
pub(super) fn trace(job: &Job, folder: &Path, rank: usize) -> Result<Option<Trace>> {
    if job.config.config.metrics.trace_first == 0 {
        return Ok(None);
    }
    let at = job.outline.mesh.coordinates(rank)?;
    Trace::create(folder, rank, &format!("dp{} tp{}", at.dp, at.tp), &at.to_string()).map(Some)
}

/// Whether `step` is traced.
pub(super) fn traces(job: &Job, step: u64) -> bool {
    let metrics = &job.config.config.metrics;
    let first = metrics.trace_first;
    first > 0 && (first..first.saturating_add(metrics.trace_steps)).contains(&step)
}
