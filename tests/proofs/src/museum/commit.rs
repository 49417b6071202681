//! Of the commit: lost answers, conflicts that are none, clean-up in doubt, zombies, clocks, pointers.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use dcp::ErrorKind;
use dcp::commit::{
    Action, Clock, Commit, Condemn, Log, LogOptions, ManifestRef, Metrics, Retry, Seq, SystemClock, Tag,
};
use dcp::digest::Sha256Digest;
use dcp::load::{Level, Loader, newest_good};
use dcp::retention::{GcOptions, collect, retire, verified};
use dcp::save::{SaveOptions, SavePlan, Session, begin_epoch};
use dcp::store::{Root, Stores};

use super::rigged::{Rigged, Trouble};
use super::{Exhibit, memory, must, refused};
use crate::faults::files;
use crate::training::{
    Load, Outcome, compare, location, log_options, run, save_options, save_step, scratch, spec, write_rank,
};

pub(super) const EXHIBITS: &[Exhibit] = &[
    Exhibit {
        source: "earth-mover/icechunk #2099",
        happened: "the answer to a conditional put is lost; the retry below meets the own object and reports a conflict",
        switch: "the store lands the record and says that the name is taken",
        caught_by: "the record is read back, and its nonce is ours (`commit::append`)",
        show: lost_answer,
    },
    Exhibit {
        source: "apache/arrow-rs-object-store PR #852",
        happened: "a 409 on create, which means that another request is at it, is reported as: already exists",
        switch: "the store says that the name is taken, and nothing is there",
        caught_by: "what is said to be taken is read; nothing there means that the same bytes are put again (`commit::append`)",
        show: false_conflict,
    },
    Exhibit {
        source: "slatedb #766, loonfs #250",
        happened: "one connection that timed out ends a job of seven hours at 98 %",
        switch: "the store fails the first two puts of the record",
        caught_by: "retries within `commit::Retry`",
        show: transient,
    },
    Exhibit {
        source: "ClickHouse #112081, duckdb-iceberg #1120, apache/iceberg #3717",
        happened: "a commit whose outcome is unknown is taken for a failure, and its files are cleaned up: the table is lost",
        switch: "the record lands, and the store is gone before it says so",
        caught_by: "`CommitError::Unknown`; nothing is deleted, and the checkpoint is there when the store is back",
        show: unknown,
    },
    Exhibit {
        source: "earth-mover/icechunk #1369",
        happened: "garbage collection and a commit pass each other, and the commit refers to what was deleted",
        switch: "the folder of a save is condemned before its writer wakes up and commits",
        caught_by: "the fold rule: a commit that needs a condemned folder is void, and is refused before it is written",
        show: zombie,
    },
    Exhibit {
        source: "NVIDIA-NeMo/Megatron-Bridge #5117",
        happened: "the late completion of a failed run's save finalises the next run's first checkpoint",
        switch: "another incarnation begins before the save commits",
        caught_by: "epochs: `Session::commit` is fenced",
        show: stale_completion,
    },
    Exhibit {
        source: "KempnerInstitute/KempnerForge #102, ByteCheckpoint 0.0.3, nvidia-resiliency-ext PR #364",
        happened: "the pointer to the newest checkpoint moves before its data is there",
        switch: "the record is put before manifest and data",
        caught_by: "`Loader` refuses it as incomplete; `newest_good` names it and finds the one before it",
        show: record_first,
    },
    Exhibit {
        source: "KempnerInstitute/KempnerForge #102 (retention), nvidia-resiliency-ext local checkpoints",
        happened: "the previous checkpoint is deleted before the new one is known to be good",
        switch: "the older checkpoint is the newest that was verified, and is to be retired",
        caught_by: "the log refuses to retire the newest verified checkpoint of a run",
        show: last_good,
    },
    Exhibit {
        source: "earth-mover/icechunk #2310",
        happened: "a clock that is off makes garbage collection delete what is in use",
        switch: "the collector's clock is ten years ahead",
        caught_by: "ages come from the store's times in the log, never from a local clock (`retention::collect`)",
        show: clock_skew,
    },
    Exhibit {
        source: "earth-mover/icechunk #1205",
        happened: "many committers that don't know of each other rebase for ever",
        switch: "eight writers append at once",
        caught_by: "a writer leaves a number only when another's record holds it, and steps aside for a random while",
        show: many_committers,
    },
    Exhibit {
        source: "AI-Hypercomputer/maxtext #5260",
        happened: "the latest step is one whose commit failed; later saves are skipped in silence",
        switch: "the newest step has its data, and no record",
        caught_by: "a checkpoint exists when its record exists: the newest is the one before",
        show: failed_latest,
    },
    Exhibit {
        source: "NVIDIA-NeMo/Automodel #3390",
        happened: "the pointer could not be moved; the run starts over and dies because the files exist",
        switch: "the first try fails at the record, and the same save is repeated",
        caught_by: "the same plan goes on in its own folder and is committed once",
        show: repeated,
    },
    Exhibit {
        source: "pytorch/torchtitan PR #4197, awsome-distributed-ai #190, marin #5386",
        happened: "saves that were abandoned are counted as checkpoints: retention and resume go wrong, 8,000 steps are lost",
        switch: "two abandoned saves lie among three checkpoints",
        caught_by: "retention and resume go by the log alone",
        show: abandoned,
    },
    Exhibit {
        source: "intelligent-machine-learning/dlrover #1065",
        happened: "the tracker file is missing, and training begins from random weights without a word",
        switch: "the log is gone",
        caught_by: "`Loader::newest` is an error, never an empty answer",
        show: tracker_missing,
    },
    Exhibit {
        source: "google/orbax #394",
        happened: "a copy lacks the success file, and is deleted as temporary",
        switch: "the root is copied by a tool that knows nothing of it",
        caught_by: "records are objects like others: a whole copy is committed (`cargo xtask copies`)",
        show: copied,
    },
    Exhibit {
        source: "earth-mover/icechunk #2239",
        happened: "an empty prefix writes all objects below \"/\"",
        switch: "the root is a bucket without a prefix",
        caught_by: "names are joined as parts of a path (`store::object_path`)",
        show: empty_prefix,
    },
    Exhibit {
        source: "apache/arrow-rs-object-store #465",
        happened: "a repeated put can't be told from another's",
        switch: "the name holds other bytes",
        caught_by: "`Root::put_same`: the same bytes are success, others are refused",
        show: put_again,
    },
];

