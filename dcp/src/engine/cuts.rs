//! [`Cuts`]: where a file is cut into pieces of at most a block, so that pieces can be read, cached and checked one
//! by one and every byte belongs to exactly one.

use std::ops::Range;

use crate::digest::{BlockLayout, LayoutError};

/// The ends of consecutive pieces that tile a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Cuts {
    ends: Vec<u64>,
}

impl Cuts {
    /// Cuts a file at every boundary (ascending) and every stretch between them into blocks.
    pub(crate) fn new(size: u64, boundaries: impl IntoIterator<Item = u64>) -> Result<Self, LayoutError> {
        BlockLayout::new(size, boundaries)
            .map(|layout| Self::from_ends(layout.ranges().map(|range| range.end)))
    }

    /// The pieces that end here, ascending.
    pub(crate) fn from_ends(ends: impl IntoIterator<Item = u64>) -> Self {
        Self { ends: ends.into_iter().collect() }
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The bytes of a piece; `None` behind the last.
    pub(crate) fn range(&self, piece: usize) -> Option<Range<u64>> {
        let end = *self.ends.get(piece)?;
        Some(self.start(piece)..end)
    }

    /// The bytes of consecutive pieces.
    pub(crate) fn bytes(&self, pieces: &Range<usize>) -> Range<u64> {
        self.start(pieces.start)..self.start(pieces.end)
    }

    fn start(&self, piece: usize) -> u64 {
        piece.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0)
    }

    /// The piece that holds a byte; the number of pieces for a byte behind the end.
    pub(crate) fn at(&self, byte: u64) -> usize {
        self.ends.partition_point(|&end| end <= byte)
    }

    /// The pieces that hold any of these bytes.
    pub(crate) fn covering(&self, bytes: &Range<u64>) -> Range<usize> {
        let first = self.at(bytes.start);
        if bytes.is_empty() {
            return first..first;
        }
        first..self.len().min(self.ends.partition_point(|&end| end < bytes.end).saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_belongs_to_one_piece() {
        let cuts = Cuts::new((3 << 20) + 5, [10, 1 << 20]).unwrap();
        assert_eq!(cuts.len(), 5);
        assert_eq!(cuts.range(1), Some(10..1 << 20));
        assert_eq!((cuts.at(9), cuts.at(10), cuts.at(3 << 20), cuts.at(u64::MAX)), (0, 1, 4, 5));
        assert_eq!(cuts.covering(&(9..11)), 0..2);
        assert_eq!(cuts.covering(&(10..10)), 1..1);
        assert_eq!(cuts.covering(&(0..1 << 20)), 0..2);
        assert_eq!((cuts.bytes(&(1..3)), cuts.bytes(&(1..1))), (10..2 << 20, 10..10));
    }
}
