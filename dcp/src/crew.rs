//! A crew: threads that do the same work side by side until there is none left. What is left, and who takes it, is the
//! work's own matter.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
};

use crate::{Error, Result, cores};

/// Runs `serve` on `threads` threads, this one among them; on fewer where the system grants no more.
///
/// # Errors
/// The first failure of any of them, this thread's first; a panic is `Internal`. What is left to do may not depend on what a thread
/// that panicked had taken: who waits for that must be told by whoever took it.
pub(crate) fn work(threads: usize, serve: impl Fn() -> Result<()> + Sync) -> Result<()> {
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map_while(|_| cores::start(scope, &serve)).collect();
        let panicked = |_| Err(Error::internal("a working thread panicked"));
        let mine = catch_unwind(AssertUnwindSafe(&serve)).unwrap_or_else(panicked);
        let joined = others.into_iter().map(|other| other.join().unwrap_or_else(panicked));
        // All are joined before a failure is told: a fold, since `collect` would stop at the first.
        joined.fold(mine, Result::and)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn all_work_is_done_once_and_a_failure_of_any_thread_is_told() {
        let next = AtomicUsize::new(0);
        let serve = |last: usize| match next.fetch_add(1, Ordering::Relaxed) {
            at if at == last => Err(Error::corrupt("the last one")),
            _ => Ok(()),
        };
        work(4, || serve(9)).unwrap();
        assert_eq!(next.load(Ordering::Relaxed), 4);
        assert_eq!(work(4, || serve(7)).unwrap_err().to_string(), "the last one");
    }

    #[test]
    fn a_panic_of_any_thread_is_told_when_all_have_ended() {
        for threads in [1, 4] {
            let torn = work(threads, || panic!("as the test wants it")).unwrap_err();
            assert!(torn.to_string().contains("panicked"), "{torn}");
        }
    }
}