/// Little patience, as long as something may still come.
fn patient(seed: u64) -> SaveOptions {
    let retry = Retry { tries: 4, first: Duration::from_millis(1), longest: Duration::from_millis(2) };
    SaveOptions { log: LogOptions { retry, ..log_options(seed) }, ..SaveOptions::default() }
}

/// A session whose ranks have all written step 1.
fn written(root: &Root) -> Outcome<Session> {
    let plan = SavePlan::new(spec(1, "dp=2", 1)?)?;
    let session = Session::open(root, &plan, patient(1))?;
    (0..plan.ranks()).try_for_each(|rank| write_rank(&session, rank, 1))?;
    Ok(session)
}

/// What the newest checkpoint is, and that it loads as it was saved.
fn newest(root: &Root) -> Outcome<u64> {
    let loader = Loader::newest(root, &run()?)?;
    let step = loader.commit()?.step;
    match compare(&loader, step) {
        Load::Right => Ok(step),
        other => Err(format!("step {step} loads as {other:?}").into()),
    }
}

fn committed_once(trouble: Trouble, times: u64, on: bool) -> Outcome<String> {
    let store = Rigged::new(trouble, "commits/", if on { times } else { 0 });
    let root = Rigged::root(&store);
    let committed = written(&root)?.commit()?;
    let log = Log::open(&root)?;
    let records = log.audit()?.records;
    must(committed.sequence == Some(1) && records == 1, || format!("{committed:?}, {records} records"))?;
    must(newest(&root)? == 1, || "another checkpoint is the newest".to_owned())?;
    must(store.had() == if on { times } else { 0 }, || "the trouble did not happen".to_owned())?;
    Ok(format!("committed once, as record 1, through {} troubles", store.had()))
}

