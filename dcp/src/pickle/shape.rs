//! The shape of a finished tree: no value within itself, not too deep, and not exponentially larger to walk
//! than to store.
//!
//! Shared values make a pickle of a few hundred bytes describe billions of them ("billion laughs"). They cost
//! nothing while they stay shared; what must be bounded is the walk that follows every reference.

use super::error::PickleErrorKind;
use super::limits::Budget;
use super::node::{Chain, NIL, Node, NodeId, Pools, Tag};

/// Ids of children, in order, over a slice and then a chain of segments.
#[derive(Clone, Debug)]
pub(super) struct Links<'a> {
    pools: &'a Pools,
    here: std::slice::Iter<'a, u32>,
    next: u32,
}

impl<'a> Links<'a> {
    pub(super) fn empty(pools: &'a Pools) -> Self {
        Self { pools, here: [].iter(), next: NIL }
    }

    pub(super) fn slice(pools: &'a Pools, start: u32, len: u32) -> Self {
        let (start, len) = (start as usize, len as usize);
        let here = pools.links.get(start..).and_then(|rest| rest.get(..len)).unwrap_or(&[]).iter();
        Self { pools, here, next: NIL }
    }

    pub(super) fn chain(pools: &'a Pools, chain: Chain) -> Self {
        Self { next: chain.first, ..Self::empty(pools) }
    }

    /// The items of a container.
    pub(super) fn of(pools: &'a Pools, node: Node) -> Self {
        if node.chained {
            Self::chain(pools, Chain { first: node.a, last: node.b })
        } else {
            Self::slice(pools, node.a, node.b)
        }
    }

    /// How many are left.
    pub(super) fn count_left(&self) -> usize {
        let mut count = self.here.len();
        let mut next = self.next;
        while let Some(segment) = self.pools.segments.get(next as usize) {
            count += segment.len as usize;
            next = segment.next;
        }
        count
    }
}

impl Iterator for Links<'_> {
    type Item = NodeId;

    fn next(&mut self) -> Option<NodeId> {
        loop {
            if let Some(id) = self.here.next() {
                return Some(NodeId(*id));
            }
            let segment = self.pools.segments.get(self.next as usize)?;
            *self = Self { next: segment.next, ..Self::slice(self.pools, segment.start, segment.len) };
        }
    }
}

/// The children of one node.
struct Children<'a> {
    fixed: std::array::IntoIter<u32, 4>,
    items: Links<'a>,
    pairs: Links<'a>,
}

impl<'a> Children<'a> {
    fn of(pools: &'a Pools, node: Node) -> Self {
        let none = Links::empty(pools);
        let mut children = Self { fixed: [NIL; 4].into_iter(), items: none.clone(), pairs: none };
        match node.tag {
            Tag::Tuple | Tag::FrozenSet | Tag::List | Tag::Dict | Tag::Set => {
                children.items = Links::of(pools, node);
            }
            Tag::Persistent => children.fixed = [node.a, NIL, NIL, NIL].into_iter(),
            Tag::Reduce | Tag::New | Tag::NewEx => {
                let extras = pools.extras.get(&node.a);
                if let Some(record) = pools.objects.get(node.a as usize) {
                    let kwargs = extras.map_or(NIL, |e| e.kwargs);
                    children.fixed = [record.callable, record.args, kwargs, record.state].into_iter();
                }
                if let Some(extras) = extras {
                    children.items = Links::chain(pools, extras.items);
                    children.pairs = Links::chain(pools, extras.pairs);
                }
            }
            _ => {}
        }
        children
    }
}

impl Iterator for Children<'_> {
    type Item = NodeId;

    fn next(&mut self) -> Option<NodeId> {
        let fixed = self.fixed.by_ref().find(|id| *id != NIL).map(NodeId);
        fixed.or_else(|| self.items.next()).or_else(|| self.pairs.next())
    }
}

/// A count in two bytes, rounded up by less than a thousandth: ten bits of it, and how far they are shifted.
#[derive(Clone, Copy)]
struct Size(u16);

impl Size {
    const ZERO: Self = Self(0);
    const BITS: u32 = 10;

