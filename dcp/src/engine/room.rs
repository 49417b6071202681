//! [`Room`]: how much all compressed files together may hold back for earlier blocks.
//!
//! A compressed block's place is known when all before it are there. Blocks of one file are handed out in the file's order, so the one
//! that others wait for is always in some thread's hands; a thread whose block comes too early waits only when the room is full, and the
//! thread whose block is next never waits. So memory is bounded and somebody always goes on. Invariant: what was taken is given back.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::{Error, Result};

/// Bytes that blocks may wait in.
#[derive(Debug)]
pub(crate) struct Room {
    most: u64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    held: u64,
    /// Counts what may let somebody go on.
    moves: u64,
    stopped: bool,
}

impl Room {
    pub(crate) const fn new(most: u64) -> Self {
        let state = State { held: 0, moves: 0, stopped: false };
        Self { most, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// A number that changes whenever somebody may go on.
    pub(crate) fn moves(&self) -> u64 {
        self.lock().moves
    }

    /// Takes so many bytes, if they are free.
    pub(crate) fn take(&self, bytes: u64) -> bool {
        let mut state = self.lock();
        let fits = state.held.saturating_add(bytes) <= self.most;
        state.held += if fits { bytes } else { 0 };
        fits
    }

    /// A file has gone on, and holds so many bytes less.
    pub(crate) fn give(&self, bytes: u64) {
        let mut state = self.lock();
        state.held = state.held.saturating_sub(bytes);
        state.moves += 1;
        self.changed.notify_all();
    }

    /// Waits until somebody may have gone on since [`Self::moves`] said `seen`.
    ///
    /// # Errors
    /// When another thread has failed: what this one waits for will never come.
    pub(crate) fn wait(&self, seen: u64) -> Result<()> {
        let mut state = self.lock();
        while state.moves == seen && !state.stopped {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.stopped { Err(Error::internal("another thread has failed")) } else { Ok(()) }
    }

    /// Nobody waits any more.
    pub(crate) fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_room_lets_nobody_in_until_something_is_given_back() {
        let room = Room::new(10);
        assert!(room.take(6) && !room.take(5) && room.take(4));
        let seen = room.moves();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| room.wait(seen).map(|()| room.take(5)));
            room.give(6);
            assert!(waiting.join().unwrap().unwrap());
        });
        let seen = room.moves();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| room.wait(seen));
            room.stop();
            assert!(waiting.join().unwrap().is_err());
        });
    }
}
