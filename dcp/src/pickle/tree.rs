//! The finished inert tree, and the borrowed view through which everything reads it.
//!
//! A [`Tree`] is immutable, acyclic and at most [`Limits::depth`](super::Limits) deep, so a recursive walk of it
//! is safe, and a walk that follows every shared reference is bounded by the input's size.

use super::globals::Standing;
use super::node::{Chain, Construction, Global, NodeId, Pools, Tag};
use super::shape::Links;

/// A pickle as data.
#[derive(Debug)]
pub struct Tree {
    pools: Pools,
    root: NodeId,
    memory: u64,
}

impl Tree {
    pub(super) fn from_parts(pools: Pools, root: NodeId, memory: u64) -> Self {
        Self { pools, root, memory }
    }

    /// The value that the pickle holds.
    #[must_use]
    pub fn root(&self) -> Ref<'_> {
        self.get(self.root)
    }

    /// The value with this id, which must come from this tree.
    #[must_use]
    pub fn get(&self, id: NodeId) -> Ref<'_> {
        Ref { pools: &self.pools, id }
    }

    /// The id of everything outside the pickle that it refers to, those that no value uses included.
    pub fn persistent_ids(&self) -> impl Iterator<Item = Ref<'_>> {
        let persistent = self.pools.nodes.iter().filter(|node| node.tag == Tag::Persistent);
        persistent.map(|node| self.get(NodeId(node.a)))
    }

    /// Number of distinct values, those that nothing refers to included.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.pools.nodes.len()
    }

    /// Most memory that was reserved at once to build it, in bytes.
    #[must_use]
    pub fn peak_memory(&self) -> u64 {
        self.memory
    }

    /// Every class and function that is named, in order of first appearance.
    #[must_use]
    pub fn globals(&self) -> &[Global] {
        &self.pools.globals
    }

    /// Those that the policy did not know and kept as opaque names.
    pub fn opaque_globals(&self) -> impl Iterator<Item = &Global> {
        self.pools.globals.iter().filter(|g| g.standing == Standing::Opaque)
    }
}

/// A value within a tree. Cheap to copy.
#[derive(Clone, Copy, Debug)]
pub struct Ref<'a> {
    pools: &'a Pools,
    id: NodeId,
}

