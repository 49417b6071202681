//! Inputs of a million small things: they lie about nothing, and cost a reader that takes a kilobyte for each of them a gigabyte.

use dcp::manifest::Manifest;
use dcp::{Catalog, Chunks, Encoding, FileEntry, Format, Location, ObjectEntry, ReshardRule};
use fqn::{Alias, Dtype, Entry, Fqn, FusionPart, Role, Shape};
use serde_json::Value;

use crate::training::Outcome;

type Input = (&'static str, Vec<u8>, fn(&[u8]) -> bool);

/// Each with so many things in it.
pub(super) fn inputs(count: u64) -> Outcome<Vec<Input>> {
    Ok(vec![
        ("tensors of no bytes", tensors(count)?, parsers::manifest),
        ("values of facts", facts(count)?, parsers::manifest),
        ("lists in a preview", previews(count)?, parsers::manifest),
        ("names of a tensor", names(count, 0)?, parsers::manifest),
        ("paths of names", names(count / 10, 10)?, parsers::manifest),
        ("parts of a tensor", parts(count / 10)?, parsers::manifest),
        ("files of no bytes", files(count)?, parsers::manifest),
        ("header of no bytes", header(count), parsers::safetensors_header),
        ("numbers in a pickle", pickle(count), parsers::pickle),
        ("lists in a pickle", lists(count), parsers::pickle),
        ("names in an index", index(count), parsers::hf_index),
        ("rules", rules(count / 100), parsers::rules),
    ])
}

fn tensors(count: u64) -> Outcome<Vec<u8>> {
    let mut catalog = Catalog::new(Format::Native);
    for at in 0..count {
        catalog.push(entry(&format!("w{at}"))?, Chunks::default())?;
    }
    image(catalog)
}

fn entry(name: &str) -> Outcome<Entry> {
    Ok(Entry::new(Fqn::new(name)?, Role::Param, Dtype::F32, Shape::new(&[0])))
}

fn image(catalog: Catalog) -> Outcome<Vec<u8>> {
    Ok(dcp::parsers::hostile_image(&Manifest::new(catalog))?)
}

/// One list of small numbers.
fn facts(count: u64) -> Outcome<Vec<u8>> {
    let mut catalog = Catalog::new(Format::Native);
    catalog.extra.insert("wide".to_owned(), (0..count).map(|_| 0).collect());
    image(catalog)
}

/// One list of lists of one number.
fn previews(count: u64) -> Outcome<Vec<u8>> {
    let mut catalog = Catalog::new(Format::Native);
    catalog.objects.push(ObjectEntry {
        key: "wide".to_owned(),
        path: Vec::new(),
        encoding: Encoding::Json,
        bytes: Vec::new().into(),
        preview: Some((0..count).map(|_| Value::from(vec![0])).collect()),
        reshard: ReshardRule::Global,
    });
    image(catalog)
}

/// Names of one tensor in other formats, each by a path of so many steps.
fn names(count: u64, steps: usize) -> Outcome<Vec<u8>> {
    let alias = |_| Alias { of: String::new(), key: String::new(), path: vec![Value::from(0); steps] };
    let mut entry = entry("w")?;
    entry.aliases = (0..count).map(alias).collect();
    one(entry)
}

fn parts(count: u64) -> Outcome<Vec<u8>> {
    let mut entry = entry("w")?;
    entry.fusion = (0..count).map(|_| FusionPart { name: String::new(), axis: 0, extent: 0 }).collect();
    one(entry)
}

fn one(entry: Entry) -> Outcome<Vec<u8>> {
    let mut catalog = Catalog::new(Format::Native);
    catalog.push(entry, Chunks::default())?;
    image(catalog)
}

fn files(count: u64) -> Outcome<Vec<u8>> {
    let mut catalog = Catalog::new(Format::Native);
    let file = |_| FileEntry {
        path: "f".to_owned(),
        location: Location::InStep,
        size: 0,
        logical: None,
        blocks: None,
    };
    catalog.files = (0..count).map(file).collect();
    image(catalog)
}

fn header(count: u64) -> Vec<u8> {
    let each: Vec<String> = (0..count)
        .map(|at| format!("\"w{at}\":{{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}"))
        .collect();
    let json = format!("{{{}}}", each.join(","));
    [&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat()
}

/// A list of small integers.
fn pickle(count: u64) -> Vec<u8> {
    let mut bytes = b"\x80\x02](".to_vec();
    (0..count).for_each(|_| bytes.extend(b"K\x01"));
    bytes.extend(b"e.");
    bytes
}

/// A list of empty lists: one byte each.
fn lists(count: u64) -> Vec<u8> {
    let mut bytes = b"\x80\x02](".to_vec();
    (0..count).for_each(|_| bytes.push(b']'));
    bytes.extend(b"e.");
    bytes
}

fn index(count: u64) -> Vec<u8> {
    let each: Vec<String> = (0..count).map(|at| format!("\"w{at}\":\"a\"")).collect();
    format!("{{\"metadata\":{{}},\"weight_map\":{{{}}}}}", each.join(",")).into_bytes()
}

fn rules(count: u64) -> Vec<u8> {
    "[[rule]]\nmatch = \"*\"\nplace = \"replicate\"\n"
        .repeat(usize::try_from(count).unwrap_or(0))
        .into_bytes()
}
