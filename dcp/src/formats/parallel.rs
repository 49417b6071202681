//! The same small reading over many items on several threads. Opening a checkpoint waits for many tiny reads, which
//! take as long as the slowest disk or network they come from; they do not depend on each other.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use crate::Result;

/// Most reads in flight: enough to hide a network's latency, few enough for a laptop.
const MOST_THREADS: usize = 16;

/// Applies `work` to each item; results in the order of the items.
///
/// # Errors
/// The failure of the first item, in order, among those that were tried before the work stopped.
pub(crate) fn map<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> Result<R> + Sync) -> Result<Vec<R>> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(items.len())));
    let run = || {
        let mut mine = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { break };
            let result = work(item);
            let failed = result.is_err();
            mine.push((at, result));
            if failed {
                next.store(items.len(), Ordering::Relaxed);
                break;
            }
        }
        done.lock().unwrap_or_else(PoisonError::into_inner).append(&mut mine);
    };
    // A few items are done before a thread would have started.
    if items.len() < 4 {
        run();
    } else {
        // The caller waits: how much of the work it would get is chance, and a simulated process takes its turns on that thread.
        std::thread::scope(|scope| {
            for _ in 0..MOST_THREADS.min(items.len()) {
                scope.spawn(run);
            }
        });
    }
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn results_come_in_the_order_of_their_items() {
        let items: Vec<u64> = (0..1000).collect();
        assert_eq!(map(&items, |n| Ok(n * 2)).unwrap(), items.iter().map(|n| n * 2).collect::<Vec<_>>());
        assert_eq!(map(&[] as &[u64], |n| Ok(*n)).unwrap(), [] as [u64; 0]);
    }

    #[test]
    fn a_failure_comes_out() {
        let items: Vec<u64> = (0..100).collect();
        let failed = map(&items, |n| if *n == 50 { Err(Error::corrupt("fifty")) } else { Ok(()) });
        assert_eq!(failed.unwrap_err().to_string(), "fifty");
    }
}
