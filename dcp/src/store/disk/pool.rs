//! [`Pool`]: memory for blocks, used again rather than asked for again, and bounded.
//!
//! Fresh memory costs page faults, a fifth of what the page cache would have cost; so it is kept while any block is lent, and all but
//! [`KEPT`] is freed with the last. There is one pool for a process ([`Pool::shared`]), so that the bound holds however many files and stores it
//! writes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use super::block::BLOCK;

/// Blocks that a process holds at most: of four files that are written side by side each one to fill and the others on their way.
const MOST: usize = 24;

/// Bytes that files hold which are being written to disks around the page cache, all files of a process together, unless less is asked for.
pub const GATHERED: u64 = (MOST * BLOCK) as u64;

/// Blocks that stay when all are given back: a thread that fills one at a time must not ask for each anew.
const KEPT: usize = 2;

/// Bounds what all files of this process that are being written to disks hold together, [`GATHERED`] at most; returns that bound. What
/// does not fit goes through the page cache.
#[must_use = "it is what counts against a bound"]
pub fn gather_at_most(bytes: u64) -> u64 {
    Pool::shared().bound(bytes)
}

/// What blocks in memory are aligned to: no file system asks for more than a page of the smallest kind.
pub(super) const ALIGNMENT: usize = 4096;

/// Lends memory for blocks.
#[derive(Debug)]
pub(super) struct Pool {
    most: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    lent: usize,
    free: Vec<Vec<u8>>,
}

impl Pool {
    /// A pool of so many blocks.
    pub(super) fn new(most: usize) -> Self {
        Self { most: AtomicUsize::new(most), state: Mutex::default() }
    }

    /// That of this process.
    pub(super) fn shared() -> Arc<Self> {
        static SHARED: LazyLock<Arc<Pool>> = LazyLock::new(|| Arc::new(Pool::new(MOST)));
        Arc::clone(&SHARED)
    }

    /// Lends no more than so many bytes from now on, and never more than [`GATHERED`].
    fn bound(&self, bytes: u64) -> u64 {
        let blocks = usize::try_from(bytes.min(GATHERED) / BLOCK as u64).unwrap_or(MOST);
        self.most.store(blocks, Ordering::Relaxed);
        (blocks * BLOCK) as u64
    }

    /// Memory for a block, of any content; none when all is lent, or where the system has no more.
    pub(super) fn take(self: &Arc<Self>) -> Option<Memory> {
        let mut state = self.lock();
        if state.lent >= self.most.load(Ordering::Relaxed) {
            return None;
        }
        state.lent += 1;
        let kept = state.free.pop();
        drop(state);
        // From here on it is given back if anything is missing.
        let mut memory = Memory { bytes: Vec::new(), start: 0, pool: Arc::clone(self) };
        memory.bytes = kept.map_or_else(fresh, Some)?;
        memory.start = memory.bytes.as_ptr().align_offset(ALIGNMENT);
        (memory.bytes().len() == BLOCK).then_some(memory)
    }

    fn give_back(&self, bytes: Vec<u8>) {
        let mut state = self.lock();
        state.lent = state.lent.saturating_sub(1);
        if !bytes.is_empty() {
            state.free.push(bytes);
        }
        if state.lent == 0 {
            let first = state.free.len().min(KEPT);
            let freed = state.free.split_off(first);
            drop(state);
            drop(freed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// More than a block has, so that an aligned one is in it.
fn fresh() -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(BLOCK + ALIGNMENT).ok()?;
    bytes.resize(BLOCK + ALIGNMENT, 0);
    Some(bytes)
}

/// Memory for one block; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Memory {
    bytes: Vec<u8>,
    /// Where the aligned block begins. A vector that does not grow stays where it is.
    start: usize,
    pool: Arc<Pool>,
}

impl Memory {
    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes.get(self.start..).and_then(|rest| rest.get(..BLOCK)).unwrap_or_default()
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.start..).and_then(|rest| rest.get_mut(..BLOCK)).unwrap_or_default()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.pool.give_back(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_lent_than_there_is_and_what_comes_back_is_lent_again() {
        let pool = Arc::new(Pool::new(2));
        let (one, two) = (pool.take().unwrap(), pool.take().unwrap());
        assert!(pool.take().is_none());
        let place = one.bytes().as_ptr();
        drop(one);
        assert_eq!(pool.take().unwrap().bytes().as_ptr(), place);
        assert_eq!((two.bytes().len(), two.bytes().as_ptr().align_offset(ALIGNMENT)), (BLOCK, 0));
    }

    #[test]
    fn hardly_anything_is_kept_once_the_last_block_is_back() {
        let pool = Arc::new(Pool::new(5));
        let blocks: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(blocks.len(), 5);
        drop(blocks);
        let state = pool.lock();
        assert_eq!((state.free.len(), state.lent), (KEPT, 0));
    }

    #[test]
    fn the_bound_is_lowered_to_whole_blocks_and_is_never_above_what_is_said() {
        let pool = Arc::new(Pool::new(5));
        assert_eq!(pool.bound((3 << 20) - 1), 2 << 20);
        assert_eq!(std::iter::from_fn(|| pool.take()).take(9).collect::<Vec<_>>().len(), 2);
        assert_eq!(pool.bound(u64::MAX), GATHERED);
        assert_eq!(pool.bound(0), 0);
        assert!(pool.take().is_none());
    }
}
