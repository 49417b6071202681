//! A record as TFRecord files frame it: length (8 bytes, little endian), its masked checksum, the data, its masked checksum.

use super::crc32c::masked;

/// `data`, framed.
pub(super) fn framed(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let mut bytes = Vec::with_capacity(data.len() + 16);
    bytes.extend(length);
    bytes.extend(masked(&length).to_le_bytes());
    bytes.extend(data);
    bytes.extend(masked(data).to_le_bytes());
    bytes
}
