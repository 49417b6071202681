//! Reads torch's zip archives in place, by byte range.
//!
//! An archive is a folder of records: `data.pkl`, the structure; `data/<key>`, one per storage; and a few small
//! ones. Nothing is inflated and nothing is mapped. Opening reads the directory only; the local header of a
//! record is read, and compared with the directory, when its payload is first asked for.

use std::collections::HashMap;
use std::sync::Arc;

use super::directory::{self, Directory, Record, read_range};
use super::error::ArchiveError;
use super::kind;
use super::zip::{Fields, LOCAL};
use crate::read_at::{ReadAt, Section};

/// What the CRC-32s of an archive are worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrcState {
    /// They were computed when the archive was written.
    Recorded,
    /// All are zero: the writer was told not to compute them (`set_crc32_options(False)`).
    Disabled,
}

/// An opened archive.
#[derive(Debug)]
pub struct Archive {
    source: Arc<dyn ReadAt>,
    folder: String,
    records: Vec<Record>,
    by_name: HashMap<String, usize>,
    crc: CrcState,
}

/// Bytes read at once when a record is streamed.
const PIECE: usize = 1 << 20;

/// Longest `byteorder` or `version` record that could make sense, in bytes.
const SMALL: u64 = 64;

impl Archive {
    /// Opens the archive that fills `source`.
    ///
    /// # Errors
    /// [`ArchiveError::NotAnArchive`] for anything else, with what it is and what to do; and everything that is
    /// wrong with the archive's directory.
    pub fn open(source: Arc<dyn ReadAt>) -> Result<Self, ArchiveError> {
        kind::expect_zip(&*source)?;
        let Directory { folder, records } = directory::read(&*source)?;
        let by_name: HashMap<String, usize> =
            records.iter().enumerate().map(|(i, r)| (r.name.clone(), i)).collect();
        kind::expect_checkpoint(|name| by_name.contains_key(name))?;
        if let Some((record, why)) = records.iter().find_map(|r| r.obstacle.map(|why| (r, why))) {
            return Err(ArchiveError::record(&record.name, why));
        }
        let disabled = records.iter().all(|r| r.crc32 == 0) && records.iter().any(|r| r.len > 0);
        let crc = if disabled { CrcState::Disabled } else { CrcState::Recorded };
        Ok(Self { source, folder, records, by_name, crc })
    }

    /// The folder that all records lie in, with its slash: `archive/`.
    #[must_use]
    pub fn folder(&self) -> &str {
        &self.folder
    }

    /// All records, in file order.
    #[must_use]
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// The record of this name, without the archive's folder.
    #[must_use]
    pub fn record(&self, name: &str) -> Option<&Record> {
        self.by_name.get(name).and_then(|i| self.records.get(*i))
    }

    /// Whether CRC-32s were computed when it was written.
    #[must_use]
    pub fn crc_state(&self) -> CrcState {
        self.crc
    }

    /// Where a record's payload begins, in bytes from the start of the archive.
    ///
    /// # Errors
    /// A local header that is not there, or whose name or extent contradicts the directory.
    pub fn payload_offset(&self, record: &Record) -> Result<u64, ArchiveError> {
        let full = format!("{}{}", self.folder, record.name);
        let head = read_range(&*self.source, record.header, LOCAL.1 + full.len() as u64)?;
        let fields = Fields(&head);
        let refuse = |why: &str| {
            ArchiveError::record(&record.name, format!("{why} (local header at {})", record.header))
        };
        if fields.array(0) != Some(LOCAL.0) {
            return Err(refuse("the directory points to something that is not its header"));
        }
        let (name_len, extra_len) = (fields.u16(26).unwrap_or_default(), fields.u16(28).unwrap_or_default());
        let name = head.get(head.len().saturating_sub(full.len())..);
        if usize::from(name_len) != full.len() || name != Some(full.as_bytes()) {
            return Err(refuse("its header bears another name than the directory"));
        }
        let offset = record.header + LOCAL.1 + u64::from(name_len) + u64::from(extra_len);
        if offset.checked_add(record.len).is_none_or(|end| end > record.bound) {
            return Err(refuse("its payload runs into the next record"));
        }
        Ok(offset)
    }

    /// A record's payload, as a source of its own.
    ///
    /// # Errors
    /// As [`Archive::payload_offset`].
    pub fn section(&self, record: &Record) -> Result<Section, ArchiveError> {
        let offset = self.payload_offset(record)?;
        Ok(Section::new(Arc::clone(&self.source), offset, record.len)?)
    }

    /// Streams a record's payload through `each` and compares its CRC-32, unless CRCs are
    /// [disabled](CrcState::Disabled). Returns the CRC-32 found.
    ///
    /// # Errors
    /// [`ArchiveError::Crc`], which names the record; and as [`Archive::payload_offset`].
    pub fn check(&self, record: &Record, mut each: impl FnMut(&[u8])) -> Result<u32, ArchiveError> {
        let offset = self.payload_offset(record)?;
        let mut hasher = crc32fast::Hasher::new();
        let mut buffer = vec![0; PIECE.min(usize::try_from(record.len).unwrap_or(PIECE))];
        let (mut at, mut left) = (offset, record.len);
        while left > 0 {
            let size = buffer.len().min(usize::try_from(left).unwrap_or(PIECE));
            let Some(piece) = buffer.get_mut(..size) else { break };
            self.source.read_exact_at(at, piece)?;
            hasher.update(piece);
            each(piece);
            (at, left) = (at + size as u64, left - size as u64);
        }
        let found = hasher.finalize();
        if self.crc == CrcState::Recorded && found != record.crc32 {
            let (record, len, stored) = (record.name.clone(), record.len, record.crc32);
            return Err(ArchiveError::Crc { record, offset, len, stored, found });
        }
        Ok(found)
    }

    /// Reads a whole record of at most `limit` bytes, checked against its CRC-32.
    ///
    /// # Errors
    /// [`ArchiveError::Missing`], a record longer than `limit`, and as [`Archive::check`].
    pub fn read(&self, name: &'static str, limit: u64) -> Result<Vec<u8>, ArchiveError> {
        let record = self.record(name).ok_or(ArchiveError::Missing(name))?;
        if record.len > limit {
            let why = format!("it is {} bytes long; at most {limit} are read at once", record.len);
            return Err(ArchiveError::record(name, why));
        }
        let mut bytes = Vec::new();
        self.check(record, |piece| bytes.extend_from_slice(piece))?;
        Ok(bytes)
    }

    /// The bytes of `data.pkl`, after the archive's byte order has been checked.
    ///
    /// # Errors
    /// An archive written on a big-endian machine, and as [`Archive::read`].
    pub fn data_pickle(&self, limit: u64) -> Result<Vec<u8>, ArchiveError> {
        self.check_byte_order()?;
        self.read("data.pkl", limit)
    }

    /// Storages are in the byte order of the machine that wrote them, and only little-endian is read here.
    fn check_byte_order(&self) -> Result<(), ArchiveError> {
        // Absent before torch 2.1.
        if self.record("byteorder").is_none() {
            return Ok(());
        }
        let order = self.read("byteorder", SMALL)?;
        match order.trim_ascii() {
            b"little" => Ok(()),
            b"big" => Err(ArchiveError::record(
                "byteorder",
                "the archive was written on a big-endian machine; load it with torch on a little-endian one and save it again",
            )),
            _ => Err(ArchiveError::record("byteorder", "it says neither \"little\" nor \"big\"")),
        }
    }
}
