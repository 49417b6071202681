//! The zip structures that torch archives are made of, as bytes: signatures, lengths, fields (APPNOTE 6.3.10).
//!
//! Only what [`archive`](super::archive) reads and [`layout`](super::layout) writes; nothing here does I/O.

/// Local file header: signature, and bytes before the name.
pub(super) const LOCAL: ([u8; 4], u64) = (*b"PK\x03\x04", 30);
/// Central directory entry: signature, and bytes before the name.
pub(super) const CENTRAL: ([u8; 4], usize) = (*b"PK\x01\x02", 46);
/// Data descriptor after a payload.
pub(super) const DESCRIPTOR: [u8; 4] = *b"PK\x07\x08";
/// Zip64 end of central directory: signature and length.
pub(super) const END64: ([u8; 4], u64) = (*b"PK\x06\x06", 56);
/// Locator of the former.
pub(super) const LOCATOR64: ([u8; 4], u64) = (*b"PK\x06\x07", 20);
/// End of central directory, without comment.
pub(super) const END: ([u8; 4], u64) = (*b"PK\x05\x06", 22);
/// Extra field that holds 64-bit sizes and offsets.
pub(super) const EXTRA_ZIP64: u16 = 1;
/// Extra field of padding that torch's writer uses to align payloads.
pub(super) const EXTRA_PADDING: [u8; 2] = *b"FB";
/// Flags of torch's writer: sizes follow in a data descriptor, names are UTF-8.
pub(super) const FLAGS: u16 = 0x0808;
/// Flag: a data descriptor follows the payload.
pub(super) const FLAG_DESCRIPTOR: u16 = 8;
/// Flag: the record is encrypted.
pub(super) const FLAG_ENCRYPTED: u16 = 1;
/// A 32-bit field whose value is in the zip64 extra field.
pub(super) const WIDE: u32 = u32::MAX;

/// Little-endian fields out of bytes; `None` past the end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn array<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..)?.first_chunk().copied()
    }

    pub(super) fn u16(self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_le_bytes)
    }

    pub(super) fn u32(self, at: usize) -> Option<u32> {
        self.array(at).map(u32::from_le_bytes)
    }

    pub(super) fn u64(self, at: usize) -> Option<u64> {
        self.array(at).map(u64::from_le_bytes)
    }

    pub(super) fn slice(self, at: usize, len: usize) -> Option<&'a [u8]> {
        self.0.get(at..)?.get(..len)
    }
}

/// The body of one extra field by its id; `None` when absent or cut.
pub(super) fn extra_field(extra: &[u8], id: u16) -> Option<&[u8]> {
    let mut rest = extra;
    loop {
        let fields = Fields(rest);
        let (found, len) = (fields.u16(0)?, usize::from(fields.u16(2)?));
        let body = fields.slice(4, len)?;
        if found == id {
            return Some(body);
        }
        rest = rest.get(4 + len..)?;
    }
}
