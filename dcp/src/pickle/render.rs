//! Values as text, close to Python's `repr`, for people: bounded in length, free of control characters.

use std::fmt::{self, Write};

use super::tree::{Items, Object, Pairs, Ref, Value};
use crate::bounded::Bounded;

/// A value as text. `{}` shows up to 1,000 characters; a precision (`{:.80}`) sets another bound.
impl fmt::Display for Ref<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Bounded::show(f, f.precision().unwrap_or(1000), |text| text.value(*self))
    }
}

impl Bounded {
    fn value(&mut self, value: Ref<'_>) -> fmt::Result {
        match value.value() {
            Value::None => self.write_str("None"),
            Value::Bool(true) => self.write_str("True"),
            Value::Bool(false) => self.write_str("False"),
            Value::Int(int) => write!(self, "{int}"),
            Value::BigInt(bytes) => {
                self.write_str("int(")?;
                bytes.iter().rev().try_for_each(|b| write!(self, "{b:02x}"))?;
                self.write_str("h)")
            }
            Value::Float(float) => write!(self, "{float:?}"),
            Value::Str(text) => write!(self, "'{}'", text.escape_debug()),
            Value::WildStr(text) => write!(self, "'{}'", text.escape_ascii()),
            Value::Bytes(bytes) => write!(self, "b'{}'", bytes.escape_ascii()),
            Value::ByteArray(bytes) => write!(self, "bytearray(b'{}')", bytes.escape_ascii()),
            Value::Tuple(items) if items.len() == 1 => self.list("(", items, ",)"),
            Value::Tuple(items) => self.list("(", items, ")"),
            Value::List(items) => self.list("[", items, "]"),
            Value::Set(items) => self.list("set(", items, ")"),
            Value::FrozenSet(items) => self.list("frozenset(", items, ")"),
            Value::Dict(pairs) => self.pairs(pairs),
            Value::Global(global) => self.name(&global.module, &global.name),
            Value::Persistent(id) => {
                self.write_str("persistent(")?;
                self.value(id)?;
                self.write_str(")")
            }
            Value::Object(object) => self.object(object),
        }
    }

    fn name(&mut self, module: &str, name: &str) -> fmt::Result {
        write!(self, "{}.{}", module.escape_debug(), name.escape_debug())
    }

    fn list(&mut self, open: &str, items: Items<'_>, close: &str) -> fmt::Result {
        self.write_str(open)?;
        for (i, item) in items.enumerate() {
            self.write_str(if i == 0 { "" } else { ", " })?;
            self.value(item)?;
        }
        self.write_str(close)
    }

    fn pairs(&mut self, pairs: Pairs<'_>) -> fmt::Result {
        self.write_str("{")?;
        for (i, (key, value)) in pairs.enumerate() {
            self.write_str(if i == 0 { "" } else { ", " })?;
            self.value(key)?;
            self.write_str(": ")?;
            self.value(value)?;
        }
        self.write_str("}")
    }

    /// `name(args)`, then what was put into it.
    fn object(&mut self, object: Object<'_>) -> fmt::Result {
        self.value(object.callable)?;
        match object.args.value() {
            Value::Tuple(args) => self.list("(", args, ")")?,
            _ => self.value(object.args)?,
        }
        if let Some(kwargs) = object.kwargs {
            self.write_str("**")?;
            self.value(kwargs)?;
        }
        if !object.items.is_empty() {
            self.list("[", object.items, "]")?;
        }
        if !object.pairs.is_empty() {
            self.pairs(object.pairs)?;
        }
        match object.state {
            Some(state) => {
                self.write_str(" with ")?;
                self.value(state)
            }
            None => Ok(()),
        }
    }
}
