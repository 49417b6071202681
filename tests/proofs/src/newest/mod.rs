//! `newest`: what it takes to find the newest of many commits, with the head hint and without it, in a folder and on a bucket; and that
//! appends do not slow down as the log grows.
//!
//! Two logs: one in which every checkpoint exists, and one of which twenty are left, the others retired and condemned. Time counts only at
//! full size, which is built optimised; requests always.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dcp::commit::{Action, Condemn, DirName, Label, Log, LogOptions, ManifestRef, Retire, Seq};
use dcp::digest::Sha256Digest;
use dcp::store::counted::CountedStore;
use dcp::store::{LocalStore, ObjectPath, Root, object_path};
use serde::Serialize;

use crate::proof::{Proof, Size};

/// The most requests to find the head and the newest checkpoint; its manifest is one more.
const REQUESTS: usize = 3;

/// The most that the library may take of the 30 ms that a command has.
const MILLISECONDS: f64 = 20.0;

/// How often each opening is timed.
const ROUNDS: usize = 9;

/// What was measured.
#[derive(Debug, Serialize)]
pub(crate) struct Newest {
    timed: bool,
    logs: Vec<Measured>,
}

/// One log.
#[derive(Debug, Serialize)]
struct Measured {
    commits: u64,
    live: usize,
    condemned: usize,
    records: u64,
    /// Milliseconds an append took, of the first and of the last tenth.
    append_first_ms: f64,
    append_last_ms: f64,
    hint_bytes: u64,
    state_json_bytes: usize,
    /// Milliseconds that one append with its hint takes at the end.
    append_with_hint_ms: f64,
    /// Medians of opening the log in a folder.
    open_with_hint_ms: f64,
    open_without_ms: f64,
    requests_with_hint: usize,
    requests_without: usize,
}

impl Proof for Newest {
    const NAME: &'static str = "newest";

    fn bad(&self) -> Vec<String> {
        let mut bad = Vec::new();
        for log in &self.logs {
            if log.requests_with_hint > REQUESTS {
                bad.push(format!(
                    "{} requests to find the newest of {} commits",
                    log.requests_with_hint, log.commits
                ));
            }
            if log.requests_without <= log.requests_with_hint {
                bad.push("the hint spares nothing".to_owned());
            }
            if self.timed && log.open_with_hint_ms > MILLISECONDS {
                bad.push(format!(
                    "{:.1} ms to find the newest of {} commits",
                    log.open_with_hint_ms, log.commits
                ));
            }
            if self.timed && log.append_last_ms > 4.0 * log.append_first_ms {
                bad.push(format!(
                    "appends slow down: {:.2} ms, {:.2} ms at last",
                    log.append_first_ms, log.append_last_ms
                ));
            }
        }
        bad
    }
}

/// Writes the logs, and opens them.
pub(crate) fn run(size: Size) -> Result<Newest, Box<dyn Error>> {
    let commits = size.pick(1_500, 10_000);
    let logs = [None, Some(20)].into_iter().map(|kept| measured(commits, kept)).collect::<Result<_, _>>()?;
    Ok(Newest { timed: size.full, logs })
}

fn scratch() -> std::io::Result<tempfile::TempDir> {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }
}

fn dir(n: u64) -> Result<DirName, Box<dyn Error>> {
    // As long as a real one, and with as little to compress.
    let nonce: String = Sha256Digest::of(&n.to_le_bytes()).to_string().chars().take(24).collect();
    Ok(format!("step-{n:08}-{nonce}").parse()?)
}

fn append(log: &mut Log, run: &Label, action: Action) -> Result<Seq, Box<dyn Error>> {
    let draft = log.draft(run, action)?;
    Ok(log.append(&draft)?.seq)
}

fn commit(n: u64) -> Result<Action, Box<dyn Error>> {
    let dir = dir(n)?;
    let manifest = ManifestRef { sha256: Sha256Digest::of(dir.as_str().as_bytes()), size: 1_000 + n };
    Ok(Action::Commit(crate::values::commit(n, &dir, manifest, [dir.clone()])))
}

fn measured(commits: u64, kept: Option<u64>) -> Result<Measured, Box<dyn Error>> {
    let folder = scratch()?;
    let root = Root::from_local(LocalStore::open(folder.path())?);
    let silent = LogOptions { hint_every: None, ..LogOptions::default() };
    let mut log = Log::open_with(&root, silent.clone())?;
    let run: Label = "main".parse()?;
    let (mut seqs, mut times) = (Vec::new(), Vec::new());
    for n in 0..commits {
        let begun = Instant::now();
        seqs.push(append(&mut log, &run, commit(n)?)?);
        times.push(begun.elapsed());
        let Some(old) = kept.and_then(|kept| n.checked_sub(kept)) else { continue };
        if let Some(checkpoint) = usize::try_from(old).ok().and_then(|old| seqs.get(old)).copied() {
            append(&mut log, &run, Action::Retire(Retire { checkpoint }))?;
            append(&mut log, &run, Action::Condemn(Condemn { directories: [dir(old)?].into() }))?;
        }
    }
    let tenth = times.len() / 10;
    let mean = |some: &[Duration]| milliseconds(some.iter().sum()) / some.len().max(1) as f64;
    let (first, last) =
        (mean(times.get(..tenth).unwrap_or_default()), mean(times.get(tenth * 9..).unwrap_or_default()));
    drop(log);
    let (mut state, mut hinting) = (String::new(), Vec::new());
    for n in 0..3 {
        let mut log =
            Log::open_with(&root, LogOptions { hint_every: Some(Duration::ZERO), ..silent.clone() })?;
        log.prove()?;
        let begun = Instant::now();
        append(&mut log, &run, commit(commits + n)?)?;
        hinting.push(begun.elapsed());
        state = serde_json::to_string(log.state())?;
    }
    let hint = ObjectPath::from("commits/head");
    let hint_bytes = root.head(&object_path(hint.as_ref())?)?.size;
    let with = open(&root)?;
    let hinted = root.get(&hint)?;
    root.delete(&hint)?;
    let without = open(&root)?;
    root.put_same(&hint, hinted)?;
    let log = Log::open(&root)?;
    Ok(Measured {
        commits: commits + 3,
        live: log.state().checkpoints.len(),
        condemned: log.state().condemned.len(),
        records: log.head().map_or(0, Seq::get),
        append_first_ms: first,
        append_last_ms: last,
        hint_bytes,
        state_json_bytes: state.len(),
        append_with_hint_ms: median(hinting),
        open_with_hint_ms: with.0,
        open_without_ms: without.0,
        requests_with_hint: with.1,
        requests_without: without.1,
    })
}

/// The median time of opening a folder's log, and the requests that a bucket would bill for opening and for the newest commit's record.
fn open(root: &Root) -> Result<(f64, usize), Box<dyn Error>> {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        let log = Log::open(root)?;
        times.push(begun.elapsed());
        drop(log);
    }
    let counted = Arc::new(CountedStore::new(Arc::clone(root.object_store())));
    let log = Log::open(&Root::from_store(counted.clone(), "counted"))?;
    let newest = log.state().checkpoints.last_key_value().map(|(seq, _)| *seq).ok_or("an empty log")?;
    log.record(newest)?;
    Ok((median(times), counted.take().len()))
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).copied().map_or(0.0, milliseconds)
}
