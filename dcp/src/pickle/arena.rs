//! Where an inert tree lives: packed nodes in flat pools, made by a reader or by hand.
//!
//! Invariants: a [`NodeId`] is an index into one arena and never dangles; dropping an arena never recurses;
//! a node is twelve bytes, so that the tree of a `.metadata` of millions of shards stays within four times
//! its pickle. Containers that grow after they were made (lists, dicts, sets) are chains of segments.
//!
//! The methods that make nodes do not fail one by one: the first failure is kept, and comes out of
//! [`Arena::finish`].

use std::collections::HashMap;

use super::error::{PickleError, PickleErrorKind};
use super::globals::Standing;
use super::limits::{Budget, Limits};
use super::node::{
    Chain, Extras, Global, NIL, Node, NodeId, ObjectRecord, Pools, Segment, Tag, halves, narrow, shortest,
    span,
};
use super::shape;
use super::tree::Tree;

/// Makes inert values. See the module for how failures come out.
#[derive(Debug)]
pub struct Arena {
    pub(super) pools: Pools,
    pub(super) budget: Budget,
    limits: Limits,
    by_name: HashMap<(Box<str>, Box<str>), NodeId>,
    small_ints: Box<[u32; 256]>,
    failed: Option<PickleErrorKind>,
}

/// A hash map keeps room for at most about twice its entries, and a byte beside each.
const EXTRAS_COST: usize = 2 * size_of::<(u32, Extras)>() + 2;

const NONE_ID: NodeId = NodeId(0);
const FALSE_ID: NodeId = NodeId(1);
const TRUE_ID: NodeId = NodeId(2);
const UNIT_ID: NodeId = NodeId(3);

impl Default for Arena {
    fn default() -> Self {
        Self::new()
    }
}

impl Arena {
    /// An arena for values that this program makes: bounded only by what ids can count.
    #[must_use]
    pub fn new() -> Self {
        let limits = Limits { nodes: u32::MAX - 1, depth: 254, ..Limits::default() };
        Self::bounded(limits, u64::MAX)
    }

    pub(super) fn bounded(limits: Limits, memory: u64) -> Self {
        let mut arena = Self {
            pools: Pools::default(),
            budget: Budget::new(memory),
            limits,
            by_name: HashMap::new(),
            small_ints: Box::new([NIL; 256]),
            failed: None,
        };
        for tag in [Tag::None, Tag::False, Tag::True, Tag::Tuple] {
            arena.node(tag, 0, 0);
        }
        arena
    }

    /// Closes the arena around its root value.
    ///
    /// # Errors
    /// The first failure of any call before, and a value that contains itself.
    pub fn finish(self, root: NodeId) -> Result<Tree, PickleError> {
        self.finish_within(root, u64::MAX).map_err(PickleError::whole)
    }

    pub(super) fn finish_within(mut self, root: NodeId, walk: u64) -> Result<Tree, PickleErrorKind> {
        self.check()?;
        shape::check(&self.pools, root, &mut self.budget, self.limits.depth, walk)?;
        Ok(Tree::from_parts(self.pools, root, self.budget.peak()))
    }

    /// The first failure so far, if any.
    pub(super) fn check(&mut self) -> Result<(), PickleErrorKind> {
        self.failed.take().map_or(Ok(()), Err)
    }

    fn fail(&mut self, kind: PickleErrorKind) -> NodeId {
        self.failed.get_or_insert(kind);
        NONE_ID
    }

    pub(super) fn tag(&self, id: NodeId) -> Tag {
        self.pools.nodes.get(id.index()).map_or(Tag::None, |n| n.tag)
    }

    /// A copy of the text of a str.
    pub(super) fn text_of(&self, id: NodeId) -> Option<String> {
        let node = self.pools.nodes.get(id.index()).filter(|n| n.tag == Tag::Str)?;
        let (start, len) = (node.a as usize, node.b as usize);
        self.pools.text.get(start..start.saturating_add(len)).map(str::to_owned)
    }

    fn node(&mut self, tag: Tag, a: u32, b: u32) -> NodeId {
        let limit = self.limits.nodes;
        let next = u32::try_from(self.pools.nodes.len()).unwrap_or(NIL);
        if next >= limit {
            return self.fail(PickleErrorKind::Limit { what: "number of values", limit: u64::from(limit) });
        }
        if let Err(kind) = self.budget.room(&mut self.pools.nodes, 1) {
            return self.fail(kind);
        }
        self.pools.nodes.push(Node { tag, chained: false, a, b });
        NodeId(next)
    }

