//! From a [`State`] back to the bytes of an object, in the encoding that it came in.

use bytes::Bytes;
use serde_json::{Map, Number, Value};

use super::state::{Pickled, State};
use crate::{
    Encoding, Error, ObjectEntry, Result,
    formats::torch_dcp::{archive_of, json, of_pickle},
    pickle::{Arena, NodeId, Protocol, write},
};

/// `like`, with another value. Its key and path are the caller's to change.
///
/// # Errors
/// `Incompatible` for a value that the encoding can't hold.
pub(super) fn encode(like: &ObjectEntry, state: &State) -> Result<ObjectEntry> {
    let (bytes, preview) = encoded(like.encoding, state).map_err(|error| error.at(&like.key))?;
    Ok(ObjectEntry { bytes, preview: Some(preview), ..like.clone() })
}

fn encoded(encoding: Encoding, state: &State) -> Result<(Bytes, Value)> {
    if encoding == Encoding::Json {
        let value = to_json(state)?;
        let text = serde_json::to_vec(&value).map_err(|error| Error::internal(error.to_string()))?;
        return Ok((text.into(), value));
    }
    // What `torch.load(weights_only=True)` reads.
    let (pickle, preview) = pickled(state, Protocol::V2)?;
    let bytes = if encoding == Encoding::TorchSave { archive_of(pickle.into())? } else { pickle.into() };
    Ok((bytes, preview))
}

fn pickled(state: &State, protocol: Protocol) -> Result<(Vec<u8>, Value)> {
    let mut arena = Arena::new();
    let root = put(&mut arena, state)?;
    let tree = arena.finish(root).map_err(of_pickle)?;
    Ok((write(&tree, protocol).map_err(of_pickle)?, json(tree.root())))
}

impl Pickled {
    /// The same pickle around another value.
    ///
    /// # Errors
    /// As [`encode`].
    pub(super) fn around(&self, value: State) -> Result<Self> {
        let (raw, _) = pickled(&value, self.protocol)?;
        Ok(Self { protocol: self.protocol, raw, value })
    }
}

fn put(arena: &mut Arena, state: &State) -> Result<NodeId> {
    Ok(match state {
        State::None => arena.none(),
        State::Bool(value) => arena.bool(*value),
        State::Int(value) => arena.big_int(&value.to_le_bytes()),
        State::Large(bytes) => arena.big_int(bytes),
        State::Float(bits) => arena.float(f64::from_bits(*bits)),
        State::Text(text) => arena.str(text),
        State::Bytes(bytes) => arena.bytes(bytes),
        State::List(items) => {
            let items = put_all(arena, items)?;
            arena.list(&items)
        }
        State::Tuple(items) => {
            let items = put_all(arena, items)?;
            arena.tuple(&items)
        }
        State::Dict(pairs) => {
            let pairs = pairs.iter().map(|(key, value)| Ok((put(arena, key)?, put(arena, value)?)));
            let pairs = pairs.collect::<Result<Vec<_>>>()?;
            arena.dict(&pairs)
        }
        State::Pickled(pickled) => arena.bytes(&pickled.raw),
        State::Odd(what) => return Err(Error::internal(format!("{what} was to be written"))),
    })
}

fn put_all(arena: &mut Arena, items: &[State]) -> Result<Vec<NodeId>> {
    items.iter().map(|item| put(arena, item)).collect()
}

fn to_json(state: &State) -> Result<Value> {
    let wrong = || Error::incompatible(format!("{} has no form as JSON: {state}", state.noun()));
    Ok(match state {
        State::None => Value::Null,
        State::Bool(value) => Value::Bool(*value),
        State::Int(value) => match (i64::try_from(*value), u64::try_from(*value)) {
            (Ok(int), _) => int.into(),
            (_, Ok(int)) => int.into(),
            _ => return Err(wrong()),
        },
        State::Float(bits) => Value::Number(Number::from_f64(f64::from_bits(*bits)).ok_or_else(wrong)?),
        State::Text(text) => Value::String(text.clone()),
        State::List(items) => Value::Array(items.iter().map(to_json).collect::<Result<_>>()?),
        State::Dict(pairs) => {
            let mut map = Map::new();
            for (key, value) in pairs {
                let State::Text(key) = key else { return Err(wrong()) };
                map.insert(key.clone(), to_json(value)?);
            }
            Value::Object(map)
        }
        State::Large(_) | State::Bytes(_) | State::Tuple(_) | State::Pickled(_) | State::Odd(_) => {
            return Err(wrong());
        }
    })
}
