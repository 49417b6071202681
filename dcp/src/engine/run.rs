//! [`run`]: copies what a plan says from a source to a sink, in bounded memory, by all threads, all or nothing.
//!
//! ```text
//!  checks ─► Sink::layout ─► skip what an earlier run finished ─► threads: next unit ─► gather ─► cast ─► sum, digest,
//!  CRC ─► write ─► (file's last unit) head, tail, finish, file_done ─► records to their ends, fingerprints ─► Sink::commit
//! ```
//!
//! Invariants: nothing is written before the plan was found possible; an error or a wish to stop is seen between units,
//! files that are finished stay for the next run and the others leave nothing; `commit` comes only after every
//! fingerprint that the source recorded has been found again, and every CRC-32 of a record that something of the target was copied from:
//! by this process or, before or beside it, by others.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Mutex, atomic::AtomicU64},
    time::Instant,
};

use super::{
    copy::Copy,
    file::FileWork,
    forecast,
    options::{Budget, Report, RunOptions},
    plan::{CopyPlan, Piecework, piecework},
    proof,
    queue::Queue,
    reader::{Reader, Touched},
    room::Room,
    tensors::Tensors,
};
use crate::{
    Cancel, Catalog, Committed, Error, ErrorKind, FileDone, FileEntry, Progress, Result, Sink, Source,
    TargetLayout, Written,
};

/// What a thread holds beside the cache: two blocks, and a piece that it has at hand or that is on its way to the cache.
const PER_THREAD: u64 = 3 << 20;

/// What compressing adds: a block's planes and frame, what zstd needs, and [`HELD`].
const PER_ENCODER: u64 = 5 << 20;

/// Most bytes that wait for earlier blocks of compressed files, for each thread.
const HELD: u64 = 2 << 20;

/// What a compressed source adds: a block as stored, its planes, and what zstd needs.
const PER_DECODER: u64 = 3 << 20;

/// What a cast adds: the block as it was, of elements at most four times as wide.
const PER_CAST: u64 = 4 << 20;

/// What tensors add that are shown otherwise than they were recorded: the part of a block that belongs to one of these.
const PER_ORIGIN: u64 = 1 << 20;

/// How a worker's part of a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// All files were finished, and the target is visible.
    Committed(Committed),
    /// This worker's are finished, and others' are not: so many are missing.
    Waiting {
        /// Files of other workers that are not finished.
        missing: usize,
    },
}

/// Copies what the plan says from a source to a sink, and makes it visible.
///
/// # Errors
/// `Incompatible` for a plan that does not fit, `Corrupt` (file, tensor and range named) where the source contradicts
/// itself, `Cancelled`, and what the sink says; `Conflict` where the sink writes only a share and the others are not finished. Nothing
/// is visible then.
pub fn run(
    source: &dyn Source,
    sink: &mut dyn Sink,
    plan: &CopyPlan,
    options: &RunOptions,
    progress: &dyn Progress,
    cancel: &Cancel,
) -> Result<(Committed, Report)> {
    match run_share(source, sink, plan, options, progress, cancel)? {
        (Ending::Committed(committed), report) => Ok((committed, report)),
        (Ending::Waiting { missing }, _) => {
            Err(Error::new(ErrorKind::Conflict, format!("{missing} files of other workers are not finished")))
        }
    }
}

/// Copies this worker's share, which is all of it where the sink says so. Who finds all files finished proves the whole and makes it
/// visible; of several who do so at once, all succeed, with one commit.
///
/// # Errors
/// As [`run`].
pub fn run_share(
    source: &dyn Source,
    sink: &mut dyn Sink,
    plan: &CopyPlan,
    options: &RunOptions,
    progress: &dyn Progress,
    cancel: &Cancel,
) -> Result<(Ending, Report)> {
    let began = Instant::now();
    let tensors = Tensors::new(source.catalog());
    let jobs = plan.jobs(source.catalog(), &tensors)?;
    let coded = !plan.spec.codecs.is_none();
    let budget = Budget::new(options, per_thread(plan, source.catalog()), largest(plan))?;
    let reader = Reader::shared(source, options.verify, budget.cache);
    reader.believe_sizes(budget.threads)?;
    let layout = sink.layout(&plan.spec)?;
    let work = piecework(&jobs, &layout)?;
    let finished = finished(sink, &layout)?;
    let mine = sink.mine(&layout);
    let skipped_files = finished.keys().filter(|file| mine.contains(file)).count();
    let wanted = |file| mine.contains(&file) && !finished.contains_key(&file);
    let lanes = forecast::lanes(plan, source.catalog(), &budget);
    let queue = Queue::new(&work, wanted, budget.open_files, budget.cache / 2, lanes);
    let queue = if coded { queue.in_file_order() } else { queue };
    let passes = queue.passes;
    let copy = Copy {
        jobs: &jobs,
        work: &work,
        files: files(sink, &layout, &work, wanted)?,
        tensors: &tensors,
        reader: &reader,
        queue,
        room: Room::new(HELD.saturating_mul(budget.threads as u64)),
        sink: &*sink,
        progress,
        cancel,
        failure: Mutex::default(),
        written: AtomicU64::new(0),
        done: Mutex::new(finished),
    };
    let needed = copy.needed();
    let ours: BTreeSet<usize> = copy.files.keys().copied().collect();
    progress.begin("copy", needed);
    let copied = copy.all(budget.threads);
    progress.end();
    let (written, done) = copied?;
    cancel.check()?;
    let (ending, fingerprints, proven) = match all_files(sink, done, &layout)? {
        Ok(files) => {
            let of_others = work.iter().filter(|chunk| !ours.contains(&chunk.file));
            let touched = match reader.has_records() {
                true => proof::touched(&jobs, &tensors, of_others)?,
                false => Touched::new(),
            };
            reader.settle(&touched, budget.threads, progress, cancel)?;
            let (fingerprints, proven) = proof::prove(source, &jobs, &files)?;
            cancel.check()?;
            let committed = sink.commit(&Written { files, fingerprints: fingerprints.clone() })?;
            (Ending::Committed(committed), fingerprints, proven)
        }
        Err(missing) => (Ending::Waiting { missing }, Vec::new(), 0),
    };
    let counts = reader.counts();
    let ids = jobs.iter().map(|job| job.entry.id());
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    let read_amplification = counts.bytes as f64 / needed.max(1) as f64;
    let report = Report {
        bytes_read: counts.bytes,
        bytes_needed: needed,
        bytes_written: written,
        read_amplification,
        reads: counts.reads,
        seconds: began.elapsed().as_secs_f64(),
        peak_memory: budget.total,
        files: mine.len(),
        skipped_files,
        passes,
        bytes_verified: counts.verified,
        proven,
        fingerprints: ids.zip(fingerprints).collect(),
    };
    Ok((ending, report))
}

