//! Many items on several threads: computing on all cores, and [`Spread`] for whoever needs other threads than these. Reads that wait
//! for a disk or a network are `formats::parallel`'s.
//!
//! Invariant: the result is that of doing the items one after another, whatever the number of cores: results come in the order of the
//! items, and of several failures the first item's is told.

use std::{
    num::NonZero,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, Scope, ScopedJoinHandle},
};

use crate::{Error, Result};

/// Items that a thread takes at a time.
const BATCH: usize = 16;

/// Cores that there are.
pub(crate) fn count() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Does two things at once.
///
/// # Errors
/// `Internal` when the first one panics.
pub(crate) fn both<A: Send, B>(one: impl FnOnce() -> A + Send, other: impl FnOnce() -> B) -> Result<(A, B)> {
    let one = Mutex::new(Some(one));
    let take = || Some(one.lock().unwrap_or_else(PoisonError::into_inner).take()?());
    let (one, other) = thread::scope(|scope| {
        let started = start(scope, take);
        let other = other();
        (started.map_or_else(|| Ok(take()), ScopedJoinHandle::join), other)
    });
    match one {
        Ok(Some(one)) => Ok((one, other)),
        _ => Err(Error::internal("a computing thread panicked")),
    }
}

/// One more thread, if it can be had. Where limits of processes or of address space refuse it, whoever asks does the work with
/// those that there are: slower is better than not at all.
pub(crate) fn start<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Option<ScopedJoinHandle<'scope, T>> {
    thread::Builder::new().spawn_scoped(scope, work).ok()
}

/// Does `work` for each of `count` items.
///
/// # Errors
/// The failure of the first item that fails.
pub(crate) fn try_each(count: usize, work: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    try_map(count, work).map(drop)
}

/// What `work` makes of each of `count` items.
///
/// # Errors
/// The failure of the first item that fails.
pub(crate) fn try_map<R: Send>(count: usize, work: impl Fn(usize) -> Result<R> + Sync) -> Result<Vec<R>> {
    let others = self::count().min(count / BATCH).saturating_sub(1);
    Spread { batch: BATCH, alone: BATCH, others, caller_works: true }.try_map(count, work)
}

/// How items are spread over threads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spread {
    /// Items that a thread takes at a time.
    pub(crate) batch: usize,
    /// So many items are done by the caller alone, before a thread would have started.
    pub(crate) alone: usize,
    /// Threads besides the caller's.
    pub(crate) others: usize,
    /// Whether the caller does its share. Otherwise it waits, and how much of the work it does is not left to chance.
    pub(crate) caller_works: bool,
}

impl Spread {
    /// What `work` makes of each of `count` items.
    ///
    /// # Errors
    /// The failure of the first item that fails.
    pub(crate) fn try_map<R: Send>(
        self,
        count: usize,
        work: impl Fn(usize) -> Result<R> + Sync,
    ) -> Result<Vec<R>> {
        if count <= self.alone {
            return (0..count).map(work).collect();
        }
        let batch = self.batch.max(1);
        let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let serve = || {
            loop {
                let first = next.fetch_add(batch, Ordering::Relaxed);
                if first >= count {
                    break;
                }
                let made: Result<Vec<R>> = (first..count.min(first + batch)).map(&work).collect();
                if made.is_err() {
                    // Batches before this one are taken already, and go on: one of them may hold the first failure.
                    next.store(count, Ordering::Relaxed);
                }
                done.lock().unwrap_or_else(PoisonError::into_inner).push((first, made));
            }
        };
        let whole = thread::scope(|scope| {
            let others: Vec<_> = (0..self.others).map_while(|_| start(scope, serve)).collect();
            if self.caller_works || others.is_empty() {
                serve();
            }
            // All are joined, whatever became of the first.
            others.into_iter().filter_map(|it| it.join().err()).count() == 0
        });
        let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        done.sort_by_key(|(first, _)| *first);
        let mut all = Vec::with_capacity(count);
        for (_, made) in done {
            all.append(&mut made?);
        }
        if whole && all.len() == count {
            Ok(all)
        } else {
            Err(Error::internal("a computing thread panicked"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_things_are_done_at_once_and_a_panic_of_the_first_is_told() {
        assert_eq!(both(|| 1, || "two").unwrap(), (1, "two"));
        let torn = both(|| assert_eq!(1, 2), || ()).unwrap_err();
        assert!(torn.to_string().contains("panicked"), "{torn}");
    }

    #[test]
    fn results_come_in_the_order_of_their_items() {
        for count in [0, 1, 16, 17, 5000] {
            let all = try_map(count, |at| Ok(at * 2)).unwrap();
            assert_eq!(all, (0..count).map(|at| at * 2).collect::<Vec<_>>());
        }
    }

    #[test]
    fn of_several_failures_the_first_is_told() {
        let work = |at: usize| if at % 1000 == 700 { Err(Error::corrupt(at.to_string())) } else { Ok(()) };
        for _ in 0..20 {
            assert_eq!(try_each(5000, work).unwrap_err().to_string(), "700");
        }
    }
}
