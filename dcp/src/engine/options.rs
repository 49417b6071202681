//! What a run may use, and what it tells afterwards.

use std::{num::NonZeroUsize, thread};

use fqn::TensorId;
use serde::Serialize;

use crate::{Error, Result, Source, fingerprint::Fingerprint};

/// Least memory that work is done in: blocks for one thread and some for the cache, with room to spare.
pub const LEAST_MEMORY: u64 = 16 << 20;

/// How much of what is read is proven on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verify {
    /// Nothing: bytes are taken as they are.
    None,
    /// Every block against its SHA-256 and every record read in full against its CRC-32, where the source has them.
    #[default]
    Records,
}

/// Threads that read through a network, where nobody says how many: with 1 MiB on its way to each, a connection of 20 ms to the first byte
/// still moves several hundred MB/s. They take a core each only for what they prove.
const WAITING: NonZeroUsize = NonZeroUsize::MIN.saturating_add(15);

/// Threads for work on these sources: one a core, and more where they wait for a network.
#[must_use]
pub fn threads(sources: &[&dyn Source]) -> NonZeroUsize {
    let cores = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    if sources.iter().any(|source| source.waits()) { cores.max(WAITING) } else { cores }
}

/// What work may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunOptions {
    /// Bytes of buffers and cache, whatever the sizes of tensors. Catalogs, and what a sink holds, come on top.
    pub max_memory: u64,
    /// Threads that work.
    pub threads: NonZeroUsize,
    /// What is proven on the way.
    pub verify: Verify,
    /// Target files open at the same time; more of them than this, or than half of the bound has room for, are written in passes.
    pub open_files: NonZeroUsize,
    /// Bytes that an open file of the target holds until they are sent: [`crate::store::UPLOADING`] in a bucket, none in a folder.
    pub per_file: u64,
    /// Bytes that all open files of the target hold together: what [`crate::store::gather_at_most`] says where it is a folder, none in a bucket.
    pub gathered: u64,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            max_memory: 512 << 20,
            threads: threads(&[]),
            verify: Verify::Records,
            open_files: NonZeroUsize::MIN.saturating_add(255),
            per_file: 0,
            gathered: 0,
        }
    }
}

/// What a run did.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Bytes read from the source's store.
    pub bytes_read: u64,
    /// Bytes that the targets needed, each counted once.
    pub bytes_needed: u64,
    /// Bytes written, headers included.
    pub bytes_written: u64,
    /// Bytes read for each byte needed.
    pub read_amplification: f64,
    /// Calls that read.
    pub reads: u64,
    /// Seconds from the first check to the commit.
    pub seconds: f64,
    /// Most bytes that buffers and cache could hold together.
    pub peak_memory: u64,
    /// Files of the target that were this worker's to write: all where it is the only one.
    pub files: usize,
    /// Those of them that an earlier, stopped run had finished.
    pub skipped_files: usize,
    /// Rounds over the source, each with at most `open_files` files.
    pub passes: usize,
    /// Bytes that were proven against a SHA-256 or CRC-32 while they were read.
    pub bytes_verified: u64,
    /// Tensors whose fingerprint was equal to the one that the source had recorded.
    pub proven: usize,
    /// Fingerprint of every tensor of the target, in order; none where other workers' files are missing.
    pub fingerprints: Vec<(TensorId, Fingerprint)>,
}

/// How many of `wanted` threads, each with buffers of `per_thread` bytes, work in `memory`: one at least.
pub(crate) fn threads_in(memory: u64, per_thread: u64, wanted: NonZeroUsize) -> usize {
    let fit = usize::try_from(memory / per_thread.max(1)).unwrap_or(usize::MAX);
    fit.clamp(1, wanted.get())
}

/// How the bound is spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Budget {
    pub(crate) threads: usize,
    /// Files of the target that are open at a time.
    pub(crate) open_files: usize,
    /// Bytes of the block cache.
    pub(crate) cache: u64,
    /// Most bytes of all together.
    pub(crate) total: u64,
}

