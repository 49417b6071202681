//! The chunks of one tensor as one packed column. Little-endian throughout.
//!
//! ```text
//!  column: count u32, columns u32, then `count` records of one size
//!  record: file u32, flags u32, offset u64, region offsets r × u64, region extents r × u64,
//!          strides r × u64                             only where bit 0 of `columns` is set
//!          CRC record: offset u64, length u64, CRC-32 u32, zero u32     only where bit 1 of `columns` is set
//! ```
//!
//! `r` is the tensor's rank. Bit 0 of a record's flags says that its strides are meant, bit 1 that its CRC record is; what
//! isn't meant is zero. `columns` is the union of the flags. So a list of chunks has one encoding.

use fqn::Dims;
use reshard::Region;

use crate::{Chunk, CrcRecord, FileId};

const STRIDES: u32 = 1;
const CRC: u32 = 2;
const HEADER_LEN: usize = 8;

/// The packed column of these chunks; all have the tensor's rank.
pub(super) fn pack(rank: usize, chunks: &[Chunk]) -> Option<Vec<u8>> {
    let columns = chunks.iter().fold(0, |all, chunk| all | flags_of(chunk));
    let mut out = Vec::with_capacity(HEADER_LEN + record_len(rank, columns) * chunks.len());
    out.extend(u32::try_from(chunks.len()).ok()?.to_le_bytes());
    out.extend(columns.to_le_bytes());
    for chunk in chunks {
        out.extend(chunk.file.0.to_le_bytes());
        out.extend(flags_of(chunk).to_le_bytes());
        out.extend(chunk.offset.to_le_bytes());
        put(&mut out, chunk.region.offsets());
        put(&mut out, chunk.region.extents());
        if columns & STRIDES != 0 {
            let strides = chunk.strides.clone().unwrap_or_else(|| Dims::from_elem(0, rank));
            put(&mut out, &strides);
        }
        if columns & CRC != 0 {
            let record = chunk.record.unwrap_or(CrcRecord { offset: 0, len: 0, crc32: 0 });
            put(&mut out, &[record.offset, record.len, u64::from(record.crc32)]);
        }
    }
    Some(out)
}

/// The chunks of a packed column of a tensor of this rank.
pub(super) fn unpack(rank: usize, column: &[u8]) -> Result<Vec<Chunk>, String> {
    let Some((header, body)) = column.split_first_chunk::<HEADER_LEN>() else {
        return Err(format!("{} bytes are no list of chunks", column.len()));
    };
    let [count, columns] = halves(header);
    if columns & !(STRIDES | CRC) != 0 {
        return Err(format!("chunks have columns {columns:#x}, of which not all are known"));
    }
    let len = record_len(rank, columns);
    if u64::from(count).checked_mul(len as u64) != Some(body.len() as u64) {
        return Err(format!("{count} chunks of {len} bytes in {} bytes", body.len()));
    }
    let chunks = body
        .chunks_exact(len)
        .enumerate()
        .map(|(n, record)| unpack_one(rank, columns, record).map_err(|why| format!("chunk {n}: {why}")))
        .collect::<Result<Vec<_>, _>>()?;
    if chunks.iter().fold(0, |all, chunk| all | flags_of(chunk)) != columns {
        return Err("a column that no chunk uses".to_owned());
    }
    Ok(chunks)
}

fn unpack_one(rank: usize, columns: u32, record: &[u8]) -> Result<Chunk, String> {
    let Some((head, rest)) = record.split_first_chunk::<8>() else { return Err("cut short".to_owned()) };
    let [file, flags] = halves(head);
    if flags & !columns != 0 {
        return Err(format!("flags {flags:#x} without their columns"));
    }
    let mut numbers = rest.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
    let offset = numbers.next().ok_or("cut short")?;
    let mut dims = || numbers.by_ref().take(rank).collect::<Dims>();
    let (offsets, extents) = (dims(), dims());
    let strides = if columns & STRIDES != 0 { dims() } else { Dims::new() };
    if flags & STRIDES == 0 && strides.iter().any(|&it| it != 0) {
        return Err("strides that aren't meant and aren't zero".to_owned());
    }
    let mut number = || if columns & CRC != 0 { numbers.next() } else { Some(0) };
    let (Some(start), Some(len), Some(crc)) = (number(), number(), number()) else {
        return Err("cut short".to_owned());
    };
    if flags & CRC == 0 && (start, len, crc) != (0, 0, 0) {
        return Err("a CRC that isn't meant and isn't zero".to_owned());
    }
    let crc32 = u32::try_from(crc).map_err(|_| "a CRC of more than 32 bits")?;
    Ok(Chunk {
        region: Region::new(&offsets, &extents).map_err(|why| why.to_string())?,
        file: FileId(file),
        offset,
        strides: (flags & STRIDES != 0).then_some(strides),
        record: (flags & CRC != 0).then_some(CrcRecord { offset: start, len, crc32 }),
    })
}

fn flags_of(chunk: &Chunk) -> u32 {
    let strides = if chunk.strides.is_some() { STRIDES } else { 0 };
    strides | if chunk.record.is_some() { CRC } else { 0 }
}

const fn record_len(rank: usize, columns: u32) -> usize {
    let dims = if columns & STRIDES == 0 { 2 } else { 3 };
    16 + 8 * rank * dims + if columns & CRC == 0 { 0 } else { 24 }
}

fn put(out: &mut Vec<u8>, numbers: &[u64]) {
    numbers.iter().for_each(|number| out.extend(number.to_le_bytes()));
}

fn halves(bytes: &[u8; 8]) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = *bytes;
    [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])]
}
