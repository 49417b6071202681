//! Retiring by a policy: decided on the log as it is, executed record by record.

use std::num::NonZeroUsize;

use serde::Serialize;

use super::{
    marks::append,
    plan::{Decision, plan},
    policy::Policy,
    times::Times,
};
use crate::{
    Error, Place, Result,
    commit::{Action, CommitError, Label, Log, LogOptions, Retire, Seq, State, Void},
    store::Root,
};

/// What retiring did.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Retention {
    /// Checkpoints that are no longer there, oldest first: number and training step.
    pub retired: Vec<(Seq, u64)>,
    /// Checkpoints that would have gone, but were tagged, pinned, or became the newest that was verified meanwhile.
    pub held: Vec<(Seq, u64)>,
}

/// What a policy comes to, before anything is done.
#[derive(Debug, Clone)]
pub struct Considered {
    /// Each run, by name.
    pub runs: Vec<RunPlan>,
    /// Whether ages are as of the last record only, because the store can't be written.
    pub as_of_last_record: bool,
}

/// What a policy comes to for one run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunPlan {
    /// The run.
    pub run: Label,
    /// All its checkpoints, newest first.
    pub decisions: Vec<Decision>,
}

impl RunPlan {
    /// The checkpoints that go, newest first.
    pub fn going(&self) -> impl DoubleEndedIterator<Item = &Decision> {
        self.decisions.iter().filter(|decision| !decision.is_kept())
    }
}

/// Decides on the checkpoints of a run, or of all of them, each by itself; by the word of the log alone (see [`Log::prove`]).
///
/// # Errors
/// `Incompatible` for a policy that keeps nothing, and for a metric that no checkpoint of a run has: it may be misspelt, and all would go
/// that it was to keep. `NotFound` for a run without checkpoints. The store's.
pub fn consider(
    log: &mut Log,
    run: Option<&Label>,
    policy: &Policy,
    options: &LogOptions,
) -> Result<Considered> {
    let place = log.root().display_name().to_owned();
    policy.check().place(&place)?;
    log.prove().place(&place)?;
    let runs = runs(log.state(), run).place(&place)?;
    for run in &runs {
        refuse_unknown_metrics(log.state(), run, policy).place(&place)?;
    }
    let times = if policy.needs_times() {
        Times::of(log, options.nonces.as_ref()).place(&place)?
    } else {
        Times::unasked()
    };
    let decide = |run: Label| RunPlan { decisions: plan(log.state(), &run, &times, policy), run };
    Ok(Considered { runs: runs.into_iter().map(decide).collect(), as_of_last_record: !times.is_present() })
}

fn runs(state: &State, only: Option<&Label>) -> Result<Vec<Label>> {
    let known: std::collections::BTreeSet<&Label> = state.checkpoints.values().map(|it| &it.run).collect();
    match only {
        None => Ok(known.into_iter().cloned().collect()),
        Some(run) if known.contains(run) => Ok(vec![run.clone()]),
        Some(run) => {
            let names: Vec<&str> = known.iter().map(|run| run.as_str()).collect();
            let there = if names.is_empty() { "no run has any".to_owned() } else { names.join(", ") };
            Err(Error::new(crate::ErrorKind::NotFound, format!("run {run} has no checkpoints"))
                .hint(format!("runs with checkpoints: {there}")))
        }
    }
}

fn refuse_unknown_metrics(state: &State, run: &Label, policy: &Policy) -> Result<()> {
    let of_run = || state.checkpoints.values().filter(|checkpoint| checkpoint.run == *run);
    for rule in &policy.best {
        if of_run().all(|checkpoint| !checkpoint.metrics.contains_key(&rule.metric)) {
            let known: std::collections::BTreeSet<&str> =
                of_run().flat_map(|checkpoint| checkpoint.metrics.keys()).map(Label::as_str).collect();
            let known = known.into_iter().collect::<Vec<_>>().join(", ");
            let hint = if known.is_empty() {
                "its checkpoints were saved without metrics; keep them by number, step or age".to_owned()
            } else {
                format!("its checkpoints have: {known}")
            };
            let text =
                format!("no checkpoint of run {run} has the metric {}, so {rule} keeps nothing", rule.metric);
            return Err(Error::incompatible(text).hint(hint));
        }
    }
    Ok(())
}

/// Retires what a plan lets go, oldest first. With an `epoch`, only while that incarnation is the run's.
///
/// # Errors
/// `Conflict` when another incarnation has taken over; the store's and the log's. What was retired until then stays so.
pub fn forget(log: &mut Log, plan: &RunPlan, epoch: Option<u64>) -> Result<Retention> {
    let place = log.root().display_name().to_owned();
    log.prove().place(&place)?;
    let mut done = Retention::default();
    for Decision { seq, step, .. } in plan.going().rev() {
        match append(log, &plan.run, epoch, Action::Retire(Retire { checkpoint: *seq })) {
            Ok(()) => done.retired.push((*seq, *step)),
            Err(CommitError::Rejected { void: Void::Held(_) | Void::NewestVerified(_) }) => {
                done.held.push((*seq, *step));
            }
            // Somebody else retired it in the meantime.
            Err(CommitError::Rejected { void: Void::NoCheckpoint(_) }) => {}
            Err(error) => return Err(error).place(place),
        }
    }
    Ok(done)
}

/// Retires all checkpoints of a run but the newest `keep` of its line, as a trainer does after a save: see [`forget`].
///
/// # Errors
/// As [`forget`].
pub fn retire(
    root: &Root,
    run: &Label,
    epoch: Option<u64>,
    keep: NonZeroUsize,
    options: LogOptions,
) -> Result<Retention> {
    let mut log = Log::open_with(root, options).place(root.display_name())?;
    log.prove().place(root.display_name())?;
    let decisions = plan(log.state(), run, &Times::unasked(), &Policy::last(keep));
    forget(&mut log, &RunPlan { run: run.clone(), decisions }, epoch)
}
