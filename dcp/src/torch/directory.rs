//! The central directory of an archive: found from the end of the file, checked, and turned into records.
//!
//! Invariants: every record lies wholly before the directory and overlaps no other;
//! names are unique, share one folder, and hold no path trick.

use std::collections::HashSet;

use super::error::ArchiveError;
use super::zip::{
    CENTRAL, END, END64, EXTRA_ZIP64, FLAG_ENCRYPTED, Fields, LOCAL, LOCATOR64, WIDE, extra_field,
};
use crate::read_at::ReadAt;

/// One record of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Name below the archive's folder: `data.pkl`, `data/0`.
    pub name: String,
    /// Where its local header begins, in bytes from the start of the archive.
    pub header: u64,
    /// Length of its payload in bytes.
    pub len: u64,
    /// CRC-32 of the payload as the directory tells it.
    pub crc32: u32,
    /// First byte that belongs to another record or to the directory.
    pub(super) bound: u64,
    /// Why it cannot be read in place.
    pub(super) obstacle: Option<&'static str>,
}

/// What the directory tells: the folder that all names share, and the records in file order.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) folder: String,
    pub(super) records: Vec<Record>,
}

/// Where the directory is.
#[derive(Clone, Copy, Debug)]
struct Extent {
    offset: u64,
    size: u64,
    entries: u64,
}

/// Longest comment after the end record, and the end record itself.
const TAIL: u64 = 0xffff + END.1;
/// Read first: the end records of nearly every archive, and the whole directory of a small one.
const FIRST_TAIL: u64 = 4096;

pub(super) fn read(source: &dyn ReadAt) -> Result<Directory, ArchiveError> {
    let extent = find(source)?;
    let bytes = read_range(source, extent.offset, extent.size)?;
    let mut entries = entries(&bytes, extent)?;
    entries.sort_by_key(|entry| entry.header);
    let folder = shared_folder(&entries)?;
    let mut bound = extent.offset;
    for entry in entries.iter_mut().rev() {
        let start = entry.header;
        let floor =
            start.saturating_add(LOCAL.1).saturating_add(entry.name.len() as u64).saturating_add(entry.len);
        if floor > bound {
            let why = format!("its {} bytes at {start} run into what begins at {bound}", entry.len);
            return Err(ArchiveError::record(&entry.name, why));
        }
        entry.bound = bound;
        bound = start;
    }
    for entry in &mut entries {
        entry.name.drain(..folder.len());
    }
    Ok(Directory { folder, records: entries })
}

pub(super) fn read_range(source: &dyn ReadAt, offset: u64, len: u64) -> Result<Vec<u8>, ArchiveError> {
    let end = offset.checked_add(len).filter(|end| *end <= source.len());
    let size = end.and_then(|_| usize::try_from(len).ok());
    let size = size.ok_or_else(|| {
        let why = format!("{len} bytes pass the end of the archive, which is {} bytes long", source.len());
        ArchiveError::structure("a range", offset, why)
    })?;
    let mut bytes = vec![0; size];
    source.read_exact_at(offset, &mut bytes)?;
    Ok(bytes)
}

/// Finds the directory from the end of the file.
fn find(source: &dyn ReadAt) -> Result<Extent, ArchiveError> {
    let len = source.len();
    for tail in [FIRST_TAIL, TAIL] {
        let start = len.saturating_sub(tail);
        let bytes = read_range(source, start, len - start)?;
        if let Some(at) = last_end(&bytes) {
            return extent(source, start + at as u64, Fields(bytes.get(at..).unwrap_or_default()));
        }
    }
    Err(ArchiveError::structure(
        "the end of the central directory",
        len,
        "there is none: the file is cut short, or the writer did not finish",
    ))
}

/// The last end record whose comment ends with the file.
fn last_end(bytes: &[u8]) -> Option<usize> {
    let starts = (0..=bytes.len().checked_sub(22)?).rev();
    starts.into_iter().find(|at| {
        let end = Fields(bytes.get(*at..).unwrap_or_default());
        end.array(0) == Some(END.0)
            && end.u16(20).is_some_and(|comment| at + 22 + usize::from(comment) == bytes.len())
    })
}

