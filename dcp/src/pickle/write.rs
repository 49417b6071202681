//! An inert tree back into a pickle that Python, and torch's restricted unpickler, read.
//!
//! The value comes back the same: order, sharing, names, states. The bytes need not: memo entries are made only
//! for what is used twice, and there are no frames. Recursion is safe because a [`Tree`] is of bounded depth.

use super::error::{PickleError, PickleErrorKind as Kind};
use super::node::{Construction, NodeId};
use super::opcode as op;
use super::tree::{Items, Object, Pairs, Ref, Tree, Value};

/// Which pickle to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// What `torch.save` writes, and the only one that `weights_only=True` reads: for `data.pkl`.
    V2,
    /// What torch DCP writes for `.metadata`.
    V4,
}

/// Items put into a container at once, as CPython does: bounds the stack of who reads.
const BATCH: usize = 1000;

/// Writes the tree's root value as one pickle.
///
/// # Errors
/// A name that the protocol cannot spell (one with a line break, in protocol 2).
pub fn write(tree: &Tree, protocol: Protocol) -> Result<Vec<u8>, PickleError> {
    let mut writer = Writer {
        out: Vec::new(),
        protocol,
        uses: count_uses(tree),
        memo: vec![NO_MEMO; tree.node_count()],
        memo_len: 0,
    };
    writer.out.extend([op::PROTO, if protocol == Protocol::V2 { 2 } else { 4 }]);
    writer.value(tree.root()).map_err(PickleError::whole)?;
    writer.out.push(op::STOP);
    Ok(writer.out)
}

const NO_MEMO: u32 = u32::MAX;

struct Writer {
    out: Vec<u8>,
    protocol: Protocol,
    uses: Vec<u8>,
    memo: Vec<u32>,
    memo_len: u32,
}

type Written = Result<(), Kind>;

impl Writer {
    fn value(&mut self, value: Ref<'_>) -> Written {
        if self.recall(value.id()) {
            return Ok(());
        }
        match value.value() {
            Value::None => self.op(op::NONE),
            Value::Bool(true) => self.op(op::NEWTRUE),
            Value::Bool(false) => self.op(op::NEWFALSE),
            Value::Int(int) => self.int(int),
            Value::BigInt(bytes) => self.big_int(bytes),
            Value::Float(float) => self.op_with(op::BINFLOAT, &float.to_be_bytes()),
            Value::Str(text) => self.text(text.as_bytes()),
            Value::WildStr(text) => self.text(text),
            Value::Bytes(bytes) => self.bytes(bytes)?,
            Value::ByteArray(bytes) => self.byte_array(bytes)?,
            Value::Tuple(items) => self.tuple(items)?,
            Value::FrozenSet(items) => self.frozen_set(items)?,
            Value::List(items) => return self.growing(op::EMPTY_LIST, value.id(), |w| w.appends(items)),
            Value::Dict(pairs) => return self.growing(op::EMPTY_DICT, value.id(), |w| w.set_items(pairs)),
            Value::Set(items) if self.protocol == Protocol::V4 => {
                return self.growing(op::EMPTY_SET, value.id(), |w| w.batches(items, op::ADDITEMS, None));
            }
            Value::Set(items) => self.call_with_list("set", items)?,
            Value::Global(global) => self.global(&global.module, &global.name)?,
            Value::Persistent(id) => {
                self.value(id)?;
                self.op(op::BINPERSID);
            }
            Value::Object(object) => return self.object(value.id(), object),
        }
        self.memoize(value.id());
        Ok(())
    }

    fn op(&mut self, op: u8) {
        self.out.push(op);
    }

    fn op_with(&mut self, op: u8, operand: &[u8]) {
        self.out.push(op);
        self.out.extend_from_slice(operand);
    }

    /// Writes a reference to what was written before, if it was.
    fn recall(&mut self, id: NodeId) -> bool {
        let Some(index) = self.memo.get(id.index()).copied().filter(|i| *i != NO_MEMO) else { return false };
        match u8::try_from(index) {
            Ok(short) => self.op_with(op::BINGET, &[short]),
            Err(_) => self.op_with(op::LONG_BINGET, &index.to_le_bytes()),
        }
        true
    }

