//! What people and other programs write: rules, meshes, revisions, locations, names, baselines, plans.

use std::str::{FromStr, from_utf8};

use dcp::commit::{DirName, Label};
use dcp::formats::native::Revision;
use dcp::store::{local_path, object_path};
use fqn::pattern::{Pattern, Template};
use fqn::{Fqn, PlacementRule, Role};
use reshard::{Mesh, StageSplit};

use crate::{Target, seeds, target};

pub(crate) const TARGETS: &[Target] = &[
    target(
        "rules",
        rules,
        rules_seeds,
        &["[[rule]]", "match = \"", "place = \"", "{**rest}", "tp:0", "pp:layer"],
    ),
    target("dialect", dialect, dialect_seeds, &["[[", "]]", "match = \"", "rename", "heads", "{i}", "**"]),
    target("mesh", mesh, mesh_seeds, &["x", "=", ",", "dp", "tp", "pp", "18446744073709551615", "0"]),
    target(
        "placement",
        placement,
        placement_seeds,
        &["tp:0", "replicate", ",", ":", "pp:layer", "first+last", "64"],
    ),
    target(
        "revision",
        revision,
        revision_seeds,
        &["latest", "~", "seq:", "step:", "tag:", "18446744073709551616"],
    ),
    target(
        "location",
        location,
        location_seeds,
        &["file://", "memory://", "s3://", "%2e%2e", "\0", "..", "@", "#"],
    ),
    target("names", names, names_seeds, &[".", "..", "/", "\u{1b}", "\0", "@", "\u{202e}", "exp_avg"]),
    target("pattern", pattern, pattern_seeds, &["*", "**", "{", "}", "{a}", "{**rest}", "{i}"]),
    target(
        "baseline",
        baseline,
        baseline_seeds,
        &["\"fqn\":", "\"shape\":[", "\"dtype\":", "\"fusion\":", "null"],
    ),
    target("plan", plan, plan_seeds, &["\"version\":", "\"cost\":", "\"rules\":[", "null", "-1"]),
];

fn parses<T: FromStr>(text: &str) -> bool {
    text.parse::<T>().is_ok()
}

/// A rules file.
#[must_use]
pub fn rules(data: &[u8]) -> bool {
    from_utf8(data).is_ok_and(|text| fqn::preset::Rules::from_toml(text).is_ok())
}

/// A naming dialect.
#[must_use]
pub fn dialect(data: &[u8]) -> bool {
    from_utf8(data).is_ok_and(|text| fqn::dialect::Family::from_toml(text).is_ok())
}

/// A mesh, or how layers are split.
#[must_use]
pub fn mesh(data: &[u8]) -> bool {
    from_utf8(data).is_ok_and(|text| parses::<Mesh>(text) | parses::<StageSplit>(text))
}

/// A placement rule.
#[must_use]
pub fn placement(data: &[u8]) -> bool {
    from_utf8(data).is_ok_and(parses::<PlacementRule>)
}

/// A revision.
#[must_use]
pub fn revision(data: &[u8]) -> bool {
    from_utf8(data).is_ok_and(parses::<Revision>)
}

/// A location.
#[must_use]
pub fn location(data: &[u8]) -> bool {
    from_utf8(data).is_ok_and(|text| local_path(text).is_some())
}

/// Names of tensors, roles, folders, runs and objects.
#[must_use]
pub fn names(data: &[u8]) -> bool {
    from_utf8(data).is_ok_and(|text| {
        let ours = parses::<Role>(text) | parses::<DirName>(text) | parses::<Label>(text);
        drop(fqn::wrapper::clean(text));
        Fqn::new(text).is_ok() | object_path(text).is_ok() | ours
    })
}

/// A pattern and what it is filled into, on two lines; it is matched with itself.
#[must_use]
pub fn pattern(data: &[u8]) -> bool {
    from_utf8(data).is_ok_and(|text| {
        let (pattern, template) = text.split_once('\n').unwrap_or((text, text));
        let Ok(parsed) = Pattern::new(pattern) else { return false };
        let captures = parsed.captures("layers.0.attention.wq.weight").or_else(|| parsed.captures(template));
        if let (Some(captures), Ok(template)) = (captures, Template::new(template)) {
            drop(template.fill(&captures));
        }
        true
    })
}