    fn at_least(count: u64) -> Self {
        let shift = (u64::BITS - count.leading_zeros()).saturating_sub(Self::BITS);
        let mut digits = count >> shift;
        if digits << shift < count {
            digits += 1;
        }
        // Rounding up may carry into an eleventh bit.
        let (digits, shift) =
            if digits >> Self::BITS > 0 { (digits >> 1, shift + 1) } else { (digits, shift) };
        let packed = digits | u64::from(shift) << Self::BITS;
        Self(u16::try_from(packed).unwrap_or(u16::MAX))
    }

    fn value(self) -> u64 {
        let digits = u64::from(self.0 & ((1 << Self::BITS) - 1));
        let shift = u32::from(self.0 >> Self::BITS);
        if digits.leading_zeros() < shift { u64::MAX } else { digits << shift }
    }
}

const UNSEEN: u8 = 0;
const OPEN: u8 = u8::MAX;

/// A node whose children are being visited.
struct Visit<'a> {
    id: NodeId,
    children: Children<'a>,
    height: u8,
    walk: u64,
}

/// Refuses cycles, values nested deeper than `depth`, and values whose full walk meets more than `walk` nodes.
pub(super) fn check(
    pools: &Pools,
    root: NodeId,
    budget: &mut Budget,
    depth: u8,
    walk: u64,
) -> Result<(), PickleErrorKind> {
    let count = pools.nodes.len();
    budget.charge(count.saturating_mul(size_of::<u8>() + size_of::<Size>()))?;
    let mut heights = vec![UNSEEN; count];
    let mut walks = vec![Size::ZERO; count];
    let depth = depth.min(OPEN - 1);
    let mut path: Vec<Visit<'_>> = Vec::new();
    open(pools, root, &mut heights, &mut path);
    loop {
        let levels = path.len();
        let Some(visit) = path.last_mut() else { return Ok(()) };
        let Some(child) = visit.children.next() else {
            close(&mut path, &mut heights, &mut walks);
            continue;
        };
        match heights.get(child.index()).copied() {
            Some(OPEN) => return Err(PickleErrorKind::Cycle),
            Some(UNSEEN) if levels >= usize::from(depth) => return Err(too_deep(depth)),
            Some(UNSEEN) => open(pools, child, &mut heights, &mut path),
            Some(height) => {
                visit.height = visit.height.max(height.saturating_add(1));
                visit.walk =
                    visit.walk.saturating_add(walks.get(child.index()).map_or(0, |size| size.value()));
                if visit.height > depth {
                    return Err(too_deep(depth));
                }
                if visit.walk > walk {
                    return Err(PickleErrorKind::Limit {
                        what: "number of values met when shared ones are followed",
                        limit: walk,
                    });
                }
            }
            None => {}
        }
    }
}

fn too_deep(depth: u8) -> PickleErrorKind {
    PickleErrorKind::Limit { what: "depth of nesting", limit: u64::from(depth) }
}

fn open<'a>(pools: &'a Pools, id: NodeId, heights: &mut [u8], path: &mut Vec<Visit<'a>>) {
    if let (Some(node), Some(height)) = (pools.nodes.get(id.index()), heights.get_mut(id.index())) {
        *height = OPEN;
        path.push(Visit { id, children: Children::of(pools, *node), height: 1, walk: 1 });
    }
}

/// Records the node on top of the path, and adds it to the one that holds it.
fn close(path: &mut Vec<Visit<'_>>, heights: &mut [u8], walks: &mut [Size]) {
    let Some(done) = path.pop() else { return };
    if let (Some(height), Some(walk)) = (heights.get_mut(done.id.index()), walks.get_mut(done.id.index())) {
        (*height, *walk) = (done.height, Size::at_least(done.walk));
    }
    if let Some(holder) = path.last_mut() {
        holder.height = holder.height.max(done.height.saturating_add(1));
        holder.walk = holder.walk.saturating_add(done.walk);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Size;

    proptest! {
        #[test]
        fn a_packed_size_is_never_less_and_hardly_more(count in any::<u64>(), shift in 0_u32..64) {
            let count = count >> shift;
            let packed = Size::at_least(count).value();
            prop_assert!(packed >= count);
            prop_assert!(packed - count <= count / 500);
        }
    }
}
