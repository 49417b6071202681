//! From the bytes of an object to a [`State`]. What has no exact form there becomes [`State::Odd`], to be refused where it is used.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use super::state::{Pickled, State};
use crate::{
    Encoding, Error, ObjectEntry, Result,
    formats::torch_dcp::{of_archive, of_pickle},
    pickle::{
        Context, Limits, Object, Pairs, PickleError, PickleErrorKind, Policy, Protocol, Ref, Tree, Unknown,
        Value as Inert, read,
    },
    torch::Archive,
};

/// Pickles within pickles that are looked into.
const NESTED: usize = 4;

/// Most bytes that values in memory may take together, for each byte that they are decoded of: the smallest have one, and become a
/// [`State`] and a place for it.
const TIMES: u64 = 96;

/// Most bytes that they may take at all.
const MOST: u64 = 4 << 30;

/// How much may still be made of some objects together: values that are shared in one of them are written apart here.
pub(super) struct Budget {
    left: u64,
}

impl Budget {
    /// Of some bytes and a megabyte more.
    pub(super) fn of(objects: &[&ObjectEntry]) -> Self {
        let bytes = objects.iter().map(|object| object.bytes.len() as u64).fold(0, u64::saturating_add);
        Self { left: bytes.saturating_mul(TIMES).saturating_add(1 << 20).min(MOST) }
    }

    /// Decodes the value of `object`.
    ///
    /// # Errors
    /// `Corrupt` for bytes that are not of the encoding, or a pickle that would run code; `Incompatible` for values that written out
    /// would be many times as large as they are.
    pub(super) fn decode(&mut self, object: &ObjectEntry) -> Result<State> {
        let decoded = match object.encoding {
            Encoding::Json => self.json_text(&object.bytes),
            Encoding::Pickle => self.pickle(&object.bytes),
            Encoding::TorchSave => self.torch_save(&object.bytes),
        };
        decoded.map_err(|error| error.at(&object.key))
    }

    /// What is left of it, in bytes.
    #[cfg(test)]
    pub(super) const fn left(&self) -> u64 {
        self.left
    }

    fn spend(&mut self, bytes: usize) -> Result<()> {
        self.left = self.left.checked_sub(bytes as u64).ok_or_else(|| {
            Error::incompatible("values occur in it so often that written out they are many times its size")
        })?;
        Ok(())
    }

    fn json_text(&mut self, bytes: &[u8]) -> Result<State> {
        // Every value but the first comes after one of these: known before any is made.
        let values = bytes.iter().filter(|byte| matches!(byte, b',' | b':' | b'[' | b'{')).count();
        self.spend(values.saturating_mul(size_of::<Value>()))?;
        let value: Value = serde_json::from_slice(bytes)
            .map_err(|error| Error::corrupt(format!("no JSON: {error}")).caused_by(error))?;
        match rounded(bytes) {
            Some(number) => {
                Err(Error::incompatible(format!("the number {number:.40} has no exact form here")))
            }
            None => self.json(value),
        }
    }

    fn json(&mut self, value: Value) -> Result<State> {
        self.spend(size_of::<State>())?;
        Ok(match value {
            Value::Null => State::None,
            Value::Bool(value) => State::Bool(value),
            Value::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(int), _) => State::Int(int.into()),
                (None, Some(int)) => State::Int(int.into()),
                _ => number.as_f64().map_or_else(|| State::Odd(number.to_string()), State::float),
            },
            Value::String(text) => {
                self.spend(text.len())?;
                State::Text(text)
            }
            Value::Array(items) => {
                State::List(items.into_iter().map(|item| self.json(item)).collect::<Result<_>>()?)
            }
            Value::Object(map) => {
                let pairs = map.into_iter().map(|(key, value)| {
                    self.spend(size_of::<State>() + key.len())?;
                    Ok((State::Text(key), self.json(value)?))
                });
                State::Dict(pairs.collect::<Result<_>>()?)
            }
        })
    }

    fn torch_save(&mut self, bytes: &Bytes) -> Result<State> {
        let archive = Archive::open(Arc::new(bytes.clone())).map_err(of_archive)?;
        let limit = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.pickle(&archive.data_pickle(limit).map_err(of_archive)?)
    }

    fn pickle(&mut self, pickle: &[u8]) -> Result<State> {
        let tree = inert(pickle).map_err(of_pickle)?;
        self.value(tree.root(), 0)
    }

    fn value(&mut self, value: Ref<'_>, nested: usize) -> Result<State> {
        self.spend(size_of::<State>())?;
        Ok(match value.value() {
            Inert::None => State::None,
            Inert::Bool(value) => State::Bool(value),
            Inert::Int(value) => State::Int(value.into()),
            Inert::BigInt(bytes) => {
                self.spend(bytes.len())?;
                large(bytes)
            }
            Inert::Float(value) => State::float(value),
            Inert::Str(text) => {
                self.spend(text.len())?;
                State::Text(text.to_owned())
            }
            Inert::Bytes(bytes) => self.bytes(bytes.to_vec(), nested)?,
            Inert::List(items) => {
                State::List(items.map(|item| self.value(item, nested)).collect::<Result<_>>()?)
            }
            Inert::Tuple(items) => {
                State::Tuple(items.map(|item| self.value(item, nested)).collect::<Result<_>>()?)
            }
            Inert::Dict(pairs) => self.dict(pairs, nested)?,
            Inert::Object(object) => match encoded_bytes(&object) {
                Some(bytes) => self.bytes(bytes, nested)?,
                None => self.odd(value)?,
            },
            _ => self.odd(value)?,
        })
    }

    /// A key that comes twice keeps its place and takes its last value, as in Python.
    fn dict(&mut self, pairs: Pairs<'_>, nested: usize) -> Result<State> {
        let mut known: HashMap<State, usize> = HashMap::new();
        let mut made: Vec<(State, State)> = Vec::new();
        for (key, value) in pairs {
            let (key, value) = (self.value(key, nested)?, self.value(value, nested)?);
            match known.get(&key).and_then(|at| made.get_mut(*at)) {
                Some((_, last)) => *last = value,
                None => {
                    // Its key is kept twice while it is made.
                    let text = if let State::Text(text) = &key { text.len() } else { 0 };
                    self.spend(size_of::<(State, usize)>() + text)?;
                    known.insert(key.clone(), made.len());
                    made.push((key, value));
                }
            }
        }
        // Python counts keys as one that are equal without being alike (1, 1.0 and True), or that nothing here can compare.
        let plain = |key: &State| matches!(key, State::Text(_) | State::Int(_) | State::None);
        let keys_are_plain = made.iter().all(|(key, _)| plain(key));
        Ok(if keys_are_plain { State::Dict(made) } else { State::Odd("a dict with unusual keys".to_owned()) })
    }

    fn odd(&mut self, value: Ref<'_>) -> Result<State> {
        let text = format!("{} {value:.80}", value.noun());
        self.spend(text.len())?;
        Ok(State::Odd(text))
    }

    fn bytes(&mut self, raw: Vec<u8>, nested: usize) -> Result<State> {
        self.spend(raw.len())?;
        let (Some(protocol), true) = (protocol(&raw), nested < NESTED) else { return Ok(State::Bytes(raw)) };
        match inert(&raw) {
            Ok(tree) => {
                let value = self.value(tree.root(), nested + 1)?;
                Ok(State::Pickled(Box::new(Pickled { protocol, raw, value })))
            }
            Err(PickleError { kind: kind @ PickleErrorKind::RunsCode { .. }, .. }) => {
                Ok(State::Odd(kind.to_string()))
            }
            // They only begin and end like a pickle.
            Err(_) => Ok(State::Bytes(raw)),
        }
    }
}