    fn memoize(&mut self, id: NodeId) {
        if self.uses.get(id.index()).is_none_or(|uses| *uses < 2) {
            return;
        }
        if let Some(entry) = self.memo.get_mut(id.index()) {
            *entry = self.memo_len;
        }
        match (self.protocol, u8::try_from(self.memo_len)) {
            (Protocol::V4, _) => self.op(op::MEMOIZE),
            (Protocol::V2, Ok(short)) => self.op_with(op::BINPUT, &[short]),
            (Protocol::V2, Err(_)) => self.op_with(op::LONG_BINPUT, &self.memo_len.to_le_bytes()),
        }
        self.memo_len += 1;
    }

    fn int(&mut self, value: i64) {
        let bytes = value.to_le_bytes();
        let [a, b, c, d, ..] = bytes;
        if u8::try_from(value).is_ok() {
            self.op_with(op::BININT1, &[a]);
        } else if u16::try_from(value).is_ok() {
            self.op_with(op::BININT2, &[a, b]);
        } else if i32::try_from(value).is_ok() {
            self.op_with(op::BININT, &[a, b, c, d]);
        } else {
            self.big_int(&bytes);
        }
    }

    fn big_int(&mut self, bytes: &[u8]) {
        match u8::try_from(bytes.len()) {
            Ok(len) => self.op_with(op::LONG1, &[len]),
            Err(_) => self.op_with(op::LONG4, &low4(bytes.len())),
        }
        self.out.extend_from_slice(bytes);
    }

    fn text(&mut self, text: &[u8]) {
        match (self.protocol, u8::try_from(text.len())) {
            (Protocol::V4, Ok(len)) => self.op_with(op::SHORT_BINUNICODE, &[len]),
            _ => self.op_with(op::BINUNICODE, &low4(text.len())),
        }
        self.out.extend_from_slice(text);
    }

    /// Protocol 2 knows no bytes: like CPython, they go as Latin-1 text to be encoded.
    fn bytes(&mut self, bytes: &[u8]) -> Written {
        match (self.protocol, u8::try_from(bytes.len())) {
            (Protocol::V2, _) => {
                self.global("_codecs", "encode")?;
                let text: String = bytes.iter().copied().map(char::from).collect();
                self.text(text.as_bytes());
                self.text(b"latin1");
                self.op(op::TUPLE2);
                self.op(op::REDUCE);
                return Ok(());
            }
            (Protocol::V4, Ok(len)) => self.op_with(op::SHORT_BINBYTES, &[len]),
            (Protocol::V4, Err(_)) => self.op_with(op::BINBYTES, &low4(bytes.len())),
        }
        self.out.extend_from_slice(bytes);
        Ok(())
    }

    /// No opcode before protocol 5.
    fn byte_array(&mut self, bytes: &[u8]) -> Written {
        self.global(self.builtins(), "bytearray")?;
        self.bytes(bytes)?;
        self.op(op::TUPLE1);
        self.op(op::REDUCE);
        Ok(())
    }