fn lost_answer(on: bool) -> Outcome<String> {
    committed_once(Trouble::ConflictWithItself, 1, on)
}

fn false_conflict(on: bool) -> Outcome<String> {
    committed_once(Trouble::FalseConflict, 1, on)
}

fn transient(on: bool) -> Outcome<String> {
    committed_once(Trouble::Refused, 2, on)
}

fn unknown(on: bool) -> Outcome<String> {
    let store = Rigged::new(Trouble::GoneAfterLanding, "commits/", u64::from(on));
    let root = Rigged::root(&store);
    let session = written(&root)?;
    let outcome = session.commit();
    if !on {
        return Ok(format!("committed as {:?}", outcome?.sequence));
    }
    let said = refused(outcome, ErrorKind::Io, &["cannot tell whether", "nothing may be cleaned up"])?;
    must(store.deletes() == 0, || format!("{} objects were deleted", store.deletes()))?;
    store.heal();
    must(newest(&root)? == 1, || "it is not there".to_owned())?;
    let again = session.commit()?;
    must(again.sequence == Some(1), || format!("committed again: {again:?}"))?;
    Ok(said)
}

fn zombie(on: bool) -> Outcome<String> {
    let root = memory()?;
    let session = written(&root)?;
    if !on {
        return Ok(format!("committed as {:?}", session.commit()?.sequence));
    }
    let mut log = Log::open_with(&root, log_options(2))?;
    let directories = BTreeSet::from([session.attempt().clone()]);
    log.append(&log.draft(&run()?, Action::Condemn(Condemn { directories }))?)?;
    let said = refused(session.commit(), ErrorKind::Conflict, &["condemned"])?;
    must(Log::open(&root)?.state().checkpoints.is_empty(), || "it exists all the same".to_owned())?;
    Ok(said)
}

fn stale_completion(on: bool) -> Outcome<String> {
    let (root, run) = (memory()?, run()?);
    let epoch = begin_epoch(&root, &run, &save_options(1))?;
    let plan = SavePlan::new(spec(1, "dp=2", 1)?.in_epoch(epoch))?;
    let late = Session::open(&root, &plan, save_options(2))?;
    (0..plan.ranks()).try_for_each(|rank| write_rank(&late, rank, 1))?;
    if !on {
        return Ok(format!("committed as {:?}", late.commit()?.sequence));
    }
    begin_epoch(&root, &run, &save_options(3))?;
    let said = refused(late.commit(), ErrorKind::Conflict, &["main"])?;
    must(Log::open(&root)?.state().checkpoints.is_empty(), || "it exists all the same".to_owned())?;
    Ok(said)
}

fn record_first(on: bool) -> Outcome<String> {
    let root = memory()?;
    save_step(&root, 1, "dp=2", 1)?;
    if !on {
        save_step(&root, 2, "dp=2", 1)?;
        return Ok(format!("step {} loads", newest(&root)?));
    }
    let mut log = Log::open_with(&root, log_options(9))?;
    let attempt: dcp::commit::DirName = "step-00000002-0123456789abcdef01234567".parse()?;
    let manifest = ManifestRef { sha256: Sha256Digest::of(b"soon"), size: 4096 };
    let directories = BTreeSet::from([attempt.clone()]);
    let commit = Action::Commit(Commit { step: 2, attempt, manifest, directories, metrics: Metrics::new() });
    log.append(&log.draft(&run()?, commit)?.after(Some(Seq::FIRST)))?;
    let said = refused(Loader::newest(&root, &run()?), ErrorKind::Corrupt, &["the root is incomplete"])?;
    let good = newest_good(&root, &run()?, Level::Quick)?;
    let found = good.found.ok_or("no checkpoint was found")?;
    must(found.step == 1 && good.skipped.len() == 1, || format!("found step {}", found.step))?;
    Ok(said)
}

