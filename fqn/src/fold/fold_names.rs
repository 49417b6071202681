//! Folding: names that differ only in their indices become one line.
//!
//! Names are grouped by their text with indices taken out; the index tuples of a group are then covered by products
//! of sets, first index first: layers that hold the same experts share a line. Linear in the names but for a sort.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
};

use super::{IndexSet, index_of};

/// Stands for an index that was taken out.
const MARK: &str = "\t";

/// Positions in the input by index tuple.
type Members = BTreeMap<Vec<u32>, Vec<usize>>;

/// A line of folded names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folded {
    /// The names as one pattern; the name itself where there is one.
    pub pattern: String,
    /// Positions of its members in the input, ascending.
    pub members: Vec<usize>,
}

/// Folds names, in order of first appearance.
#[must_use]
pub fn fold<S: AsRef<str>>(names: &[S]) -> Vec<Folded> {
    fold_by(names, |_| ())
}

/// Folds names that also agree in `key` of their position: shape, dtype, role.
#[must_use]
pub fn fold_by<S: AsRef<str>, K: Eq + Hash>(names: &[S], key: impl Fn(usize) -> K) -> Vec<Folded> {
    let mut groups: HashMap<(Vec<&str>, K), Members> = HashMap::new();
    for (at, name) in names.iter().enumerate() {
        let (text, indices) = taken_apart(name.as_ref());
        groups.entry((text, key(at))).or_default().entry(indices).or_default().push(at);
    }
    let mut folded: Vec<Folded> =
        groups.into_iter().flat_map(|((text, _), members)| lines(&text, &members)).collect();
    folded.sort_by_key(|line| line.members.first().copied());
    folded
}

/// Segments with each index taken out, and the indices. The mark is a tab, which no name can hold.
fn taken_apart(name: &str) -> (Vec<&str>, Vec<u32>) {
    let mut indices = Vec::new();
    let segments = name.split('.').map(|segment| match index_of(segment) {
        Some(index) => {
            indices.push(index);
            MARK
        }
        None => segment,
    });
    (segments.collect(), indices)
}

fn lines(text: &[&str], members: &Members) -> Vec<Folded> {
    let tuples: Vec<&[u32]> = members.keys().map(Vec::as_slice).collect();
    let values: Vec<&Vec<usize>> = members.values().collect();
    products(&tuples, &(0..tuples.len()).collect::<Vec<_>>(), 0)
        .into_iter()
        .map(|(sets, of)| {
            let mut at: Vec<usize> =
                of.iter().filter_map(|&i| values.get(i)).copied().flatten().copied().collect();
            at.sort_unstable();
            Folded { pattern: pattern(text, &sets), members: at }
        })
        .collect()
}

/// Covers the tuples `of`, from index `depth` on, by products of sets.
fn products(tuples: &[&[u32]], of: &[usize], depth: usize) -> Vec<(Vec<IndexSet>, Vec<usize>)> {
    let mut by_head: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for &at in of {
        match tuples.get(at).and_then(|tuple| tuple.get(depth)) {
            Some(&head) => by_head.entry(head).or_default().push(at),
            None => return vec![(Vec::new(), of.to_vec())],
        }
    }
    let mut by_tail: HashMap<Vec<IndexSet>, (Vec<u32>, Vec<usize>)> = HashMap::new();
    for (head, rest) in by_head {
        for (tail, members) in products(tuples, &rest, depth + 1) {
            let (heads, all) = by_tail.entry(tail).or_default();
            heads.push(head);
            all.extend(members);
        }
    }
    let with_head = |(tail, (heads, members)): (Vec<IndexSet>, (Vec<u32>, Vec<usize>))| {
        (std::iter::once(heads.into_iter().collect()).chain(tail).collect(), members)
    };
    by_tail.into_iter().map(with_head).collect()
}

fn pattern(text: &[&str], sets: &[IndexSet]) -> String {
    let mut sets = sets.iter();
    let segments = text.iter().map(|&segment| match segment {
        MARK => sets.next().map(braced).unwrap_or_default(),
        other => other.to_owned(),
    });
    segments.collect::<Vec<_>>().join(".")
}

fn braced(set: &IndexSet) -> String {
    if set.len() == 1 { set.to_string() } else { format!("{{{set}}}") }
}
