//! [`State`]: a decoded value, of JSON or of a pickle, that can be taken apart, compared exactly and written again.

use std::fmt::{self, Write};

use crate::{bounded::Bounded, pickle::Protocol};

/// A value. Equal means the same type and the same bits.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum State {
    None,
    Bool(bool),
    /// Within 64 bits, signed or not.
    Int(i128),
    /// Little-endian two's complement of a larger one: carried, not counted with.
    Large(Vec<u8>),
    /// Bits of a float.
    Float(u64),
    Text(String),
    Bytes(Vec<u8>),
    List(Vec<Self>),
    Tuple(Vec<Self>),
    /// Keys are distinct.
    Dict(Vec<(Self, Self)>),
    /// Bytes that are themselves a pickle.
    Pickled(Box<Pickled>),
    /// What can't be written again as it was, as text.
    Odd(String),
}

/// A pickle within a value.
#[derive(Debug, Clone)]
pub(super) struct Pickled {
    pub(super) protocol: Protocol,
    /// As it was found.
    pub(super) raw: Vec<u8>,
    pub(super) value: State,
}

/// One value has many pickles: they are compared by it.
impl PartialEq for Pickled {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl Eq for Pickled {}

impl std::hash::Hash for Pickled {
    fn hash<H: std::hash::Hasher>(&self, hasher: &mut H) {
        self.value.hash(hasher);
    }
}

/// Most characters that an error shows of a value.
const SHOWN: usize = 60;

impl State {
    pub(super) const fn float(value: f64) -> Self {
        Self::Float(value.to_bits())
    }

    /// The first part that can't be carried, as text, and where it is below this value.
    pub(super) fn odd(&self) -> Option<(String, &str)> {
        match self {
            Self::Odd(what) => Some((String::new(), what)),
            Self::List(items) | Self::Tuple(items) => items.iter().enumerate().find_map(|(at, item)| {
                let (path, odd) = item.odd()?;
                Some((format!(".{at}{path}"), odd))
            }),
            Self::Dict(pairs) => pairs.iter().find_map(|(key, value)| {
                let (path, odd) = value.odd()?;
                Some((format!(".{}{path}", key.segment()), odd))
            }),
            Self::Pickled(pickled) => pickled.value.odd(),
            _ => None,
        }
    }

    /// A dict's key as a segment of a path.
    pub(super) fn segment(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            other => other.to_string(),
        }
    }

    /// What kind of value it is.
    pub(super) const fn noun(&self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Bool(_) => "a bool",
            Self::Int(_) | Self::Large(_) => "an int",
            Self::Float(_) => "a float",
            Self::Text(_) => "a text",
            Self::Bytes(_) => "bytes",
            Self::List(_) => "a list",
            Self::Tuple(_) => "a tuple",
            Self::Dict(_) => "a dict",
            Self::Pickled(_) => "a pickle",
            Self::Odd(_) => "an object",
        }
    }
}

/// As people read it, cut where it is long.
impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Bounded::show(f, SHOWN, |text| text.state(self))
    }
}

impl Bounded {
    fn state(&mut self, value: &State) -> fmt::Result {
        match value {
            State::None => self.write_str("None"),
            State::Bool(true) => self.write_str("True"),
            State::Bool(false) => self.write_str("False"),
            State::Int(int) => write!(self, "{int}"),
            State::Large(bytes) => write!(self, "an int of {} bytes", bytes.len()),
            State::Float(bits) => write!(self, "{:?}", f64::from_bits(*bits)),
            State::Text(text) => write!(self, "'{}'", text.escape_debug()),
            State::Bytes(bytes) => write!(self, "b'{}'", bytes.escape_ascii()),
            State::List(items) => self.items("[", items, "]"),
            State::Tuple(items) => self.items("(", items, ")"),
            State::Dict(pairs) => {
                self.write_str("{")?;
                for (at, (key, value)) in pairs.iter().enumerate() {
                    self.write_str(if at == 0 { "" } else { ", " })?;
                    self.state(key)?;
                    self.write_str(": ")?;
                    self.state(value)?;
                }
                self.write_str("}")
            }
            State::Pickled(pickled) => self.state(&pickled.value),
            State::Odd(what) => write!(self, "{}", what.escape_debug()),
        }
    }

    fn items(&mut self, open: &str, items: &[State], close: &str) -> fmt::Result {
        self.write_str(open)?;
        for (at, item) in items.iter().enumerate() {
            self.write_str(if at == 0 { "" } else { ", " })?;
            self.state(item)?;
        }
        self.write_str(close)
    }
}