    /// `None`.
    pub fn none(&mut self) -> NodeId {
        NONE_ID
    }

    /// `True` or `False`.
    pub fn bool(&mut self, value: bool) -> NodeId {
        if value { TRUE_ID } else { FALSE_ID }
    }

    /// An int of 64 bits or fewer.
    pub fn int(&mut self, value: i64) -> NodeId {
        let slot = usize::try_from(value).ok().filter(|v| *v < 256);
        if let Some(&id) = slot.and_then(|s| self.small_ints.get(s)).filter(|id| **id != NIL) {
            return NodeId(id);
        }
        let [a, b] = halves(value.cast_unsigned());
        let id = self.node(Tag::Int, a, b);
        if let Some(known) = slot.and_then(|s| self.small_ints.get_mut(s)) {
            *known = id.0;
        }
        id
    }

    /// An int of any size from its little-endian two's complement.
    pub fn big_int(&mut self, little_endian: &[u8]) -> NodeId {
        match narrow(little_endian) {
            Some(value) => self.int(value),
            None => self.raw(Tag::BigInt, shortest(little_endian)),
        }
    }

    /// A float.
    pub fn float(&mut self, value: f64) -> NodeId {
        let [a, b] = halves(value.to_bits());
        self.node(Tag::Float, a, b)
    }

    /// A str. Keep the id to share it: equal text given twice is two values.
    pub fn str(&mut self, text: &str) -> NodeId {
        let span = span(self.pools.text.len(), text.len());
        match span.and_then(|span| self.budget.room_text(&mut self.pools.text, text.len()).map(|()| span)) {
            Ok((start, len)) => {
                self.pools.text.push_str(text);
                self.node(Tag::Str, start, len)
            }
            Err(kind) => self.fail(kind),
        }
    }

    /// A str that holds lone surrogates, in the extended UTF-8 in which pickles keep them.
    pub(super) fn wild_str(&mut self, text: &[u8]) -> NodeId {
        self.raw(Tag::WildStr, text)
    }

    /// A `bytes`.
    pub fn bytes(&mut self, bytes: &[u8]) -> NodeId {
        self.raw(Tag::Bytes, bytes)
    }

    /// A `bytearray`.
    pub fn byte_array(&mut self, bytes: &[u8]) -> NodeId {
        self.raw(Tag::ByteArray, bytes)
    }

    fn raw(&mut self, tag: Tag, bytes: &[u8]) -> NodeId {
        let span = span(self.pools.blob.len(), bytes.len());
        match span.and_then(|span| self.budget.room(&mut self.pools.blob, bytes.len()).map(|()| span)) {
            Ok((start, len)) => {
                self.pools.blob.extend_from_slice(bytes);
                self.node(tag, start, len)
            }
            Err(kind) => self.fail(kind),
        }
    }

    /// A tuple.
    pub fn tuple(&mut self, items: &[NodeId]) -> NodeId {
        if items.is_empty() { UNIT_ID } else { self.fixed(Tag::Tuple, items) }
    }

    /// A frozenset.
    pub fn frozen_set(&mut self, items: &[NodeId]) -> NodeId {
        self.fixed(Tag::FrozenSet, items)
    }

    fn fixed(&mut self, tag: Tag, items: &[NodeId]) -> NodeId {
        match self.link(items) {
            Ok((start, len)) => self.node(tag, start, len),
            Err(kind) => self.fail(kind),
        }
    }

    /// A list.
    pub fn list(&mut self, items: &[NodeId]) -> NodeId {
        self.growing(Tag::List, items)
    }

    /// A set.
    pub fn set(&mut self, items: &[NodeId]) -> NodeId {
        self.growing(Tag::Set, items)
    }

    /// A dict of keys and values in order.
    pub fn dict(&mut self, pairs: &[(NodeId, NodeId)]) -> NodeId {
        let flat: Vec<NodeId> = pairs.iter().flat_map(|(k, v)| [*k, *v]).collect();
        self.growing(Tag::Dict, &flat)
    }

    fn growing(&mut self, tag: Tag, items: &[NodeId]) -> NodeId {
        let id = self.node(tag, 0, 0);
        self.grow(id, items);
        id
    }

