//! Computing over many items on all cores. For reads that wait for a disk or a network see `formats::parallel`.
//!
//! Invariant: the result is that of doing the items one after another, whatever the number of cores: results come in the order of the
//! items, and of several failures the first item's is told.

use std::{
    num::NonZero,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
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
    thread::scope(|scope| {
        let one = scope.spawn(one);
        let other = other();
        let one = one.join().map_err(|_| Error::internal("a computing thread panicked"))?;
        Ok((one, other))
    })
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
    if count <= BATCH {
        return (0..count).map(work).collect();
    }
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let serve = || {
        loop {
            let first = next.fetch_add(BATCH, Ordering::Relaxed);
            if first >= count {
                break;
            }
            let batch: Result<Vec<R>> = (first..count.min(first + BATCH)).map(&work).collect();
            if batch.is_err() {
                // Batches before this one are taken already, and go on: one of them may hold the first failure.
                next.store(count, Ordering::Relaxed);
            }
            done.lock().unwrap_or_else(PoisonError::into_inner).push((first, batch));
        }
    };
    let whole = thread::scope(|scope| {
        let others: Vec<_> = (1..self::count().min(count / BATCH)).map(|_| scope.spawn(serve)).collect();
        serve();
        // All are joined, whatever became of the first.
        others.into_iter().filter_map(|it| it.join().err()).count() == 0
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(first, _)| *first);
    let mut all = Vec::with_capacity(count);
    for (_, batch) in done {
        all.append(&mut batch?);
    }
    if whole && all.len() == count { Ok(all) } else { Err(Error::internal("a computing thread panicked")) }
}

#[cfg(test)]
mod tests {
    use super::*;

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
