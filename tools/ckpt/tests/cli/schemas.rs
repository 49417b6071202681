//! `SCHEMAS.md` is what `--json` prints: no field that it does not describe, none described that is never there.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::place::{Place, fixture};

const TEXT: &str = include_str!("../../SCHEMAS.md");
const DCP: &str = "torch_dcp/fsdp2_tp2";
const HF: &str = "hf/llama_sharded";

/// Paths and types that a schema's section describes, the envelope's included.
fn described(schema: &str) -> BTreeMap<String, String> {
    let mut within = false;
    let mut rows = BTreeMap::new();
    for line in TEXT.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            within = title == "Envelope" || title.split(", ").any(|name| name == schema);
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if let (true, [_, path, kind, _, ..]) = (within, cells.as_slice())
            && let Some(path) = path.strip_prefix('`').and_then(|path| path.strip_suffix('`'))
        {
            assert!(
                rows.insert(path.to_owned(), (*kind).to_owned()).is_none(),
                "{schema}: {path} comes twice"
            );
        }
    }
    rows
}

fn fits(value: &Value, kind: &str) -> bool {
    let kind = match kind.strip_suffix('?') {
        Some(_) if value.is_null() => return true,
        Some(kind) => kind,
        None => kind,
    };
    match kind {
        "any" => true,
        "text" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64(),
        "number" => value.is_number(),
        "list" => value.is_array(),
        "object" | "map" => value.is_object(),
        other => panic!("{other:?} is no type"),
    }
}

/// Compares a value and what it holds with the descriptions, and notes which of those were met.
fn compare(value: &Value, path: &str, rows: &BTreeMap<String, String>, met: &mut BTreeSet<String>) {
    let kind = if path.is_empty() {
        "object"
    } else {
        let kind = rows.get(path).unwrap_or_else(|| panic!("{path} is not in SCHEMAS.md: {value}"));
        met.insert(path.to_owned());
        assert!(fits(value, kind), "{path} is {kind} in SCHEMAS.md: {value}");
        kind
    };
    match value {
        _ if kind.starts_with("any") => {}
        Value::Object(fields) => fields.iter().for_each(|(key, value)| {
            let key = if kind.starts_with("map") { "*" } else { key };
            let below = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
            compare(value, &below, rows, met);
        }),
        Value::Array(items) => items.iter().for_each(|item| compare(item, &format!("{path}[]"), rows, met)),
        _ => {}
    }
}

#[test]
fn what_is_printed_as_json_is_what_is_documented() {
    let place = Place::new();
    let (dcp, hf, tied) = (fixture(DCP), fixture(HF), fixture("hf/llama_tied"));
    let flipped = fixture("hostile/flipped_dcp");
    let runs: Vec<Vec<&str>> = vec![
        vec!["convert", &dcp, "a", "--to", "2x1x2", "--heads", "4", "--rank-state", "x=same", "--verify"],
        vec!["reshard", "a", "b", "--to", "1x1x2", "--verify"],
        vec!["export", &hf, "h", "--verify"],
        vec!["convert", &dcp, "p", "--to", "2x1x2", "--plan", "plan.json"],
        vec!["inspect", "a", "--shards", "--files", "--objects", "--tensors"],
        vec!["inspect", &dcp, "--value", "model.norm.weight[0:2]"],
        vec!["verify", "a"],
        vec!["verify", "a", "--subset", "1/3"],
        vec!["copy", "a", "k", "--dry-run"],
        vec!["copy", "a", "k"],
        vec!["copy", "a", "k"],
        vec!["verify", &flipped],
        vec!["seal", &dcp, "--into", "s"],
        vec!["diff", &dcp, "a"],
        vec!["diff", &tied, &hf],
        vec!["diff", "a", &hf],
        vec!["verify", "a", "--record"],
        vec!["tag", "a", "best"],
        vec!["tag", "a", "best"],
        vec!["pin", "a"],
        vec!["reshard", "a", "--to", "1x1x2"],
        vec!["reshard", "a", "--to", "1x1x1"],
        vec!["ls", "a", "--long"],
        vec!["log", "a"],
        vec!["forget", "a", "--keep-last", "1", "--keep-within", "1s", "--keep-every", "10"],
        vec!["forget", "a", "--keep-last", "1"],
        vec!["gc", "a"],
        vec!["gc", "a"],
        vec!["gc", "a", "--grace", "0s"],
        vec!["du", "a"],
        vec!["doctor", "a"],
        vec!["fqn", "baseline", &dcp, "-o", "b.json"],
        vec!["fqn", "check", &tied, "--baseline", "b.json"],
    ];
    let mut met: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for args in runs {
        let printed = place.run(&[&args[..], &["--json"]].concat()).json();
        let schema = printed["schema"].as_str().unwrap().to_owned();
        compare(&printed, "", &described(&schema), met.entry(schema).or_default());
    }
    for (schema, met) in &met {
        let rows = described(schema);
        let never: Vec<_> =
            rows.iter().filter(|(path, kind)| !kind.ends_with('?') && !met.contains(*path)).collect();
        assert!(never.is_empty(), "{schema}: never printed: {never:?}");
    }
    let documented =
        TEXT.lines().filter_map(|line| line.strip_prefix("## ckpt.")).flat_map(|it| it.split(", "));
    assert_eq!(met.len(), documented.count());
}
