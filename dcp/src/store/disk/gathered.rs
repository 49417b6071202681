//! [`Gathered`]: writes of any size and order, gathered into aligned blocks.
//!
//! Invariants: what is read after [`Gathered::settle`] is what was written, later writes over earlier ones; at most [`OPEN`] blocks of a file
//! wait to become whole, and the one untouched for longest is written as it is when there would be more, or when memory is short. Where the
//! pool has none left, bytes go through the page cache.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::block::{BLOCK, Block};
use super::flusher::{Flusher, Out};
use super::pool::Pool;

/// Blocks of a file that wait to become whole: as many places as are written at the same time.
const OPEN: usize = 4;

/// Writes of one file.
#[derive(Debug)]
pub(super) struct Gathered<O: Out> {
    /// Blocks that are not whole, the one untouched for longest first.
    open: Mutex<VecDeque<Block>>,
    flusher: Flusher<O>,
    pool: Arc<Pool>,
}

impl<O: Out> Gathered<O> {
    /// Gathers what goes to `out`, in memory of `pool`.
    pub(super) fn new(out: O, pool: Arc<Pool>) -> Self {
        Self { open: Mutex::default(), flusher: Flusher::new(out), pool }
    }

    /// Takes bytes at an offset. They are written later: what becomes of them is told by a later call, [`Self::settle`] at the latest.
    pub(super) fn write(&self, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
        let mut open = self.lock();
        self.flusher.check()?;
        while !bytes.is_empty() {
            let taken = self.put(&mut open, bytes, offset)?;
            bytes = bytes.get(taken..).unwrap_or_default();
            offset = offset.checked_add(taken as u64).ok_or(io::ErrorKind::FileTooLarge)?;
        }
        Ok(())
    }

    /// Writes everything that was taken, and tells whether all of it went well.
    pub(super) fn settle(&self) -> io::Result<()> {
        let mut open = self.lock();
        let pushed = open.drain(..).try_for_each(|block| self.flusher.push(block));
        self.flusher.settle().and(pushed)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Block>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the bytes that belong into one block; returns how many.
    fn put(&self, open: &mut VecDeque<Block>, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let index = offset / BLOCK as u64;
        let at = usize::try_from(offset % BLOCK as u64).map_err(io::Error::other)?;
        let begun = open.iter().position(|block| block.index() == index).and_then(|found| open.remove(found));
        let block = match begun {
            Some(block) => Some(block),
            None => self.begin(open, index)?,
        };
        let Some(mut block) = block else {
            let bytes = bytes.get(..bytes.len().min(BLOCK - at)).unwrap_or_default();
            return self.flusher.out().write_through(bytes, offset).map(|()| bytes.len());
        };
        let taken = block.put(at, bytes);
        if block.is_full() {
            self.flusher.push(block)?;
        } else {
            open.push_back(block);
            self.shrink(open, OPEN)?;
        }
        Ok(taken)
    }

    /// A block with nothing in it. None where there is no memory: then nothing of this file is under way that could overtake, or be overtaken
    /// by, what is written otherwise.
    fn begin(&self, open: &mut VecDeque<Block>, index: u64) -> io::Result<Option<Block>> {
        let block = || Some(Block::new(index, self.pool.take()?));
        if let Some(block) = block() {
            return Ok(Some(block));
        }
        self.shrink(open, open.len().saturating_sub(1))?;
        self.flusher.settle()?;
        Ok(block())
    }

    fn shrink(&self, open: &mut VecDeque<Block>, most: usize) -> io::Result<()> {
        while open.len() > most {
            open.pop_front().map_or(Ok(()), |oldest| self.flusher.push(oldest))?;
        }
        Ok(())
    }
}

/// As a file that is closed: what was written is there, and nobody hears of it if it is not.
impl<O: Out> Drop for Gathered<O> {
    fn drop(&mut self) {
        drop(self.settle());
    }
}

#[cfg(test)]
mod tests;
