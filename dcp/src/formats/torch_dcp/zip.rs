//! The directory of an entry's archive: names, places and checksums of its few records.
//!
//! Invariants: nothing is compressed; each record lies in the archive; a name has the archive's own folder taken off.

use crate::{Error, Result, read_at::ReadAt};

/// End record: signature, counts, size and offset of the directory, comment.
const END: &[u8; 4] = b"PK\x05\x06";
const END_LEN: u64 = 22;
/// Longest directory of an entry; torch's has seven records of about 60 bytes.
const MOST_DIRECTORY: u64 = 1 << 20;

/// A record.
#[derive(Debug, Clone)]
pub(super) struct Record {
    name: String,
    /// Offset of its local header.
    header: u64,
    pub(super) len: u64,
    pub(super) crc32: u32,
}

/// The records of an archive.
#[derive(Debug)]
pub(super) struct Directory(Vec<Record>);

impl Directory {
    /// Reads the central directory at the archive's end.
    pub(super) fn read(source: &dyn ReadAt) -> Result<Self> {
        let len = source.len();
        let end_at = len.checked_sub(END_LEN).ok_or_else(|| bad("too short"))?;
        let end = bytes_at(source, end_at, END_LEN)?;
        if !end.starts_with(END) {
            return Err(bad("no end record where the archive ends"));
        }
        let (mut size, mut offset) = (u64::from(u32_at(&end, 12)?), u64::from(u32_at(&end, 16)?));
        // Torch always writes the zip64 records too; they count when the small fields overflow.
        if size == u64::from(u32::MAX) || offset == u64::from(u32::MAX) {
            let locator =
                bytes_at(source, end_at.checked_sub(20).ok_or_else(|| bad("no zip64 locator"))?, 20)?;
            let record = bytes_at(source, u64_at(&locator, 8)?, 56)?;
            if !locator.starts_with(b"PK\x06\x07") || !record.starts_with(b"PK\x06\x06") {
                return Err(bad("no zip64 end record"));
            }
            (size, offset) = (u64_at(&record, 40)?, u64_at(&record, 48)?);
        }
        if size > MOST_DIRECTORY {
            return Err(bad("a directory of more than a mebibyte"));
        }
        let directory = bytes_at(source, offset, size)?;
        let (mut records, mut at) = (Vec::new(), 0);
        while at < directory.len() {
            let (record, next) = central(&directory, at)?;
            records.push(record);
            at = next;
        }
        Ok(Self(records))
    }

    /// The record called `name` in the archive's folder.
    pub(super) fn record(&self, name: &str) -> Result<&Record> {
        let found =
            self.0.iter().find(|record| record.name.split_once('/').is_some_and(|(_, inner)| inner == name));
        found.ok_or_else(|| bad(&format!("no record {name}")))
    }

    /// Whether checksums were written: all of them are zero where they were switched off.
    pub(super) fn has_checksums(&self) -> bool {
        self.0.iter().any(|record| record.crc32 != 0)
    }
}

/// One central header at `at`, and where the next begins.
fn central(all: &[u8], at: usize) -> Result<(Record, usize)> {
    let header = all.get(at..).unwrap_or_default();
    if !header.starts_with(b"PK\x01\x02") {
        return Err(bad("a damaged directory"));
    }
    if u16_at(header, 10)? != 0 {
        return Err(bad("a compressed record, which torch never writes"));
    }
    let (name_len, extra_len) = (usize::from(u16_at(header, 28)?), usize::from(u16_at(header, 30)?));
    let name_end = 46_usize.saturating_add(name_len);
    let name = header.get(46..name_end).and_then(|name| std::str::from_utf8(name).ok());
    let extra =
        header.get(name_end..name_end.saturating_add(extra_len)).ok_or_else(|| bad("a cut directory"))?;
    let mut wide = zip64(extra);
    // In the order of the zip64 field: uncompressed size, stored size, offset.
    let mut field = |at| match u64::from(u32_at(header, at)?) {
        small if small != u64::from(u32::MAX) => Ok(small),
        _ => wide.next().ok_or_else(|| bad("a zip64 record without its sizes")),
    };
    let (len, stored, offset) = (field(24)?, field(20)?, field(42)?);
    if len != stored {
        return Err(bad("a record whose sizes differ, though nothing is compressed"));
    }
    let name = name.ok_or_else(|| bad("a name that is no text"))?.to_owned();
    let comment = usize::from(u16_at(header, 32)?);
    let next = at.saturating_add(name_end).saturating_add(extra_len).saturating_add(comment);
    Ok((Record { name, header: offset, len, crc32: u32_at(header, 16)? }, next))
}

/// The 64-bit numbers of the zip64 extra field, in order.
fn zip64(mut extra: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let mut found: &[u8] = &[];
    while let (Ok(id), Ok(len)) = (u16_at(extra, 0), u16_at(extra, 2)) {
        let end = 4_usize.saturating_add(usize::from(len));
        if id == 1 {
            found = extra.get(4..end).unwrap_or_default();
        }
        extra = extra.get(end..).unwrap_or_default();
    }
    found.chunks_exact(8).filter_map(|eight| eight.try_into().ok().map(u64::from_le_bytes))
}

/// Where a record's bytes begin: after its local header, whose padding the directory does not tell.
pub(super) fn payload_offset(source: &dyn ReadAt, record: &Record) -> Result<u64> {
    let local = bytes_at(source, record.header, 30)?;
    if !local.starts_with(b"PK\x03\x04") {
        return Err(bad("a record without its header"));
    }
    let after =
        u64::from(u16_at(&local, 26)?).saturating_add(u64::from(u16_at(&local, 28)?)).saturating_add(30);
    let start = record.header.checked_add(after).ok_or_else(|| bad("an offset beyond 64 bits"))?;
    let end = start.checked_add(record.len).filter(|end| *end <= source.len());
    end.map(|_| start).ok_or_else(|| bad("a record that passes the archive's end"))
}

fn bytes_at(source: &dyn ReadAt, offset: u64, len: u64) -> Result<Vec<u8>> {
    if offset.checked_add(len).is_none_or(|end| end > source.len()) {
        return Err(bad("an offset beyond its end"));
    }
    let mut bytes = vec![0; usize::try_from(len).map_err(|_| bad("too long"))?];
    source.read_exact_at(offset, &mut bytes)?;
    Ok(bytes)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N]> {
    let part = bytes.get(at..).and_then(|rest| rest.first_chunk::<N>());
    part.copied().ok_or_else(|| bad("a cut record"))
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16> {
    array(bytes, at).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32> {
    array(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64> {
    array(bytes, at).map(u64::from_le_bytes)
}

fn bad(why: &str) -> Error {
    Error::corrupt(format!("not a whole torch archive: {why}"))
}