/// A baseline.
#[must_use]
pub fn baseline(data: &[u8]) -> bool {
    from_utf8(data).is_ok_and(|text| fqn::baseline::read(text).is_ok())
}

/// A plan that someone edited.
#[must_use]
pub fn plan(data: &[u8]) -> bool {
    serde_json::from_slice::<reshard::Plan>(data).is_ok()
}

fn rules_seeds() -> Vec<Vec<u8>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fqn/data");
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let presets = entries.filter(|path| path.to_str().is_some_and(|path| path.contains("/preset-")));
    let mut all: Vec<Vec<u8>> = presets.filter_map(|path| std::fs::read(path).ok()).collect();
    all.extend(seeds::texts(&[
        "[[rule]]\nmatch = \"layers.*.attention.wq.weight\"\nplace = \"tp:0,dp:0,pp:layer\"\ndivides = \"heads\"\n",
        "[[rule]]\nmatch = \"**\"\nplace = \"replicate\"\n\n[[rename]]\nmatch = \"encoder.{**rest}\"\nto = \"{rest}\"\n",
    ]));
    all
}

fn dialect_seeds() -> Vec<Vec<u8>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fqn/data");
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let toml = entries.filter(|path| {
        path.extension().is_some_and(|it| it == "toml")
            && path.to_str().is_some_and(|path| path.contains("/dialect-"))
    });
    toml.filter_map(|path| std::fs::read(path).ok()).collect()
}

fn mesh_seeds() -> Vec<Vec<u8>> {
    seeds::texts(&["4x2x8", "dp=4,pp=2,tp=8", "dp_replicate=2,ep=4,cp=2", "auto", "weights", "8,8"])
}

fn placement_seeds() -> Vec<Vec<u8>> {
    seeds::texts(&["tp:0,dp:0,pp:layer", "replicate", "tp:1,dp:0,pp:first+last", "ep:0,dp:1"])
}

fn revision_seeds() -> Vec<Vec<u8>> {
    seeds::texts(&["latest", "latest~2", "step:1000", "seq:42", "tag:best", "9f3a61c2"])
}

fn location_seeds() -> Vec<Vec<u8>> {
    seeds::texts(&["/mnt/ckpt", "relative/x", "file:///mnt/x%20y", "memory://run/a", "s3://bucket/run"])
}

fn names_seeds() -> Vec<Vec<u8>> {
    seeds::texts(&[
        "layers.0.w",
        "step-00001000-0123456789abcdef01234567",
        "slot:step",
        "_orig_mod.module.w",
        "a/b/c.json",
    ])
}

fn pattern_seeds() -> Vec<Vec<u8>> {
    seeds::texts(&["layers.{i}.attention.{**rest}\nmodel.{i}.{rest}", "**.weight\nx", "*.{a}.*\n{a}"])
}

fn baseline_seeds() -> Vec<Vec<u8>> {
    let mut registry = fqn::Registry::new();
    for (name, shape) in [("embed.weight", vec![64, 16]), ("layers.0.w", vec![16, 16]), ("step", vec![])] {
        let Ok(name) = Fqn::new(name) else { continue };
        let entry = fqn::Entry::new(name, Role::Param, fqn::Dtype::BF16, fqn::Shape::new(&shape));
        drop(registry.push(entry));
    }
    fqn::baseline::write(&registry).into_iter().map(String::into_bytes).collect()
}

fn plan_seeds() -> Vec<Vec<u8>> {
    let catalog = dcp::formats::open(&fixtures::path("torch_dcp/uneven"), dcp::formats::OpenOptions::new());
    let Ok(source) = catalog else { return Vec::new() };
    let request = dcp::ops::prepare::Request::new(dcp::Format::Native);
    let prepared = dcp::ops::prepare::prepare(source.catalog(), &request);
    prepared.ok().and_then(|it| serde_json::to_vec(&it.plan).ok()).into_iter().collect()
}
