//! What the native store reads: records, manifests, packed chunks, block tables, parts.

use dcp::commit::Record;
use dcp::digest::{BlockTable, Sha256Digest};
use dcp::manifest::Manifest;

use crate::{Target, seeds, target};

pub(crate) const TARGETS: &[Target] = &[
    Target { mend: Some(mend_record), ..target("record", record, record_seeds, RECORD) },
    Target { mend: Some(mend_image), ..target("manifest", manifest, manifest_seeds, MANIFEST) },
    target("chunks", chunks, chunk_seeds, &[]),
    target("block_table", block_table, table_seeds, &["CKPTBLKS"]),
    target("part", part, part_seeds, PART),
    target("held", held, held_seeds, PART),
];

const RECORD: &[&str] = &[
    "\"format\":2",
    "\"must_understand\":[\"x\"]",
    "\"commit\":",
    "\"retire\":",
    "\"condemn\":",
    "\"tag\":",
    "\"state\":",
    "\"prev\":null",
    "\"seq\":0",
    "18446744073709551615",
    "\\u0000",
    "\\u001b",
    "..",
    "/",
];
const MANIFEST: &[&str] =
    &["SQLite format 3", "CREATE TABLE", "CREATE VIEW", "../", "\\u001b", "[0,0]", "[18446744073709551615]"];
const PART: &[&str] =
    &["\"format\":1", "\"plan\":", "\"done\":", "\"boxes\":[", "18446744073709551615", "null"];

/// A record of the commit log.
#[must_use]
pub fn record(data: &[u8]) -> bool {
    Record::decode("record", data).is_ok()
}

/// The image of a manifest, packed chunks and all.
#[must_use]
pub fn manifest(data: &[u8]) -> bool {
    Manifest::decode_unnamed(data).is_ok()
}

/// The packed chunks of one tensor; the first byte is its rank.
#[must_use]
pub fn chunks(data: &[u8]) -> bool {
    data.split_first().is_some_and(|(rank, column)| dcp::parsers::chunks(usize::from(*rank % 9), column))
}

/// A block table.
#[must_use]
pub fn block_table(data: &[u8]) -> bool {
    BlockTable::parse(data).is_ok()
}

/// A writer's note.
#[must_use]
pub fn part(data: &[u8]) -> bool {
    dcp::parsers::part(data)
}

/// A writer's note of what it holds and does not write.
#[must_use]
pub fn held(data: &[u8]) -> bool {
    dcp::parsers::held(data)
}

fn record_seeds() -> Vec<Vec<u8>> {
    seeds::files("native/v1", |path| path.contains("/commits/"))
}

fn manifest_seeds() -> Vec<Vec<u8>> {
    seeds::files("native/v1", |path| path.contains("/manifest-"))
}

fn table_seeds() -> Vec<Vec<u8>> {
    seeds::files("native/v1", |path| path.ends_with(".blocks"))
}

fn part_seeds() -> Vec<Vec<u8>> {
    seeds::files("native/v1", |path| path.contains("/parts/"))
}

fn held_seeds() -> Vec<Vec<u8>> {
    let zero = "0".repeat(32);
    let boxes = format!("[[0,{{\"offsets\":[0],\"extents\":[4]}},\"{zero}\"]]");
    let plan = "0".repeat(64);
    seeds::texts(&[
        &format!("{{\"format\":1,\"plan\":\"{plan}\",\"boxes\":[]}}"),
        &format!("{{\"format\":1,\"plan\":\"{plan}\",\"boxes\":{boxes}}}"),
    ])
}

/// Two columns: one chunk of a matrix, and one with strides and a CRC.
fn chunk_seeds() -> Vec<Vec<u8>> {
    let column = |columns: u32, numbers: &[u64]| {
        let mut bytes = vec![2];
        bytes.extend(1_u32.to_le_bytes());
        bytes.extend(columns.to_le_bytes());
        bytes.extend(0_u32.to_le_bytes());
        bytes.extend(columns.to_le_bytes());
        numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        bytes
    };
    vec![column(0, &[64, 0, 0, 4, 8]), column(3, &[64, 0, 0, 4, 8, 1, 4, 64, 64, 12_345])]
}

/// Gives a record the check that fits it.
fn mend_record(mut bytes: Vec<u8>) -> Vec<u8> {
    let Some(at) = bytes.len().checked_sub(77) else { return bytes };
    bytes.truncate(at);
    let check = Sha256Digest::of(&bytes);
    bytes.extend(format!(",\"check\":\"{check}\"}}\n").into_bytes());
    bytes
}

/// Gives an image the header of a manifest, and whole pages.
fn mend_image(mut bytes: Vec<u8>) -> Vec<u8> {
    const PAGE: usize = 4096;
    let pages = bytes.len().div_ceil(PAGE).max(1);
    bytes.resize(pages * PAGE, 0);
    let Some(seed) = manifest_seeds().into_iter().next() else { return bytes };
    let count = u32::try_from(pages).unwrap_or(1).to_be_bytes();
    for (to, from) in bytes.iter_mut().zip(seed).take(100) {
        *to = from;
    }
    for (to, from) in bytes.iter_mut().skip(28).zip(count) {
        *to = from;
    }
    bytes
}
