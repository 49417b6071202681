//! What a reader would hold of a manifest: added up, and bounded, before anything of it is decoded.
//!
//! Rows can be far smaller than what is held of them: a JSON `0,` is two bytes in the image and 72 in memory, a tensor without name
//! and chunks an entry of half a kilobyte. So a pass over the rows adds up what all of them together would take, rather too much than
//! too little, and an image that would take more than 64 MiB and four times its own size is refused. Who writes a manifest makes the
//! same pass over its tables: what is written, is read.

use std::mem::size_of;

use fqn::{Alias, AxisName, Entry, TensorId};
use rusqlite::{Connection, Row, types::ValueRef};
use serde_json::Value;

use super::{ManifestError, ObjectPlace};
use crate::{Chunks, FileEntry, ObjectEntry};

type Result<T> = std::result::Result<T, ManifestError>;

/// Bytes that may be held of a manifest, whatever its size, and for each byte of it.
const FREE: u64 = 64 << 20;
const TIMES: u64 = 4;

/// Bytes that are held of one row beside its texts. Lists that grow row by row have room for twice as many; objects pass from one
/// list to two.
const PER_TENSOR: u64 = (size_of::<Entry>() + size_of::<Chunks>() + 2 * size_of::<TensorId>() + 128) as u64;
const PER_FILE: u64 = 2 * size_of::<FileEntry>() as u64;
const PER_OBJECT: u64 = 4 * (size_of::<ObjectEntry>() + size_of::<ObjectPlace>()) as u64;
const PER_ALIAS: u64 = size_of::<Alias>() as u64;
const PER_CUT: u64 = 2 * size_of::<(AxisName, usize)>() as u64;
const PER_EXTENT: u64 = 2 * size_of::<u64>() as u64;
const PER_META: u64 = 6 * VALUE;

/// Bytes of a JSON value, and of an axis of the mesh.
const VALUE: u64 = size_of::<Value>() as u64;

/// What is too much about an image of so many bytes, in a sentence; `None` for one that may be decoded.
pub(super) fn excess(db: &Connection, image: u64) -> Result<Option<String>> {
    let most = FREE.saturating_add(image.saturating_mul(TIMES));
    let all = weight(db)?;
    Ok((all > most).then(|| {
        format!("its rows would take {all} bytes of memory; of {image} bytes at most {most} are taken")
    }))
}

/// Bytes that one decoded row takes.
type Weigh = fn(&Row<'_>) -> Result<u64>;

/// Bytes that the decoded rows take, all together.
pub(super) fn weight(db: &Connection) -> Result<u64> {
    let tables: [(&str, Weigh); 6] = [
        ("SELECT key, value FROM meta", |row| Ok(PER_META + text(row, 0)? + 2 * json(row, 1)?)),
        ("SELECT axis FROM mesh", |row| Ok(2 * VALUE + text(row, 0)?)),
        ("SELECT path, base, etag, blocks FROM files", |row| {
            Ok(PER_FILE + text(row, 0)? + text(row, 1)? + text(row, 2)? + text(row, 3)?)
        }),
        ("SELECT fqn, role, dtype, tie, placement, shape, fusion, length(chunks) FROM tensors", |row| {
            let names = text(row, 0)? + text(row, 1)? + text(row, 2)? + text(row, 3)?;
            let cuts = PER_CUT * count(bytes(row, 4)?, b",") + text(row, 4)?;
            let extents = PER_EXTENT * count(bytes(row, 5)?, b",");
            Ok(PER_TENSOR + names + cuts + extents + json(row, 6)? + number(row, 7)?)
        }),
        ("SELECT format, key, path FROM aliases", |row| {
            Ok(PER_ALIAS + text(row, 0)? + text(row, 1)? + path(bytes(row, 2)?))
        }),
        ("SELECT key, path, preview, length(bytes) FROM objects", |row| {
            Ok(PER_OBJECT + text(row, 0)? + json(row, 1)? + json(row, 2)? + number(row, 3)?)
        }),
    ];
    let mut all = 0_u64;
    for (query, of) in tables {
        let mut statement = db.prepare(query)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            all = all.saturating_add(of(row)?);
        }
    }
    Ok(all)
}

fn bytes<'r>(row: &'r Row<'_>, column: usize) -> Result<&'r [u8]> {
    Ok(match row.get_ref(column)? {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes,
        ValueRef::Null | ValueRef::Integer(_) | ValueRef::Real(_) => &[],
    })
}

fn text(row: &Row<'_>, column: usize) -> Result<u64> {
    Ok(bytes(row, column)?.len() as u64)
}

fn number(row: &Row<'_>, column: usize) -> Result<u64> {
    Ok(row.get::<_, Option<i64>>(column)?.map_or(0, |it| u64::try_from(it).unwrap_or(0)))
}

fn json(row: &Row<'_>, column: usize) -> Result<u64> {
    Ok(of_json(bytes(row, column)?))
}

/// What a text takes as JSON. A list has room for four values at first and for twice as many as it has at most; an entry of an object
/// is a key, a value and its place in an index. Signs within strings count as well.
fn of_json(text: &[u8]) -> u64 {
    let of = |byte: &u8| match byte {
        b'[' => 4,
        b'{' => 8,
        b',' | b':' => 2,
        _ => 0,
    };
    text.len() as u64 + VALUE * text.iter().map(of).sum::<u64>()
}

/// The same of an alias's path, which a reader keeps as long as it is: a plain list of names, as a rule.
fn path(text: &[u8]) -> u64 {
    if count(text, b"[{") > 1 {
        return of_json(text);
    }
    let values = if text.is_empty() { 0 } else { 1 + count(text, b",") };
    text.len() as u64 + VALUE * values
}

fn count(text: &[u8], any: &[u8]) -> u64 {
    text.iter().filter(|byte| any.contains(byte)).count() as u64
}
