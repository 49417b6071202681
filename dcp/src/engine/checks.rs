//! [`FileChecks`]: what proves the bytes of one source file, piece by piece.
//!
//! A block table proves each block on its own. A CRC-32 covers a whole record, see [`record`]: whoever ends a copy sees to it that the
//! pieces of no record are missing, [`FileChecks::missing`]. Invariants: pieces stop at every edge of a block
//! or record, so a piece is proven by what covers it alone; pieces are cut in logical bytes, and what proves a compressed one is
//! its stored bytes.

use std::{ops::Range, sync::Arc};

use self::record::Record;
use super::cuts::Cuts;
use crate::{
    CrcRecord, Error, FileEntry, Result,
    codec::CodecError,
    digest::{BlockMismatch, BlockTable, Sha256Digest},
};

mod record;

/// What proves the bytes of a file.
#[derive(Debug)]
pub(crate) struct FileChecks {
    pub(crate) cuts: Cuts,
    table: Option<Arc<BlockTable>>,
    records: Vec<Record>,
}

/// Bytes that are not those that were written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bad {
    /// The logical bytes of the file that are concerned: those that chunks point into.
    pub(crate) range: Range<u64>,
    /// The same as they are stored.
    pub(crate) stored: Range<u64>,
    /// What differs.
    pub(crate) what: Differs,
    pub(crate) message: String,
}

/// Which kind of proof failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Differs {
    Block,
    Record,
}

impl FileChecks {
    /// The checks of a file that has this block table and these records. Without a table, pieces stop at `edges` too.
    pub(crate) fn new(
        file: &FileEntry,
        table: Option<Arc<BlockTable>>,
        records: &[CrcRecord],
        edges: &[u64],
    ) -> Result<Self> {
        if let Some(table) = table {
            return Self::by_table(file, table);
        }
        let records = disjoint(file, records)?;
        let of_records = records.iter().flat_map(|it| [it.offset, it.offset.saturating_add(it.len)]);
        let mut edges: Vec<u64> = edges.iter().copied().chain(of_records).collect();
        edges.sort_unstable();
        if file.is_coded() {
            let text = format!("{}: compressed, and without the block table that says how", file.path);
            return Err(Error::corrupt(text));
        }
        let cuts = Cuts::new(file.size, edges)
            .map_err(|error| Error::corrupt(format!("{}: {error}", file.path)).caused_by(error))?;
        let records = records.into_iter().map(|record| Record::new(record, &cuts)).collect();
        Ok(Self { cuts, table: None, records })
    }

    fn by_table(file: &FileEntry, table: Arc<BlockTable>) -> Result<Self> {
        for (of, table, catalog) in
            [("", table.file_len(), file.size), ("logical ", table.logical_len(), file.logical_size())]
        {
            if table != catalog {
                return Err(Error::corrupt(format!(
                    "{}: its block table holds {table} {of}bytes, the catalog {catalog}",
                    file.path
                )));
            }
        }
        Ok(Self { cuts: Cuts::Table(Arc::clone(&table)), table: Some(table), records: Vec::new() })
    }

    /// Whether anything proves these bytes.
    pub(crate) fn is_checked(&self) -> bool {
        self.table.is_some() || !self.records.is_empty()
    }

    /// Whether blocks prove themselves one by one.
    pub(crate) fn has_blocks(&self) -> bool {
        self.table.is_some()
    }

    /// The table of a file some of whose blocks are compressed.
    pub(crate) fn coded(&self) -> Option<&Arc<BlockTable>> {
        self.table.as_ref().filter(|table| table.is_coded())
    }

    /// A piece as it is stored; `None` behind the last.
    pub(crate) fn stored(&self, piece: usize) -> Option<Range<u64>> {
        match self.coded() {
            Some(table) => table.block(piece).map(|block| block.stored),
            None => self.cuts.range(piece),
        }
    }

    /// What proves itself as a whole, as pieces: each block, each record.
    pub(crate) fn units(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let blocks = if self.table.is_some() { self.cuts.len() } else { 0 };
        let blocks = (0..blocks).map(|block| block..block + 1);
        blocks.chain(self.records.iter().map(Record::pieces))
    }

    /// Whether something proves this piece.
    pub(crate) fn covers(&self, piece: usize) -> bool {
        self.table.is_some() || self.record_of(piece).is_some()
    }

