//! What the native store reads: records, head hints, manifests, packed chunks, block tables, parts.

use std::time::Duration;

use dcp::commit::{Action, Log, LogOptions, Record, Seq, Tag};
use dcp::digest::{BlockTable, Sha256Digest};
use dcp::manifest::Manifest;
use dcp::store::{Root, Stores, object_path};

use crate::{Target, seeds, target};

pub(crate) const TARGETS: &[Target] = &[
    Target { mend: Some(mend_record), ..target("record", record, record_seeds, RECORD) },
    Target { mend: Some(mend_image), ..target("manifest", manifest, manifest_seeds, MANIFEST) },
    target("chunks", chunks, chunk_seeds, &[]),
    target("block_table", block_table, table_seeds, &["CKPTBLKS"]),
    Target { mend: Some(mend_hint), ..target("head_hint", head_hint, hint_seeds, HINT) },
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
const HINT: &[&str] = &[
    "CKPTHEAD",
    "\"must_understand\":[\"x\"]",
    "\"checkpoints\":[",
    "\"runs\":[]",
    "\"newest\":null",
    "\"state\":{",
    "18446744073709551615",
    "\\u0000",
    "..",
    "null",
];
const MANIFEST: &[&str] =
    &["SQLite format 3", "CREATE TABLE", "CREATE VIEW", "../", "\\u001b", "[0,0]", "[18446744073709551615]"];
const PART: &[&str] =
    &["\"format\":1", "\"plan\":", "\"done\":", "\"boxes\":[", "18446744073709551615", "null"];

/// The bytes of a hint before its frame: magic, version, length.
const HINT_HEAD: usize = 20;

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

/// The head hint of a log.
#[must_use]
pub fn head_hint(data: &[u8]) -> bool {
    dcp::parsers::head_hint(data)
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

/// A hint after a commit, and one that repeats that commit; then both with their JSON as it is, which mending makes a frame of.
fn hint_seeds() -> Vec<Vec<u8>> {
    let framed: Vec<Vec<u8>> = hints().unwrap_or_default();
    let plain = framed.iter().filter_map(|hint| {
        let (head, rest) = hint.split_at_checked(HINT_HEAD)?;
        let json = unframed(rest.get(..rest.len().checked_sub(32)?)?)?;
        Some([head, &json, &[0; 32]].concat())
    });
    framed.iter().cloned().chain(plain).collect()
}

fn hints() -> Option<Vec<Vec<u8>>> {
    let (root, path) =
        (Root::create("memory://hints", &Stores::new()).ok()?, object_path("commits/head").ok()?);
    let options = LogOptions { hint_every: Some(Duration::ZERO), ..LogOptions::default() };
    let mut log = Log::open_with(&root, options).ok()?;
    let record = record_seeds().into_iter().find_map(|seed| Record::decode("a seed", &seed).ok())?;
    let tag = Action::Tag(Tag { name: "best".parse().ok()?, checkpoint: Seq::FIRST });
    let mut hints = Vec::new();
    for action in [record.action, tag] {
        let draft = log.draft(&record.run, action).ok()?;
        log.append(&draft).ok()?;
        hints.push(root.get(&path).ok()?.to_vec());
    }
    Some(hints)
}

/// What a zstd frame holds, if it is one and small.
fn unframed(frame: &[u8]) -> Option<Vec<u8>> {
    zstd::bulk::decompress(frame, 1 << 20).ok()
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

/// Gives a hint a frame, the length of what it holds, and the digest that fits.
fn mend_hint(mut bytes: Vec<u8>) -> Vec<u8> {
    let Some(end) = bytes.len().checked_sub(32).filter(|end| *end >= HINT_HEAD) else { return bytes };
    bytes.truncate(end);
    let rest = bytes.split_off(HINT_HEAD);
    let (json, frame) = match unframed(&rest) {
        Some(json) => (json.len(), rest),
        None => (rest.len(), zstd::bulk::compress(&rest, 1).unwrap_or_default()),
    };
    bytes.truncate(HINT_HEAD - 8);
    bytes.extend((json as u64).to_le_bytes());
    bytes.extend(frame);
    let digest = Sha256Digest::of(&bytes);
    bytes.extend(digest.as_bytes());
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
