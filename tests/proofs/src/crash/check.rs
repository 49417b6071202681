//! One crashed state, mounted again and looked at with the store's own code: is everything there that was promised, is everything right
//! that is there, and can one go on?

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use dcp::{
    commit::{Log, Seq},
    load::Loader,
    save::WriterDone,
    store::{
        ObjectPath,
        sim::{SimFs, Tree},
    },
};

use super::{
    scenario::collect,
    world::{Process, Promise, Recording, Work, label},
};
use crate::weights::{Outcome, Weights, text};

/// Seeds the nonces of those who go on after a crash.
const AFTER: u64 = 1 << 32;

/// What a state has of what may have been promised.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    records: u64,
    objects: BTreeSet<String>,
    /// Files that whoever went on with a work has kept, by work and rank; nothing for works that were done or not begun.
    kept: BTreeMap<(usize, u32), usize>,
}

impl Facts {
    /// Whether a promise was kept.
    pub(crate) fn keep(&self, promise: &Promise) -> Outcome<()> {
        match promise {
            Promise::Records(records) if self.records < *records => {
                Err(format!("{records} records were promised, {} are there", self.records))
            }
            Promise::Object(path) if !self.objects.contains(path) => {
                Err(format!("{path} was promised and is gone"))
            }
            Promise::Kept { work, rank, files } => match self.kept.get(&(*work, *rank)) {
                Some(kept) if kept < files => {
                    Err(format!("{files} finished files of rank {rank} were promised, {kept} were found"))
                }
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }
}

/// Looks at a state, and goes on from it.
pub(crate) fn check(recording: &Recording, tree: &Tree) -> Outcome<Facts> {
    let process = Process::new(SimFs::mount(tree), None, AFTER);
    let mut facts = Facts::default();
    for object in process.root.list(None).map_err(text)? {
        facts.objects.insert(object.path.to_string());
    }
    if recording.all_objects {
        all_whole(recording, tree, &facts.objects)?;
        return Ok(facts);
    }
    let log = Log::open_with(&process.root, process.options.clone())
        .map_err(|error| format!("the log: {error}"))?;
    facts.records = log.head().map_or(0, Seq::get);
    records_are_those_that_were_written(recording, &process, facts.records)?;
    all_checkpoints_are_right(recording, &process, &log)?;
    go_on(recording, &process, &log, &mut facts).map_err(|error| format!("going on: {error}"))?;
    Ok(facts)
}

/// Every object that can be seen is as it was put.
fn all_whole(recording: &Recording, tree: &Tree, objects: &BTreeSet<String>) -> Outcome<()> {
    objects.iter().try_for_each(|path| match (recording.objects.get(path), tree.file(path)) {
        (Some(put), Some(found)) if put == found => Ok(()),
        (Some(put), Some(found)) => {
            Err(format!("{path}: {} bytes were put, other {} are there", put.len(), found.len()))
        }
        _ => Err(format!("{path} is there, and nobody put it")),
    })
}

fn records_are_those_that_were_written(
    recording: &Recording,
    process: &Process,
    records: u64,
) -> Outcome<()> {
    for number in 1..=records {
        let path = Seq::new(number).map_err(text)?.path();
        let found = process.root.get(&path).map_err(text)?;
        if recording.objects.get(path.as_ref()).is_none_or(|put| *put != found) {
            return Err(format!("{path} is not the record that was written"));
        }
    }
    Ok(())
}

/// Whatever exists is whole and has exactly the bytes that were saved; so is what was retired and isn't condemned, to which a commit may
/// still refer. The newest of each run is opened as a trainer would.
fn all_checkpoints_are_right(recording: &Recording, process: &Process, log: &Log) -> Outcome<()> {
    let (state, mut runs) = (log.state(), BTreeSet::new());
    for (seq, checkpoint) in &state.checkpoints {
        let known = recording.known.get(&(checkpoint.run.to_string(), checkpoint.step));
        let known =
            known.ok_or_else(|| format!("checkpoint {seq}: nobody saved step {}", checkpoint.step))?;
        is_right(process, *seq, known)
            .map_err(|error| format!("checkpoint {seq} of step {}: {error}", known.step))?;
        runs.insert(checkpoint.run.clone());
    }
    for (dir, seq) in &state.retired {
        let step: u64 =
            dir.as_str().split('-').nth(1).and_then(|it| it.parse().ok()).ok_or("a folder without a step")?;
        let known = recording.known.get(&("main".to_owned(), step)).ok_or("nobody saved it")?;
        is_right(process, *seq, known)
            .map_err(|error| format!("{dir}, retired and not condemned: {error}"))?;
    }
    for run in runs {
        let opened = Loader::newest(&process.root, &run).map_err(text)?;
        let seq = opened.commit().map_err(text)?.seq;
        if state.newest(&run).map(|(seq, _)| seq) != Some(seq) {
            return Err(format!("checkpoint {seq} was opened as the newest of {run}"));
        }
    }
    Ok(())
}

fn is_right(process: &Process, seq: Seq, known: &Weights) -> Outcome<()> {
    let record = process.root.get(&seq.path()).map_err(text)?;
    known.check(&Loader::open_record(&process.root, record).map_err(text)?)
}

/// Goes on: all work that is not done is done, another step is saved, all but the newest of each run is retired and collected, and
/// what stopped writers left is swept. A folder that has its manifest and no record may be a whole checkpoint, which a collection
/// leaves alone: so whoever was stopped there must be able to end it.
fn go_on(recording: &Recording, process: &Process, log: &Log, facts: &mut Facts) -> Outcome<()> {
    let kept = std::cell::RefCell::new(BTreeMap::new());
    for (number, work) in recording.works.iter().enumerate().filter(|(_, work)| !is_done(log, work)) {
        let finished = |rank: u32, done: &WriterDone| {
            kept.borrow_mut().insert((number, rank), done.kept);
        };
        // A reshard needs its source, which may not be there yet.
        if matches!(work, Work::Reshard { .. }) && log.state().newest(&label("main")?).is_none() {
            continue;
        }
        let seq = process.work(work, &finished).map_err(|error| format!("{work}: {error}"))?;
        is_right(process, Seq::new(seq).map_err(text)?, known_of(recording, work)?)?;
    }
    facts.kept = kept.into_inner();
    let weights = Arc::new(Weights::new(7, 90, 1)?);
    let plan = weights.plan(&label("main")?, "1x1x1", None)?;
    let next = Work::Save { plan, weights: Arc::clone(&weights) };
    let seq = Seq::new(process.work(&next, &|_, _| ())?).map_err(text)?;
    collect(process, true)?;
    let newest = Loader::newest(&process.root, &label("main")?).map_err(text)?;
    if newest.commit().map_err(text)?.seq != seq {
        return Err(format!("{seq} was committed, and another is the newest"));
    }
    weights.check(&newest)?;
    leaves_nothing(process)
}

fn known_of<'r>(recording: &'r Recording, work: &Work) -> Outcome<&'r Weights> {
    let (run, step) = work.makes();
    let known =
        recording.known.iter().find(|((of, at), _)| *of == run && step.is_none_or(|step| step == *at));
    known.map(|(_, weights)| weights.as_ref()).ok_or_else(|| "nobody knows what it makes".to_owned())
}