fn last_good(on: bool) -> Outcome<String> {
    let (root, run) = (memory()?, run()?);
    let (older, _) = save_step(&root, 1, "dp=2", 1)?;
    let (newer, _) = save_step(&root, 2, "dp=2", 1)?;
    let good = if on { older } else { newer };
    verified(&root, &run, None, good, true, log_options(8))?;
    let done = retire(&root, &run, None, NonZeroUsize::MIN, log_options(9))?;
    must(done.retired.is_empty() == on, || format!("{done:?}"))?;
    Ok(format!("retired {:?}, held {:?}", done.retired, done.held))
}

/// A clock that is off.
#[derive(Debug)]
struct Ahead(Duration);

impl Clock for Ahead {
    fn now(&self) -> SystemTime {
        SystemClock.now() + self.0
    }

    fn pause(&self, time: Duration) {
        SystemClock.pause(time);
    }
}

fn clock_skew(on: bool) -> Outcome<String> {
    let (root, run) = (memory()?, run()?);
    save_step(&root, 1, "dp=2", 1)?;
    save_step(&root, 2, "dp=2", 1)?;
    retire(&root, &run, None, NonZeroUsize::MIN, log_options(9))?;
    let ahead = Duration::from_secs(if on { 10 * 365 * 86_400 } else { 0 });
    let options = |seed| LogOptions { clock: Arc::new(Ahead(ahead)), ..log_options(seed) };
    let hour = Duration::from_secs(3600);
    collect(&root, &run, None, &GcOptions::after(hour), options(10))?;
    let mut log = Log::open_with(&root, options(11))?;
    log.append(&log.draft(&run, Action::Tag(Tag { name: "later".parse()?, checkpoint: Seq::new(2)? }))?)?;
    let done = collect(&root, &run, None, &GcOptions::after(hour), options(12))?;
    must(done.deleted.is_empty() && done.waiting.len() == 1, || format!("{done:?}"))?;
    Ok(format!(
        "clock {} years ahead: 0 deleted, 1 waits for the grace period",
        ahead.as_secs() / 86_400 / 365
    ))
}

fn many_committers(on: bool) -> Outcome<String> {
    const EACH: u64 = 6;
    let (root, writers) = (memory()?, if on { 8 } else { 1 });
    save_step(&root, 1, "dp=2", 1)?;
    let tag = |writer: u64| -> Outcome<()> {
        let mut log = Log::open_with(&root, log_options(100 + writer))?;
        for nth in 0..EACH {
            let name = format!("w{writer}-{nth}").parse()?;
            log.append(&log.draft(&run()?, Action::Tag(Tag { name, checkpoint: Seq::FIRST }))?)?;
        }
        Ok(())
    };
    let failed: Vec<String> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..writers)
            .map(|writer| scope.spawn(move || tag(writer).map_err(|error| error.to_string())))
            .collect();
        let joined =
            handles.into_iter().map(|it| it.join().unwrap_or_else(|_| Err("a writer panicked".to_owned())));
        joined.filter_map(Result::err).collect()
    });
    must(failed.is_empty(), || failed.join("; "))?;
    let tags = Log::open(&root)?.state().tags.len() as u64;
    must(tags == writers * EACH, || format!("{tags} tags of {}", writers * EACH))?;
    Ok(format!("{writers} writers, {tags} records, none lost, none twice"))
}

fn failed_latest(on: bool) -> Outcome<String> {
    let root = memory()?;
    save_step(&root, 1, "dp=2", 1)?;
    let plan = SavePlan::new(spec(2, "dp=2", 1)?)?;
    let session = Session::open(&root, &plan, save_options(2))?;
    (0..plan.ranks()).try_for_each(|rank| write_rank(&session, rank, 2))?;
    if !on {
        session.commit()?;
    }
    let step = newest(&root)?;
    must(step == if on { 1 } else { 2 }, || format!("step {step} is the newest"))?;
    Ok(format!("step {step} is the newest"))
}

