//! Collisions: one name whose pieces disagree. torch keeps whichever rank comes first, silently.

use std::collections::{BTreeMap, BTreeSet};

use super::{Code, Finding, Piece};
use crate::TensorId;

/// Adds a finding per colliding tensor and returns them with their holders.
pub(super) fn find<'p>(
    pieces: &'p [Piece],
    findings: &mut Vec<Finding>,
) -> BTreeMap<&'p TensorId, BTreeSet<&'p str>> {
    let mut by_id: BTreeMap<&TensorId, Vec<&Piece>> = BTreeMap::new();
    for piece in pieces {
        by_id.entry(&piece.id).or_default().push(piece);
    }
    let mut colliding = BTreeMap::new();
    for (id, pieces) in by_id {
        let Some((detail, holders)) = differing(&pieces).or_else(|| overlapping(&pieces)) else { continue };
        let advice = "give every tensor its global name on every rank: two ranks save different tensors under one name";
        findings.push(Finding::new(Code::Colliding, id.clone(), detail, advice));
        colliding.insert(id, holders);
    }
    colliding
}

type Collision<'p> = (String, BTreeSet<&'p str>);

/// One box, different bytes.
fn differing<'p>(pieces: &[&'p Piece]) -> Option<Collision<'p>> {
    let mut by_box: BTreeMap<_, BTreeMap<[u64; 2], Vec<&str>>> = BTreeMap::new();
    for piece in pieces {
        if let Some(digest) = piece.digest {
            by_box
                .entry((&piece.offset, &piece.extent))
                .or_default()
                .entry(digest)
                .or_default()
                .push(&piece.holder);
        }
    }
    let (_, digests) = by_box.into_iter().find(|(_, digests)| digests.len() > 1)?;
    let groups: Vec<String> = digests.values().map(|holders| list(holders)).collect();
    let holders = digests.values().flatten().copied().collect();
    Some((format!("{} versions of the same elements: {}", groups.len(), groups.join(" against ")), holders))
}

/// Boxes that overlap without being equal: a sweep along the dimension with most distinct offsets.
fn overlapping<'p>(pieces: &[&'p Piece]) -> Option<Collision<'p>> {
    let boxes: BTreeMap<_, &'p Piece> = pieces.iter().map(|p| ((&p.offset, &p.extent), *p)).collect();
    let boxes: Vec<&Piece> = boxes.into_values().filter(|p| !p.extent.contains(&0)).collect();
    let rank = boxes.first()?.offset.len();
    if boxes.len() < 2 || boxes.iter().any(|b| b.offset.len() != rank || b.extent.len() != rank) {
        return None;
    }
    let distinct = |dim: usize| boxes.iter().map(|b| start(b, dim)).collect::<BTreeSet<_>>().len();
    let dim = (0..rank).max_by_key(|&dim| distinct(dim))?;
    let mut sorted = boxes;
    sorted.sort_by_key(|b| start(b, dim));
    let mut active: Vec<&Piece> = Vec::new();
    for one in sorted {
        active.retain(|b| end(b, dim) > start(one, dim));
        if let Some(other) = active.iter().find(|b| overlap(b, one)) {
            let detail = format!(
                "{} and {} hold overlapping parts, at {:?} of {:?} and at {:?} of {:?}",
                other.holder, one.holder, other.offset, other.extent, one.offset, one.extent
            );
            return Some((detail, BTreeSet::from([other.holder.as_str(), one.holder.as_str()])));
        }
        active.push(one);
    }
    None
}

fn start(piece: &Piece, dim: usize) -> u64 {
    piece.offset.get(dim).copied().unwrap_or(0)
}

fn end(piece: &Piece, dim: usize) -> u64 {
    start(piece, dim).saturating_add(piece.extent.get(dim).copied().unwrap_or(1))
}

fn overlap(a: &Piece, b: &Piece) -> bool {
    (0..a.offset.len()).all(|dim| start(a, dim) < end(b, dim) && start(b, dim) < end(a, dim))
}

fn list(holders: &[&str]) -> String {
    let shown = holders.iter().take(4).copied().collect::<Vec<_>>().join(", ");
    if holders.len() > 4 { format!("{shown} and {} more", holders.len() - 4) } else { shown }
}
