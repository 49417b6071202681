//! Saves, and the floors beside them, whenever a line on stdin says so. All hold the same state in memory, before the first turn.
//!
//! ```text
//!  threads ROOT STEP      a save by four threads of this process
//!  processes ROOT STEP    the same by four processes
//!  copy FOLDER            floor: on all cores, SHA-256 of each MiB, two at once, and a plain write of it into a file of FOLDER
//!  sync FOLDER            floor: plain writes and fsync, no digests
//!  read FOLDER            floor: on all cores, reads of a MiB and their SHA-256, two at once, of all files below FOLDER
//! ```
//!
//! A floor is the best that can be done on this machine: one core hashes two messages at once in less time than one after the other, so
//! floors do, as saves and checks do.
//!
//! A save is all that a trainer waits for: plan, session, boxes, durable files, parts, manifest, record. The root is there before.

use std::{
    fs,
    io::{self, BufRead, BufReader, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use dcp::{
    digest::Sha256Digest,
    save::{SaveOptions, Session},
    store::{Root, Stores},
};
use serde_json::json;

use crate::{
    Any,
    state::{self, RANKS},
    timed,
};

pub(crate) const PIECE: usize = 1 << 20;

/// Serves turns until stdin ends.
pub(crate) fn serve(gigabytes: &str) -> Result<(), Any> {
    let tensors = state::tensors(gigabytes)?;
    let mut writers = (0..RANKS).map(|rank| Rank::start(gigabytes, rank)).collect::<Result<Vec<_>, Any>>()?;
    let held = (0..RANKS).map(|rank| state::of_rank(tensors, rank)).collect::<Result<Vec<_>, Any>>()?;
    for line in io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let bytes: usize = held.iter().map(Vec::len).sum();
        let (seconds, bytes) = match words.as_slice() {
            ["threads", root, step] => (timed(|| by_threads(root, step.parse()?, tensors, &held))?.0, bytes),
            ["processes", root, step] => (by_processes(root, step.parse()?, tensors, &mut writers)?, bytes),
            ["copy", folder] => (timed(|| copy(Path::new(folder), &held, true, false))?.0, bytes),
            ["sync", folder] => (timed(|| copy(Path::new(folder), &held, false, true))?.0, bytes),
            ["read", folder] => timed(|| read(Path::new(folder)))?,
            _ => return Err(format!("{line:?} is no turn").into()),
        };
        println!("{}", json!({"seconds": seconds, "bytes": bytes}));
        io::stdout().flush()?;
    }
    Ok(())
}

fn session(root: &str, step: u64, tensors: u32) -> Result<Session, Any> {
    let root = Root::open(root, &Stores::new())?;
    Ok(Session::open(&root, &state::plan(tensors, step)?, SaveOptions::default())?)
}

fn write(session: &Session, rank: u32, held: &[u8]) -> Result<(), Any> {
    let writer = session.writer(rank)?;
    for ((tensor, region), bytes) in session.plan().boxes_of(rank).zip(state::boxes(held)) {
        writer.put(tensor, region, bytes)?;
    }
    writer.finish()?;
    Ok(())
}

fn by_threads(root: &str, step: u64, tensors: u32, held: &[Vec<u8>]) -> Result<(), Any> {
    let session = session(root, step, tensors)?;
    on_threads(held.len(), |at| {
        let held = held.get(at).ok_or("a rank without state")?;
        write(&session, u32::try_from(at)?, held)
    })?;
    session.commit()?;
    Ok(())
}

fn by_processes(root: &str, step: u64, tensors: u32, writers: &mut [Rank]) -> Result<f64, Any> {
    let (seconds, ()) = timed(|| {
        writers.iter_mut().try_for_each(|writer| writer.tell(&format!("{root} {step}")))?;
        writers.iter_mut().try_for_each(Rank::hear)?;
        session(root, step, tensors)?.commit()?;
        Ok(())
    })?;
    Ok(seconds)
}

/// A writer in a process of its own. It ends when this is dropped.
struct Rank {
    child: Child,
    ask: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Rank {
    fn start(gigabytes: &str, rank: u32) -> Result<Self, Any> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["writer", gigabytes, &rank.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let answers = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        let mut rank = Self { ask: child.stdin.take(), child, answers };
        rank.hear()?;
        Ok(rank)
    }

    fn tell(&mut self, line: &str) -> Result<(), Any> {
        let ask = self.ask.as_mut().ok_or("no pipe")?;
        writeln!(ask, "{line}")?;
        Ok(ask.flush()?)
    }

    fn hear(&mut self) -> Result<(), Any> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        if line.trim() == "done" { Ok(()) } else { Err(format!("a writer said {line:?}").into()) }
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        drop(self.ask.take());
        let _ = self.child.wait();
    }
}

/// One writer: state first, then a save for each line.
pub(crate) fn serve_rank(gigabytes: &str, rank: u32) -> Result<(), Any> {
    let tensors = state::tensors(gigabytes)?;
    let held = state::of_rank(tensors, rank)?;
    let done = || {
        println!("done");
        io::stdout().flush()
    };
    done()?;
    for line in io::stdin().lock().lines() {
        let line = line?;
        let (root, step) = line.rsplit_once(' ').ok_or("no step")?;
        write(&session(root, step.parse()?, tensors)?, rank, &held)?;
        done()?;
    }
    Ok(())
}

/// The same bytes, into one file for each rank.
fn copy(folder: &Path, held: &[Vec<u8>], digests: bool, sync: bool) -> Result<(), Any> {
    let open = |at: usize| fs::File::create(folder.join(format!("floor-{at}")));
    let files = (0..held.len()).map(open).collect::<io::Result<Vec<_>>>()?;
    let pieces: Vec<(&fs::File, u64, &[u8])> = held
        .iter()
        .zip(&files)
        .flat_map(|(held, file)| {
            held.chunks(PIECE).zip(0_u64..).map(move |(piece, at)| (file, at << 20, piece))
        })
        .collect();
    let pairs: Vec<_> = pieces.chunks(2).collect();
    share_out(cores()?, pairs.len(), |at| {
        let pair = pairs.get(at).copied().unwrap_or_default();
        if digests {
            hash(pair.iter().map(|(.., piece)| *piece));
        }
        pair.iter().try_for_each(|(file, offset, piece)| Ok(file.write_all_at(piece, *offset)?))
    })?;
    if sync {
        on_threads(files.len(), |at| Ok(files.get(at).ok_or("no file")?.sync_all()?))?;
        fs::File::open(folder)?.sync_all()?;
    }
    Ok(())
}

/// Reads and hashes all files below a folder; how many bytes.
fn read(folder: &Path) -> Result<usize, Any> {
    let mut files = Vec::new();
    list(folder, &mut files)?;
    let mut pieces = Vec::new();
    for (file, len) in &files {
        pieces.extend((0..*len).step_by(PIECE).map(|at| (file, at, (*len - at).min(PIECE as u64))));
    }
    let pairs: Vec<_> = pieces.chunks(2).collect();
    share_out_with(cores()?, pairs.len(), [vec![0; PIECE], vec![0; PIECE]], |buffers, at| {
        let pair = pairs.get(at).copied().unwrap_or_default();
        let mut read = Vec::with_capacity(2);
        for ((file, offset, len), buffer) in pair.iter().zip(buffers) {
            let piece = buffer.get_mut(..usize::try_from(*len)?).ok_or("no buffer")?;
            file.read_exact_at(piece, *offset)?;
            read.push(&*piece);
        }
        hash(read.into_iter());
        Ok(())
    })?;
    Ok(usize::try_from(files.iter().map(|(_, len)| len).sum::<u64>())?)
}

pub(crate) fn list(folder: &Path, files: &mut Vec<(fs::File, u64)>) -> Result<(), Any> {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|it| Ok(it?.path())).collect::<io::Result<_>>()?;
    entries.sort();
    for path in entries {
        if path.is_dir() {
            list(&path, files)?;
        } else if path.extension().is_some_and(|it| it == "safetensors") {
            let file = fs::File::open(&path)?;
            let len = file.metadata()?.len();
            files.push((file, len));
        }
    }
    Ok(())
}

