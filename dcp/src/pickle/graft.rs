//! Copies a value from one tree into another arena: how a part of a pickle becomes a pickle of its own, and how values
//! of several pickles are put together in one.

use std::collections::HashMap;

use super::arena::Arena;
use super::node::{Construction, NodeId};
use super::tree::{Items, Object, Ref, Value};

impl Arena {
    /// A copy of `value`, what it refers to included. What is one object inside it stays one; ids of storages are
    /// copied as they are.
    pub fn graft(&mut self, value: Ref<'_>) -> NodeId {
        let mut known = HashMap::new();
        self.graft_known(value, &mut known)
    }

    fn graft_known(&mut self, value: Ref<'_>, known: &mut HashMap<NodeId, NodeId>) -> NodeId {
        if let Some(copy) = known.get(&value.id()) {
            return *copy;
        }
        let copy = match value.value() {
            Value::None => self.none(),
            Value::Bool(value) => self.bool(value),
            Value::Int(value) => self.int(value),
            Value::BigInt(bytes) => self.big_int(bytes),
            Value::Float(value) => self.float(value),
            Value::Str(text) => self.str(text),
            Value::WildStr(text) => self.wild_str(text),
            Value::Bytes(bytes) => self.bytes(bytes),
            Value::ByteArray(bytes) => self.byte_array(bytes),
            Value::Tuple(items) => {
                let items = self.graft_all(items, known);
                self.tuple(&items)
            }
            Value::List(items) => {
                let items = self.graft_all(items, known);
                self.list(&items)
            }
            Value::Set(items) => {
                let items = self.graft_all(items, known);
                self.set(&items)
            }
            Value::FrozenSet(items) => {
                let items = self.graft_all(items, known);
                self.frozen_set(&items)
            }
            Value::Dict(pairs) => {
                let flat = self.graft_all(pairs.flat(), known);
                let dict = self.dict(&[]);
                self.set_items(dict, &flat);
                dict
            }
            Value::Global(global) => self.global(&global.module, &global.name),
            Value::Persistent(id) => {
                let id = self.graft_known(id, known);
                self.persistent(id)
            }
            Value::Object(object) => self.graft_object(object, known),
        };
        known.insert(value.id(), copy);
        copy
    }

    fn graft_all(&mut self, items: Items<'_>, known: &mut HashMap<NodeId, NodeId>) -> Vec<NodeId> {
        items.map(|item| self.graft_known(item, known)).collect()
    }

    fn graft_object(&mut self, object: Object<'_>, known: &mut HashMap<NodeId, NodeId>) -> NodeId {
        let callable = self.graft_known(object.callable, known);
        let args = self.graft_known(object.args, known);
        let kwargs = object.kwargs.map(|kwargs| self.graft_known(kwargs, known));
        let copy = match (object.construction, kwargs) {
            (Construction::Reduce, _) => self.reduce(callable, args),
            (Construction::NewEx, Some(kwargs)) => self.new_object_ex(callable, args, kwargs),
            (Construction::New | Construction::NewEx, _) => self.new_object(callable, args),
        };
        let items = self.graft_all(object.items, known);
        if !items.is_empty() {
            self.append(copy, &items);
        }
        let pairs = self.graft_all(object.pairs.flat(), known);
        if !pairs.is_empty() {
            self.set_items(copy, &pairs);
        }
        if let Some(state) = object.state {
            let state = self.graft_known(state, known);
            self.set_state(copy, state);
        }
        copy
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Context, Limits, Policy, Protocol, Unknown, read, write};
    use super::*;

    fn copied(pickle: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let policy = Policy::new(Context::BytesEntry).unknown(Unknown::Inert);
        let tree = read(pickle, &policy, &Limits::default()).unwrap();
        let mut arena = Arena::new();
        let root = arena.graft(tree.root());
        let copy = arena.finish(root).unwrap();
        (write(&tree, Protocol::V2).unwrap(), write(&copy, Protocol::V2).unwrap())
    }

    #[test]
    fn a_copy_is_pickled_to_the_same_bytes() {
        // [x, x, {1: (2.5, None)}, Point(1) with items, state] where x is one list.
        let pickle = b"\x80\x02]q\x00(]q\x01K\x01ah\x01}K\x01G\x40\x04\x00\x00\x00\x00\x00\x00N\x86s\
                       cm\nPoint\nK\x01\x85R(K\x02K\x03e}X\x01\x00\x00\x00aK\x04sbe.";
        let (original, copy) = copied(pickle);
        assert_eq!(original, copy);
        assert!(original.windows(2).any(|two| two == [b'h', 0] || two == [b'h', 1]), "sharing was lost");
    }

    #[test]
    fn texts_and_numbers_of_every_kind_survive() {
        for pickle in [
            &b"\x80\x04\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00."[..],
            b"\x80\x04X\x03\x00\x00\x00\xed\xa0\x80.",
            b"\x80\x04C\x03abc.",
            b"\x80\x05\x96\x02\x00\x00\x00\x00\x00\x00\x00ab.",
            b"\x80\x04(K\x01K\x02\x91.",
            b"\x80\x04\x8f(K\x01\x90.",
        ] {
            let (original, copy) = copied(pickle);
            assert_eq!(original, copy, "{pickle:?}");
        }
    }
}