    /// A class or function by name.
    pub fn global(&mut self, module: &str, name: &str) -> NodeId {
        self.named(module, name, 0, |_, _| Ok(Standing::Known))
    }

    /// A class or function by name, judged by `judge` the first time that it is met.
    pub(super) fn named(
        &mut self,
        module: &str,
        name: &str,
        at: u64,
        judge: impl FnOnce(&str, &str) -> Result<Standing, PickleErrorKind>,
    ) -> NodeId {
        let key = (Box::from(module), Box::from(name));
        if let Some(id) = self.by_name.get(&key) {
            return *id;
        }
        let made = judge(module, name).and_then(|standing| self.new_global(module, name, standing, at));
        match made {
            Ok(index) => {
                let id = self.node(Tag::Global, index, 0);
                self.by_name.insert(key, id);
                id
            }
            Err(kind) => self.fail(kind),
        }
    }

    fn new_global(
        &mut self,
        module: &str,
        name: &str,
        standing: Standing,
        at: u64,
    ) -> Result<u32, PickleErrorKind> {
        // The two names are kept twice: in the table and as the key that finds them.
        self.budget.charge(2 * (module.len() + name.len()) + 2 * size_of::<Global>() + 64)?;
        let (index, _) = span(self.pools.globals.len(), 1)?;
        self.pools.globals.push(Global { module: module.into(), name: name.into(), standing, at });
        Ok(index)
    }

    /// A value that stands for something outside the pickle, such as a storage.
    pub fn persistent(&mut self, id: NodeId) -> NodeId {
        self.node(Tag::Persistent, id.0, 0)
    }

    /// `callable(*args)`, as data.
    pub fn reduce(&mut self, callable: NodeId, args: NodeId) -> NodeId {
        self.object(Tag::Reduce, callable, args)
    }

    /// `class.__new__(class, *args)`, as data.
    pub fn new_object(&mut self, class: NodeId, args: NodeId) -> NodeId {
        self.object(Tag::New, class, args)
    }

    /// `class.__new__(class, *args, **kwargs)`, as data.
    pub fn new_object_ex(&mut self, class: NodeId, args: NodeId, kwargs: NodeId) -> NodeId {
        let object = self.object(Tag::NewEx, class, args);
        if let Some(index) = self.object_index(object) {
            let kept = self.budget.charge(EXTRAS_COST);
            self.pools.extras.insert(index, Extras { kwargs: kwargs.0, ..Extras::NONE });
            if let Err(kind) = kept {
                self.fail(kind);
            }
        }
        object
    }

    fn object(&mut self, tag: Tag, callable: NodeId, args: NodeId) -> NodeId {
        let index = span(self.pools.objects.len(), 1)
            .and_then(|span| self.budget.room(&mut self.pools.objects, 1).map(|()| span));
        match index {
            Ok((index, _)) => {
                let record = ObjectRecord { callable: callable.0, args: args.0, state: NIL };
                self.pools.objects.push(record);
                self.node(tag, index, 0)
            }
            Err(kind) => self.fail(kind),
        }
    }

    /// Gives an object its state (BUILD). An object has one state at most.
    pub fn set_state(&mut self, object: NodeId, state: NodeId) {
        let kind = match self.object_index(object) {
            None => PickleErrorKind::NotCallable { op: "BUILD", found: self.tag(object).noun() },
            Some(index) => match self.pools.objects.get_mut(index as usize) {
                Some(record) if record.state == NIL => return record.state = state.0,
                _ => PickleErrorKind::Stack {
                    op: "BUILD",
                    needed: "an object without state",
                    found: "one with",
                },
            },
        };
        self.fail(kind);
    }

    fn object_index(&self, id: NodeId) -> Option<u32> {
        let node = self.pools.nodes.get(id.index())?;
        matches!(node.tag, Tag::Reduce | Tag::New | Tag::NewEx).then_some(node.a)
    }

    /// Appends items to a list, or to an object that takes list items.
    pub fn append(&mut self, to: NodeId, items: &[NodeId]) {
        match self.tag(to) {
            Tag::List => self.grow(to, items),
            _ => self.grow_extras(to, items, "APPENDS", "a list", |extras| &mut extras.items),
        }
    }

