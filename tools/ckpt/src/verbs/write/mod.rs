//! The verbs that write a checkpoint: `convert`, `reshard`, `export`. They differ in their options; what they do is one.
//!
//! ```text
//!  options ─► Job ─► open ─► [restack] ─► prepare ─► plan shown (--dry-run, --plan) or compared (--apply)
//!                                    └► sink ─► engine ─► [--verify: opened again, proven] ─► result
//! ```
//!
//! Several workers may run one plan, each a share of its files (`--worker`); whoever finishes last commits.
//!
//! Invariant: nothing is created before the plan stands, so a request that does not fit leaves nothing behind.

mod job;
mod outcome;
mod plan;
mod proof;
mod target;
mod worker;

pub(super) use self::target::{RUN, root_is_free, writer};
pub(crate) use self::worker::Worker;

use dcp::engine::{self, RunOptions, Share};
use dcp::formats::OpenOptions;
use dcp::ops::prepare::{Prepared, Request, prepare};
use dcp::ops::restack;
use dcp::store;
use dcp::{Error, ErrorKind, Result};

use self::job::Job;
use self::outcome::Outcome;
use super::{Context, open, open::Opened, verify};
use crate::{cli, exit, output};

pub(super) fn convert(context: &Context<'_>, args: &cli::Convert) -> Result<exit::Code> {
    run(context, &Job::convert(args))
}

pub(super) fn reshard(context: &Context<'_>, args: &cli::Reshard) -> Result<exit::Code> {
    run(context, &Job::reshard(args))
}

pub(super) fn export(context: &Context<'_>, args: &cli::Export) -> Result<exit::Code> {
    run(context, &Job::export(args))
}

fn run(context: &Context<'_>, job: &Job<'_>) -> Result<exit::Code> {
    let opened = open::open(job.source, OpenOptions::new())?;
    let share = job.share(&opened)?;
    let target = target::Target::of(job, &opened)?;
    let mut request = job.request(context, &opened, &target)?;
    let (opened, mut notes) = restacked(job, opened, &mut request).map_err(hinted)?;
    let mut prepared = prepare(opened.source.catalog(), &request).map_err(hinted)?;
    notes.append(&mut prepared.notes);
    prepared.notes = notes;
    changes_something(&opened, &target, &prepared)?;
    if let Some(file) = &job.writing.apply {
        plan::must_equal(file, &prepared.plan)?;
    }
    if job.writing.dry_run || job.writing.plan.is_some() {
        return plan::show(context, job, &opened, &target, &prepared);
    }
    let outcome = write(context, job, &opened, &target, &prepared, share)?;
    output::show(context, &job.source.to_string(), &opened.warnings, &outcome)?;
    Ok(exit::DONE)
}

/// Where nothing closer says what to do.
fn hinted(error: Error) -> Error {
    let bare = error.hint_text().is_none() && error.kind() == ErrorKind::Incompatible;
    if bare {
        error.hint("`ckpt help meshes` and `ckpt help placement` say how both are written")
    } else {
        error
    }
}

/// The source with members as stacks, or stacks as members, where that is asked for; and what there is to say of it. A glob chooses among
/// the names of the source: what is made of them is wanted. What `--only` leaves behind is in nobody's way.
fn restacked(job: &Job<'_>, opened: Opened, request: &mut Request) -> Result<(Opened, Vec<String>)> {
    let wish = job.restack();
    if wish.is_empty() {
        return Ok((opened, restack::unused(&wish, &request.naming)?.into_iter().collect()));
    }
    let select = request.select.clone();
    request.select.glob = None;
    let (shown, notes) = restack::restack(opened.source, &wish, &mut request.naming, &select)?;
    Ok((Opened { source: Box::new(shown), ..opened }, notes))
}

fn write(
    context: &Context<'_>,
    job: &Job<'_>,
    opened: &Opened,
    target: &target::Target,
    prepared: &Prepared,
    share: Share,
) -> Result<Outcome> {
    if job.writing.resume {
        target.must_go_on(job, opened, prepared, share)?;
    }
    let mut sink = target.sink(job, opened, prepared, share)?;
    let options = run_options(context, opened, target);
    let source = &*opened.source;
    let (progress, cancel) = (&*context.progress, &context.cancel);
    let done = engine::run_share(source, &mut *sink, &prepared.copy, &options, progress, cancel);
    let (ending, report) = done.map_err(|error| match error.kind() {
        ErrorKind::Cancelled => error.hint("run the same command again: it goes on with what is finished"),
        _ => error,
    })?;
    let mut outcome = Outcome::new(job, opened, target, prepared, (share, ending), report);
    if job.writing.verify && outcome.is_committed() {
        let proven = proof::prove(context, &outcome.target, &outcome.report);
        let proven =
            proven.map_err(|error| error.at(format!("{} was written, and does not hold", outcome.target)))?;
        outcome.verified = Some(proven);
    }
    Ok(outcome)
}

/// With what the engine works.
fn run_options(context: &Context<'_>, opened: &Opened, target: &target::Target) -> RunOptions {
    RunOptions {
        max_memory: context.global.max_memory,
        per_file: store::bytes_of_open_blob(&target.location),
        gathered: gathered(&target.location, context.global.max_memory),
        threads: verify::threads(context, &[&*opened.source]),
        ..RunOptions::default()
    }
}

/// Bytes that the files of a folder may hold together while they are written: little of the bound, however small it is.
pub(crate) fn gathered(location: &str, max_memory: u64) -> u64 {
    if store::local_path(location).is_some() { store::gather_at_most(max_memory / 8) } else { 0 }
}

/// A copy of a checkpoint beside itself, in the same layout, is nobody's wish.
fn changes_something(opened: &Opened, target: &target::Target, prepared: &Prepared) -> Result<()> {
    let (catalog, spec) = (opened.source.catalog(), &prepared.copy.spec);
    let same_layout = catalog.mesh == spec.mesh && catalog.split == spec.split;
    let tensors = spec.tensors.iter().map(|tensor| &tensor.entry);
    let plain = spec.codecs.is_none() && !catalog.files.iter().any(dcp::FileEntry::is_coded);
    if target.in_place && plain && same_layout && tensors.eq(catalog.registry.entries()) {
        let mesh = prepared.plan.to.short();
        return Err(Error::new(
            ErrorKind::Conflict,
            format!("{}: it is laid out for {mesh} already", opened.location),
        )
        .hint("nothing was written; give a TARGET to copy it to"));
    }
    Ok(())
}

/// The refusal of a target that something else has.
fn taken(place: &str, what: &str) -> Error {
    Error::new(ErrorKind::Conflict, format!("{place}: {what}"))
        .hint("nothing is ever overwritten; give another target, or remove this one")
}