    /// Stored bytes that something proves.
    pub(crate) fn proven_bytes(&self) -> u64 {
        match &self.table {
            Some(table) => table.file_len(),
            None => self.records.iter().map(Record::bytes).map(|bytes| bytes.end - bytes.start).sum(),
        }
    }

    fn record_of(&self, piece: usize) -> Option<&Record> {
        let at = self.records.partition_point(|record| record.pieces().end <= piece);
        self.records.get(at).filter(|record| record.pieces().contains(&piece))
    }

    /// Compares the stored bytes of a piece with what proves them. How many bytes are proven by it that were not before: those of a block;
    /// of a record none until its last piece is in, and then all.
    pub(crate) fn check(&self, piece: usize, bytes: &[u8]) -> Result<u64, Bad> {
        match &self.table {
            Some(table) => self.judge(piece, table.check(piece, bytes)),
            None => self.record_of(piece).map_or(Ok(0), |record| record.sum(&self.cuts, piece, bytes)),
        }
    }

    /// The pieces that have not come of records of which something is wanted: those of which some pieces came, and those with bytes in one
    /// of these ranges.
    pub(crate) fn missing(&self, ranges: &[Range<u64>]) -> impl Iterator<Item = usize> + '_ {
        let mut wanted: Vec<bool> = self.records.iter().map(Record::is_begun).collect();
        for range in ranges {
            let first = self.records.partition_point(|record| record.bytes().end <= range.start);
            let met = self.records.iter().zip(&mut wanted).skip(first);
            met.take_while(|(record, _)| record.bytes().start < range.end)
                .for_each(|(_, wanted)| *wanted = true);
        }
        let wanted = self.records.iter().zip(wanted).filter(|(_, wanted)| *wanted);
        wanted.flat_map(|(record, _)| record.missing())
    }

    /// [`Self::check`] of two pieces, of one file or of two: blocks in less time than one after the other.
    pub(crate) fn check_two(two: [(&Self, usize, &[u8]); 2]) -> [Result<u64, Bad>; 2] {
        let [(one, piece, bytes), (other, other_piece, other_bytes)] = two;
        let (Some(table), Some(other_table)) = (&one.table, &other.table) else {
            return two.map(|(checks, piece, bytes)| checks.check(piece, bytes));
        };
        let [found, other_found] = Sha256Digest::of_two(bytes, other_bytes);
        [
            one.judge(piece, table.compare(piece, found)),
            other.judge(other_piece, other_table.compare(other_piece, other_found)),
        ]
    }

    fn judge(&self, piece: usize, compared: Result<(), BlockMismatch>) -> Result<u64, Bad> {
        let proven = || self.stored(piece).map_or(0, |stored| stored.end - stored.start);
        compared.map(|()| proven()).map_err(|bad| {
            let message = format!("block {} has another SHA-256 than its table says", bad.block);
            self.bad(piece, bad.range, Differs::Block, message)
        })
    }

    /// A compressed piece whose bytes can't be decoded.
    pub(crate) fn undecoded(&self, piece: usize, error: &CodecError) -> Bad {
        let message = format!("block {piece} can't be decoded: {error}");
        self.bad(piece, self.stored(piece).unwrap_or_default(), Differs::Block, message)
    }

    fn bad(&self, piece: usize, stored: Range<u64>, what: Differs, message: String) -> Bad {
        let range = self.cuts.range(piece).unwrap_or_else(|| stored.clone());
        Bad { range, stored, what, message }
    }
}

