//! [`Flusher`]: writes the blocks of one file beside whoever makes them.
//!
//! Invariants: blocks are written one after the other in the order in which they came, so that of two that overlap the later stands; at most
//! [`AHEAD`] are under way; after the first failure nothing more is written, and every later call says so; the thread ends soon after the
//! last block, and no later than the flusher is dropped.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::block::Block;

/// Blocks of a file that may be under way: one is written, and the next is there when it is done.
const AHEAD: usize = 3;

/// How long the thread waits for more before it ends; starting one takes some 50 µs.
const LINGER: Duration = Duration::from_millis(20);

/// It calls the system, and nothing else.
const STACK: usize = 256 << 10;

/// Where blocks go.
pub(super) trait Out: Debug + Send + Sync + 'static {
    /// Writes what was put into a block.
    fn write(&self, block: &Block) -> io::Result<()>;

    /// Writes bytes that are in no block.
    fn write_through(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
}

/// Writes blocks.
#[derive(Debug)]
pub(super) struct Flusher<O: Out>(Arc<Shared<O>>);

#[derive(Debug)]
struct Shared<O> {
    out: O,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Block>,
    /// Those that wait, and the one that is written.
    under_way: usize,
    /// Whether somebody writes what waits.
    is_served: bool,
    is_closing: bool,
    failure: Option<Failure>,
}

/// A failure that is told more than once.
#[derive(Debug, Clone)]
struct Failure {
    code: Option<i32>,
    kind: io::ErrorKind,
    text: String,
}

impl Failure {
    fn of(error: &io::Error) -> Self {
        Self { code: error.raw_os_error(), kind: error.kind(), text: error.to_string() }
    }

    fn error(&self) -> io::Error {
        self.code.map_or_else(|| io::Error::new(self.kind, self.text.clone()), io::Error::from_raw_os_error)
    }
}

impl State {
    fn check(&self) -> io::Result<()> {
        self.failure.as_ref().map_or(Ok(()), |failure| Err(failure.error()))
    }
}

impl<O: Out> Flusher<O> {
    /// One that has nothing to do yet.
    pub(super) fn new(out: O) -> Self {
        Self(Arc::new(Shared { out, state: Mutex::default(), changed: Condvar::new() }))
    }

    /// Where the blocks go.
    pub(super) fn out(&self) -> &O {
        &self.0.out
    }

    /// Whether all went well until now.
    pub(super) fn check(&self) -> io::Result<()> {
        self.0.lock().check()
    }

    /// Takes a block, once there is room for it.
    pub(super) fn push(&self, block: Block) -> io::Result<()> {
        let mut state = self.0.wait_while(|state| state.under_way >= AHEAD);
        state.check()?;
        state.waiting.push_back(block);
        state.under_way += 1;
        if std::mem::replace(&mut state.is_served, true) {
            self.0.changed.notify_all();
            return Ok(());
        }
        drop(state);
        let shared = Arc::clone(&self.0);
        let thread = thread::Builder::new().name("disk".to_owned()).stack_size(STACK);
        if thread.spawn(move || shared.serve(LINGER)).is_err() {
            // Slower is better than not at all.
            self.0.serve(Duration::ZERO);
        }
        Ok(())
    }

    /// Waits until everything is written that was pushed.
    pub(super) fn settle(&self) -> io::Result<()> {
        self.0.wait_while(|state| state.under_way > 0).check()
    }
}

impl<O: Out> Drop for Flusher<O> {
    fn drop(&mut self) {
        self.0.lock().is_closing = true;
        self.0.changed.notify_all();
        drop(self.0.wait_while(|state| state.is_served));
    }
}

impl<O: Out> Shared<O> {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while(&self, condition: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let state = self.changed.wait_while(self.lock(), |state| condition(state));
        state.unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what waits, and what comes soon.
    fn serve(&self, linger: Duration) {
        while let Some((block, is_wanted)) = self.next(linger) {
            let write = || if is_wanted { self.out.write(&block) } else { Ok(()) };
            let panicked = |_| Err(io::Error::other("the thread that writes to the disk panicked"));
            let written = catch_unwind(AssertUnwindSafe(write)).unwrap_or_else(panicked);
            // Its memory is free before anybody hears of it.
            drop(block);
            let mut state = self.lock();
            state.under_way -= 1;
            if let Err(error) = written {
                state.failure.get_or_insert(Failure::of(&error));
            }
            drop(state);
            self.changed.notify_all();
        }
    }

    /// The next block, and whether it is still to be written. None once there is none for a while.
    fn next(&self, linger: Duration) -> Option<(Block, bool)> {
        let idle = |state: &mut State| state.waiting.is_empty() && !state.is_closing;
        let waited = self.changed.wait_timeout_while(self.lock(), linger, idle);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if let Some(block) = state.waiting.pop_front() {
            return Some((block, state.failure.is_none()));
        }
        state.is_served = false;
        drop(state);
        self.changed.notify_all();
        None
    }
}

#[cfg(test)]
mod tests;