fn extent(source: &dyn ReadAt, at: u64, end: Fields<'_>) -> Result<Extent, ArchiveError> {
    let what = "the end of the central directory";
    let cut = || ArchiveError::structure(what, at, "it is cut short");
    let narrow = Extent {
        entries: u64::from(end.u16(10).ok_or_else(cut)?),
        size: u64::from(end.u32(12).ok_or_else(cut)?),
        offset: u64::from(end.u32(16).ok_or_else(cut)?),
    };
    if (end.u16(4), end.u16(6)) != (Some(0), Some(0)) || end.u16(8) != end.u16(10) {
        return Err(ArchiveError::structure(what, at, "it tells of several disks"));
    }
    let (extent, bound) = wide(source, at, narrow)?.unwrap_or((narrow, at));
    let ends = extent.offset.checked_add(extent.size);
    if ends != Some(bound) {
        let why =
            format!("{} bytes at {} do not end at {bound}, where it begins", extent.size, extent.offset);
        return Err(ArchiveError::structure(what, at, why));
    }
    if extent.entries.checked_mul(CENTRAL.1 as u64).is_none_or(|least| least > extent.size) {
        let why = format!("{} records do not fit into {} bytes", extent.entries, extent.size);
        return Err(ArchiveError::structure(what, at, why));
    }
    Ok(extent)
}

/// The zip64 end record, if there is one, and where it begins; what both records tell must agree.
fn wide(source: &dyn ReadAt, end_at: u64, narrow: Extent) -> Result<Option<(Extent, u64)>, ArchiveError> {
    let what = "the zip64 end of the central directory";
    let needed =
        narrow.entries == 0xffff || narrow.size == u64::from(WIDE) || narrow.offset == u64::from(WIDE);
    let locator_at = end_at.checked_sub(LOCATOR64.1);
    let locator = locator_at.map(|at| read_range(source, at, LOCATOR64.1)).transpose()?.unwrap_or_default();
    if Fields(&locator).array(0) != Some(LOCATOR64.0) {
        return if needed {
            Err(ArchiveError::structure(what, end_at, "it is needed, and not there"))
        } else {
            Ok(None)
        };
    }
    let at = Fields(&locator).u64(8).unwrap_or(u64::MAX);
    if at.checked_add(END64.1).is_none_or(|end| Some(end) != locator_at) {
        return Err(ArchiveError::structure(what, at, "it does not end where its locator begins"));
    }
    let bytes = read_range(source, at, END64.1)?;
    let end = Fields(&bytes);
    let (Some(entries), Some(size), Some(offset)) = (end.u64(32), end.u64(40), end.u64(48)) else {
        return Err(ArchiveError::structure(what, at, "it is cut short"));
    };
    if end.array(0) != Some(END64.0) || end.u64(24) != Some(entries) {
        return Err(ArchiveError::structure(what, at, "it is not one, or tells of several disks"));
    }
    let agrees = |narrow: u64, saturated: u64, wide: u64| narrow == saturated || narrow == wide;
    let all = agrees(narrow.entries, 0xffff, entries)
        && agrees(narrow.size, u64::from(WIDE), size)
        && agrees(narrow.offset, u64::from(WIDE), offset);
    if !all {
        return Err(ArchiveError::structure(what, at, "it contradicts the end record that follows"));
    }
    Ok(Some((Extent { offset, size, entries }, at)))
}

fn entries(bytes: &[u8], extent: Extent) -> Result<Vec<Record>, ArchiveError> {
    let mut records = Vec::new();
    let mut names = HashSet::new();
    let mut at = 0;
    while at < bytes.len() {
        let (record, len) = entry(Fields(bytes.get(at..).unwrap_or_default()), extent.offset + at as u64)?;
        if !names.insert(record.name.clone()) {
            return Err(ArchiveError::record(record.name, "the archive holds two records of this name"));
        }
        records.push(record);
        at += len;
    }
    if records.len() as u64 != extent.entries {
        let why = format!("it holds {} records, but {} are told", records.len(), extent.entries);
        return Err(ArchiveError::structure("the central directory", extent.offset, why));
    }
    Ok(records)
}

