//! [`Cuts`]: where a file is cut into pieces of at most a block, so that pieces can be read, cached and checked one
//! by one and every byte belongs to exactly one.
//!
//! Invariant: cuts take memory for what is known of a file (its boundaries, its block table), not for the bytes that it is said to have.

use std::{ops::Range, sync::Arc};

use crate::digest::{BLOCK_LEN, BlockTable, LayoutError};

/// Consecutive pieces that tile a file.
#[derive(Debug, Clone)]
pub(crate) enum Cuts {
    /// Between two boundaries, blocks of full length and a rest.
    Regular(Vec<Stretch>),
    /// The blocks of a table, as they are decoded.
    Table(Arc<BlockTable>),
}

/// The bytes between two boundaries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stretch {
    start: u64,
    end: u64,
    /// Number of its first piece.
    first: usize,
}

const LEN: u64 = BLOCK_LEN as u64;

impl Stretch {
    /// Pieces up to its end.
    fn pieces(&self) -> usize {
        self.first.saturating_add(number((self.end - self.start).div_ceil(LEN)))
    }

    /// The piece that holds a byte of it.
    fn at(&self, byte: u64) -> usize {
        self.first.saturating_add(number((byte - self.start) / LEN))
    }
}

fn number(pieces: u64) -> usize {
    usize::try_from(pieces).unwrap_or(usize::MAX)
}

impl Cuts {
    /// Cuts a file at every boundary (ascending) and every stretch between them into blocks.
    pub(crate) fn new(size: u64, boundaries: impl IntoIterator<Item = u64>) -> Result<Self, LayoutError> {
        let (mut stretches, mut first): (Vec<Stretch>, usize) = (Vec::new(), 0);
        let mut start = 0;
        for end in boundaries.into_iter().chain([size]) {
            if end > size {
                return Err(LayoutError::Outside { at: end, file_len: size });
            }
            if end < start {
                return Err(LayoutError::Unsorted { before: start, at: end });
            }
            if end > start {
                let stretch = Stretch { start, end, first };
                (start, first) = (end, stretch.pieces());
                stretches.push(stretch);
            }
        }
        Ok(Self::Regular(stretches))
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Regular(stretches) => stretches.last().map_or(0, Stretch::pieces),
            Self::Table(table) => table.len(),
        }
    }

    /// The bytes of a piece; `None` behind the last.
    pub(crate) fn range(&self, piece: usize) -> Option<Range<u64>> {
        (piece < self.len()).then(|| self.bytes(&(piece..piece.saturating_add(1))))
    }

    /// The bytes of consecutive pieces.
    pub(crate) fn bytes(&self, pieces: &Range<usize>) -> Range<u64> {
        match self {
            Self::Regular(_) => self.start(pieces.start)..self.start(pieces.end),
            Self::Table(table) => table.logical_of(pieces),
        }
    }

    /// Where a piece begins: the end of the file for those behind the last.
    fn start(&self, piece: usize) -> u64 {
        let Self::Regular(stretches) = self else { return 0 };
        let at = stretches.partition_point(|stretch| stretch.pieces() <= piece);
        match stretches.get(at) {
            Some(stretch) => {
                stretch.start.saturating_add(((piece - stretch.first) as u64).saturating_mul(LEN))
            }
            None => stretches.last().map_or(0, |stretch| stretch.end),
        }
    }

    /// The piece that holds a byte; the number of pieces for a byte behind the end.
    pub(crate) fn at(&self, byte: u64) -> usize {
        match self {
            Self::Regular(stretches) => {
                let at = stretches.partition_point(|stretch| stretch.end <= byte);
                stretches.get(at).map_or_else(|| self.len(), |stretch| stretch.at(byte))
            }
            Self::Table(table) => table.covering(&(byte..byte)).start,
        }
    }

    /// The pieces that hold any of these bytes.
    pub(crate) fn covering(&self, bytes: &Range<u64>) -> Range<usize> {
        let first = self.at(bytes.start);
        match bytes.end.checked_sub(1).filter(|_| !bytes.is_empty()) {
            Some(last) => first..self.len().min(self.at(last).saturating_add(1)),
            None => first..first,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::{BlockLayout, table_of};

    #[test]
    fn every_byte_belongs_to_one_piece() {
        let size = (3 << 20) + 5;
        let regular = Cuts::new(size, [10, 1 << 20]).unwrap();
        let layout = BlockLayout::new(size, [10, 1 << 20]).unwrap();
        let bytes = vec![0; usize::try_from(size).unwrap()];
        for cuts in [regular, Cuts::Table(Arc::new(table_of(&bytes, layout, 1).unwrap()))] {
            assert_eq!(cuts.len(), 5);
            assert_eq!(
                (cuts.range(1), cuts.range(4), cuts.range(5)),
                (Some(10..1 << 20), Some(3 << 20..size), None)
            );
            assert_eq!((cuts.at(9), cuts.at(10), cuts.at(3 << 20), cuts.at(u64::MAX)), (0, 1, 4, 5));
            assert_eq!(cuts.covering(&(9..11)), 0..2);
            assert_eq!(cuts.covering(&(10..10)), 1..1);
            assert_eq!(cuts.covering(&(0..1 << 20)), 0..2);
            assert_eq!(cuts.covering(&(size - 1..size + 7)), 4..5);
            assert_eq!((cuts.bytes(&(1..3)), cuts.bytes(&(1..1))), (10..2 << 20, 10..10));
            assert_eq!(cuts.bytes(&(3..5)), 2 << 20..size);
        }
    }

    #[test]
    fn a_file_that_is_said_to_have_exabytes_is_cut_without_memory_for_them() {
        let cuts = Cuts::new(u64::MAX, [1 << 62, 1 << 62]).unwrap();
        assert_eq!(cuts.len(), (1 << 42) + (3 << 42));
        assert_eq!(cuts.range(1 << 42), Some(1 << 62..(1 << 62) + (1 << 20)));
        assert_eq!(cuts.at(u64::MAX - 1), cuts.len() - 1);
        assert!(matches!(Cuts::new(9, [5, 4]), Err(LayoutError::Unsorted { .. })));
        assert!(matches!(Cuts::new(9, [10]), Err(LayoutError::Outside { .. })));
    }
}
