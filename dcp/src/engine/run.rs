//! [`run`]: copies what a plan says from a source to a sink, in bounded memory, by all threads, all or nothing.
//!
//! ```text
//!  checks ─► Sink::layout ─► skip what an earlier run finished ─► threads: next unit ─► gather ─► cast ─► sum, digest,
//!  CRC ─► write ─► (file's last unit) head, tail, finish, file_done ─► compare fingerprints ─► Sink::commit
//! ```
//!
//! Invariants: nothing is written before the plan was found possible; an error or a wish to stop is seen between units,
//! files that are finished stay for the next run and the others leave nothing; `commit` comes only after every
//! fingerprint that the source recorded has been found again.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Instant,
};

use smallvec::SmallVec;

use super::{
    file::{FileWork, Packer, UnitSums},
    gather::gather,
    options::{Budget, Report, RunOptions},
    origin,
    plan::{CopyPlan, Job, Piecework, piecework},
    queue::{Queue, Unit},
    reader::{Cursor, Reader},
    room::Room,
    tensors::Tensors,
};
use crate::{
    Cancel, Catalog, Committed, Error, ErrorKind, FileDone, FileEntry, Place, Progress, Result, Sink, Source,
    TargetLayout, Written, cores,
    digest::Sha256Digest,
    fingerprint::{Fingerprint, FingerprintSum},
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
    let budget = Budget::new(options, per_thread(plan, source.catalog()))?;
    let layout = sink.layout(&plan.spec)?;
    let work = piecework(&jobs, &layout)?;
    let finished = finished(sink, &layout)?;
    let mine = sink.mine(&layout);
    let skipped_files = finished.keys().filter(|file| mine.contains(file)).count();
    let reader = Reader::shared(source, options.verify, budget.cache);
    let wanted = |file| mine.contains(&file) && !finished.contains_key(&file);
    let queue = Queue::new(&work, wanted, options.open_files.get(), budget.cache / 2, budget.threads);
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
    progress.begin("copy", needed);
    let (written, done) = copy.all(budget.threads)?;
    progress.end();
    cancel.check()?;
    let (ending, fingerprints, proven) = match all_files(sink, done, &layout)? {
        Ok(files) => {
            let (fingerprints, proven) = prove(source, &jobs, &files)?;
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

/// Bytes that a thread holds beside the cache.
pub(super) fn per_thread(plan: &CopyPlan, catalog: &Catalog) -> u64 {
    PER_THREAD
        + if plan.sources.iter().any(|source| source.cast.is_some()) { PER_CAST } else { 0 }
        + if plan.spec.codecs.is_none() { 0 } else { PER_ENCODER }
        + if catalog.files.iter().any(FileEntry::is_coded) { PER_DECODER } else { 0 }
        + if catalog.lineage.recorded().is_empty() { 0 } else { PER_ORIGIN }
}

/// What threads share.
struct Copy<'a> {
    jobs: &'a [Job<'a>],
    work: &'a [Piecework],
    /// Those to write, by file.
    files: HashMap<usize, FileWork<'a>>,
    tensors: &'a Tensors<'a>,
    reader: &'a Reader<'a>,
    queue: Queue<'a>,
    room: Room,
    sink: &'a dyn Sink,
    progress: &'a dyn Progress,
    cancel: &'a Cancel,
    failure: Mutex<Option<Error>>,
    written: AtomicU64,
    done: Mutex<HashMap<usize, FileDone>>,
}

/// A thread's buffers.
struct Buffers<'r> {
    blocks: [Vec<u8>; 2],
    uncast: Vec<u8>,
    packer: Packer<'r>,
}

