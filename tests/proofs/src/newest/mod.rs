//! `newest`: what it takes to find the newest of many commits, with the head hint and without it, in a folder and on a bucket; and that
//! appends do not slow down as the log grows.
//!
//! Two logs: one in which every checkpoint exists, and one of which twenty are left, the others retired and condemned. Time counts only at
//! full size, which is built optimised; requests always.
//!
//! Every 64th record carries the folded state, which grows with the checkpoints that exist: that is what makes reading cheap. So such
//! appends are timed apart, and held against what it takes, beside them, to make JSON of that state, hash it and write it. All others must
//! cost the same however long the log is.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dcp::commit::{Action, Condemn, DirName, Label, Log, LogOptions, ManifestRef, Retire, Seq, State};
use dcp::digest::Sha256Digest;
use dcp::store::counted::CountedStore;
use dcp::store::{LocalStore, ObjectPath, Root, object_path};
use serde::Serialize;

use crate::proof::{Proof, Size};

/// The most requests to find the head and the newest checkpoint; its manifest is one more.
const REQUESTS: usize = 3;

/// The most that the library may take of the 30 ms that a command has.
const MILLISECONDS: f64 = 20.0;

/// How much slower the last appends may be than the first, and than the floor of those that carry the state.
const SLOWER: f64 = 4.0;

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
    /// Milliseconds an append took that carries no state, of the first and of the last tenth.
    append_first_ms: f64,
    append_last_ms: f64,
    /// The same of those that carry the state, of the last tenth; and what making JSON of the last state, hashing and writing it takes.
    append_with_state_ms: f64,
    state_floor_ms: f64,
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
            if self.timed {
                bad.extend(log.slow());
            }
        }
        bad
    }
}

impl Measured {
    /// What is slow about its appends. Times that were not taken are bad as well.
    fn slow(&self) -> Vec<String> {
        let mut slow = Vec::new();
        let holds = |time: f64, most: f64| time > 0.0 && time <= most;
        if !holds(self.append_last_ms, SLOWER * self.append_first_ms) {
            let (first, last) = (self.append_first_ms, self.append_last_ms);
            slow.push(format!("appends slow down: {first:.3} ms, {last:.3} ms at last"));
        }
        if !holds(self.append_with_state_ms, SLOWER * (self.append_first_ms + self.state_floor_ms)) {
            slow.push(format!(
                "appends that carry the state take {:.2} ms at last; its {} bytes take {:.2} ms to make, hash and write",
                self.append_with_state_ms, self.state_json_bytes, self.state_floor_ms
            ));
        }
        slow
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
        let seq = append(&mut log, &run, commit(n)?)?;
        times.push((seq.carries_state(), begun.elapsed()));
        seqs.push(seq);
        let Some(old) = kept.and_then(|kept| n.checked_sub(kept)) else { continue };
        if let Some(checkpoint) = usize::try_from(old).ok().and_then(|old| seqs.get(old)).copied() {
            append(&mut log, &run, Action::Retire(Retire { checkpoint }))?;
            append(&mut log, &run, Action::Condemn(Condemn { directories: [dir(old)?].into() }))?;
        }
    }
    let tenth = times.len() / 10;
    let (first, last) = (times.get(..tenth).unwrap_or_default(), times.get(tenth * 9..).unwrap_or_default());
    let floor = state_floor(folder.path(), log.state())?;
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
        append_first_ms: mean(first, false),
        append_last_ms: mean(last, false),
        append_with_state_ms: mean(last, true),
        state_floor_ms: floor,
        hint_bytes,
        state_json_bytes: state.len(),
        append_with_hint_ms: median(hinting),
        open_with_hint_ms: with.0,
        open_without_ms: without.0,
        requests_with_hint: with.1,
        requests_without: without.1,
    })
}

/// Mean milliseconds of the appends that carry the state, or of those that do not.
fn mean(times: &[(bool, Duration)], with_state: bool) -> f64 {
    let some: Vec<Duration> =
        times.iter().filter(|(carries, _)| *carries == with_state).map(|(_, time)| *time).collect();
    milliseconds(some.iter().sum()) / some.len().max(1) as f64
}

/// The median time of making JSON of a state, hashing it and writing it into a file.
fn state_floor(folder: &Path, state: &State) -> Result<f64, Box<dyn Error>> {
    let (mut times, path) = (Vec::new(), folder.join("floor"));
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        let json = serde_json::to_vec(state)?;
        std::hint::black_box(Sha256Digest::of(&json));
        std::fs::write(&path, &json)?;
        times.push(begun.elapsed());
    }
    std::fs::remove_file(&path)?;
    Ok(median(times))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(first: f64, last: f64, with_state: f64, floor: f64) -> Measured {
        Measured {
            commits: 10_000,
            live: 10_000,
            condemned: 0,
            records: 10_000,
            append_first_ms: first,
            append_last_ms: last,
            append_with_state_ms: with_state,
            state_floor_ms: floor,
            hint_bytes: 0,
            state_json_bytes: 0,
            append_with_hint_ms: 0.0,
            open_with_hint_ms: 0.0,
            open_without_ms: 0.0,
            requests_with_hint: 2,
            requests_without: 9,
        }
    }

    #[test]
    fn a_state_that_grows_is_paid_for_by_the_records_that_carry_it_and_by_no_other() {
        assert_eq!(measured(0.06, 0.08, 20.0, 9.0).slow(), [] as [String; 0]);
        for slow in
            [measured(0.06, 0.40, 20.0, 9.0), measured(0.06, 0.08, 40.0, 9.0), measured(0.06, 0.08, 2.0, 0.1)]
        {
            assert_eq!(slow.slow().len(), 1);
        }
        assert_eq!(measured(0.0, 0.0, 0.0, 0.0).slow().len(), 2, "nothing was timed");
    }
}