/// The records sorted, each once; records without bytes have nothing to prove.
fn disjoint(file: &FileEntry, records: &[CrcRecord]) -> Result<Vec<CrcRecord>> {
    let mut sorted: Vec<CrcRecord> = records.iter().filter(|record| record.len > 0).copied().collect();
    sorted.sort_unstable_by_key(|record| (record.offset, record.len, record.crc32));
    sorted.dedup();
    for pair in sorted.windows(2) {
        let [one, next] = pair else { continue };
        if one.offset.checked_add(one.len).is_none_or(|end| end > next.offset) {
            return Err(Error::corrupt(format!(
                "{}: the record at byte {} reaches into the one at byte {}",
                file.path, one.offset, next.offset
            )));
        }
    }
    Ok(sorted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Location,
        digest::{Crc32, table_of},
    };

    fn file(size: u64) -> FileEntry {
        FileEntry { path: "f".to_owned(), location: Location::InStep, size, logical: None, blocks: None }
    }

    fn record(bytes: &[u8], range: Range<usize>) -> CrcRecord {
        let (offset, len) = (range.start as u64, range.len() as u64);
        CrcRecord { offset, len, crc32: Crc32::of(&bytes[range]).value() }
    }

    #[test]
    fn a_record_is_judged_when_its_last_piece_comes_in_any_order() {
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[1] ^ n.to_le_bytes()[0]).collect();
        let records = [record(&bytes, 100..2_500_000), record(&bytes, 2_500_000..3_000_000)];
        for flipped in [false, true] {
            let mut bytes = bytes.clone();
            bytes[2_000_000] ^= u8::from(flipped);
            let checks = FileChecks::new(&file(3_000_000), None, &records, &[]).unwrap();
            let (mut told, mut proven) = (Vec::new(), 0);
            for piece in (0..checks.cuts.len()).rev().chain(0..checks.cuts.len()) {
                let range = checks.cuts.range(piece).unwrap();
                let piece = checks.check(
                    piece,
                    &bytes[usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()],
                );
                match piece {
                    Ok(bytes) => proven += bytes,
                    Err(bad) => told.push(bad),
                }
            }
            assert_eq!(proven, if flipped { 500_000 } else { 3_000_000 - 100 });
            assert_eq!(told.len(), usize::from(flipped));
            assert!(told.iter().all(|bad| bad.range == (100..2_500_000) && bad.what == Differs::Record));
        }
    }

    #[test]
    fn a_piece_that_comes_again_must_be_what_it_was() {
        let bytes = vec![7_u8; 2_500_000];
        let checks = FileChecks::new(&file(2_500_000), None, &[record(&bytes, 0..2_500_000)], &[]).unwrap();
        let piece = 1 << 20;
        assert_eq!([checks.check(0, &bytes[..piece]), checks.check(0, &bytes[..piece])], [Ok(0), Ok(0)]);
        let bad = checks.check(0, &vec![8; piece]).unwrap_err();
        assert_eq!((bad.range, bad.what), (0..1 << 20, Differs::Record));
        let last = checks.check(1, &bytes[..piece]).and_then(|_| checks.check(2, &bytes[2 * piece..]));
        assert_eq!(last, Ok(2_500_000), "the first bytes count, and what came again was told");
        assert!(checks.check(2, &bytes[..1]).is_err());
    }

    #[test]
    fn pieces_are_missing_of_records_that_are_begun_or_wanted_and_of_no_others() {
        let bytes = vec![7_u8; 3_000_000];
        let records = [0..2_000_000, 2_000_000..2_500_000, 2_600_000..3_000_000].map(|it| record(&bytes, it));
        let checks = FileChecks::new(&file(3_000_000), None, &records, &[]).unwrap();
        let missing = |range: Option<Range<u64>>| checks.missing(range.as_slice()).collect::<Vec<_>>();
        assert!(missing(None).is_empty() && missing(Some(2_500_000..2_600_000)).is_empty());
        assert_eq!(missing(Some(1_999_999..2_000_001)), [0, 1, 2]);
        checks.check(1, &bytes[1 << 20..2_000_000]).unwrap();
        assert_eq!(missing(Some(2_999_999..3_000_000)), [0, 4]);
        checks.check(0, &bytes[..1 << 20]).unwrap();
        assert!(missing(Some(0..1)).is_empty());
    }

    #[test]
    fn a_block_is_judged_on_its_own() {
        let bytes = vec![7_u8; 2_500_000];
        let layout = crate::digest::BlockLayout::new(2_500_000, [1000]).unwrap();
        let table = Arc::new(table_of(&bytes, layout, 1).unwrap());
        let checks = FileChecks::new(&file(2_500_000), Some(Arc::clone(&table)), &[], &[]).unwrap();
        assert_eq!(checks.check(0, &bytes[..1000]), Ok(1000));
        let bad = checks.check(1, &vec![8; 1 << 20]).unwrap_err();
        assert_eq!((bad.range, bad.what), (1000..1000 + (1 << 20), Differs::Block));
        assert!(FileChecks::new(&file(1), Some(table), &[], &[]).is_err());
    }

    #[test]
    fn records_that_overlap_are_refused() {
        let records = [CrcRecord { offset: 0, len: 10, crc32: 0 }, CrcRecord { offset: 9, len: 2, crc32: 0 }];
        assert!(
            FileChecks::new(&file(20), None, &records, &[]).unwrap_err().to_string().contains("reaches into")
        );
    }
}
