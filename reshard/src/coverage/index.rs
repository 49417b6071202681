//! [`Index`]: which chunks meet a box.
//!
//! A k-d tree of bounding boxes, packed into one array: each node halves its chunks along the dimension in which their
//! middles spread most. Building takes `n log n`; a query visits the nodes that meet its box.

use smallvec::SmallVec;

use crate::Region;

/// Chunks in a leaf: few enough to scan, many enough to keep the tree small.
const LEAF: usize = 8;

/// Chunks of one tensor, arranged for queries by box. Empty chunks are left out.
#[derive(Debug, Clone, Default)]
pub struct Index {
    rank: usize,
    /// Position in the caller's list, in the tree's order.
    chunks: Vec<usize>,
    /// Starts and ends of each dimension of each chunk, in the tree's order.
    bounds: Vec<u64>,
    /// Starts and ends of each dimension of each node; node `i` has children `2i + 1` and `2i + 2`.
    nodes: Vec<u64>,
}

/// A chunk while the tree is built, its numbers beside it: building sweeps over them many times.
struct Item {
    at: usize,
    bounds: SmallVec<[u64; 8]>,
}

impl Item {
    fn middle(&self, dim: usize) -> u64 {
        let ends = self.bounds.get(dim * 2).zip(self.bounds.get(dim * 2 + 1));
        ends.map_or(0, |(start, end)| start.midpoint(*end))
    }
}

impl Index {
    /// Arranges `chunks`, which are of one tensor; those of other dimensions than the first are left out.
    #[must_use]
    pub fn new<'a>(chunks: impl IntoIterator<Item = &'a Region>) -> Self {
        let filled = chunks.into_iter().enumerate().filter(|(_, chunk)| !chunk.is_empty());
        let mut items: Vec<Item> =
            filled.map(|(at, chunk)| Item { at, bounds: ends(chunk).collect() }).collect();
        let width = items.first().map_or(0, |item| item.bounds.len());
        items.retain(|item| item.bounds.len() == width);
        let mut index = Self { rank: width / 2, ..Self::default() };
        index.build(&mut items, 0);
        index.chunks = items.iter().map(|item| item.at).collect();
        index.bounds = items.iter().flat_map(|item| item.bounds.iter().copied()).collect();
        index
    }

    /// Number of chunks arranged.
    #[must_use]
    pub fn len(&self) -> usize {
        self.chunks.len()
    }

    /// Whether none are.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Positions, ascending, of the chunks that share an element with `region`.
    #[must_use]
    pub fn meeting(&self, region: &Region) -> Vec<usize> {
        let mut found = Vec::new();
        if region.rank() == self.rank && !region.is_empty() && !self.is_empty() {
            let bounds: Vec<u64> = ends(region).collect();
            self.visit(0, 0, self.chunks.len(), &bounds, &mut found);
        }
        found.sort_unstable();
        found
    }

    fn build(&mut self, items: &mut [Item], node: usize) {
        let width = self.rank * 2;
        if self.nodes.len() < (node + 1) * width {
            self.nodes.resize((node + 1) * width, 0);
        }
        if let Some(place) = self.nodes.get_mut(node * width..(node + 1) * width) {
            place.copy_from_slice(&hull(items, self.rank));
        }
        if items.len() > LEAF {
            let (dim, half) = (widest(items, self.rank), items.len() / 2);
            items.select_nth_unstable_by_key(half, |item| (item.middle(dim), item.at));
            let (low, high) = items.split_at_mut(half);
            self.build(low, node * 2 + 1);
            self.build(high, node * 2 + 2);
        }
    }

    fn visit(&self, node: usize, from: usize, to: usize, bounds: &[u64], found: &mut Vec<usize>) {
        let width = self.rank * 2;
        if !self.nodes.get(node * width..(node + 1) * width).is_some_and(|hull| meet(hull, bounds)) {
            return;
        }
        if to - from > LEAF {
            let half = from + (to - from) / 2;
            self.visit(node * 2 + 1, from, half, bounds, found);
            self.visit(node * 2 + 2, half, to, bounds, found);
            return;
        }
        for at in from..to {
            let met = self.bounds.get(at * width..(at + 1) * width).is_some_and(|own| meet(own, bounds));
            found.extend(self.chunks.get(at).filter(|_| met));
        }
    }
}

fn ends(region: &Region) -> impl Iterator<Item = u64> + '_ {
    region.offsets().iter().zip(region.extents()).flat_map(|(o, e)| [*o, o.saturating_add(*e)])
}

fn meet(a: &[u64], b: &[u64]) -> bool {
    a.chunks_exact(2).zip(b.chunks_exact(2)).all(|pair| match pair {
        ([start, end], [other_start, other_end]) => start < other_end && other_start < end,
        _ => false,
    })
}

fn hull(items: &[Item], rank: usize) -> SmallVec<[u64; 8]> {
    let mut hull: SmallVec<[u64; 8]> = [u64::MAX, 0].into_iter().cycle().take(rank * 2).collect();
    for item in items {
        for (own, end) in hull.chunks_exact_mut(2).zip(item.bounds.chunks_exact(2)) {
            if let ([low, high], [start, stop]) = (own, end) {
                (*low, *high) = ((*low).min(*start), (*high).max(*stop));
            }
        }
    }
    hull
}

/// The dimension in which middles spread most.
fn widest(items: &[Item], rank: usize) -> usize {
    let spread = |dim: &usize| {
        let middles = items.iter().map(|item| item.middle(*dim));
        let (low, high) = middles.fold((u64::MAX, 0), |(low, high), m| (m.min(low), m.max(high)));
        high.saturating_sub(low)
    };
    (0..rank).rev().max_by_key(spread).unwrap_or(0)
}
