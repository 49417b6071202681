//! Inputs of a million small things: they lie about nothing, and cost a reader that takes a kilobyte for each of them a gigabyte.

use dcp::manifest::Manifest;
use dcp::{Catalog, Chunks, Format};
use fqn::{Dtype, Entry, Fqn, Role, Shape};

use crate::training::Outcome;

type Input = (&'static str, Vec<u8>, fn(&[u8]) -> bool);

/// Each with so many things in it.
pub(super) fn inputs(count: u64) -> Outcome<Vec<Input>> {
    Ok(vec![
        ("tensors of no bytes", manifest(count)?, parsers::manifest),
        ("header of no bytes", header(count), parsers::safetensors_header),
        ("numbers in a pickle", pickle(count), parsers::pickle),
        ("lists in a pickle", lists(count), parsers::pickle),
        ("names in an index", index(count), parsers::hf_index),
        ("rules", rules(count / 100), parsers::rules),
    ])
}

fn manifest(count: u64) -> Outcome<Vec<u8>> {
    let mut catalog = Catalog::new(Format::Native);
    for at in 0..count {
        let entry = Entry::new(Fqn::new(format!("w{at}"))?, Role::Param, Dtype::F32, Shape::new(&[0]));
        catalog.push(entry, Chunks::default())?;
    }
    Ok(Manifest::new(catalog).encode()?.bytes.to_vec())
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
