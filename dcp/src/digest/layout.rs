//! Where blocks begin and end: a function of a file's length and its chunk boundaries alone, so that writer, reader and
//! resumed writer agree without exchanging anything.

use std::ops::Range;

use thiserror::Error;

/// Most bytes of a block: 1 MiB. Part of the format: long enough that digests are a negligible part of a checkpoint,
/// short enough that a verified read of few rows reads little else.
pub const BLOCK_LEN: u32 = 1 << 20;

/// Boundaries that don't describe a file.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// A boundary lies before the one in front of it.
    #[error("chunk boundary {at} comes after boundary {before}: boundaries must ascend")]
    Unsorted {
        /// The boundary in front.
        before: u64,
        /// The boundary.
        at: u64,
    },
    /// A boundary lies behind the end of the file.
    #[error("chunk boundary {at} lies behind the end of a file of {file_len} bytes")]
    Outside {
        /// The boundary.
        at: u64,
        /// Bytes of the file.
        file_len: u64,
    },
}

/// The blocks of one file: consecutive, from byte 0 to its end, each 1 to [`BLOCK_LEN`] bytes long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockLayout {
    /// Where each block ends.
    ends: Vec<u64>,
}

impl BlockLayout {
    /// Cuts a file at every boundary (the first and last byte of each chunk, in ascending order; 0, the end, and
    /// repeated ones are welcome), and every stretch between two boundaries into blocks of [`BLOCK_LEN`] and a rest.
    ///
    /// # Errors
    /// Boundaries that descend or lie outside the file.
    pub fn new(file_len: u64, boundaries: impl IntoIterator<Item = u64>) -> Result<Self, LayoutError> {
        let mut layout = Self { ends: Vec::new() };
        let mut before = 0;
        for at in boundaries {
            if at < before {
                return Err(LayoutError::Unsorted { before, at });
            }
            if at > file_len {
                return Err(LayoutError::Outside { at, file_len });
            }
            layout.cut(before, at);
            before = at;
        }
        layout.cut(before, file_len);
        Ok(layout)
    }

    fn cut(&mut self, from: u64, to: u64) {
        let mut at = from;
        while at < to {
            at = to.min(at.saturating_add(u64::from(BLOCK_LEN)));
            self.ends.push(at);
        }
    }

    pub(super) fn into_ends(self) -> Vec<u64> {
        self.ends
    }

    /// Number of blocks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether the file is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of the file.
    #[must_use]
    pub fn file_len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// The bytes of a block; `None` behind the last.
    #[must_use]
    pub fn range(&self, block: usize) -> Option<Range<u64>> {
        let end = *self.ends.get(block)?;
        let start = block.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        Some(start..end)
    }

    /// Number of blocks that end at or before byte `at`.
    #[must_use]
    pub fn count_before(&self, at: u64) -> usize {
        self.ends.partition_point(|&end| end <= at)
    }

    /// The bytes of each block, in order.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.ends.iter().scan(0, |start, &end| Some(std::mem::replace(start, end)..end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = BLOCK_LEN as u64;

    #[test]
    fn stretches_between_boundaries_are_cut_into_whole_blocks_and_a_rest() {
        let layout = BlockLayout::new(3 * MIB + 20, [0, 10, 10, 2 * MIB + 15]).unwrap();
        let ranges: Vec<_> = layout.ranges().collect();
        let ends = [0, 10, 10 + MIB, 10 + 2 * MIB, 15 + 2 * MIB, 15 + 3 * MIB, 20 + 3 * MIB];
        assert_eq!(ranges, ends.windows(2).map(|it| it[0]..it[1]).collect::<Vec<_>>());
        assert_eq!(layout.range(1), Some(10..10 + MIB));
        assert_eq!(layout.range(6), None);
        assert_eq!([0, 9, 10, 11, 15 + 2 * MIB].map(|at| layout.count_before(at)), [0, 0, 1, 1, 4]);
    }

    #[test]
    fn an_empty_file_has_no_blocks() {
        let layout = BlockLayout::new(0, [0, 0]).unwrap();
        assert!(layout.is_empty());
        assert_eq!(layout.file_len(), 0);
    }

    #[test]
    fn boundaries_that_descend_or_lie_outside_are_refused() {
        assert_eq!(BlockLayout::new(9, [5, 4]), Err(LayoutError::Unsorted { before: 5, at: 4 }));
        assert_eq!(BlockLayout::new(9, [10]), Err(LayoutError::Outside { at: 10, file_len: 9 }));
    }

    proptest! {
        #[test]
        fn blocks_tile_the_file_and_stop_at_every_boundary(
            mut cuts in prop::collection::vec(0..5 * MIB, 0..8), len in 0..5 * MIB,
        ) {
            cuts.retain(|&cut| cut <= len);
            cuts.sort_unstable();
            let layout = BlockLayout::new(len, cuts.iter().copied()).unwrap();
            let mut at = 0;
            for range in layout.ranges() {
                prop_assert_eq!(range.start, at);
                prop_assert!(range.end > range.start && range.end - range.start <= MIB);
                prop_assert!(!cuts.iter().any(|&cut| cut > range.start && cut < range.end));
                at = range.end;
            }
            prop_assert_eq!(at, len);
        }
    }
}
