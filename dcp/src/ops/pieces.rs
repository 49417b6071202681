//! [`Piece`]: whole blocks of a file, as many as a thread reads at once.

use std::ops::Range;

use crate::Result;

/// Whole blocks of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Which of the files.
    pub(super) file: usize,
    /// Which of its blocks.
    pub(super) blocks: Range<usize>,
    /// Their bytes.
    pub(super) bytes: Range<u64>,
}

impl Piece {
    /// Most bytes of a piece: several blocks where they are small.
    pub(super) const MOST: u64 = 4 << 20;

    /// Cuts a file into pieces, by where its blocks lie, in order.
    pub(super) fn cut(file: usize, blocks: impl Iterator<Item = Range<u64>>) -> Vec<Self> {
        let mut pieces: Vec<Self> = Vec::new();
        for (block, bytes) in blocks.enumerate() {
            match pieces.last_mut() {
                Some(piece) if bytes.end - piece.bytes.start <= Self::MOST => {
                    (piece.blocks.end, piece.bytes.end) = (block + 1, bytes.end);
                }
                _ => pieces.push(Self { file, blocks: block..block + 1, bytes }),
            }
        }
        pieces
    }

    /// How many bytes it has.
    pub(super) fn len(&self) -> u64 {
        self.bytes.end - self.bytes.start
    }

    /// Fills a buffer with its bytes, by what reads so many from an offset on.
    pub(super) fn read(
        &self,
        buffer: &mut Vec<u8>,
        read: impl FnOnce(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        buffer.resize(self.at(self.bytes.end), 0);
        read(self.bytes.start, buffer)
    }

    /// The bytes of one of its blocks, which lie there in the file, in what [`Self::read`] filled.
    pub(super) fn block<'b>(&self, bytes: &Range<u64>, buffer: &'b [u8]) -> &'b [u8] {
        buffer.get(self.at(bytes.start)..self.at(bytes.end)).unwrap_or_default()
    }

    fn at(&self, byte: u64) -> usize {
        usize::try_from(byte.saturating_sub(self.bytes.start)).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_blocks_come_together_and_none_is_cut() {
        let mib = |it: Range<u64>| it.start << 20..it.end << 20;
        let pieces = Piece::cut(7, [0..1, 1..3, 3..5, 5..6].map(mib).into_iter());
        let told: Vec<_> = pieces.iter().map(|it| (it.blocks.clone(), it.bytes.clone())).collect();
        assert_eq!(told, [(0..2, mib(0..3)), (2..4, mib(3..6))]);
        assert!(pieces.iter().all(|it| it.file == 7) && Piece::cut(0, std::iter::empty()).is_empty());
        let mut buffer = Vec::new();
        let fill = |from: u64, to: &mut [u8]| {
            to.iter_mut().zip(from >> 20..).for_each(|(to, at)| *to = at.to_le_bytes()[0]);
            Ok(())
        };
        pieces[1].read(&mut buffer, fill).unwrap();
        assert_eq!((buffer.len(), &buffer[..3]), (3 << 20, &[3, 4, 5][..]));
        assert_eq!(pieces[1].block(&mib(5..6), &buffer), &buffer[2 << 20..]);
    }
}