/// What a value is.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Value<'a> {
    /// `None`.
    None,
    /// A bool.
    Bool(bool),
    /// An int of at most 64 bits.
    Int(i64),
    /// A larger int, as little-endian two's complement.
    BigInt(&'a [u8]),
    /// A float.
    Float(f64),
    /// A str.
    Str(&'a str),
    /// A str with lone surrogates, in the extended UTF-8 of the pickle.
    WildStr(&'a [u8]),
    /// A `bytes`.
    Bytes(&'a [u8]),
    /// A `bytearray`.
    ByteArray(&'a [u8]),
    /// A tuple.
    Tuple(Items<'a>),
    /// A list.
    List(Items<'a>),
    /// A dict, in order; a key that comes twice takes its last value.
    Dict(Pairs<'a>),
    /// A set.
    Set(Items<'a>),
    /// A frozenset.
    FrozenSet(Items<'a>),
    /// A class or function, by name only.
    Global(&'a Global),
    /// Something made by a class or function.
    Object(Object<'a>),
    /// A reference to something outside the pickle, by this id.
    Persistent(Ref<'a>),
}

/// How an object was to be made, and what was put into it: data, never executed.
#[derive(Clone, Debug)]
pub struct Object<'a> {
    /// Which of the three ways.
    pub construction: Construction,
    /// The class or function.
    pub callable: Ref<'a>,
    /// Its positional arguments, a tuple.
    pub args: Ref<'a>,
    /// Its keyword arguments, a dict.
    pub kwargs: Option<Ref<'a>>,
    /// Its state (BUILD): mostly the `__dict__`.
    pub state: Option<Ref<'a>>,
    /// List items appended to it.
    pub items: Items<'a>,
    /// Dict items set on it.
    pub pairs: Pairs<'a>,
}

impl<'a> Object<'a> {
    /// The class or function, where it is given by name, as it always is in what a reader accepts.
    #[must_use]
    pub fn global(&self) -> Option<&'a Global> {
        self.callable.as_global()
    }

    /// Whether it is made by `module.name`.
    #[must_use]
    pub fn is(&self, module: &str, name: &str) -> bool {
        self.global().is_some_and(|g| g.is(module, name))
    }

    /// The `index`th positional argument.
    #[must_use]
    pub fn arg(&self, index: usize) -> Option<Ref<'a>> {
        self.args.as_sequence()?.nth(index)
    }
}

impl<'a> Ref<'a> {
    /// Its identity: two equal ids are one Python object.
    #[must_use]
    pub fn id(self) -> NodeId {
        self.id
    }

    fn at(self, id: NodeId) -> Self {
        Self { pools: self.pools, id }
    }

    fn optional(self, id: u32) -> Option<Self> {
        let id = NodeId(id);
        self.pools.nodes.get(id.index()).map(|_| self.at(id))
    }

    /// What it is.
    #[must_use]
    pub fn value(self) -> Value<'a> {
        let pools = self.pools;
        let Some(node) = pools.nodes.get(self.id.index()) else { return Value::None };
        let bits = || u64::from(node.a) | u64::from(node.b) << 32;
        let span = || node.a as usize..(node.a as usize).saturating_add(node.b as usize);
        let blob = || pools.blob.get(span()).unwrap_or_default();
        let items = || Items { pools, links: Links::of(pools, *node) };
        match node.tag {
            Tag::None => Value::None,
            Tag::False => Value::Bool(false),
            Tag::True => Value::Bool(true),
            Tag::Int => Value::Int(bits().cast_signed()),
            Tag::Float => Value::Float(f64::from_bits(bits())),
            Tag::BigInt => Value::BigInt(blob()),
            Tag::Str => Value::Str(pools.text.get(span()).unwrap_or_default()),
            Tag::WildStr => Value::WildStr(blob()),
            Tag::Bytes => Value::Bytes(blob()),
            Tag::ByteArray => Value::ByteArray(blob()),
            Tag::Tuple => Value::Tuple(items()),
            Tag::FrozenSet => Value::FrozenSet(items()),
            Tag::List => Value::List(items()),
            Tag::Set => Value::Set(items()),
            Tag::Dict => Value::Dict(Pairs { items: items() }),
            Tag::Global => pools.globals.get(node.a as usize).map_or(Value::None, Value::Global),
            Tag::Persistent => Value::Persistent(self.at(NodeId(node.a))),
            Tag::Reduce => self.object(node.a, Construction::Reduce),
            Tag::New => self.object(node.a, Construction::New),
            Tag::NewEx => self.object(node.a, Construction::NewEx),
        }
    }

    fn object(self, index: u32, construction: Construction) -> Value<'a> {
        let Some(record) = self.pools.objects.get(index as usize) else { return Value::None };
        let extras = self.pools.extras.get(&index);
        let chain = |chain: Option<Chain>| Items {
            pools: self.pools,
            links: Links::chain(self.pools, chain.unwrap_or(Chain::EMPTY)),
        };
        Value::Object(Object {
            construction,
            callable: self.at(NodeId(record.callable)),
            args: self.at(NodeId(record.args)),
            kwargs: extras.and_then(|e| self.optional(e.kwargs)),
            state: self.optional(record.state),
            items: chain(extras.map(|e| e.items)),
            pairs: Pairs { items: chain(extras.map(|e| e.pairs)) },
        })
    }

    /// What kind of value it is, for messages: "a tuple", "an object".
    #[must_use]
    pub fn noun(self) -> &'static str {
        self.pools.nodes.get(self.id.index()).map_or("nothing", |n| n.tag.noun())
    }

    /// Whether it is `None`.
    #[must_use]
    pub fn is_none(self) -> bool {
        matches!(self.value(), Value::None)
    }

    /// The bool that it is.
    #[must_use]
    pub fn as_bool(self) -> Option<bool> {
        if let Value::Bool(value) = self.value() { Some(value) } else { None }
    }

    /// The int of at most 64 bits that it is.
    #[must_use]
    pub fn as_i64(self) -> Option<i64> {
        if let Value::Int(value) = self.value() { Some(value) } else { None }
    }

    /// The non-negative int that it is: a length, an offset.
    #[must_use]
    pub fn as_u64(self) -> Option<u64> {
        self.as_i64().and_then(|v| u64::try_from(v).ok())
    }

    /// The str that it is.
    #[must_use]
    pub fn as_str(self) -> Option<&'a str> {
        if let Value::Str(text) = self.value() { Some(text) } else { None }
    }

    /// The class or function that it names.
    #[must_use]
    pub fn as_global(self) -> Option<&'a Global> {
        if let Value::Global(global) = self.value() { Some(global) } else { None }
    }

    /// The object that it is.
    #[must_use]
    pub fn as_object(self) -> Option<Object<'a>> {
        if let Value::Object(object) = self.value() { Some(object) } else { None }
    }

    /// The items of the tuple or list that it is.
    #[must_use]
    pub fn as_sequence(self) -> Option<Items<'a>> {
        match self.value() {
            Value::Tuple(items) | Value::List(items) => Some(items),
            _ => None,
        }
    }

    /// The keys and values of the dict, or of the object with dict items (an `OrderedDict`), that it is.
    #[must_use]
    pub fn as_mapping(self) -> Option<Pairs<'a>> {
        match self.value() {
            Value::Dict(pairs) => Some(pairs),
            Value::Object(object) if is_mapping_class(&object) => Some(object.pairs),
            _ => None,
        }
    }

    /// The value under a str key of a mapping.
    #[must_use]
    pub fn get(self, key: &str) -> Option<Self> {
        self.as_mapping()?.filter(|(k, _)| k.as_str() == Some(key)).map(|(_, v)| v).last()
    }

    /// The attribute of an object whose state is its `__dict__`, alone or beside its slots.
    #[must_use]
    pub fn attr(self, name: &str) -> Option<Self> {
        let state = self.as_object()?.state?;
        match state.value() {
            Value::Tuple(parts) => parts.filter_map(|part| part.get(name)).last(),
            _ => state.get(name),
        }
    }
}

/// Whether the object is one of the mappings of the standard library.
fn is_mapping_class(object: &Object<'_>) -> bool {
    object.global().is_some_and(|g| {
        matches!((&*g.module, &*g.name), ("collections", "OrderedDict" | "defaultdict" | "Counter"))
    })
}

/// Values in order.
#[derive(Clone, Debug)]
pub struct Items<'a> {
    pools: &'a Pools,
    links: Links<'a>,
}

impl Items<'_> {
    /// How many are left. Takes time in proportion to the number of batches in which they were pickled.
    #[must_use]
    pub fn len(&self) -> usize {
        self.links.count_left()
    }

    /// Whether none is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a> Iterator for Items<'a> {
    type Item = Ref<'a>;

    fn next(&mut self) -> Option<Ref<'a>> {
        self.links.next().map(|id| Ref { pools: self.pools, id })
    }
}

/// Keys and values in order.
#[derive(Clone, Debug)]
pub struct Pairs<'a> {
    items: Items<'a>,
}

impl<'a> Pairs<'a> {
    /// Keys and values, alternating.
    pub(super) fn flat(self) -> Items<'a> {
        self.items
    }

    /// How many are left.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len() / 2
    }

    /// Whether none is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

impl<'a> Iterator for Pairs<'a> {
    type Item = (Ref<'a>, Ref<'a>);

    fn next(&mut self) -> Option<(Ref<'a>, Ref<'a>)> {
        Some((self.items.next()?, self.items.next()?))
    }
}