/// `work` for each of `count` items, one thread each.
fn on_threads(count: usize, work: impl Fn(usize) -> Result<(), Any> + Sync) -> Result<(), Any> {
    let work = &work;
    thread::scope(|scope| {
        let each: Vec<_> = (0..count).map(|at| scope.spawn(move || work(at))).collect();
        each.into_iter().try_for_each(|it| it.join().map_err(|_| "a thread panicked")?)
    })
}

/// The SHA-256 of one or two pieces.
pub(crate) fn hash<'p>(mut pieces: impl Iterator<Item = &'p [u8]>) {
    match (pieces.next(), pieces.next()) {
        (Some(one), Some(other)) => drop(std::hint::black_box(Sha256Digest::of_two(one, other))),
        (Some(one), None) => drop(std::hint::black_box(Sha256Digest::of(one))),
        (None, _) => {}
    }
}

pub(crate) fn cores() -> Result<usize, Any> {
    Ok(thread::available_parallelism()?.get())
}

/// `work` for each of `count` items, by so many threads.
pub(crate) fn share_out(
    threads: usize,
    count: usize,
    work: impl Fn(usize) -> Result<(), Any> + Sync,
) -> Result<(), Any> {
    share_out_with(threads, count, (), |(), at| work(at))
}

/// The same; each thread has a copy of `buffer` that it keeps from item to item.
pub(crate) fn share_out_with<B: Clone + Sync>(
    threads: usize,
    count: usize,
    buffer: B,
    work: impl Fn(&mut B, usize) -> Result<(), Any> + Sync,
) -> Result<(), Any> {
    let next = AtomicUsize::new(0);
    on_threads(threads, |_| {
        let mut own = buffer.clone();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                return Ok(());
            }
            work(&mut own, at)?;
        }
    })
}
