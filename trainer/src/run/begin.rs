//! How a rank begins: configurations are compared, and what there is to go on from is taken up.

use std::{num::NonZeroUsize, time::Instant};

use dcp::store::Root;

use super::{Job, Observer, observe::Begun};
use crate::{
    Error, Result,
    checkpoint::{CONFIG, Choice, Described, Read, Resume, RunState, SaverOptions, SlowSave, changed},
    fsdp::State,
    transport::{Group, Purpose},
};

/// Ranks with other configurations or data would train another model each.
pub(super) fn agree(job: &Job, world: &dyn Group) -> Result<()> {
    let mine = job.digest()?;
    let all = world.all_gather_bytes(&Purpose("configuration".to_owned()), mine.as_bytes())?;
    match all.iter().position(|theirs| theirs.as_slice() != mine.as_bytes()) {
        None => Ok(()),
        Some(rank) => Err(Error::config(format!(
            "rank {} and rank {rank} have different configurations or data",
            world.index()
        ))
        .hint("start all ranks with the same file, overrides and data; --print-config shows what each has")),
    }
}

/// Where the run looks for what to go on from. A checkpoint is believed when everything but its tensors' bytes was looked at: these are
/// proven when all ranks load them, each its own.
fn resume(job: &Job) -> Result<Resume> {
    let checkpoint = &job.config.config.checkpoint;
    Ok(Resume {
        root: checkpoint.root.clone(),
        run: checkpoint.run.parse().map_err(|error| Error::config(format!("checkpoint.run: {error}")))?,
        on_damage: checkpoint.on_damage,
        level: dcp::load::Level::Quick,
        wanted: checkpoint.resume,
    })
}

/// What the saver of a rank is told.
pub(super) fn saver_options(
    job: &Job,
    root: Root,
    rank: usize,
    epoch: u64,
    observer: &dyn Observer,
) -> Result<SaverOptions> {
    let config = &job.config.config;
    let slow = (config.debug.slow_save_step > 0)
        .then_some(SlowSave { step: config.debug.slow_save_step, wait: config.debug.slow_save });
    let here = config.debug.fail_save_step > 0 && config.debug.fail_save_rank == rank as u64;
    let fails = here.then_some(config.debug.fail_save_step);
    Ok(SaverOptions {
        root,
        run: config
            .checkpoint
            .run
            .parse()
            .map_err(|error| Error::config(format!("checkpoint.run: {error}")))?,
        rank: u32::try_from(rank).map_err(|_| Error::config("more ranks than a checkpoint can have"))?,
        epoch,
        keep_last: usize::try_from(config.checkpoint.keep_last).ok().and_then(NonZeroUsize::new),
        grace: config.checkpoint.grace,
        patience: config.comm.step_timeout,
        slow,
        fails,
        say: observer.speaker(),
    })
}

/// Loads what is to be gone on from, or begins; where it is damaged, what comes before it, if the configuration says so.
pub(super) fn take_up(
    job: &Job,
    world: &dyn Group,
    state: &State,
    described: &Described,
    observer: &mut dyn Observer,
) -> Result<(Root, Choice, RunState)> {
    let resume = resume(job)?;
    let (root, mut choice) = resume.agree(world)?;
    loop {
        for warning in &choice.warnings {
            observer.warn(warning)?;
        }
        match load(job, world, state, &root, &choice, described, observer)? {
            Ok(run) => return Ok((root, choice, run)),
            // All ranks come to this together, or none.
            Err(damage) => choice = resume.fall_back(world, &choice, &damage)?,
        }
    }
}

/// What became of a choice: `Err` within `Ok` where its bytes are damaged, on all ranks.
fn load(
    job: &Job,
    world: &dyn Group,
    state: &State,
    root: &Root,
    choice: &Choice,
    described: &Described,
    observer: &mut dyn Observer,
) -> Result<std::result::Result<RunState, Error>> {
    let fresh = job.fresh()?;
    let began = Instant::now();
    let Some(resumed) = choice.open(root, described.registry())? else {
        state.initialise(fresh.seed)?;
        observer.begun(&Begun {
            epoch: choice.epoch,
            from: None,
            step: 0,
            took: began.elapsed(),
            cursor: 0,
            loaded: None,
        })?;
        return Ok(Ok(fresh));
    };
    let before = resumed.loader.catalog().extra.get(CONFIG);
    let notes = resumed.state.check(&fresh)?.into_iter().chain(changed(before, &job.config.config)?);
    for note in notes {
        observer.warn(&note)?;
    }
    let held = state.tensors()?;
    let boxes = held.iter().filter(|held| !held.region.is_empty()).map(|held| (&held.id, &held.region));
    let proof = job.config.config.checkpoint.verify;
    let loaded =
        match resumed.read_all(world, proof, boxes, |id, region, bytes| state.load(id, region, bytes))? {
            Read::Whole(loaded) => loaded,
            Read::Damaged(damage) => return Ok(Err(damage)),
        };
    state.set_step_count(resumed.state.step);
    let run = resumed.state.going_on_as(&fresh);
    let (from, step, cursor) = (choice.sequence, run.step, run.cursor);
    let loaded = Some(loaded);
    observer.begun(&Begun { epoch: choice.epoch, from, step, took: began.elapsed(), cursor, loaded })?;
    Ok(Ok(run))
}