impl Copy<'_> {
    /// Bytes of source that the units need.
    fn needed(&self) -> u64 {
        let wanted = self.work.iter().filter(|chunk| self.files.contains_key(&chunk.file));
        let bytes = wanted.filter_map(|chunk| {
            let job = self.jobs.get(chunk.job)?;
            let from = job.cast.and_then(|cast| cast.from().element_bytes());
            Some(from.map_or(chunk.bytes, |width| chunk.bytes / job.grid.width * width))
        });
        bytes.sum()
    }

    /// Does all units; bytes written and files that are finished now.
    fn all(self, threads: usize) -> Result<(u64, HashMap<usize, FileDone>)> {
        let hollow = self.files.values().filter(|file| file.is_hollow());
        let outcome = hollow.map(|file| self.close(file)).collect::<Result<Vec<()>>>();
        if let Err(error) = outcome {
            self.fail(error);
        }
        thread::scope(|scope| {
            (1..threads).map_while(|_| cores::start(scope, || self.serve())).for_each(drop);
            self.serve();
        });
        let failure = self.failure.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = failure {
            self.files.into_values().for_each(FileWork::abort);
            return Err(error);
        }
        let done = self.done.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok((self.written.into_inner(), done))
    }

    /// One thread. It takes two units at a time where there are two to have: the digests of two blocks are made in less time than one after
    /// the other.
    fn serve(&self) {
        let packer = Packer::new(&self.room);
        let (mut cursor, mut buffers) =
            (Cursor::new(self.reader), Buffers { blocks: Default::default(), uncast: Vec::new(), packer });
        let pairs = self.sink.needs().blocks && !self.files.values().any(FileWork::is_coded);
        while let Some(unit) = self.queue.next() {
            let another = if pairs { self.queue.another() } else { None };
            let units: SmallVec<[Unit; 2]> = [Some(unit), another].into_iter().flatten().collect();
            let outcome = self.cancel.check().and_then(|()| self.units(&units, &mut cursor, &mut buffers));
            units.iter().for_each(|unit| self.queue.done(unit));
            if let Err(error) = outcome {
                self.fail(error);
            }
        }
    }

    /// Remembers the first failure and ends all threads.
    fn fail(&self, error: Error) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.queue.stop();
        self.room.stop();
    }

    /// One unit, or two.
    fn units(&self, units: &[Unit], cursor: &mut Cursor<'_, '_>, buffers: &mut Buffers<'_>) -> Result<()> {
        let Buffers { blocks, uncast, packer } = buffers;
        let mut filled: SmallVec<[UnitSums; 2]> = SmallVec::new();
        for (unit, block) in units.iter().zip(&mut *blocks) {
            let (job, chunk, _) = self.of(unit)?;
            let sums = self.fill(job, chunk, unit, cursor, (block, uncast));
            filled.push(sums.map_err(|error| error.at(job.entry.id()))?);
        }
        if let [one, other] = &mut *filled {
            let [first, second] = &*blocks;
            [one.digest, other.digest] = Sha256Digest::of_two(first, second).map(Some);
        }
        for ((unit, block), sums) in units.iter().zip(blocks).zip(&filled) {
            self.put(unit, block, sums, packer)?;
        }
        Ok(())
    }

    fn of(&self, unit: &Unit) -> Result<(&Job<'_>, &Piecework, &FileWork<'_>)> {
        let lost = || Error::internal("a unit of no chunk");
        let chunk = self.work.get(unit.chunk).ok_or_else(lost)?;
        let job = self.jobs.get(chunk.job).ok_or_else(lost)?;
        Ok((job, chunk, self.files.get(&chunk.file).ok_or_else(lost)?))
    }

    fn put(&self, unit: &Unit, block: &[u8], sums: &UnitSums, packer: &mut Packer<'_>) -> Result<()> {
        let (job, chunk, file) = self.of(unit)?;
        let last = file.put(self.sink, (chunk.place, unit.block), chunk.job, block, sums, packer)?;
        let len = unit.bytes.end - unit.bytes.start;
        // What a compressed file takes is known when it is done.
        self.written.fetch_add(if file.is_coded() { 0 } else { len }, Ordering::Relaxed);
        let width = job.cast.and_then(|cast| cast.from().element_bytes()).unwrap_or(job.grid.width);
        self.progress.advance(len / job.grid.width * width);
        if last { self.close(file) } else { Ok(()) }
    }

    /// Fills `block` with the unit's bytes.
    fn fill(
        &self,
        job: &Job<'_>,
        chunk: &Piecework,
        unit: &Unit,
        cursor: &mut Cursor<'_, '_>,
        (block, uncast): (&mut Vec<u8>, &mut Vec<u8>),
    ) -> Result<UnitSums> {
        let width = job.grid.width;
        let shape = fqn::Shape::new(chunk.region.extents());
        let cells = unit.bytes.start / width..unit.bytes.end / width;
        let boxes =
            reshard::flat::boxes(&shape, cells).map_err(|error| Error::internal(error.to_string()))?;
        resize(block, unit.bytes.end - unit.bytes.start);
        let tensor = self.tensors.get(job.source)?;
        let mut sums = UnitSums { digest: None, sum: FingerprintSum::default(), sources: Vec::new() };
        let mut in_source = FingerprintSum::default();
        let mut rest = &mut block[..];
        for part in &boxes {
            let target = shifted(part, &chunk.region)?;
            for from in job.map.of(&target)? {
                let (now, later) =
                    rest.split_at_mut_checked(len(job.grid.bytes_of(&from))).ok_or_else(outside)?;
                rest = later;
                match job.cast {
                    None => gather(cursor, &tensor, &from, now)?,
                    Some(cast) => {
                        resize(uncast, tensor.grid.bytes_of(&from));
                        gather(cursor, &tensor, &from, uncast)?;
                        cast.apply(uncast, now)?;
                    }
                }
                match &job.origin {
                    Some(origin) if job.cast.is_none() => {
                        origin.add(&job.source_grid, &from, now, (self.jobs.len(), &mut sums.sources))?;
                    }
                    None if !job.map.is_identity() => add(&mut in_source, &job.source_grid, &from, now)?,
                    _ => {}
                }
            }
        }
        if job.origin.is_none() && !job.map.is_identity() {
            sums.sources.push((chunk.job, in_source));
        }
        let mut rest = &block[..];
        for part in &boxes {
            let target = shifted(part, &chunk.region)?;
            let (now, later) = rest.split_at_checked(len(job.grid.bytes_of(&target))).ok_or_else(outside)?;
            rest = later;
            add(&mut sums.sum, &job.grid, &target, now)?;
        }
        Ok(sums)
    }

    fn close(&self, file: &FileWork<'_>) -> Result<()> {
        let (around, done) = file.finish(self.sink)?;
        self.written.fetch_add(around, Ordering::Relaxed);
        self.sink.file_done(&done).place(&done.path)?;
        self.done.lock().unwrap_or_else(PoisonError::into_inner).insert(done.file, done);
        Ok(())
    }
}