    fn builtins(&self) -> &'static str {
        if self.protocol == Protocol::V2 { "__builtin__" } else { "builtins" }
    }

    fn tuple(&mut self, items: Items<'_>) -> Written {
        let (mark, close) = match items.len() {
            0 => (false, op::EMPTY_TUPLE),
            1 => (false, op::TUPLE1),
            2 => (false, op::TUPLE2),
            3 => (false, op::TUPLE3),
            _ => (true, op::TUPLE),
        };
        if mark {
            self.op(op::MARK);
        }
        self.each(items)?;
        self.op(close);
        Ok(())
    }

    fn each<'a>(&mut self, mut items: impl Iterator<Item = Ref<'a>>) -> Written {
        items.try_for_each(|item| self.value(item))
    }

    fn frozen_set(&mut self, items: Items<'_>) -> Written {
        if self.protocol == Protocol::V2 {
            return self.call_with_list("frozenset", items);
        }
        self.op(op::MARK);
        self.each(items)?;
        self.op(op::FROZENSET);
        Ok(())
    }

    /// `builtins.name([items])`: how protocol 2 spells sets.
    fn call_with_list(&mut self, name: &str, items: Items<'_>) -> Written {
        self.global(self.builtins(), name)?;
        self.op(op::EMPTY_LIST);
        self.appends(items)?;
        self.op(op::TUPLE1);
        self.op(op::REDUCE);
        Ok(())
    }

    /// Memoized before it is filled, as CPython does.
    fn growing(&mut self, empty: u8, id: NodeId, fill: impl FnOnce(&mut Self) -> Written) -> Written {
        self.op(empty);
        self.memoize(id);
        fill(self)
    }

    fn appends(&mut self, items: Items<'_>) -> Written {
        self.batches(items, op::APPENDS, Some((1, op::APPEND)))
    }

    fn set_items(&mut self, pairs: Pairs<'_>) -> Written {
        self.batches(pairs.flat(), op::SETITEMS, Some((2, op::SETITEM)))
    }

    /// Batches between a mark and `many`; a batch of just `single.0` values goes without mark.
    fn batches(&mut self, mut items: Items<'_>, many: u8, single: Option<(usize, u8)>) -> Written {
        let mut left = items.len();
        while left > 0 {
            let size = left.min(2 * BATCH);
            left -= size;
            let alone = single.filter(|(count, _)| *count == size);
            if alone.is_none() {
                self.op(op::MARK);
            }
            self.each(items.by_ref().take(size))?;
            self.op(alone.map_or(many, |(_, op)| op));
        }
        Ok(())
    }

    fn global(&mut self, module: &str, name: &str) -> Written {
        match self.protocol {
            Protocol::V4 => {
                self.text(module.as_bytes());
                self.text(name.as_bytes());
                self.op(op::STACK_GLOBAL);
            }
            Protocol::V2 => {
                if module.contains('\n') || name.contains('\n') {
                    return Err(Kind::Literal { op: "GLOBAL", why: "a name with a line break" });
                }
                self.op_with(op::GLOBAL, module.as_bytes());
                self.op_with(b'\n', name.as_bytes());
                self.op(b'\n');
            }
        }
        Ok(())
    }

    fn object(&mut self, id: NodeId, object: Object<'_>) -> Written {
        match (object.construction, object.kwargs, self.protocol) {
            (Construction::NewEx, Some(kwargs), Protocol::V2) => {
                self.global("copy_reg", "__newobj_ex__")?;
                self.each([object.callable, object.args, kwargs].into_iter())?;
                self.op(op::TUPLE3);
                self.op(op::REDUCE);
            }
            (Construction::NewEx, Some(kwargs), Protocol::V4) => {
                self.each([object.callable, object.args, kwargs].into_iter())?;
                self.op(op::NEWOBJ_EX);
            }
            (construction, ..) => {
                self.each([object.callable, object.args].into_iter())?;
                self.op(if construction == Construction::Reduce { op::REDUCE } else { op::NEWOBJ });
            }
        }
        self.memoize(id);
        self.appends(object.items)?;
        self.set_items(object.pairs)?;
        if let Some(state) = object.state {
            self.value(state)?;
            self.op(op::BUILD);
        }
        Ok(())
    }
}

/// The low four bytes of a length; pools are smaller than 4 GiB.
fn low4(len: usize) -> [u8; 4] {
    let [a, b, c, d, ..] = (len as u64).to_le_bytes();
    [a, b, c, d]
}

/// How often each reachable value is referred to, up to 2; always 0 for those that Python itself never shares.
fn count_uses(tree: &Tree) -> Vec<u8> {
    let mut uses = vec![0; tree.node_count()];
    count(tree.root(), &mut uses);
    uses
}

fn count(value: Ref<'_>, uses: &mut [u8]) {
    let kind = value.value();
    if matches!(kind, Value::None | Value::Bool(_) | Value::Int(_) | Value::BigInt(_) | Value::Float(_)) {
        return;
    }
    if matches!(&kind, Value::Tuple(items) if items.is_empty()) {
        return;
    }
    let Some(seen) = uses.get_mut(value.id().index()) else { return };
    *seen = seen.saturating_add(1).min(2);
    if *seen > 1 {
        return;
    }
    match kind {
        Value::Tuple(items) | Value::List(items) | Value::Set(items) | Value::FrozenSet(items) => {
            items.for_each(|item| count(item, uses));
        }
        Value::Dict(pairs) => pairs.flat().for_each(|item| count(item, uses)),
        Value::Persistent(id) => count(id, uses),
        Value::Object(object) => {
            let fixed = [Some(object.callable), Some(object.args), object.kwargs, object.state];
            fixed.into_iter().flatten().chain(object.items).for_each(|part| count(part, uses));
            object.pairs.flat().for_each(|part| count(part, uses));
        }
        _ => {}
    }
}
