//! The rehearsal that a configuration asks for (`debug.virtual_device`).

use super::{Outline, job::positive};
use crate::{Result, config::Resolved, exact::VirtualTp, parallel::Tokens, rehearsal::Plan, stage};

/// From a configuration whose `debug.virtual_device` is set.
///
/// # Errors
/// `Config` for what does not fit together.
pub(super) fn plan(config: &Resolved) -> Result<Plan> {
    let values = &config.config;
    let outline = Outline::new(config)?;
    let program = outline.program().clone();
    let timing = stage::times(&values.debug.virtual_device, program.table().stages())?;
    let size = |value: u64, key| positive(value, key).map(|it| i64::try_from(it).unwrap_or(i64::MAX));
    let rows = size(values.training.micro_batch, "training.micro_batch")?;
    let length = size(values.training.seq_len, "training.seq_len")?;
    let (mesh, schedule) = (values.parallelism.mesh, values.parallelism.schedule.clone());
    let (tokens, tp) =
        (Tokens::of(values.parallelism.sequence_parallel), VirtualTp::of(0, mesh.tp, mesh.tp)?);
    let carry = |parts: &std::ops::Range<usize>| match parts.end.checked_sub(1) {
        Some(last) if parts.end < outline.model.parts().len() => {
            stage::carried(&*outline.model, last, (rows, length), |all| tokens.kept(all, tp))
        }
        _ => Vec::new(),
    };
    let shapes = outline.stages.iter().map(carry).collect();
    Ok(Plan { schedule, program, mesh, timing, shapes, steps: values.training.steps, enough: None })
}
