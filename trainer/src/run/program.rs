//! The program of a run: of a schedule that has a name, of one that is made for its stages, or of one from a file.
//!
//! Invariant: whatever it comes from, it passed the same checks; a file with communication runs in the very order that it
//! says, one without is lowered as a named schedule is.

use std::path::Path;

use schedule::{
    Effort, Gather, Goal, Memory, Problem, Program, Shape, StageMemory, StageTimes, Table, Timing,
    csv::{self, Dialect},
};

use crate::{
    Error, Place, Result,
    config::{Parallelism, ScheduleDialect},
    stage::Account,
};

/// Name of the schedule that is made for the stages.
pub(crate) const AUTO: &str = "Auto";

/// How long the search for an automatic schedule may take: about a tenth of a second. Every rank makes the same.
const EFFORT: Effort = Effort(3_000_000);

/// The program that `parallelism.schedule_csv` holds, if there is one: it says how many stages there are, and where.
///
/// # Errors
/// `Io` and `NotFound` for a file that can't be read; `Config` for what is refused in it, by row and column.
pub(super) fn written(
    parallelism: &Parallelism,
    microbatches: usize,
    gather: Gather,
) -> Result<Option<Program>> {
    let Some(file) = parallelism.schedule_file() else { return Ok(None) };
    let text = std::fs::read_to_string(Path::new(file)).place(format!("schedule {file}"))?;
    let options = csv::Options {
        dialect: match parallelism.schedule_dialect {
            ScheduleDialect::Auto => None,
            ScheduleDialect::Newer => Some(Dialect::Newer),
            ScheduleDialect::Older => Some(Dialect::Older),
        },
        ranks: Some(parallelism.mesh.pp),
        microbatches: Some(microbatches),
        ..csv::Options::default()
    };
    let program = csv::read(&text, &options).and_then(|document| document.program(gather));
    let program = program.place(format!("schedule {file}"))?;
    let (stages, ranks) = (program.table().stages(), parallelism.mesh.pp);
    match usize::try_from(parallelism.stages_per_rank).unwrap_or(usize::MAX) {
        0 => Ok(Some(program)),
        each if each.saturating_mul(ranks) == stages => Ok(Some(program)),
        each => Err(Error::config(format!(
            "schedule {file} has {stages} stages, but pp={ranks} x parallelism.stages_per_rank={each}"
        ))
        .hint("leave parallelism.stages_per_rank out: the file says it")),
    }
}

/// What each pipeline rank does in a step, checked and with its communication. `stages`: what each has to compute.
///
/// # Errors
/// `Config` for what no schedule can do with these numbers.
pub(super) fn program(
    parallelism: &Parallelism,
    shape: Shape,
    gather: Gather,
    stages: &[Account],
) -> Result<Program> {
    let table = match parallelism.schedule.as_str() {
        AUTO => automatic(parallelism, shape, stages)?,
        name => schedule::generate(schedule::named(name)?, shape)?,
    };
    Ok(schedule::lower(&table, gather)?)
}

/// An order for these very stages: their work counted in elements of parameters (a product of each with every token in
/// forward, for inputs and for weights), and live activations limited to those of as many microbatches as there are ranks,
/// which is what 1F1B's first rank holds, or to `parallelism.live_microbatches`.
fn automatic(parallelism: &Parallelism, shape: Shape, stages: &[Account]) -> Result<Table> {
    if shape.stages != shape.ranks {
        return Err(Error::config(format!(
            "schedule {AUTO} takes one stage on each rank, not {} on {}",
            shape.stages, shape.ranks
        ))
        .hint("leave parallelism.stages_per_rank out, or choose ZBVZeroBubble or InterleavedZeroBubble"));
    }
    #[expect(clippy::cast_precision_loss, reason = "shares of work")]
    let times = |stage: &Account| {
        let (all, later) = (stage.elements.max(1) as f64, stage.splittable as f64);
        StageTimes::new(all, all + (all - later), later)
    };
    let limit = match parallelism.live_microbatches {
        0 => shape.ranks,
        most => usize::try_from(most).unwrap_or(usize::MAX),
    };
    // Inputs and output gradients of linear layers: about half of what forward leaves.
    let memory = StageMemory { activation: 1.0, kept: 0.5, ..StageMemory::default() };
    #[expect(clippy::cast_precision_loss, reason = "few microbatches")]
    let limits = vec![limit as f64; shape.ranks];
    let problem = Problem {
        timing: Timing::of_stages(stages.iter().map(times).collect(), 0.0),
        memory: Memory { stages: vec![memory; shape.stages] },
        limits,
        splittable: stages.iter().map(|stage| stage.splittable > 0).collect(),
        microbatches: shape.microbatches,
        goal: Goal::Makespan,
    };
    Ok(schedule::plan(&problem, EFFORT)?.table)
}
