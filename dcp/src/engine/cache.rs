//! [`Cache`]: pieces of source files that several targets want, each read once.
//!
//! Invariants: a piece is read by one thread at a time, the others wait for it; the buffers of what is held and what is being read
//! together stay within the capacity, as long as no more pieces are in use than it has room for; the piece that was
//! not asked for longest goes first. A read that fails leaves no trace, so whoever waited tries again and gets the
//! error first-hand.
//!
//! A piece of which as many bytes were taken as it has is *spent*: in a copy nobody comes for it again, so its buffer
//! serves the next piece, long before the capacity is reached. Fresh buffers cost a page fault and a cleared page for
//! each 4 KiB, and a few that are used over and over stay in the processor's cache. Whoever does come again reads again.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    ops::Deref,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use crate::Result;

/// File and piece.
pub(crate) type Key = (u32, usize);

/// A piece, shared by those who read it.
pub(crate) type Block = Arc<Piece>;

/// The bytes of a piece, and how many of them were taken.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    bytes: Vec<u8>,
    taken: AtomicUsize,
}

/// Buffers below this are not worth keeping for another piece.
const WORTH_KEEPING: usize = 512 << 10;

#[derive(Debug)]
pub(crate) struct Cache {
    state: Mutex<State>,
    changed: Condvar,
    capacity: usize,
}

#[derive(Debug, Default)]
struct State {
    slots: HashMap<Key, Slot>,
    /// Ready pieces by when they were last asked for.
    order: BTreeMap<u64, Key>,
    tick: u64,
    /// Pieces that were taken whole, the earliest first.
    spent: VecDeque<Key>,
    held: usize,
    most: usize,
}

#[derive(Debug)]
enum Slot {
    Loading,
    Ready { block: Block, tick: u64 },
}

/// A piece that one thread reads. Dropped, also by a panic, it takes the mark of the read away that did not succeed.
#[derive(Debug)]
pub(crate) struct Claim<'c> {
    cache: &'c Cache,
    key: Key,
    /// Bytes that its buffer takes of the capacity.
    room: usize,
    buffer: Vec<u8>,
    done: bool,
}

impl Claim<'_> {
    /// Where its bytes go: as many as were claimed.
    pub(crate) const fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// The bytes so far.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer
    }

    /// Shows the piece to all.
    pub(crate) fn ready(mut self) -> Block {
        let block = Piece::alone(std::mem::take(&mut self.buffer));
        self.done = true;
        self.cache.lock().ready(self.key, &block);
        self.cache.changed.notify_all();
        block
    }
}

impl Piece {
    /// Bytes that belong to no cache.
    pub(crate) fn alone(bytes: Vec<u8>) -> Block {
        Arc::new(Self { bytes, taken: AtomicUsize::new(0) })
    }
}

impl Deref for Piece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Cache {
    pub(crate) fn new(capacity: u64) -> Self {
        let capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
        Self { state: Mutex::default(), changed: Condvar::new(), capacity }
    }

    /// Most bytes.
    pub(crate) const fn capacity(&self) -> usize {
        self.capacity
    }

    /// The piece, if it is here.
    #[cfg(test)]
    pub(crate) fn peek(&self, key: Key) -> Option<Block> {
        self.lock().touch(key)
    }

