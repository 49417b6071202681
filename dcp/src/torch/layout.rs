//! Where every byte of a torch archive goes, before any payload is at hand.
//!
//! The sizes of all storages are known when a write is planned, so the whole archive is laid out first: payloads
//! are then written by anyone, in any order, at their offsets, and their CRC-32s come in at the end. Records, flags,
//! padding and order are those of torch 2.13's own writer, byte for byte, but for the serialization id (an opaque
//! digest of names and CRCs).
//!
//! ```text
//!  head()  local headers, data.pkl and the small records before the payloads
//!  ······  payload i at payload_offset(i), 64-byte aligned
//!  tail()  a descriptor after each payload; version, id, central directory, end records
//! ```

use bytes::Bytes;

use super::error::ArchiveError;
use super::zip::{
    CENTRAL, DESCRIPTOR, END, END64, EXTRA_PADDING, EXTRA_ZIP64, FLAG_DESCRIPTOR, FLAGS, LOCAL, LOCATOR64,
    WIDE,
};

/// Alignment of payloads, in bytes from the start of the archive.
pub const ALIGNMENT: u64 = 64;

/// Decimal digits of the serialization id.
const ID_DIGITS: u64 = 40;

/// The layout of one archive.
#[derive(Debug)]
pub struct ArchiveLayout {
    records: Vec<Placed>,
    storages: usize,
    directory_at: u64,
    directory_len: u64,
}

impl ArchiveLayout {
    /// Lays out an archive in `folder` that holds `pickle` as its `data.pkl`, and storage `i`, of `storages[i]`
    /// bytes, as `data/<i>`.
    ///
    /// # Errors
    /// A folder name that would be no plain path segment, and sizes that together pass 2^63 bytes.
    pub fn new(folder: &str, pickle: Bytes, storages: &[u64]) -> Result<Self, ArchiveError> {
        if folder.is_empty()
            || folder.len() > 255
            || matches!(folder, "." | "..")
            || !folder.chars().all(is_plain)
        {
            return Err(ArchiveError::record(folder, "it is no plain folder name"));
        }
        let total = storages.iter().try_fold(0_u64, |sum, len| sum.checked_add(*len));
        if total.is_none_or(|sum| sum > i64::MAX.cast_unsigned()) {
            return Err(ArchiveError::record(folder, "its storages together pass 2^63 bytes"));
        }
        let mut layout =
            Self { records: Vec::new(), storages: storages.len(), directory_at: 0, directory_len: 0 };
        let mut add =
            |name: &str, body: Body| layout.records.push(Placed::place(folder, name, body, &layout.records));
        add("data.pkl", Body::Inline(pickle));
        add(".format_version", Body::Inline(Bytes::from_static(b"1")));
        add(".storage_alignment", Body::Inline(Bytes::from_static(b"64")));
        add("byteorder", Body::Inline(Bytes::from_static(b"little")));
        for (i, len) in storages.iter().enumerate() {
            add(&format!("data/{i}"), Body::Payload(*len));
        }
        add("version", Body::Inline(Bytes::from_static(b"3\n")));
        add(".data/serialization_id", Body::SerializationId);
        layout.directory_at = layout.records.last().map_or(0, Placed::end);
        layout.directory_len =
            layout.records.iter().map(|r| CENTRAL.1 as u64 + r.name.len() as u64 + r.wide_extra()).sum();
        Ok(layout)
    }

    /// Length of the archive in bytes.
    #[must_use]
    pub fn total_len(&self) -> u64 {
        self.directory_at + self.directory_len + END64.1 + LOCATOR64.1 + END.1
    }

    /// Where the bytes of storage `index` go, from the start of the archive.
    #[must_use]
    pub fn payload_offset(&self, index: usize) -> Option<u64> {
        self.payloads().nth(index).map(Placed::payload_at)
    }

