//! [`Block`]: an aligned stretch of a file, gathered in memory until it is written.
//!
//! Invariants: of its bytes only those that were put are ever written; no [`GRAIN`] of a file is written around the page cache unless
//! all of it is in the block, so that what goes around the cache and what goes through it never share a page.

use std::ops::Range;

use super::pool::Memory;

/// Bytes of a block, and what its place in the file is a multiple of.
pub(super) const BLOCK: usize = 1 << 20;

/// What goes around the page cache begins and ends at multiples of this: of the pages of all machines, and of the sectors of all disks.
pub(super) const GRAIN: usize = 64 << 10;

/// A stretch of a file.
#[derive(Debug)]
pub(super) struct Block {
    /// Number of the stretch in the file.
    index: u64,
    memory: Memory,
    /// What was put, in stretches that do not touch each other.
    filled: Vec<Range<usize>>,
}

/// Bytes of a block that are written at once.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Piece<'b> {
    /// Where in the file.
    pub(super) offset: u64,
    pub(super) bytes: &'b [u8],
    /// Whether it may go around the page cache: it is aligned in the file and in memory.
    pub(super) is_aligned: bool,
}

impl Block {
    /// The stretch of that number, of which nothing is known yet.
    pub(super) const fn new(index: u64, memory: Memory) -> Self {
        Self { index, memory, filled: Vec::new() }
    }

    pub(super) const fn index(&self) -> u64 {
        self.index
    }

    /// Takes bytes at a place in the block: as many as it has room for from there on, which are returned.
    pub(super) fn put(&mut self, at: usize, bytes: &[u8]) -> usize {
        let Some(room) = self.memory.bytes_mut().get_mut(at..) else { return 0 };
        let len = room.len().min(bytes.len());
        let (Some(room), Some(bytes)) = (room.get_mut(..len), bytes.get(..len)) else { return 0 };
        room.copy_from_slice(bytes);
        self.fill(at..at + len);
        len
    }

    fn fill(&mut self, mut new: Range<usize>) {
        self.filled.retain(|old| {
            let is_apart = old.end < new.start || new.end < old.start;
            if !is_apart {
                new = old.start.min(new.start)..old.end.max(new.end);
            }
            is_apart
        });
        self.filled.push(new);
    }

    /// Whether all of it was put.
    pub(super) fn is_full(&self) -> bool {
        matches!(self.filled.as_slice(), [Range { start: 0, end: BLOCK }])
    }

    /// What was put, cut into what is aligned and the ends that are not.
    pub(super) fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        let cuts = self.filled.iter().flat_map(|filled| {
            let first = filled.start.next_multiple_of(GRAIN).min(filled.end);
            let last = (filled.end - filled.end % GRAIN).max(first);
            [(filled.start..first, false), (first..last, true), (last..filled.end, false)]
        });
        cuts.filter(|(range, _)| !range.is_empty()).map(|(range, is_aligned)| {
            let offset = self.index * BLOCK as u64 + range.start as u64;
            Piece { offset, bytes: self.memory.bytes().get(range).unwrap_or_default(), is_aligned }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::pool::Pool;
    use super::*;

    fn block(index: u64) -> Block {
        Block::new(index, Arc::new(Pool::new(1)).take().unwrap())
    }

    /// Where each piece begins in the block, its length, and whether it is aligned.
    fn cuts(block: &Block) -> Vec<(usize, usize, bool)> {
        let start = |piece: &Piece<'_>| (piece.offset - block.index() * BLOCK as u64).try_into().unwrap();
        let mut cuts: Vec<_> = block.pieces().map(|it| (start(&it), it.bytes.len(), it.is_aligned)).collect();
        cuts.sort_unstable();
        cuts
    }

    #[test]
    fn what_is_put_in_any_order_is_one_stretch_once_it_touches() {
        let mut block = block(3);
        for at in [2, 0, 3, 1] {
            assert!(!block.is_full());
            assert_eq!(block.put(at * BLOCK / 4, &vec![7; BLOCK / 4]), BLOCK / 4);
        }
        assert!(block.is_full());
        assert_eq!(cuts(&block), [(0, BLOCK, true)]);
        assert_eq!(block.pieces().next().unwrap().offset, 3 << 20);
    }

    #[test]
    fn ragged_ends_are_cut_off_and_what_lies_within_a_grain_is_never_aligned() {
        let mut block = block(0);
        block.put(5, &vec![1; GRAIN * 3]);
        block.put(GRAIN * 8, &vec![2; GRAIN]);
        block.put(GRAIN * 10 + 1, &vec![3; GRAIN - 1]);
        let wanted = [
            (5, GRAIN - 5, false),
            (GRAIN, GRAIN * 2, true),
            (GRAIN * 3, 5, false),
            (GRAIN * 8, GRAIN, true),
            (GRAIN * 10 + 1, GRAIN - 1, false),
        ];
        assert_eq!(cuts(&block), wanted);
    }

    #[test]
    fn a_grain_that_was_put_in_two_halves_counts_as_whole() {
        let mut block = block(0);
        block.put(0, &vec![1; GRAIN / 2]);
        assert_eq!(cuts(&block), [(0, GRAIN / 2, false)]);
        block.put(GRAIN / 2, &vec![2; GRAIN / 2]);
        assert_eq!(cuts(&block), [(0, GRAIN, true)]);
    }

    #[test]
    fn what_has_no_room_is_left_and_what_comes_later_stands() {
        let mut block = block(0);
        assert_eq!(block.put(BLOCK - 2, b"abc"), 2);
        assert_eq!(block.put(BLOCK, b"abc"), 0);
        assert_eq!(block.put(BLOCK - 2, b"x"), 1);
        assert_eq!(block.pieces().next().unwrap().bytes, b"xb");
    }

    #[test]
    fn aligned_pieces_are_aligned_in_memory_too() {
        let mut block = block(1);
        block.put(1, &vec![1; BLOCK - 1]);
        let aligned: Vec<_> = block.pieces().filter(|piece| piece.is_aligned).collect();
        let [piece] = aligned.as_slice() else { panic!("{aligned:?}") };
        assert_eq!((piece.bytes.as_ptr().align_offset(4096), piece.offset % GRAIN as u64), (0, 0));
    }
}