fn is_done(log: &Log, work: &Work) -> bool {
    let (run, step) = work.makes();
    let state = log.state();
    let mut live = state.checkpoints.values();
    let gone = |step: u64| {
        let name = format!("step-{step:08}-");
        state.retired.keys().chain(state.condemned.keys()).any(|dir| dir.as_str().starts_with(&name))
    };
    live.any(|it| it.run.as_str() == run && step.is_none_or(|step| step == it.step)) || step.is_some_and(gone)
}

/// After a collection: no unfinished files, and no folder but those of checkpoints.
fn leaves_nothing(process: &Process) -> Outcome<()> {
    let local = process.root.local().ok_or("no folder")?;
    if let Some(left) = local.tree(None).map_err(text)?.into_iter().find(|node| node.unfinished) {
        return Err(format!("{} is left by a collection", left.path));
    }
    let log = Log::open_with(&process.root, process.options.clone()).map_err(text)?;
    let needed = |dir: &str| {
        let dir = dir.parse().ok();
        dir.is_some_and(|dir| log.state().checkpoints.values().any(|checkpoint| checkpoint.needs(&dir)))
    };
    let listing = process.root.list_dir(None).map_err(text)?;
    let mut dirs = listing.dirs.iter().map(ObjectPath::as_ref).filter(|dir| *dir != "commits");
    match dirs.find(|dir| !needed(dir)) {
        Some(dir) => Err(format!("{dir} is left by a collection, and no checkpoint needs it")),
        None => Ok(()),
    }
}