    /// Where the bytes of each storage go, in their order.
    pub fn payload_offsets(&self) -> impl Iterator<Item = u64> + '_ {
        self.payloads().map(Placed::payload_at)
    }

    fn payloads(&self) -> impl Iterator<Item = &Placed> {
        self.records.iter().filter(|r| matches!(r.body, Body::Payload(_)))
    }

    /// All that can be written before any payload is: pieces and their offsets, in order.
    #[must_use]
    pub fn head(&self) -> Vec<(u64, Bytes)> {
        let mut pieces: Vec<(u64, Vec<u8>)> = Vec::new();
        for record in &self.records {
            let bytes = match &record.body {
                Body::Inline(body) => {
                    [record.local(), body.to_vec(), record.descriptor(crc32fast::hash(body))].concat()
                }
                Body::Payload(_) | Body::SerializationId => record.local(),
            };
            match pieces.last_mut() {
                Some((at, last)) if *at + last.len() as u64 == record.header_at => last.extend(bytes),
                _ => pieces.push((record.header_at, bytes)),
            }
        }
        pieces.into_iter().map(|(at, bytes)| (at, Bytes::from(bytes))).collect()
    }

    /// All that depends on the CRC-32s of the storages, given in their order: pieces and their offsets, in order.
    ///
    /// # Errors
    /// As many CRCs as there are storages are needed.
    pub fn tail(&self, crcs: &[u32]) -> Result<Vec<(u64, Bytes)>, ArchiveError> {
        if crcs.len() != self.storages {
            let why = format!("{} CRCs are given for {} storages", crcs.len(), self.storages);
            return Err(ArchiveError::record("data", why));
        }
        let id = self.serialization_id(crcs);
        let mut given = crcs.iter().copied();
        let mut pieces = Vec::new();
        let mut directory = Vec::new();
        for record in &self.records {
            let crc = match &record.body {
                Body::Inline(body) => crc32fast::hash(body),
                Body::SerializationId => {
                    pieces.push((record.payload_at(), Bytes::copy_from_slice(id.as_bytes())));
                    crc32fast::hash(id.as_bytes())
                }
                Body::Payload(_) => given.next().unwrap_or_default(),
            };
            if !matches!(record.body, Body::Inline(_)) {
                let at = record.payload_at() + record.body.len();
                pieces.push((at, Bytes::from(record.descriptor(crc))));
            }
            directory.extend(record.central(crc));
        }
        directory.extend(self.end());
        pieces.push((self.directory_at, Bytes::from(directory)));
        Ok(pieces)
    }

    /// Digits that differ when any name or CRC does, as torch's do; only equality of two files means anything.
    fn serialization_id(&self, crcs: &[u32]) -> String {
        let names = self.records.iter().flat_map(|r| r.name.bytes().chain([0]));
        let inline = self.records.iter().filter_map(|r| match &r.body {
            Body::Inline(body) => Some(crc32fast::hash(body)),
            _ => None,
        });
        let sums = inline.chain(crcs.iter().copied()).flat_map(u32::to_le_bytes);
        format!("{:020}{:020}", fnv1a(names), fnv1a(sums))
    }

    /// Zip64 end record, its locator, and the end record. Torch always writes all three.
    fn end(&self) -> Vec<u8> {
        let count = self.records.len() as u64;
        let mut out = Vec::new();
        out.extend(END64.0);
        out.extend((END64.1 - 12).to_le_bytes());
        // Version made by (Unix, 3.0) and version needed (4.5).
        out.extend([0x1e, 0x03, 0x2d, 0x00]);
        out.extend([0; 8]);
        for value in [count, count, self.directory_len, self.directory_at] {
            out.extend(value.to_le_bytes());
        }
        out.extend(LOCATOR64.0);
        out.extend([0; 4]);
        out.extend((self.directory_at + self.directory_len).to_le_bytes());
        out.extend(1_u32.to_le_bytes());
        out.extend(END.0);
        out.extend([0; 4]);
        let short_count = u16::try_from(count).unwrap_or(u16::MAX);
        out.extend(short_count.to_le_bytes());
        out.extend(short_count.to_le_bytes());
        out.extend(saturate(self.directory_len).to_le_bytes());
        out.extend(saturate(self.directory_at).to_le_bytes());
        out.extend([0; 2]);
        out
    }
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')
}

/// A 32-bit field, or the mark that the zip64 field holds the value.
fn saturate(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(WIDE)
}

fn fnv1a(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// What a record holds.
#[derive(Debug)]
enum Body {
    /// Known now.
    Inline(Bytes),
    /// A storage of this many bytes, to be written by somebody else.
    Payload(u64),
    /// The digits that depend on all CRCs.
    SerializationId,
}

impl Body {
    fn len(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Payload(len) => *len,
            Self::SerializationId => ID_DIGITS,
        }
    }
}