    /// The piece of `len` bytes, read by `load` where nobody has it.
    pub(crate) fn get(
        &self,
        key: Key,
        len: usize,
        load: impl FnOnce(&mut Vec<u8>) -> Result<()>,
    ) -> Result<Block> {
        let mut state = self.lock();
        loop {
            if let Some(block) = state.touch(key) {
                return Ok(block);
            }
            if !state.slots.contains_key(&key) {
                break;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let mut claim = self.claim_in(state, key, len);
        load(claim.buffer())?;
        Ok(claim.ready())
    }

    /// The right to read a piece of `len` bytes, unless it is here or on its way.
    pub(crate) fn claim(&self, key: Key, len: usize) -> Option<Claim<'_>> {
        let state = self.lock();
        (!state.slots.contains_key(&key)).then(|| self.claim_in(state, key, len))
    }

    fn claim_in(&self, mut state: MutexGuard<'_, State>, key: Key, len: usize) -> Claim<'_> {
        let mut buffer = state.make_room(len, self.capacity);
        state.slots.insert(key, Slot::Loading);
        drop(state);
        let room = buffer.capacity();
        buffer.resize(len, 0);
        Claim { cache: self, key, room, buffer, done: false }
    }

    /// Gives a piece back of which `taken` bytes were taken since it was got.
    pub(crate) fn put_back(&self, key: Key, block: Block, taken: usize) {
        let (len, before) = (block.len(), block.taken.fetch_add(taken, Ordering::Relaxed));
        drop(block);
        // Of several threads, the one that passes the end tells.
        if before < len && before.saturating_add(taken) >= len {
            self.lock().spent.push_back(key);
        }
    }

    /// Most bytes that were held at any time.
    #[cfg(test)]
    pub(crate) fn most(&self) -> usize {
        self.lock().most
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here can be left half-done by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn touch(&mut self, key: Key) -> Option<Block> {
        self.tick += 1;
        let Some(Slot::Ready { block, tick }) = self.slots.get_mut(&key) else { return None };
        self.order.remove(tick);
        *tick = self.tick;
        self.order.insert(self.tick, key);
        Some(Arc::clone(block))
    }

    fn ready(&mut self, key: Key, block: &Block) {
        self.tick += 1;
        self.order.insert(self.tick, key);
        self.slots.insert(key, Slot::Ready { block: Arc::clone(block), tick: self.tick });
    }

    /// Lets go of pieces that nobody uses until `len` bytes fit, and takes their room; returns a buffer, used where one is left.
    fn make_room(&mut self, len: usize, capacity: usize) -> Vec<u8> {
        let mut spare = self.reuse();
        while self.held.saturating_add(len) > capacity {
            let Some(key) = self.order.values().find(|key| self.is_free(key)).copied() else { break };
            spare = self.forget(key);
        }
        // A large buffer behind a small piece takes the room of several.
        let fits = spare.capacity() >= len && self.held.saturating_add(spare.capacity()) <= capacity;
        let buffer = if len >= WORTH_KEEPING && fits { spare } else { Vec::with_capacity(len) };
        self.held = self.held.saturating_add(buffer.capacity());
        self.most = self.most.max(self.held);
        buffer
    }

    /// The buffer of a spent piece that nobody has at hand any more.
    fn reuse(&mut self) -> Vec<u8> {
        for _ in 0..self.spent.len() {
            let Some(key) = self.spent.pop_front() else { break };
            if self.is_free(&key) {
                return self.forget(key);
            }
            // Gone already, or still at hand: then its turn comes.
            if self.slots.contains_key(&key) {
                self.spent.push_back(key);
            }
        }
        Vec::new()
    }

    fn is_free(&self, key: &Key) -> bool {
        matches!(self.slots.get(key), Some(Slot::Ready { block, .. }) if Arc::strong_count(block) == 1)
    }

    /// Takes a free piece out; its buffer.
    fn forget(&mut self, key: Key) -> Vec<u8> {
        let Some(Slot::Ready { block, tick }) = self.slots.remove(&key) else { return Vec::new() };
        self.order.remove(&tick);
        self.held = self.held.saturating_sub(block.bytes.capacity());
        Arc::try_unwrap(block).map(|piece| piece.bytes).unwrap_or_default()
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let mut state = self.cache.lock();
        state.slots.remove(&self.key);
        state.held = state.held.saturating_sub(self.room);
        drop(state);
        self.cache.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::Error;

    #[test]
    fn a_piece_is_read_once_however_many_threads_want_it() {
        let (cache, reads) = (Cache::new(1000), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for piece in 0..10 {
                        let block = cache.get((0, piece), 10, |buf| {
                            reads.fetch_add(1, Ordering::Relaxed);
                            std::thread::yield_now();
                            buf.fill(u8::try_from(piece).unwrap());
                            Ok(())
                        });
                        assert_eq!(block.unwrap()[..], vec![u8::try_from(piece).unwrap(); 10]);
                    }
                });
            }
        });
        assert_eq!(reads.into_inner(), 10);
    }

    #[test]
    fn the_piece_not_asked_for_longest_goes_first() {
        let cache = Cache::new(30);
        let get = |piece| cache.get((0, piece), 10, |_| Ok(())).map(drop).unwrap();
        (0..3).for_each(get);
        get(0);
        get(3);
        assert!(cache.peek((0, 1)).is_none());
        assert!([0, 2, 3].iter().all(|&piece| cache.peek((0, piece)).is_some()));
        assert_eq!(cache.most(), 30);
    }

    #[test]
    fn a_piece_that_was_taken_whole_gives_its_buffer_to_the_next() {
        let (cache, len) = (Cache::new(16 << 20), WORTH_KEEPING);
        let get = |piece| cache.get((0, piece), len, |_| Ok(())).unwrap();
        let mut buffers = Vec::new();
        for piece in 0..8 {
            buffers.push(get(piece).as_ptr());
            cache.put_back((0, piece), get(piece), len / 2);
            assert!(cache.peek((0, piece)).is_some(), "half of it is still wanted");
            cache.put_back((0, piece), get(piece), len - len / 2);
        }
        buffers.dedup();
        assert_eq!((buffers.len(), cache.most()), (1, len));
    }

    #[test]
    fn used_buffers_count_by_their_room_and_not_by_what_is_in_them() {
        let (large, small) = (1 << 20, WORTH_KEEPING);
        let cache = Cache::new(4 << 20);
        for piece in 0..64 {
            let len = if piece < 4 { large } else { small };
            let block = cache.get((0, piece), len, |_| Ok(())).unwrap();
            cache.put_back((0, piece), block, if piece % 2 == 0 { len } else { 1 });
            let state = cache.lock();
            let room = state.slots.values().map(|slot| match slot {
                Slot::Ready { block, .. } => block.bytes.capacity(),
                Slot::Loading => 0,
            });
            let room: usize = room.sum();
            assert!(room == state.held && room <= 4 << 20, "{room} of {}", state.held);
        }
    }

    #[test]
    fn a_spent_piece_that_another_thread_has_at_hand_is_left_alone() {
        let (cache, len) = (Cache::new(16 << 20), WORTH_KEEPING);
        let get = |piece, fill| {
            let load = |buffer: &mut Vec<u8>| {
                buffer.fill(fill);
                Ok(())
            };
            cache.get((0, piece), len, load).unwrap()
        };
        let held = get(0, 7);
        cache.put_back((0, 0), Arc::clone(&held), len);
        drop(get(1, 8));
        assert!(held.iter().all(|byte| *byte == 7));
        drop(held);
        drop(get(2, 9));
        assert!(cache.peek((0, 0)).is_none() && cache.peek((0, 1)).is_some());
    }

    #[test]
    fn a_failed_read_is_told_and_tried_again() {
        let cache = Cache::new(100);
        assert!(cache.get((0, 0), 10, |_| Err(Error::corrupt("torn"))).is_err());
        assert!(cache.get((0, 0), 10, |_| Ok(())).is_ok());
        assert_eq!(cache.lock().held, 10);
    }
}