pub(super) fn add(
    sum: &mut FingerprintSum,
    grid: &super::grid::Grid,
    region: &reshard::Region,
    bytes: &[u8],
) -> Result<()> {
    let added = sum.add_region(grid.cell, &grid.shape, region, bytes);
    added.map_err(|error| Error::internal(error.to_string()).caused_by(error))
}

fn outside() -> Error {
    Error::internal("a unit is smaller than its boxes")
}

fn len(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn resize(buffer: &mut Vec<u8>, bytes: u64) {
    buffer.resize(len(bytes), 0);
}

/// A box of a chunk's own coordinates in those of the tensor.
fn shifted(part: &reshard::Region, chunk: &reshard::Region) -> Result<reshard::Region> {
    let offsets: fqn::Dims = part.offsets().iter().zip(chunk.offsets()).map(|(at, base)| at + base).collect();
    reshard::Region::new(&offsets, part.extents()).map_err(|error| Error::internal(error.to_string()))
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

/// Adds up the fingerprints, and compares them with those that the source recorded; how many were proven so.
fn prove(source: &dyn Source, jobs: &[Job<'_>], files: &[FileDone]) -> Result<(Vec<Fingerprint>, usize)> {
    let mut sums = vec![(FingerprintSum::default(), FingerprintSum::default()); jobs.len()];
    let mut origins: BTreeMap<usize, FingerprintSum> = BTreeMap::new();
    for done in files {
        for (at, sum) in &done.sums {
            if let Some(sums) = sums.get_mut(*at) {
                sums.0 += *sum;
            }
        }
        for (at, sum) in &done.source_sums {
            match (sums.get_mut(*at), at.checked_sub(jobs.len())) {
                (Some(sums), _) => sums.1 += *sum,
                (None, Some(recorded)) => *origins.entry(recorded).or_default() += *sum,
                (None, None) => {}
            }
        }
    }
    let mut proven = origin::prove(source.catalog(), jobs, &origins)?;
    let mut found = Vec::with_capacity(jobs.len());
    for (job, (sum, in_source)) in jobs.iter().zip(sums) {
        let fingerprint = sum.finish(job.entry.dtype, &job.entry.shape);
        found.push(fingerprint);
        if job.cast.is_some() {
            continue;
        }
        let Some((shape, recorded)) = recorded(source, job) else { continue };
        let computed =
            if job.map.is_identity() { fingerprint } else { in_source.finish(job.entry.dtype, &shape) };
        if computed != recorded {
            return Err(Error::corrupt(format!(
                "{}: fingerprint {computed} was computed from the copied bytes, the source recorded {recorded}",
                job.entry.id()
            ))
            .hint("the source's data changed after it was written; `ckpt verify` names the damaged files"));
        }
        proven += 1;
    }
    Ok((found, proven))
}

/// The shape and fingerprint that the source recorded, where the target holds all of the tensor.
fn recorded(source: &dyn Source, job: &Job<'_>) -> Option<(fqn::Shape, Fingerprint)> {
    let catalog = source.catalog();
    let shape = catalog.registry.entries().get(job.source)?.shape.clone();
    let fingerprint = catalog.tensors.get(job.source)?.fingerprint.filter(|_| job.whole)?;
    Some((shape, fingerprint))
}