    /// Adds keys and values, alternating, to a dict or to an object that takes dict items.
    pub fn set_items(&mut self, to: NodeId, keys_and_values: &[NodeId]) {
        if !keys_and_values.len().is_multiple_of(2) {
            let kind =
                PickleErrorKind::Stack { op: "SETITEMS", needed: "keys with values", found: "an odd number" };
            self.fail(kind);
            return;
        }
        match self.tag(to) {
            Tag::Dict => self.grow(to, keys_and_values),
            _ => self.grow_extras(to, keys_and_values, "SETITEMS", "a dict", |extras| &mut extras.pairs),
        }
    }

    /// Adds items to a set.
    pub fn add_items(&mut self, to: NodeId, items: &[NodeId]) {
        match self.tag(to) {
            Tag::Set => self.grow(to, items),
            tag => {
                self.fail(PickleErrorKind::Stack { op: "ADDITEMS", needed: "a set", found: tag.noun() });
            }
        }
    }

    /// Adds items to a container: to its one run while that ends the pool, to a chain of segments afterwards.
    fn grow(&mut self, id: NodeId, items: &[NodeId]) {
        let grown = self.pools.nodes.get(id.index()).copied().map(|node| self.grown(node, items));
        match (grown, self.pools.nodes.get_mut(id.index())) {
            (Some(Ok(longer)), Some(node)) => *node = longer,
            (Some(Err(kind)), _) => {
                self.fail(kind);
            }
            _ => {}
        }
    }

    fn grown(&mut self, node: Node, items: &[NodeId]) -> Result<Node, PickleErrorKind> {
        if items.is_empty() {
            return Ok(node);
        }
        let pool_end = self.pools.links.len() as u64;
        let run_end = u64::from(node.a) + u64::from(node.b);
        if node.chained || (node.b > 0 && run_end != pool_end) {
            let chain = if node.chained {
                Chain { first: node.a, last: node.b }
            } else {
                self.segment(Chain::EMPTY, node.a, node.b)?
            };
            let chain = self.extend(chain, items)?;
            return Ok(Node { chained: true, a: chain.first, b: chain.last, ..node });
        }
        let (start, len) = self.link(items)?;
        let a = if node.b == 0 { start } else { node.a };
        Ok(Node { a, b: node.b + len, ..node })
    }

    fn grow_extras(
        &mut self,
        id: NodeId,
        items: &[NodeId],
        op: &'static str,
        needed: &'static str,
        pick: fn(&mut Extras) -> &mut Chain,
    ) {
        let Some(index) = self.object_index(id) else {
            let found = self.tag(id).noun();
            self.fail(PickleErrorKind::Stack { op, needed, found });
            return;
        };
        let known = self.pools.extras.get(&index).copied();
        let cost = if known.is_some() { 0 } else { EXTRAS_COST };
        let mut extras = known.unwrap_or(Extras::NONE);
        let chain = pick(&mut extras);
        let grown = self.budget.charge(cost).and_then(|()| self.extend(*chain, items));
        match grown {
            Ok(longer) => {
                *chain = longer;
                self.pools.extras.insert(index, extras);
            }
            Err(kind) => {
                self.fail(kind);
            }
        }
    }

    /// Adds items to a chain, within its last segment where that ends the pool.
    fn extend(&mut self, chain: Chain, items: &[NodeId]) -> Result<Chain, PickleErrorKind> {
        if items.is_empty() {
            return Ok(chain);
        }
        let (start, len) = self.link(items)?;
        if let Some(last) = self.pools.segments.get_mut(chain.last as usize)
            && last.start.checked_add(last.len) == Some(start)
        {
            last.len += len;
            return Ok(chain);
        }
        self.segment(chain, start, len)
    }

    /// Adds a segment to a chain.
    fn segment(&mut self, chain: Chain, start: u32, len: u32) -> Result<Chain, PickleErrorKind> {
        let (new, _) = span(self.pools.segments.len(), 1)?;
        self.budget.room(&mut self.pools.segments, 1)?;
        self.pools.segments.push(Segment { start, len, next: NIL });
        match self.pools.segments.get_mut(chain.last as usize) {
            Some(last) if chain.last != NIL => {
                last.next = new;
                Ok(Chain { first: chain.first, last: new })
            }
            _ => Ok(Chain { first: new, last: new }),
        }
    }

    fn link(&mut self, items: &[NodeId]) -> Result<(u32, u32), PickleErrorKind> {
        let span = span(self.pools.links.len(), items.len())?;
        self.budget.room(&mut self.pools.links, items.len())?;
        self.pools.links.extend(items.iter().map(|id| id.0));
        Ok(span)
    }
}
