//! Renames: a missing tensor and an extra one that are the same. Sure rules first (wrapper prefixes, a container
//! word, a dialect), then likeness of names among tensors of one shape, type and role.

use std::collections::{HashMap, HashSet};

use super::{Code, Finding, check::Open};
use crate::{Dtype, Entry, Shape, TensorId, dialect, fold, wrapper};

/// Least likeness that counts.
const LIKE: f64 = 0.7;

/// Most pairs of folded names compared by likeness within one group.
const MOST_PAIRS: usize = 250_000;

pub(super) fn find(open: &mut Open<'_>, findings: &mut Vec<Finding>) {
    let sure: [(&str, Rule); 3] = [
        ("by wrapper prefixes", |name| vec![wrapper::clean(name).name]),
        ("by a container word", |name| {
            let inner = name
                .split_once('.')
                .filter(|(word, _)| CONTAINERS.contains(word))
                .map(|(_, rest)| rest.to_owned());
            inner.into_iter().chain(CONTAINERS.iter().map(|word| format!("{word}.{name}"))).collect()
        }),
        ("by dialect", dialect_names),
    ];
    for (why, names) in sure {
        by_rule(open, why, names, findings);
    }
    by_likeness(open, findings);
}

/// Names that an extra tensor's name may stand for.
type Rule = fn(&str) -> Vec<String>;

const CONTAINERS: [&str; 4] = ["model", "module", "state_dict", "transformer"];

fn dialect_names(name: &str) -> Vec<String> {
    let family = dialect::llama();
    let pairs = family.dialects.iter().flat_map(|a| family.dialects.iter().map(move |b| (&a.name, &b.name)));
    pairs.filter_map(|(from, to)| family.rename(name, from, to)).collect()
}

type Kind<'a> = (Option<&'a str>, bool, Dtype, &'a Shape);

const fn is_model(entry: &Entry) -> bool {
    entry.role.is_model()
}

fn kind(entry: &Entry) -> Kind<'_> {
    (entry.role.slot_name(), is_model(entry), entry.dtype, &entry.shape)
}

fn by_rule(open: &mut Open<'_>, why: &str, names: Rule, findings: &mut Vec<Finding>) {
    let missing: HashMap<(&str, Kind<'_>), &Entry> =
        open.missing.iter().map(|e| ((e.fqn.as_str(), kind(e)), *e)).collect();
    let mut pairs = Vec::new();
    for extra in &open.extra {
        let partner = names(extra.fqn.as_str())
            .into_iter()
            .find_map(|n| missing.get(&(n.as_str(), kind(extra))).copied());
        pairs.extend(partner.map(|partner| (partner, *extra)));
    }
    settle(open, pairs, why, findings);
}

/// Takes each tensor once and reports the pair.
fn settle(open: &mut Open<'_>, pairs: Vec<(&Entry, &Entry)>, why: &str, findings: &mut Vec<Finding>) {
    let (mut gone, mut taken) = (HashSet::<TensorId>::new(), HashSet::<TensorId>::new());
    for (missing, extra) in pairs {
        if gone.contains(&missing.id()) || taken.contains(&extra.id()) {
            continue;
        }
        let detail = format!("is called {} here ({why})", extra.id());
        let advice = format!("rename it: match = \"{}\", to = \"{}\"", extra.fqn, missing.fqn);
        findings.push(Finding::new(Code::Renamed, missing.id(), detail, advice).seen_as(extra.id()));
        gone.insert(missing.id());
        taken.insert(extra.id());
    }
    open.missing.retain(|e| !gone.contains(&e.id()));
    open.extra.retain(|e| !taken.contains(&e.id()));
}

/// Names with their indices taken out, so that 32 layers are compared once.
fn mask(name: &str) -> (String, Vec<u32>) {
    let mut indices = Vec::new();
    let segments = name.split('.').map(|segment| match fold::index_of(segment) {
        Some(index) => {
            indices.push(index);
            "#"
        }
        None => segment,
    });
    (segments.collect::<Vec<_>>().join("."), indices)
}

#[derive(Default)]
struct Group<'a> {
    missing: HashMap<String, Vec<(Vec<u32>, &'a Entry)>>,
    extra: HashMap<String, HashMap<Vec<u32>, &'a Entry>>,
}

fn by_likeness(open: &mut Open<'_>, findings: &mut Vec<Finding>) {
    let mut groups: HashMap<Kind<'_>, Group<'_>> = HashMap::new();
    for &entry in &open.missing {
        let (masked, indices) = mask(entry.fqn.as_str());
        groups.entry(kind(entry)).or_default().missing.entry(masked).or_default().push((indices, entry));
    }
    for &entry in &open.extra {
        let (masked, indices) = mask(entry.fqn.as_str());
        if let Some(group) = groups.get_mut(&kind(entry)) {
            group.extra.entry(masked).or_default().insert(indices, entry);
        }
    }
    let mut pairs: Vec<(&Entry, &Entry)> = groups.values().flat_map(Group::pairs).collect();
    pairs.sort_by_key(|(missing, _)| missing.id());
    settle(open, pairs, "same shape and dtype, similar name", findings);
}

impl<'a> Group<'a> {
    /// Pairs of tensors whose folded names are most alike, each folded name used once.
    fn pairs(&self) -> Vec<(&'a Entry, &'a Entry)> {
        if self.missing.len().saturating_mul(self.extra.len()) > MOST_PAIRS {
            return Vec::new();
        }
        let mut scored: Vec<(f64, &String, &String)> = Vec::new();
        for missing in self.missing.keys() {
            let alike = self.extra.keys().map(|extra| (likeness(missing, extra), missing, extra));
            scored.extend(alike.filter(|(score, ..)| *score >= LIKE));
        }
        scored.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| (a.1, a.2).cmp(&(b.1, b.2))));
        let (mut used, mut taken, mut pairs) = (HashSet::new(), HashSet::new(), Vec::new());
        for (_, missing, extra) in scored {
            if used.contains(missing) || taken.contains(extra) {
                continue;
            }
            used.insert(missing);
            taken.insert(extra);
            pairs.extend(self.members(missing, extra));
        }
        pairs
    }

    fn members(&self, missing: &str, extra: &str) -> Vec<(&'a Entry, &'a Entry)> {
        let (Some(missing), Some(extra)) = (self.missing.get(missing), self.extra.get(extra)) else {
            return Vec::new();
        };
        missing.iter().filter_map(|(indices, entry)| Some((*entry, *extra.get(indices)?))).collect()
    }
}

/// Edit likeness; names that end alike (`….wq.weight`) gain, as a module moved but did not change.
fn likeness(a: &str, b: &str) -> f64 {
    let same = a.rsplit('.').zip(b.rsplit('.')).take_while(|(x, y)| x == y).count();
    let longest = a.split('.').count().max(b.split('.').count()).max(1);
    let tail = f64::from(u32::try_from(same).unwrap_or(u32::MAX))
        / f64::from(u32::try_from(longest).unwrap_or(u32::MAX));
    strsim::normalized_levenshtein(a, b).max(if same >= 2 { 0.6 + 0.4 * tail } else { 0.0 })
}
