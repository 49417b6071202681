//! [`Fold`]: tensors that differ only in a number, and lie and move alike, as one line.

use std::{collections::HashMap, fmt};

use fqn::{Entry, PlacementRule};
use serde::{Deserialize, Serialize};

use crate::Mesh;

/// Tensors alike: `layers.{0..31}.wq.weight  S(0)@tp8 → S(0)@tp8 S(0)@dp2`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fold {
    /// Their ids with the numbers folded: `layers.{0..31}.wq.weight@exp_avg`.
    pub pattern: String,
    /// Number of tensors.
    pub tensors: u64,
    /// How they lie on the source's mesh; `?` where none is known.
    pub from: String,
    /// How they lie on the target's mesh.
    pub to: String,
    /// Bytes of all.
    pub bytes: u64,
    /// Moves of all.
    pub moves: u64,
}

/// Collects tensors into folds, in order of their first one.
#[derive(Debug, Default)]
pub(super) struct Folding {
    folds: Vec<(Vec<u64>, Fold)>,
    by: HashMap<(String, String, String), usize>,
}

impl Folding {
    pub(super) fn add(&mut self, entry: &Entry, from: Option<&Mesh>, to: &Mesh, bytes: u64, moves: u64) {
        let rule = entry.placement.clone().unwrap_or_default();
        let (pattern, number) = folded(&entry.id().to_string());
        let from = from.map_or_else(|| "?".to_owned(), |mesh| placed(&rule, mesh));
        let to = placed(&rule, to);
        let key = (pattern.clone(), from.clone(), to.clone());
        let at = *self.by.entry(key).or_insert_with(|| {
            let fold = Fold { pattern, tensors: 0, from, to, bytes: 0, moves: 0 };
            self.folds.push((Vec::new(), fold));
            self.folds.len() - 1
        });
        if let Some((numbers, fold)) = self.folds.get_mut(at) {
            numbers.extend(number);
            fold.tensors += 1;
            fold.bytes = fold.bytes.saturating_add(bytes);
            fold.moves += moves;
        }
    }

    pub(super) fn finish(self) -> Vec<Fold> {
        let named = self.folds.into_iter().map(|(numbers, fold)| {
            let pattern = fold.pattern.replacen(HOLE, &range(numbers), 1);
            Fold { pattern, ..fold }
        });
        named.collect()
    }
}

/// Stands for the folded number; no name holds a control character.
const HOLE: &str = "\u{0}";

/// The name with its first all-digit segment taken out, and that number.
fn folded(name: &str) -> (String, Option<u64>) {
    let mut number = None;
    let segments = name.split('.').map(|segment| match segment.parse() {
        Ok(found) if number.is_none() => {
            number = Some(found);
            HOLE
        }
        _ => segment,
    });
    (segments.collect::<Vec<_>>().join("."), number)
}

fn range(mut numbers: Vec<u64>) -> String {
    numbers.sort_unstable();
    numbers.dedup();
    match (numbers.first(), numbers.last()) {
        (Some(first), Some(last)) if first == last => first.to_string(),
        (Some(first), Some(last)) if last - first == numbers.len() as u64 - 1 => {
            format!("{{{first}..{last}}}")
        }
        (Some(first), Some(last)) => format!("{{{} of {first}..{last}}}", numbers.len()),
        _ => String::new(),
    }
}

/// `S(0)@tp8 S(0)@dp4`, `S(0)@dp4+cp2` for axes that cut as one, `E@ep8` for one expert's; `R` where nothing cuts.
fn placed(rule: &PlacementRule, mesh: &Mesh) -> String {
    let mut cuts: Vec<String> = Vec::new();
    for cut in rule.cuts() {
        let axes = cut.axes.iter().filter_map(|axis| mesh.axes().get(mesh.cutting(axis)?));
        let axes: Vec<String> =
            axes.filter(|(_, extent)| *extent > 1).map(|(name, extent)| format!("{name}{extent}")).collect();
        if !axes.is_empty() {
            cuts.push(format!("S({})@{}", cut.dim, axes.join("+")));
        }
    }
    let expert = rule.expert_axis().and_then(|axis| mesh.axes().get(mesh.cutting(axis)?));
    cuts.extend(expert.filter(|(_, extent)| *extent > 1).map(|(name, extent)| format!("E@{name}{extent}")));
    if cuts.is_empty() { "R".to_owned() } else { cuts.join(" ") }
}

impl fmt::Display for Fold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}  {} → {}", self.pattern, self.from, self.to)
    }
}
