//! [`Share`]: which files of a plan one of several workers writes.
//!
//! Files are shared in runs of neighbours, not one by one: ranks that differ in their last axis only take columns of the same rows,
//! and whoever writes all of them reads those rows once. Invariant: for any sizes, every file is in the share of exactly one of
//! the workers, and all workers compute the same shares from the layout alone.

use std::{fmt, ops::Range, str::FromStr};

use serde::Serialize;

/// One of `workers` workers that write a plan together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Share {
    worker: u32,
    workers: u32,
}

/// Text or numbers that are no share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a share is written i/N, with i from 0 to N-1: 0/4 is the first of four workers")]
pub struct ShareError;

impl Share {
    /// All of it, by one worker.
    pub const WHOLE: Self = Self { worker: 0, workers: 1 };

    /// That of worker number `worker` of `workers`.
    ///
    /// # Errors
    /// For a worker that is none of them.
    pub const fn new(worker: u32, workers: u32) -> Result<Self, ShareError> {
        if worker < workers { Ok(Self { worker, workers }) } else { Err(ShareError) }
    }

    /// Number of this worker, from 0.
    #[must_use]
    pub const fn worker(self) -> u32 {
        self.worker
    }

    /// Number of workers.
    #[must_use]
    pub const fn workers(self) -> u32 {
        self.workers
    }

    /// Whether one worker writes everything.
    #[must_use]
    pub const fn is_whole(self) -> bool {
        self.workers == 1
    }

    /// Positions of its files among those of these sizes in bytes: a file falls to the worker in whose part of all bytes its middle
    /// lies, so that shares differ by a file at most from their even size.
    #[must_use]
    pub fn files(self, sizes: &[u64]) -> Range<usize> {
        // A file without bytes is still one to write, and many of them are to be shared too.
        let weight = |size: &u64| 2 * (u128::from(*size) + 1);
        let all: u128 = sizes.iter().map(weight).sum();
        let mut before = 0_u128;
        let owner = |size: &u64| {
            let middle = before + weight(size) / 2;
            before += weight(size);
            u32::try_from(middle * u128::from(self.workers) / all.max(1)).unwrap_or(u32::MAX)
        };
        let owners: Vec<u32> = sizes.iter().map(owner).collect();
        owners.partition_point(|owner| *owner < self.worker)
            ..owners.partition_point(|owner| *owner <= self.worker)
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.worker, self.workers)
    }
}

impl FromStr for Share {
    type Err = ShareError;

    fn from_str(text: &str) -> Result<Self, ShareError> {
        let (worker, workers) = text.split_once('/').ok_or(ShareError)?;
        let number = |text: &str| text.parse().map_err(|_| ShareError);
        Self::new(number(worker)?, number(workers)?)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn shares_are_even_to_a_file() {
        let of = |worker, sizes: &[u64]| Share::new(worker, 3).unwrap().files(sizes);
        assert_eq!([0, 1, 2].map(|worker| of(worker, &[10; 6])), [0..2, 2..4, 4..6]);
        assert_eq!([0, 1, 2].map(|worker| of(worker, &[100, 10, 10, 10])), [0..0, 0..1, 1..4]);
        assert_eq!([0, 1, 2].map(|worker| of(worker, &[0; 3])), [0..1, 1..2, 2..3]);
        assert_eq!(Share::WHOLE.files(&[5, 0, 7]), 0..3);
    }

    #[test]
    fn a_share_is_read_as_it_is_written_and_others_are_refused() {
        assert_eq!("3/4".parse::<Share>().unwrap().to_string(), "3/4");
        for wrong in ["4/4", "0/0", "1", "-1/2", "1/2/3", "", "a/b"] {
            assert_eq!(wrong.parse::<Share>(), Err(ShareError), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn every_file_falls_to_exactly_one_worker(
            sizes in prop::collection::vec(prop_oneof![Just(0), 0..1000_u64, Just(u64::MAX)], 0..40),
            workers in 1..50_u32,
        ) {
            let mut next = 0;
            for worker in 0..workers {
                let files = Share::new(worker, workers).unwrap().files(&sizes);
                prop_assert_eq!(files.start, next);
                next = files.end;
            }
            prop_assert_eq!(next, sizes.len());
        }
    }
}
