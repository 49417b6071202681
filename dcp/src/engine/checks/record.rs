//! [`Record`]: bytes with one CRC-32, proven when all of their pieces came.
//!
//! Pieces are summed as they come, in any order, by any thread, and the record is judged by whoever brings the last one. Invariants: what is
//! judged are the bytes that came first; a piece that comes again (a cache had no room to keep it) must be the same, or it is told at once:
//! both were handed out.

use std::{
    ops::Range,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
};

use super::{Bad, Cuts, Differs};
use crate::{CrcRecord, digest::Crc32};

/// A mark beside a CRC, which may be any 32-bit number.
const SEEN: u64 = 1 << 32;

/// A record, and what came of it.
#[derive(Debug)]
pub(super) struct Record {
    record: CrcRecord,
    first: usize,
    /// For each of its pieces, once it came.
    crcs: Vec<AtomicU64>,
    missing: AtomicUsize,
}

impl Record {
    /// A record of a file with these cuts, which are made at both its ends.
    pub(super) fn new(record: CrcRecord, cuts: &Cuts) -> Self {
        let pieces = cuts.covering(&(record.offset..record.offset.saturating_add(record.len)));
        let missing = AtomicUsize::new(pieces.len());
        Self { record, first: pieces.start, crcs: pieces.map(|_| AtomicU64::new(0)).collect(), missing }
    }

    pub(super) fn pieces(&self) -> Range<usize> {
        self.first..self.first.saturating_add(self.crcs.len())
    }

    pub(super) fn bytes(&self) -> Range<u64> {
        self.record.offset..self.record.offset.saturating_add(self.record.len)
    }

    /// Whether some of its pieces came.
    pub(super) fn is_begun(&self) -> bool {
        self.missing.load(Ordering::Acquire) < self.crcs.len()
    }

    /// The pieces that did not come.
    pub(super) fn missing(&self) -> impl Iterator<Item = usize> + '_ {
        let pieces = self.pieces().zip(&self.crcs);
        pieces.filter(|(_, slot)| slot.load(Ordering::Acquire) & SEEN == 0).map(|(piece, _)| piece)
    }

    /// Takes the bytes of a piece. The length of the record where it was the last one and all is as it should be, else 0.
    pub(super) fn sum(&self, cuts: &Cuts, piece: usize, bytes: &[u8]) -> Result<u64, Bad> {
        let slot = piece.checked_sub(self.first).and_then(|at| self.crcs.get(at));
        let Some(slot) = slot else { return Ok(0) };
        let crc = u64::from(Crc32::of(bytes).value());
        match slot.compare_exchange(0, SEEN | crc, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) if self.missing.fetch_sub(1, Ordering::AcqRel) == 1 => self.judge(cuts),
            Ok(_) => Ok(0),
            Err(before) if before == SEEN | crc => Ok(0),
            Err(before) => {
                let message = format!(
                    "read again with CRC-32 {crc:08x} where it was {:08x} at first: the file changes, or its disk is failing",
                    before & (SEEN - 1)
                );
                Err(Self::bad(cuts.range(piece).unwrap_or_default(), message))
            }
        }
    }

    fn judge(&self, cuts: &Cuts) -> Result<u64, Bad> {
        let mut sum = Crc32::new();
        for (piece, slot) in self.pieces().zip(&self.crcs) {
            let len = cuts.range(piece).map_or(0, |range| range.end - range.start);
            let crc = u32::try_from(slot.load(Ordering::Acquire) & (SEEN - 1)).unwrap_or_default();
            sum.combine(&Crc32::known(crc, len));
        }
        if sum.value() == self.record.crc32 {
            return Ok(self.record.len);
        }
        let message =
            format!("CRC-32 {:08x} is recorded, the bytes have {:08x}", self.record.crc32, sum.value());
        Err(Self::bad(self.bytes(), message))
    }

    fn bad(range: Range<u64>, message: String) -> Bad {
        Bad { stored: range.clone(), range, what: Differs::Record, message }
    }
}