/// A record and where it goes.
#[derive(Debug)]
struct Placed {
    name: String,
    header_at: u64,
    /// Bytes of padding within the local header.
    padding: u64,
    body: Body,
}

impl Placed {
    /// Places a record after those `before` it.
    fn place(folder: &str, name: &str, body: Body, before: &[Self]) -> Self {
        let header_at = before.last().map_or(0, Self::end);
        let mut placed = Self { name: format!("{folder}/{name}"), header_at, padding: 0, body };
        let unaligned = placed.payload_at();
        placed.padding = unaligned.next_multiple_of(ALIGNMENT) - unaligned;
        placed
    }

    /// Bytes of the zip64 extra field: two sizes where they need 64 bits, the offset where it does.
    fn wide_extra(&self) -> u64 {
        let sizes = if self.body.len() >= u64::from(WIDE) { 16 } else { 0 };
        let offset = if self.header_at >= u64::from(WIDE) { 8 } else { 0 };
        if sizes + offset == 0 { 0 } else { 4 + sizes + offset }
    }

    fn payload_at(&self) -> u64 {
        self.header_at + LOCAL.1 + self.name.len() as u64 + self.wide_extra() + 4 + self.padding
    }

    fn end(&self) -> u64 {
        let descriptor = match (self.is_empty(), self.wide_extra()) {
            (true, _) => 0,
            (_, 0) => 16,
            _ => 24,
        };
        self.payload_at() + self.body.len() + descriptor
    }

    fn is_empty(&self) -> bool {
        self.body.len() == 0
    }

    /// A record without bytes has no descriptor: its CRC and sizes are the zeros of its header.
    fn flags(&self) -> u16 {
        if self.is_empty() { FLAGS & !FLAG_DESCRIPTOR } else { FLAGS }
    }

    fn wide_field(&self) -> Vec<u8> {
        let mut values = Vec::new();
        if self.body.len() >= u64::from(WIDE) {
            values.extend([self.body.len(); 2]);
        }
        if self.header_at >= u64::from(WIDE) {
            values.push(self.header_at);
        }
        let mut out = Vec::new();
        if !values.is_empty() {
            out.extend(EXTRA_ZIP64.to_le_bytes());
            out.extend(short(8 * values.len() as u64));
            out.extend(values.into_iter().flat_map(u64::to_le_bytes));
        }
        out
    }

    /// Local header with name and extra fields; sizes and CRC are left to the descriptor.
    fn local(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(LOCAL.0);
        out.extend([0; 2]);
        out.extend(self.flags().to_le_bytes());
        out.extend([0; 18]);
        out.extend(short(self.name.len() as u64));
        out.extend(short(self.wide_extra() + 4 + self.padding));
        out.extend(self.name.as_bytes());
        out.extend(self.wide_field());
        out.extend(EXTRA_PADDING);
        out.extend(short(self.padding));
        out.extend((0..self.padding).map(|_| b'Z'));
        out
    }

    fn descriptor(&self, crc: u32) -> Vec<u8> {
        let mut out = Vec::new();
        if self.is_empty() {
            return out;
        }
        out.extend(DESCRIPTOR);
        out.extend(crc.to_le_bytes());
        for _ in 0..2 {
            if self.wide_extra() > 0 {
                out.extend(self.body.len().to_le_bytes());
            } else {
                out.extend(saturate(self.body.len()).to_le_bytes());
            }
        }
        out
    }

    fn central(&self, crc: u32) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(CENTRAL.0);
        out.extend([0; 4]);
        out.extend(self.flags().to_le_bytes());
        out.extend([0; 6]);
        out.extend(crc.to_le_bytes());
        out.extend(saturate(self.body.len()).to_le_bytes());
        out.extend(saturate(self.body.len()).to_le_bytes());
        out.extend(short(self.name.len() as u64));
        out.extend(short(self.wide_extra()));
        out.extend([0; 10]);
        out.extend(saturate(self.header_at).to_le_bytes());
        out.extend(self.name.as_bytes());
        out.extend(self.wide_field());
        out
    }
}

/// A 16-bit length; names and extra fields are far shorter.
fn short(len: u64) -> [u8; 2] {
    u16::try_from(len).unwrap_or(u16::MAX).to_le_bytes()
}