fn repeated(on: bool) -> Outcome<String> {
    let store = Rigged::new(Trouble::Refused, "commits/", if on { u64::MAX } else { 0 });
    let root = Rigged::root(&store);
    let first = written(&root)?.commit();
    must(first.is_err() == on, || format!("{first:?}"))?;
    store.heal();
    let again = written(&root)?.commit()?;
    let folders = root.list_dir(None)?.dirs.len();
    must(again.sequence == Some(1) && folders == 2 && newest(&root)? == 1, || {
        format!("{again:?}, {folders} folders")
    })?;
    Ok(format!("committed as record 1 after {} refusals", u64::from(first.is_err())))
}

fn abandoned(on: bool) -> Outcome<String> {
    let root = memory()?;
    for step in 1..=3 {
        save_step(&root, step, "dp=2", 1)?;
        if on && step < 3 {
            let plan = SavePlan::new(spec(step, "dp=2", 1)?.salted("abandoned"))?;
            write_rank(&Session::open(&root, &plan, save_options(20 + step))?, 0, step)?;
        }
    }
    let folders = root.list_dir(None)?.dirs.len();
    let done = retire(&root, &run()?, None, NonZeroUsize::MIN.saturating_add(1), log_options(9))?;
    let steps: Vec<u64> = done.retired.iter().map(|it| it.1).collect();
    must(steps == [1] && newest(&root)? == 3, || format!("{done:?}"))?;
    Ok(format!("of {} folders, step 1 was retired and step 3 is the newest", folders - 1))
}

fn tracker_missing(on: bool) -> Outcome<String> {
    let root = memory()?;
    let (seq, _) = save_step(&root, 1, "dp=2", 1)?;
    if !on {
        return Ok(format!("step {} loads", newest(&root)?));
    }
    root.delete(&seq.path())?;
    refused(Loader::newest(&root, &run()?), ErrorKind::NotFound, &["no checkpoint of run main"])
}

fn copied(on: bool) -> Outcome<String> {
    let (from, to) = (scratch()?, scratch()?);
    let root = Root::create(location(from.path())?, &Stores::new())?;
    save_step(&root, 1, "dp=2", 1)?;
    if !on {
        return Ok(format!("step {} loads from where it was saved", newest(&root)?));
    }
    for (path, bytes) in files(from.path())? {
        let file = to.path().join(path);
        std::fs::create_dir_all(file.parent().ok_or("a file without a folder")?)?;
        std::fs::write(file, bytes)?;
    }
    drop(from);
    let copy = Root::open(location(to.path())?, &Stores::new())?;
    Ok(format!("step {} loads from the copy", newest(&copy)?))
}

fn empty_prefix(on: bool) -> Outcome<String> {
    let stores = Stores::new();
    let below = if on { "memory://bucket" } else { "memory://bucket/runs/a" };
    let root = Root::create(below, &stores)?;
    save_step(&root, 1, "dp=2", 1)?;
    let names: Vec<String> =
        Root::open("memory://bucket", &stores)?.list(None)?.iter().map(|it| it.path.to_string()).collect();
    let prefix = if on { "" } else { "runs/a/" };
    let right = |name: &String| {
        name.strip_prefix(prefix)
            .is_some_and(|rest| rest.starts_with("commits/") || rest.starts_with("step-"))
    };
    must(!names.is_empty() && names.iter().all(right), || names.join(" "))?;
    must(newest(&root)? == 1, || "it does not load".to_owned())?;
    Ok(format!("{} objects below {prefix:?}", names.len()))
}

fn put_again(on: bool) -> Outcome<String> {
    let root = memory()?;
    let path = dcp::store::object_path("step-1/parts/r00000-0000.json")?;
    root.put_same(&path, bytes::Bytes::from_static(b"mine"))?;
    let again = if on { "another's" } else { "mine" };
    let outcome = root.put_same(&path, bytes::Bytes::from_static(again.as_bytes())).map_err(dcp::Error::from);
    if on {
        return refused(outcome, ErrorKind::Conflict, &["already exists"]);
    }
    outcome?;
    Ok("the same bytes are there".to_owned())
}