/// One entry and its length.
fn entry(fields: Fields<'_>, at: u64) -> Result<(Record, usize), ArchiveError> {
    let what = "an entry of the central directory";
    let cut = || ArchiveError::structure(what, at, "it is cut short or not one");
    let length = |field: usize| fields.u16(field).map(usize::from).ok_or_else(cut);
    if fields.array(0) != Some(CENTRAL.0) {
        return Err(cut());
    }
    let (name_len, extra_len, comment_len) = (length(28)?, length(30)?, length(32)?);
    let name = fields.slice(CENTRAL.1, name_len).ok_or_else(cut)?;
    let extra = fields.slice(CENTRAL.1 + name_len, extra_len).ok_or_else(cut)?;
    let total = CENTRAL.1 + name_len + extra_len + comment_len;
    fields.slice(0, total).ok_or_else(cut)?;
    let name = check_name(name, at)?;
    let [flags, method] = [fields.u16(8), fields.u16(10)].map(|f| f.unwrap_or_default());
    let obstacle = obstacle(flags, method);
    let crc32 = fields.u32(16).ok_or_else(cut)?;
    let narrow = [fields.u32(24), fields.u32(20), fields.u32(42)].map(|f| f.unwrap_or_default());
    let [len, stored, header] = widen(narrow, extra).ok_or_else(|| {
        ArchiveError::record(&name, "its zip64 field lacks a size or an offset that the entry leaves to it")
    })?;
    if obstacle.is_none() && len != stored {
        let why = format!("{stored} bytes are stored for {len}, although it is not compressed");
        return Err(ArchiveError::record(name, why));
    }
    Ok((Record { name, header, len: stored, crc32, bound: 0, obstacle }, total))
}

/// Takes saturated fields from the zip64 extra field, in its order: length, stored length, header offset.
fn widen(narrow: [u32; 3], extra: &[u8]) -> Option<[u64; 3]> {
    let wide = extra_field(extra, EXTRA_ZIP64).unwrap_or_default();
    let mut at = 0;
    let mut out = [0; 3];
    for (value, narrow) in out.iter_mut().zip(narrow) {
        *value = u64::from(narrow);
        if narrow == WIDE {
            *value = Fields(wide).u64(at)?;
            at += 8;
        }
    }
    Some(out)
}

/// Why a record with these flags and this method cannot be read in place, if so.
fn obstacle(flags: u16, method: u16) -> Option<&'static str> {
    match (flags & FLAG_ENCRYPTED, method) {
        (0, 0) => None,
        (0, 8) => Some(
            "it is compressed (deflate); torch never compresses, so the file was zipped again: load it with torch and \
             save it, or repack it with `zip -0`",
        ),
        (0, _) => Some(
            "it is compressed by a method that torch does not use; load the file with torch and save it again",
        ),
        _ => Some("it is encrypted; decrypt the file first"),
    }
}

/// A name must be UTF-8, relative, and free of what a file system or a terminal would act upon.
fn check_name(name: &[u8], at: u64) -> Result<String, ArchiveError> {
    let refuse = |why: &str| {
        let shown: String = String::from_utf8_lossy(name).chars().take(80).collect();
        Err(ArchiveError::structure("a record name", at, format!("{shown:?} {why}")))
    };
    let Ok(text) = std::str::from_utf8(name) else { return refuse("is not UTF-8") };
    if text.chars().any(|c| c.is_control() || c == '\\') {
        return refuse("holds a control character or a backslash");
    }
    if text.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return refuse("is empty, absolute, a folder, or climbs out of the archive");
    }
    Ok(text.to_owned())
}

/// The folder that all records lie in, with its slash.
fn shared_folder(records: &[Record]) -> Result<String, ArchiveError> {
    let first = records.first().ok_or(ArchiveError::Missing("data.pkl"))?;
    let folder = first.name.split_once('/').map(|(folder, _)| format!("{folder}/"));
    let folder = folder.ok_or_else(|| {
        ArchiveError::record(
            &first.name,
            "it lies in no folder; torch puts all records of an archive into one",
        )
    })?;
    match records.iter().find(|r| !r.name.starts_with(&folder)) {
        Some(other) => {
            let why = format!("it lies outside {folder:?}, the folder of the first record");
            Err(ArchiveError::record(&other.name, why))
        }
        None => Ok(folder),
    }
}
