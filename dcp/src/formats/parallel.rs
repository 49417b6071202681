//! The same small reading over many items on several threads. Opening a checkpoint waits for many tiny reads, which
//! take as long as the slowest disk or network they come from; they do not depend on each other.

use crate::{Error, Result, cores::Spread};

/// Most reads in flight: enough to hide a network's latency, few enough for a laptop.
const MOST_THREADS: usize = 16;

/// Applies `work` to each item; results in the order of the items.
///
/// # Errors
/// The failure of the first item, in order, among those that were tried before the work stopped.
pub(crate) fn map<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> Result<R> + Sync) -> Result<Vec<R>> {
    let others = MOST_THREADS.min(items.len());
    // The caller waits: how much of the work it would get is chance, and a simulated process takes its turns on that thread.
    let spread = Spread { batch: 1, alone: 3, others, caller_works: false };
    spread.try_map(items.len(), |at| {
        work(items.get(at).ok_or_else(|| Error::internal("an item that is not there"))?)
    })
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
    fn the_caller_does_few_items_itself_and_none_of_many() {
        let callers = |count: usize| {
            let who = map(&vec![(); count], |()| Ok(std::thread::current().id())).unwrap();
            who.into_iter().filter(|it| *it == std::thread::current().id()).count()
        };
        assert_eq!([0, 3, 4, 100].map(callers), [0, 3, 0, 0]);
    }

    #[test]
    fn a_failure_comes_out() {
        let items: Vec<u64> = (0..100).collect();
        let failed = map(&items, |n| if *n == 50 { Err(Error::corrupt("fifty")) } else { Ok(()) });
        assert_eq!(failed.unwrap_err().to_string(), "fifty");
    }
}