fn inert(pickle: &[u8]) -> std::result::Result<Tree, PickleError> {
    let policy = Policy::new(Context::BytesEntry).unknown(Unknown::Inert);
    read(pickle, &policy, &Limits::default())
}

/// A number of a JSON text that reading it would change: an integer beyond 64 bits, or a negative zero without a point, which is a
/// float to some readers and not to others.
fn rounded(json: &[u8]) -> Option<&str> {
    let (mut at, mut within) = (0, false);
    while let Some(&byte) = json.get(at) {
        match byte {
            b'"' => within = !within,
            b'\\' if within => at += 1,
            b'-' | b'0'..=b'9' if !within => {
                let rest = json.get(at..).unwrap_or_default();
                let len = rest
                    .iter()
                    .take_while(|byte| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E'));
                let token = std::str::from_utf8(rest.get(..len.count())?).ok()?;
                let whole = !token.contains(['.', 'e', 'E']);
                if whole
                    && (token == "-0" || (token.parse::<i64>().is_err() && token.parse::<u64>().is_err()))
                {
                    return Some(token);
                }
                at += token.len();
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// The value of one object.
#[cfg(test)]
pub(super) fn decode(object: &ObjectEntry) -> Result<State> {
    Budget::of(&[object]).decode(object)
}

/// As which pickle bytes might be read.
fn protocol(bytes: &[u8]) -> Option<Protocol> {
    match bytes {
        [0x80, 2, .., b'.'] => Some(Protocol::V2),
        [0x80, 3..=5, .., b'.'] => Some(Protocol::V4),
        _ => None,
    }
}

fn large(little_endian: &[u8]) -> State {
    let (low, sign) = match little_endian {
        [low @ .., 0] if low.len() == 8 => (low, true),
        other => (other, false),
    };
    match <[u8; 8]>::try_from(low) {
        Ok(low) if sign => State::Int(u64::from_le_bytes(low).into()),
        _ => State::Large(little_endian.to_vec()),
    }
}

/// Bytes as protocol 2 spells them: text to be encoded as Latin-1, or a call of `bytes` for none.
fn encoded_bytes(object: &Object<'_>) -> Option<Vec<u8>> {
    if object.state.is_some() || !object.items.is_empty() || !object.pairs.is_empty() {
        return None;
    }
    let args = object.args.as_sequence()?.len();
    if (object.is("__builtin__", "bytes") || object.is("builtins", "bytes")) && args == 0 {
        return Some(Vec::new());
    }
    let encoding = object.arg(1).and_then(Ref::as_str)?;
    if !object.is("_codecs", "encode") || args != 2 || encoding != "latin1" {
        return None;
    }
    object.arg(0)?.as_str()?.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_json_would_round_is_found() {
        for (text, found) in [
            (r#"{"a": [1, -2, 18446744073709551615, 0.1, 1e300]}"#, None),
            (r#"{"a": 18446744073709551616}"#, Some("18446744073709551616")),
            (r#"[-9223372036854775808, -9223372036854775809]"#, Some("-9223372036854775809")),
            (r#"["99999999999999999999", "a\"99999999999999999999", -0]"#, Some("-0")),
            (r#"["\\", -0.0]"#, None),
        ] {
            assert_eq!(rounded(text.as_bytes()), found, "{text}");
        }
    }
}
