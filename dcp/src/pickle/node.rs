//! How values are kept: twelve bytes each, and flat pools for what they hold.

use std::collections::HashMap;
use std::fmt;

use super::error::PickleErrorKind;
use super::globals::Standing;

/// One value of an arena. Two equal ids are one Python object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub(super) u32);

impl NodeId {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// A class or function by name, as the pickle spells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Global {
    /// Python module.
    pub module: Box<str>,
    /// Name within it; dotted for nested names.
    pub name: Box<str>,
    /// Whether the policy knew it.
    pub standing: Standing,
    /// Offset of the first opcode that named it, in bytes.
    pub at: u64,
}

impl Global {
    /// Whether it is `module.name`.
    #[must_use]
    pub fn is(&self, module: &str, name: &str) -> bool {
        &*self.module == module && &*self.name == name
    }
}

/// How an object comes to be, as the pickle tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Construction {
    /// `callable(*args)`.
    Reduce,
    /// `cls.__new__(cls, *args)`.
    New,
    /// `cls.__new__(cls, *args, **kwargs)`.
    NewEx,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tag {
    None,
    False,
    True,
    Int,
    BigInt,
    Float,
    Str,
    WildStr,
    Bytes,
    ByteArray,
    Tuple,
    FrozenSet,
    List,
    Dict,
    Set,
    Global,
    Persistent,
    Reduce,
    New,
    NewEx,
}

impl Tag {
    /// The kind of value, for messages.
    pub(super) fn noun(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::False | Self::True => "a bool",
            Self::Int | Self::BigInt => "an int",
            Self::Float => "a float",
            Self::Str | Self::WildStr => "a str",
            Self::Bytes | Self::ByteArray => "bytes",
            Self::Tuple => "a tuple",
            Self::List => "a list",
            Self::Dict => "a dict",
            Self::Set | Self::FrozenSet => "a set",
            Self::Global => "a class or function",
            Self::Persistent => "a persistent id",
            Self::Reduce | Self::New | Self::NewEx => "an object",
        }
    }
}

/// `a` and `b` mean, by tag: the halves of an int or float; start and length in a pool; an index into `globals` or
/// `objects`; or the node of a persistent id. Of a container that was filled in several places (`chained`), they are
/// the first and last segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub(super) tag: Tag,
    pub(super) chained: bool,
    pub(super) a: u32,
    pub(super) b: u32,
}

/// No segment, no node.
pub(super) const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) start: u32,
    pub(super) len: u32,
    pub(super) next: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ObjectRecord {
    pub(super) callable: u32,
    pub(super) args: u32,
    pub(super) state: u32,
}

/// First and last segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    pub(super) first: u32,
    pub(super) last: u32,
}

impl Chain {
    pub(super) const EMPTY: Self = Self { first: NIL, last: NIL };
}

/// What few objects have: list items and dict items beside their state, and keyword arguments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extras {
    pub(super) kwargs: u32,
    pub(super) items: Chain,
    pub(super) pairs: Chain,
}

impl Extras {
    pub(super) const NONE: Self = Self { kwargs: NIL, items: Chain::EMPTY, pairs: Chain::EMPTY };
}

/// The pools. Shared by [`Arena`](super::Arena), which grows them, and [`Tree`](super::Tree), which no longer does.
#[derive(Default)]
pub(super) struct Pools {
    pub(super) nodes: Vec<Node>,
    pub(super) links: Vec<u32>,
    pub(super) segments: Vec<Segment>,
    pub(super) objects: Vec<ObjectRecord>,
    pub(super) extras: HashMap<u32, Extras>,
    pub(super) text: String,
    pub(super) blob: Vec<u8>,
    pub(super) globals: Vec<Global>,
}

impl fmt::Debug for Pools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} values", self.nodes.len())
    }
}

/// Start and length as pool indices; `NIL` itself stays free.
pub(super) fn span(start: usize, len: usize) -> Result<(u32, u32), PickleErrorKind> {
    let end = start.checked_add(len).and_then(|end| u32::try_from(end).ok()).filter(|end| *end < NIL);
    match (u32::try_from(start), u32::try_from(len), end) {
        (Ok(start), Ok(len), Some(_)) => Ok((start, len)),
        _ => Err(PickleErrorKind::Limit { what: "size of one pool of values", limit: u64::from(NIL) }),
    }
}

pub(super) fn halves(bits: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = bits.to_le_bytes();
    [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])]
}

/// Without the top bytes that only repeat the sign: one int has one spelling.
pub(super) fn shortest(mut little_endian: &[u8]) -> &[u8] {
    while let [rest @ .., next, top] = little_endian
        && (*top == if next & 0x80 != 0 { 0xff } else { 0 })
    {
        little_endian = little_endian.get(..rest.len() + 1).unwrap_or_default();
    }
    little_endian
}

/// The value of a two's complement that fits 64 bits, however many bytes spell it.
pub(super) fn narrow(little_endian: &[u8]) -> Option<i64> {
    let negative = little_endian.last().is_some_and(|top| top & 0x80 != 0);
    let fill = if negative { 0xff } else { 0 };
    let mut bytes = [fill; 8];
    let (low, high) = little_endian.split_at(little_endian.len().min(8));
    bytes.get_mut(..low.len())?.copy_from_slice(low);
    let value = i64::from_le_bytes(bytes);
    (high.iter().all(|b| *b == fill) && (value < 0) == negative).then_some(value)
}
