//! The check: pair by name first, then explain what is left as renumbered, renamed, missing or extra.
//!
//! Optimizer state is compared only if the baseline has some; otherwise it need only belong to a parameter of the
//! baseline. Every stage works on hash maps over what the stage before left, so that cost grows with the input, not
//! with its square.

use super::{CheckReport, Code, Finding, collide, renames, renumber};
use crate::{Dims, Entry, Fqn, Registry, Role, TensorId, wrapper};

/// A part of a tensor that one rank has, to find names that collide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The tensor.
    pub id: TensorId,
    /// Who has it: a rank, or a file.
    pub holder: String,
    /// Offset of its box in the global tensor.
    pub offset: Dims,
    /// Extent of its box.
    pub extent: Dims,
    /// Fingerprint or digest of its bytes; `None` if not known.
    pub digest: Option<[u64; 2]>,
}

/// A checkpoint as observed.
#[derive(Debug, Clone, Copy)]
pub struct Observed<'a> {
    /// Its tensors.
    pub registry: &'a Registry,
    /// Who holds which part; empty if not known, and then nothing can be said of collisions.
    pub pieces: &'a [Piece],
}

/// Compares a checkpoint with a baseline.
#[must_use]
pub fn check(baseline: &Registry, observed: Observed<'_>) -> CheckReport {
    let with_optimizer = baseline.entries().iter().any(|e| e.role.is_optimizer());
    let names: std::collections::HashSet<&Fqn> = baseline.entries().iter().map(|e| &e.fqn).collect();
    let counts = |e: &&Entry| {
        e.role.is_model() || (e.role.is_optimizer() && (with_optimizer || !names.contains(&e.fqn)))
    };
    let seen: Vec<&Entry> = observed.registry.entries().iter().filter(counts).collect();
    let expected: Vec<&Entry> = baseline.entries().iter().filter(|e| e.role != Role::Other).collect();
    let mut findings = Vec::new();
    let mut open = pair(&expected, &seen, &mut findings);
    let colliding = collide::find(observed.pieces, &mut findings);
    renumber::find(&mut open, &expected, &seen, &colliding, &mut findings);
    renames::find(&mut open, &mut findings);
    rest(&open, with_optimizer, &mut findings);
    findings.extend(seen.iter().filter_map(|entry| forbidden(entry)));
    let troubled: std::collections::HashSet<&TensorId> = findings.iter().map(|f| &f.id).collect();
    let agreeing = expected.iter().filter(|e| !troubled.contains(&e.id())).count();
    let mut report = CheckReport {
        schema: "fqn.check/1",
        baseline: expected.len(),
        observed: seen.len(),
        agreeing,
        findings,
    };
    order(&mut report.findings, baseline, observed.registry);
    report
}

/// Tensors that have no partner of their own name yet.
#[derive(Debug, Default)]
pub(super) struct Open<'a> {
    pub missing: Vec<&'a Entry>,
    pub extra: Vec<&'a Entry>,
}

/// Slot kinds differ in what they are; a parameter and a buffer differ only in what they are called.
fn pairing_key(entry: &Entry) -> (&str, Option<&str>) {
    (entry.fqn.as_str(), entry.role.slot_name())
}

fn pair<'a>(expected: &[&'a Entry], seen: &[&'a Entry], findings: &mut Vec<Finding>) -> Open<'a> {
    let mut by_name: std::collections::HashMap<_, &'a Entry> =
        seen.iter().map(|e| (pairing_key(e), *e)).collect();
    let mut open = Open::default();
    for &entry in expected {
        match by_name.remove(&pairing_key(entry)) {
            Some(partner) => compare(entry, partner, findings),
            None => open.missing.push(entry),
        }
    }
    open.extra = seen.iter().copied().filter(|e| by_name.contains_key(&pairing_key(e))).collect();
    open
}

fn compare(expected: &Entry, seen: &Entry, findings: &mut Vec<Finding>) {
    if expected.shape != seen.shape {
        let detail = format!("shape is {}, the baseline has {}", seen.shape, expected.shape);
        let advice = "check that it is saved whole: a shard or a padded vocabulary has another shape";
        findings.push(Finding::new(Code::Shape, expected.id(), detail, advice));
    }
    if expected.dtype != seen.dtype {
        let detail = format!("dtype is {}, the baseline has {}", seen.dtype, expected.dtype);
        findings.push(Finding::new(
            Code::Dtype,
            expected.id(),
            detail,
            "cast on purpose, or write a new baseline",
        ));
    }
    if expected.role != seen.role {
        let detail = format!("is a {} here, a {} in the baseline", seen.role, expected.role);
        let advice = "register it the same way in both models, or write a new baseline";
        findings.push(Finding::new(Code::Role, expected.id(), detail, advice).seen_as(seen.id()));
    }
}

fn rest(open: &Open<'_>, with_optimizer: bool, findings: &mut Vec<Finding>) {
    for entry in &open.missing {
        let advice = "save it, or take it out of the baseline if it is meant to be absent (frozen, tied)";
        findings.push(Finding::new(
            Code::Missing,
            entry.id(),
            format!("{} {} is not there", entry.dtype, entry.shape),
            advice,
        ));
    }
    for entry in &open.extra {
        let detail = if entry.role.is_optimizer() && !with_optimizer {
            "optimizer state of a parameter that the baseline does not have".to_owned()
        } else {
            format!("{} {} is not in the baseline", entry.dtype, entry.shape)
        };
        let advice = "drop it, or write a new baseline if the model has grown";
        findings.push(Finding::new(Code::Extra, entry.id(), detail, advice));
    }
}

fn forbidden(entry: &Entry) -> Option<Finding> {
    let cleaned = wrapper::clean(entry.fqn.as_str());
    let (kind, segment) = cleaned.found.first()?;
    let detail = format!("`{segment}` is left by {}", kind.origin());
    let advice = if kind.is_prefix() {
        format!("save the unwrapped module, or rename it to {}", cleaned.name)
    } else {
        "save with full or sharded state dicts of original parameters: a flat parameter has no names"
            .to_owned()
    };
    Some(Finding::new(Code::ForbiddenPrefix, entry.id(), detail, advice))
}

/// The baseline's order, then the checkpoint's; codes in their own order within a tensor.
fn order(findings: &mut [Finding], baseline: &Registry, observed: &Registry) {
    let place = |id: &TensorId| {
        let late = || observed.position(id).map_or(usize::MAX, |at| at + baseline.len());
        baseline.position(id).unwrap_or_else(late)
    };
    findings.sort_by_cached_key(|f| (place(&f.id), f.id.clone(), f.code, f.detail.clone()));
}