impl Budget {
    /// Divides the bound: what all files of a folder hold comes off first; up to a half goes to open files where each of these holds bytes, but
    /// for one that there must be; of the rest, each thread has `per_thread` bytes of buffers, and up to a half is the cache's. Fewer threads than wanted work where the bound asks for it. No
    /// file holds more than the `largest` has.
    pub(crate) fn new(options: &RunOptions, per_thread: u64, largest: u64) -> Result<Self> {
        let least = LEAST_MEMORY.max(per_thread.saturating_mul(2));
        if options.max_memory < least {
            return Err(Error::incompatible(format!(
                "a memory bound of {} bytes is below the {least} that blocks and cache take at least",
                options.max_memory
            ))
            .hint(format!("raise --max-memory to {} MiB or more", least.div_ceil(1 << 20))));
        }
        let per_file = options.per_file.min(largest);
        let fit = (options.max_memory / 2).checked_div(per_file).unwrap_or(u64::MAX);
        let open_files = usize::try_from(fit).unwrap_or(usize::MAX).clamp(1, options.open_files.get());
        let uploads = per_file.saturating_mul(open_files as u64).saturating_add(options.gathered);
        let rest = options.max_memory.saturating_sub(uploads).max(least);
        let cache = rest / 2;
        let threads = threads_in(rest - cache, per_thread, options.threads);
        let total = per_thread.saturating_mul(threads as u64).saturating_add(cache).saturating_add(uploads);
        Ok(Self { threads, open_files, cache, total })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_bound_takes_threads_away_and_a_tiny_one_is_refused() {
        let many = NonZeroUsize::new(64).unwrap();
        let options = RunOptions { max_memory: 32 << 20, threads: many, ..RunOptions::default() };
        let budget = Budget::new(&options, 5 << 20, u64::MAX).unwrap();
        assert_eq!((budget.threads, budget.cache), (3, 16 << 20));
        assert!(budget.total <= options.max_memory);
        assert!(Budget::new(&RunOptions { max_memory: 1 << 20, ..options }, 1 << 20, u64::MAX).is_err());
    }

    #[test]
    fn as_many_threads_work_as_the_bound_has_room_for_and_one_always() {
        let wanted = NonZeroUsize::new(64).unwrap();
        assert_eq!([0, 9 << 20, 1 << 40].map(|memory| threads_in(memory, 4 << 20, wanted)), [1, 2, 64]);
    }

    #[test]
    fn what_the_files_of_a_folder_hold_is_counted_and_takes_from_the_cache() {
        let threads = NonZeroUsize::new(2).unwrap();
        let of = |max_memory, gathered| {
            let options = RunOptions { max_memory, threads, gathered, ..RunOptions::default() };
            Budget::new(&options, 3 << 20, u64::MAX).unwrap()
        };
        let (plain, gathered) = (of(512 << 20, 0), of(512 << 20, 24 << 20));
        assert_eq!((plain.cache, gathered.cache), (256 << 20, 244 << 20));
        assert_eq!(gathered.total, (244 + 24 + 2 * 3) << 20);
        assert_eq!(gathered.open_files, plain.open_files, "no file costs any more than the others");
        assert!(of(16 << 20, 2 << 20).total <= 16 << 20);
    }

    #[test]
    fn files_that_hold_bytes_until_they_are_sent_are_counted_and_fewer_of_them_are_open() {
        let small = |mib: u64, largest: u64| {
            let threads = NonZeroUsize::new(4).unwrap();
            let options =
                RunOptions { max_memory: mib << 20, threads, per_file: 72 << 20, ..RunOptions::default() };
            Budget::new(&options, 3 << 20, largest).unwrap()
        };
        let of = |mib| small(mib, u64::MAX);
        let many = of(512);
        assert_eq!((many.open_files, many.threads, many.cache), (3, 4, (512 - 3 * 72) << 19));
        assert!(many.total <= 512 << 20);
        let few = of(64);
        assert_eq!((few.open_files, few.cache), (1, 8 << 20));
        assert_eq!(few.total, (72 + 8 + 2 * 3) << 20, "there is no less, and it is said");
        assert_eq!(small(512, 10 << 20).open_files, 25, "a small file holds no more than it has");
    }
}
