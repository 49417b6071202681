//! What each request of one call was answered.
//!
//! The call that is being polled is found by its thread: a request is sent within the poll of the call that sends it. So no interface between
//! has to carry it, and credentials that are fetched on the way are seen too.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

/// What became of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// The server answered.
    Status {
        /// The HTTP status.
        status: u16,
        /// The store's own name for the failure.
        code: Option<String>,
        /// Whether it was a service that gives credentials to machines.
        metadata: bool,
    },
    /// There was no connection: nothing was sent.
    Unreached {
        /// As above.
        metadata: bool,
    },
    /// The connection ended before the answer.
    Cut,
}

/// The answers of one call, in order. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Trace(Arc<Mutex<Vec<Answer>>>);

thread_local! {
    static POLLED: RefCell<Vec<Trace>> = const { RefCell::new(Vec::new()) };
}

/// Until it is dropped, the requests of this thread belong to the call.
#[derive(Debug)]
pub(super) struct Entered(());

impl Drop for Entered {
    fn drop(&mut self) {
        POLLED.with_borrow_mut(Vec::pop);
    }
}

impl Trace {
    pub(super) fn enter(&self) -> Entered {
        POLLED.with_borrow_mut(|polled| polled.push(self.clone()));
        Entered(())
    }

    /// That of the call which is being polled by this thread; one that nobody reads, if there is none.
    pub(super) fn current() -> Self {
        POLLED.with_borrow(|polled| polled.last().cloned()).unwrap_or_default()
    }

    pub(super) fn note(&self, answer: Answer) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(answer);
    }

    pub(super) fn answers(&self) -> Vec<Answer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
