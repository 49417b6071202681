//! [`Copy`](struct@Copy): the threads of a run, each of which takes the next units until none are left.
//!
//! Invariants: a failure of one thread, a panic too, ends all of them and is what the run tells; files that are not finished are given up.

use std::{
    collections::HashMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use smallvec::SmallVec;

use super::{
    file::{FileWork, Packer, UnitSums},
    gather::gather,
    plan::{Job, Piecework},
    queue::{Queue, Unit},
    reader::{Cursor, Reader},
    room::Room,
    tensors::Tensors,
};
use crate::{
    Cancel, Error, FileDone, Place, Progress, Result, Sink, crew, digest::Sha256Digest,
    fingerprint::FingerprintSum,
};

/// What threads share.
pub(super) struct Copy<'a> {
    pub(super) jobs: &'a [Job<'a>],
    pub(super) work: &'a [Piecework],
    /// Those to write, by file.
    pub(super) files: HashMap<usize, FileWork<'a>>,
    pub(super) tensors: &'a Tensors<'a>,
    pub(super) reader: &'a Reader<'a>,
    pub(super) queue: Queue<'a>,
    pub(super) room: Room,
    pub(super) sink: &'a dyn Sink,
    pub(super) progress: &'a dyn Progress,
    pub(super) cancel: &'a Cancel,
    pub(super) failure: Mutex<Option<Error>>,
    pub(super) written: AtomicU64,
    pub(super) done: Mutex<HashMap<usize, FileDone>>,
}

/// A thread's buffers.
struct Buffers<'r> {
    blocks: [Vec<u8>; 2],
    uncast: Vec<u8>,
    packer: Packer<'r>,
}

/// Units that a thread has. Dropped, also by a panic, it lets others go on that wait for them to be done.
struct Taken<'c, 'a> {
    copy: &'c Copy<'a>,
    units: SmallVec<[Unit; 2]>,
}

impl Drop for Taken<'_, '_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.copy.fail(Error::internal("a copying thread panicked"));
        }
        self.units.iter().for_each(|unit| self.copy.queue.done(unit));
    }
}

impl Copy<'_> {
    /// Bytes of source that the units need.
    pub(super) fn needed(&self) -> u64 {
        let wanted = self.work.iter().filter(|chunk| self.files.contains_key(&chunk.file));
        let bytes = wanted.filter_map(|chunk| {
            let job = self.jobs.get(chunk.job)?;
            let from = job.cast.and_then(|cast| cast.from().element_bytes());
            Some(from.map_or(chunk.bytes, |width| chunk.bytes / job.grid.width * width))
        });
        bytes.sum()
    }

    /// Does all units; bytes written and files that are finished now.
    pub(super) fn all(self, threads: usize) -> Result<(u64, HashMap<usize, FileDone>)> {
        let hollow = self.files.values().filter(|file| file.is_hollow());
        let outcome = hollow.map(|file| self.close(file)).collect::<Result<Vec<()>>>();
        if let Err(error) = outcome {
            self.fail(error);
        }
        let served = crew::work(threads, || {
            self.serve();
            Ok(())
        });
        let failure = self.failure.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = failure.or(served.err()) {
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
            let taken = Taken { copy: self, units: [Some(unit), another].into_iter().flatten().collect() };
            let outcome =
                self.cancel.check().and_then(|()| self.units(&taken.units, &mut cursor, &mut buffers));
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
