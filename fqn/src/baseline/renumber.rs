//! Renumbering: layers that are all there, under other indices. The mark of a pipeline stage that counts from 0.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::{Code, Finding, check::Open};
use crate::{Entry, TensorId, fold};

/// Layer stack: the text before the layer index.
type Stack<'a> = &'a str;

/// Explains missing layers by layers that took their place.
pub(super) fn find<'a>(
    open: &mut Open<'a>,
    expected: &[&'a Entry],
    seen: &[&'a Entry],
    colliding: &BTreeMap<&TensorId, BTreeSet<&str>>,
    findings: &mut Vec<Finding>,
) {
    let (want, have) = (stacks(expected), stacks(seen));
    for (stack, wanted) in &want {
        let held = have.get(stack).cloned().unwrap_or_default();
        if *wanted != held && wanted.len() == held.len() {
            shifted(open, &wanted.iter().copied().zip(held).collect(), stack, findings);
        } else {
            restarted(open, stack, colliding, findings);
        }
    }
}

/// Splits `layers.3.wq` into stack and layer.
fn stack_of(name: &str) -> Option<(Stack<'_>, u32)> {
    let layer = fold::layer_of(name)?;
    let end = name.match_indices('.').map(|(at, _)| at).find(|&at| {
        let rest = name.get(at + 1..).unwrap_or_default();
        fold::index_of(rest.split('.').next().unwrap_or_default()) == Some(layer)
            && fold::layer_of(name.get(..at + 1 + layer.to_string().len()).unwrap_or_default()).is_some()
    })?;
    Some((name.get(..end)?, layer))
}

fn stacks<'a>(entries: &[&'a Entry]) -> BTreeMap<Stack<'a>, BTreeSet<u32>> {
    let mut stacks: BTreeMap<_, BTreeSet<u32>> = BTreeMap::new();
    for (stack, layer) in entries.iter().filter_map(|e| stack_of(e.fqn.as_str())) {
        stacks.entry(stack).or_default().insert(layer);
    }
    stacks
}

/// As many layers as wanted, under other indices, in the same order.
fn shifted(open: &mut Open<'_>, map: &BTreeMap<u32, u32>, stack: &str, findings: &mut Vec<Finding>) {
    let extra: HashMap<(String, Option<&str>), &Entry> =
        open.extra.iter().map(|e| ((e.fqn.to_string(), e.role.slot_name()), *e)).collect();
    let mut explained: HashSet<TensorId> = HashSet::new();
    let mut taken: HashSet<TensorId> = HashSet::new();
    for entry in &open.missing {
        let Some((of, layer)) = stack_of(entry.fqn.as_str()).filter(|(of, _)| *of == stack) else { continue };
        let Some(&now) = map.get(&layer).filter(|&&now| now != layer) else { continue };
        let name = fold::with_layer(entry.fqn.as_str(), now).unwrap_or_default();
        let Some(partner) = extra.get(&(name, entry.role.slot_name())).filter(|p| p.shape == entry.shape)
        else {
            continue;
        };
        let shift = i64::from(now) - i64::from(layer);
        let detail = format!("{of}.{layer} of the baseline is {of}.{now} here (shifted by {shift:+})");
        findings.push(Finding::new(Code::Renumbered, entry.id(), detail, ADVICE).seen_as(partner.id()));
        explained.insert(entry.id());
        taken.insert(partner.id());
    }
    open.missing.retain(|e| !explained.contains(&e.id()));
    open.extra.retain(|e| !taken.contains(&e.id()));
}

const ADVICE: &str =
    "keep global layer indices when the model is cut into stages (a dict by index, not a new list)";

/// Missing layers whose tensors other ranks saved under indices that are taken: a stage that counts from 0.
fn restarted(
    open: &mut Open<'_>,
    stack: &str,
    colliding: &BTreeMap<&TensorId, BTreeSet<&str>>,
    findings: &mut Vec<Finding>,
) {
    let of_stack = |name: &str| stack_of(name).filter(|(of, _)| *of == stack).map(|(_, layer)| layer);
    let taken: BTreeSet<u32> = colliding.keys().filter_map(|id| of_stack(id.fqn.as_str())).collect();
    let missing: BTreeSet<u32> = open.missing.iter().filter_map(|e| of_stack(e.fqn.as_str())).collect();
    if taken.is_empty() || missing.is_empty() || !missing.len().is_multiple_of(taken.len()) {
        return;
    }
    // Several stages may have restarted: the missing layers are whole stages of the size that collides.
    let taken: Vec<u32> = taken.into_iter().collect();
    let back: HashMap<u32, u32> = missing.iter().copied().zip(taken.iter().copied().cycle()).collect();
    let mut explained: HashSet<TensorId> = HashSet::new();
    for entry in &open.missing {
        let Some((layer, now)) = of_stack(entry.fqn.as_str()).and_then(|l| Some((l, *back.get(&l)?))) else {
            continue;
        };
        let name = fold::with_layer(entry.fqn.as_str(), now).and_then(|n| crate::Fqn::new(n).ok());
        let Some(id) = name.map(|fqn| TensorId { fqn, role: entry.role.clone() }) else { continue };
        let Some(holders) = colliding.get(&id) else { continue };
        let holders = holders.iter().copied().collect::<Vec<_>>().join(", ");
        let shift = i64::from(now) - i64::from(layer);
        let detail = format!(
            "{stack}.{layer} is missing while {holders} hold different {stack}.{now} (shifted by {shift:+}): a stage restarted its numbering"
        );
        findings.push(Finding::new(Code::Renumbered, entry.id(), detail, ADVICE).seen_as(id));
        explained.insert(entry.id());
    }
    open.missing.retain(|e| !explained.contains(&e.id()));
}