/// Bytes of the rank that has the most: no file of the target has more, names apart.
pub(super) fn largest(plan: &CopyPlan) -> u64 {
    let mut of: HashMap<u32, u64> = HashMap::new();
    for tensor in &plan.spec.tensors {
        for (region, rank) in &tensor.regions {
            let bytes = tensor.entry.dtype.bytes_for(region.elements()).unwrap_or(u64::MAX);
            let all = of.entry(*rank).or_default();
            *all = all.saturating_add(bytes);
        }
    }
    of.into_values().max().unwrap_or(0)
}

/// Bytes that a thread holds beside the cache.
pub(super) fn per_thread(plan: &CopyPlan, catalog: &Catalog) -> u64 {
    PER_THREAD
        + if plan.sources.iter().any(|source| source.cast.is_some()) { PER_CAST } else { 0 }
        + if plan.spec.codecs.is_none() { 0 } else { PER_ENCODER }
        + if catalog.files.iter().any(FileEntry::is_coded) { PER_DECODER } else { 0 }
        + if catalog.lineage.recorded().is_empty() { 0 } else { PER_ORIGIN }
}

/// What an earlier run finished, checked against this run's layout.
fn finished(sink: &dyn Sink, layout: &TargetLayout) -> Result<HashMap<usize, FileDone>> {
    let needs = sink.needs();
    let mut finished = HashMap::new();
    for done in sink.finished()? {
        let same = layout
            .files
            .get(done.file)
            .is_some_and(|file| file.path == done.path && file.size == done.logical_size());
        if !same || (needs.blocks && done.blocks.is_none()) {
            return Err(Error::corrupt(format!(
                "{}: an earlier run of this plan left it, but this run's layout has another file there",
                done.path
            ))
            .hint("remove what the earlier run left, and run again"));
        }
        finished.insert(done.file, done);
    }
    Ok(finished)
}

/// The files that are to be written.
fn files<'l>(
    sink: &dyn Sink,
    layout: &'l TargetLayout,
    work: &[Piecework],
    wanted: impl Fn(usize) -> bool,
) -> Result<HashMap<usize, FileWork<'l>>> {
    let mut chunks: HashMap<usize, Vec<&Piecework>> = HashMap::new();
    for chunk in work {
        chunks.entry(chunk.file).or_default().push(chunk);
    }
    let wanted = layout.files.iter().enumerate().filter(|(at, _)| wanted(*at));
    let needs = sink.needs();
    wanted
        .map(|(at, file)| {
            let chunks = chunks.get(&at).map_or(&[][..], Vec::as_slice);
            Ok((at, FileWork::new(at, file, needs, chunks, sink.codecs(at)?)?))
        })
        .collect()
}

/// All files in order, what other workers finished among them; or how many are missing.
fn all_files(
    sink: &dyn Sink,
    mut done: HashMap<usize, FileDone>,
    layout: &TargetLayout,
) -> Result<std::result::Result<Vec<FileDone>, usize>> {
    let open: Vec<usize> = (0..layout.files.len()).filter(|file| !done.contains_key(file)).collect();
    if !open.is_empty() {
        done.extend(sink.finished_by_others(&open)?.into_iter().map(|done| (done.file, done)));
    }
    let files: Vec<FileDone> = (0..layout.files.len()).filter_map(|at| done.remove(&at)).collect();
    Ok(match layout.files.len() - files.len() {
        0 => Ok(files),
        missing => Err(missing),
    })
}
