//! The pickle machine: opcodes in, inert data out.
//!
//! It has the stack, marks and memo of CPython's machine, but REDUCE, NEWOBJ and BUILD only note what was asked
//! for. Invariants: no length that the input declares is trusted before it is compared with what is left; a
//! memo index never makes the memo larger than the input justifies; no opcode pops through a mark.

use super::arena::Arena;
use super::error::{PickleError, PickleErrorKind as Kind};
use super::globals::Policy;
use super::limits::Limits;
use super::node::{NodeId, Tag};
use super::opcode as op;
use super::tree::Tree;

/// Reads the one pickle that `input` holds.
///
/// # Errors
/// What is wrong with it and at which byte; see [`PickleErrorKind`](Kind). Nothing is ever run.
pub fn read(input: &[u8], policy: &Policy, limits: &Limits) -> Result<Tree, PickleError> {
    let (tree, used) = read_prefix(input, policy, limits)?;
    match input.len().saturating_sub(used) {
        0 => Ok(tree),
        left => Err(PickleError::at(used, Kind::Trailing(left as u64))),
    }
}

/// Reads the pickle with which `input` begins, and returns its length in bytes as well.
///
/// # Errors
/// As [`read`].
pub fn read_prefix(input: &[u8], policy: &Policy, limits: &Limits) -> Result<(Tree, usize), PickleError> {
    let len = input.len() as u64;
    if len > limits.input {
        return Err(PickleError::whole(Kind::Limit {
            what: "size of a pickle (bytes)",
            limit: limits.input,
        }));
    }
    let mut machine = Machine::new(input, policy, limits);
    let root = machine.run().map_err(|kind| PickleError::at(machine.op_at, kind))?;
    let Machine { mut arena, at, stack, marks, memo, .. } = machine;
    arena.budget.release(stack);
    arena.budget.release(marks);
    arena.budget.release(memo);
    let tree = arena.finish_within(root, limits.walk(len)).map_err(PickleError::whole)?;
    Ok((tree, at))
}

/// A memo entry that was skipped.
const UNSET: NodeId = NodeId(u32::MAX);

/// How far a memo index may run ahead of the entries before it: writers count up, some from 1.
const MEMO_GAP: usize = 64;

pub(super) struct Machine<'a> {
    pub(super) input: &'a [u8],
    pub(super) at: usize,
    op_at: usize,
    pub(super) op: &'static str,
    policy: &'a Policy,
    memo_limit: u32,
    pub(super) arena: Arena,
    stack: Vec<NodeId>,
    marks: Vec<usize>,
    memo: Vec<NodeId>,
}

impl<'a> Machine<'a> {
    fn new(input: &'a [u8], policy: &'a Policy, limits: &Limits) -> Self {
        Self {
            input,
            at: 0,
            op_at: 0,
            op: "the pickle",
            policy,
            memo_limit: limits.memo,
            arena: Arena::bounded(*limits, limits.memory(input.len() as u64)),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Vec::new(),
        }
    }

    fn run(&mut self) -> Result<NodeId, Kind> {
        loop {
            self.op_at = self.at;
            self.op = "the next opcode";
            let [op] = self.array()?;
            self.op = op::name(op);
            if op == op::STOP {
                return self.stop();
            }
            self.step(op)?;
            self.arena.check()?;
        }
    }

    fn stop(&mut self) -> Result<NodeId, Kind> {
        let root = self.pop()?;
        if !self.stack.is_empty() || !self.marks.is_empty() {
            return Err(self.stack_error("one value", "more than one"));
        }
        Ok(root)
    }

    fn step(&mut self, op: u8) -> Result<(), Kind> {
        match op {
            op::PROTO => self.protocol(),
            op::FRAME => self.frame(),
            op::MARK => self.mark(),
            op::POP => self.discard(),
            op::POP_MARK => self.pop_mark().map(drop),
            op::DUP => self.top().and_then(|id| self.push(id)),
            op::NONE => self.make(Arena::none),
            op::NEWTRUE => self.make(|a| a.bool(true)),
            op::NEWFALSE => self.make(|a| a.bool(false)),
            op::INT => self.decimal_int(),
            op::LONG => self.decimal_long(),
            op::BININT => self.array().and_then(|b| self.int(i64::from(i32::from_le_bytes(b)))),
            op::BININT1 => self.array().and_then(|[b]| self.int(i64::from(b))),
            op::BININT2 => self.array().and_then(|b| self.int(i64::from(u16::from_le_bytes(b)))),
            op::LONG1 => self.len1().and_then(|len| self.big_int(len)),
            op::LONG4 => self.signed_len4().and_then(|len| self.big_int(len)),
            op::FLOAT => self.decimal_float(),
            op::BINFLOAT => self.array().and_then(|b| self.make(|a| a.float(f64::from_be_bytes(b)))),
            op::STRING => self.quoted_string(),
            op::SHORT_BINSTRING => self.len1().and_then(|len| self.old_string(len)),
            op::BINSTRING => self.signed_len4().and_then(|len| self.old_string(len)),
            op::UNICODE => self.escaped_unicode(),
            op::SHORT_BINUNICODE => self.len1().and_then(|len| self.unicode(len)),
            op::BINUNICODE => self.len4().and_then(|len| self.unicode(len)),
            op::BINUNICODE8 => self.len8().and_then(|len| self.unicode(len)),
            op::SHORT_BINBYTES => self.len1().and_then(|len| self.bytes(len)),
            op::BINBYTES => self.len4().and_then(|len| self.bytes(len)),
            op::BINBYTES8 => self.len8().and_then(|len| self.bytes(len)),
            op::BYTEARRAY8 => self.len8().and_then(|len| self.byte_array(len)),
            op::EMPTY_TUPLE => self.make(|a| a.tuple(&[])),
            op::TUPLE1 => self.small_tuple(1),
            op::TUPLE2 => self.small_tuple(2),
            op::TUPLE3 => self.small_tuple(3),
            op::TUPLE => self.collect(Arena::tuple),
            op::EMPTY_LIST => self.make(|a| a.list(&[])),
            op::LIST => self.collect(Arena::list),
            op::EMPTY_DICT => self.make(|a| a.dict(&[])),
            op::DICT => self.dict_collect(),
            op::EMPTY_SET => self.make(|a| a.set(&[])),
            op::FROZENSET => self.collect(Arena::frozen_set),
            op::APPEND => self.onto_top(1, Arena::append),
            op::SETITEM => self.onto_top(2, Arena::set_items),
            op::APPENDS => self.mark_onto_top(Arena::append),
            op::SETITEMS => self.mark_onto_top(Arena::set_items),
            op::ADDITEMS => self.mark_onto_top(Arena::add_items),
            op::GLOBAL => self.global_lines().and_then(|id| self.push(id)),
            op::STACK_GLOBAL => self.stack_global(),
            op::REDUCE => self.call(Arena::reduce),
            op::NEWOBJ => self.call(Arena::new_object),
            op::NEWOBJ_EX => self.new_object_ex(),
            op::INST => self.inst(),
            op::OBJ => self.obj(),
            op::BUILD => self.build(),
            op::PERSID => self.persistent_line(),
            op::BINPERSID => self.pop().and_then(|id| self.make(|a| a.persistent(id))),
            op::PUT => self.decimal_index().and_then(|i| self.memoize(i)),
            op::BINPUT => self.array().and_then(|[i]| self.memoize(u64::from(i))),
            op::LONG_BINPUT => self.array().and_then(|b| self.memoize(u64::from(u32::from_le_bytes(b)))),
            op::MEMOIZE => self.memoize(self.memo.len() as u64),
            op::GET => self.decimal_index().and_then(|i| self.recall(i)),
            op::BINGET => self.array().and_then(|[i]| self.recall(u64::from(i))),
            op::LONG_BINGET => self.array().and_then(|b| self.recall(u64::from(u32::from_le_bytes(b)))),
            op::EXT1 | op::EXT2 | op::EXT4 => Err(self.external("the copyreg extension registry")),
            op::NEXT_BUFFER | op::READONLY_BUFFER => Err(self.external("an out-of-band buffer")),
            unknown => Err(Kind::UnknownOpcode(unknown)),
        }
    }

    // Stack.

    pub(super) fn stack_error(&self, needed: &'static str, found: &'static str) -> Kind {
        Kind::Stack { op: self.op, needed, found }
    }

    pub(super) fn literal(&self, why: &'static str) -> Kind {
        Kind::Literal { op: self.op, why }
    }

    fn external(&self, what: &'static str) -> Kind {
        Kind::External { op: self.op, what }
    }

    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn push(&mut self, id: NodeId) -> Result<(), Kind> {
        self.arena.budget.room(&mut self.stack, 1)?;
        self.stack.push(id);
        Ok(())
    }

    pub(super) fn make(&mut self, make: impl FnOnce(&mut Arena) -> NodeId) -> Result<(), Kind> {
        let id = make(&mut self.arena);
        self.push(id)
    }

    fn top(&self) -> Result<NodeId, Kind> {
        match self.stack.last() {
            Some(id) if self.stack.len() > self.floor() => Ok(*id),
            _ => Err(self.stack_error("a value", "nothing above the last mark")),
        }
    }

    fn pop(&mut self) -> Result<NodeId, Kind> {
        let id = self.top()?;
        self.stack.pop();
        Ok(id)
    }

    /// POP. A call whose result is thrown away was made for its effect: a state setter.
    fn discard(&mut self) -> Result<(), Kind> {
        if self.marks.last() == Some(&self.stack.len()) {
            self.marks.pop();
            return Ok(());
        }
        let id = self.pop()?;
        if self.arena.tag(id) == Tag::Reduce { Err(Kind::EffectOnly) } else { Ok(()) }
    }

    fn mark(&mut self) -> Result<(), Kind> {
        self.arena.budget.room(&mut self.marks, 1)?;
        self.marks.push(self.stack.len());
        Ok(())
    }

    /// Everything above the last mark, which is taken away too.
    fn pop_mark(&mut self) -> Result<Vec<NodeId>, Kind> {
        let Some(floor) = self.marks.pop() else { return Err(self.stack_error("a mark", "none")) };
        Ok(self.stack.split_off(floor.min(self.stack.len())))
    }

    fn pop_few(&mut self, count: usize) -> Result<Vec<NodeId>, Kind> {
        let start = self.stack.len().checked_sub(count).filter(|start| *start >= self.floor());
        start
            .map(|start| self.stack.split_off(start))
            .ok_or_else(|| self.stack_error("more values", "fewer above the last mark"))
    }

    // Containers.

    fn small_tuple(&mut self, count: usize) -> Result<(), Kind> {
        let items = self.pop_few(count)?;
        self.make(|a| a.tuple(&items))
    }

    fn collect(&mut self, make: fn(&mut Arena, &[NodeId]) -> NodeId) -> Result<(), Kind> {
        let items = self.pop_mark()?;
        self.make(|a| make(a, &items))
    }

    fn dict_collect(&mut self) -> Result<(), Kind> {
        let items = self.pop_mark()?;
        let dict = self.arena.dict(&[]);
        self.arena.set_items(dict, &items);
        self.push(dict)
    }

    fn onto_top(&mut self, count: usize, put: fn(&mut Arena, NodeId, &[NodeId])) -> Result<(), Kind> {
        let items = self.pop_few(count)?;
        let to = self.top()?;
        put(&mut self.arena, to, &items);
        Ok(())
    }

    fn mark_onto_top(&mut self, put: fn(&mut Arena, NodeId, &[NodeId])) -> Result<(), Kind> {
        let items = self.pop_mark()?;
        let to = self.top()?;
        put(&mut self.arena, to, &items);
        Ok(())
    }

    // Names and objects.

    fn named(&mut self, module: &str, name: &str) -> NodeId {
        let (at, policy) = (self.op_at as u64, self.policy);
        self.arena.named(module, name, at, |module, name| policy.judge(module, name))
    }

    fn name_line(&mut self) -> Result<&'a str, Kind> {
        let line = self.line()?;
        std::str::from_utf8(line).map_err(|_| self.literal("a name that is not UTF-8"))
    }

    fn global_lines(&mut self) -> Result<NodeId, Kind> {
        let module = self.name_line()?;
        let name = self.name_line()?;
        Ok(self.named(module, name))
    }

    fn stack_global(&mut self) -> Result<(), Kind> {
        let names = self.pop_few(2)?;
        let texts: Option<Vec<String>> = names.iter().map(|id| self.arena.text_of(*id)).collect();
        match texts.as_deref() {
            Some([module, name]) => {
                let id = self.named(module, name);
                self.push(id)
            }
            _ => Err(self.stack_error("a module and a name", "something else than two strings")),
        }
    }

    /// Checks that what is called is a name, and what it is called with is a tuple.
    fn check_call(&self, callable: NodeId, args: NodeId) -> Result<(), Kind> {
        match (self.arena.tag(callable), self.arena.tag(args)) {
            (Tag::Global, Tag::Tuple) => Ok(()),
            (Tag::Global, other) => Err(self.stack_error("a tuple of arguments", other.noun())),
            (other, _) => Err(Kind::NotCallable { op: self.op, found: other.noun() }),
        }
    }

    fn call(&mut self, make: fn(&mut Arena, NodeId, NodeId) -> NodeId) -> Result<(), Kind> {
        let args = self.pop()?;
        let callable = self.pop()?;
        self.check_call(callable, args)?;
        self.make(|a| make(a, callable, args))
    }

    fn new_object_ex(&mut self) -> Result<(), Kind> {
        let kwargs = self.pop()?;
        let args = self.pop()?;
        let class = self.pop()?;
        self.check_call(class, args)?;
        if self.arena.tag(kwargs) != Tag::Dict {
            return Err(self.stack_error("a dict of arguments", self.arena.tag(kwargs).noun()));
        }
        self.make(|a| a.new_object_ex(class, args, kwargs))
    }

    /// INST names its class in the opcode.
    fn inst(&mut self) -> Result<(), Kind> {
        let class = self.global_lines()?;
        let args = self.pop_mark()?;
        self.instance(class, &args)
    }

    /// OBJ finds its class below the arguments.
    fn obj(&mut self) -> Result<(), Kind> {
        let items = self.pop_mark()?;
        let Some((class, args)) = items.split_first() else {
            return Err(self.stack_error("a class", "nothing"));
        };
        self.instance(*class, args)
    }

    /// CPython calls the class when there are arguments, and bypasses its `__init__` when there are none.
    fn instance(&mut self, class: NodeId, items: &[NodeId]) -> Result<(), Kind> {
        let args = self.arena.tuple(items);
        self.check_call(class, args)?;
        let make = if items.is_empty() { Arena::new_object } else { Arena::reduce };
        self.make(|a| make(a, class, args))
    }

    fn build(&mut self) -> Result<(), Kind> {
        let state = self.pop()?;
        let object = self.top()?;
        self.arena.set_state(object, state);
        Ok(())
    }

    fn persistent_line(&mut self) -> Result<(), Kind> {
        let line = self.name_line()?;
        let id = self.arena.str(line);
        self.make(|a| a.persistent(id))
    }

    // Memo.

    pub(super) fn decimal_index(&mut self) -> Result<u64, Kind> {
        let line = self.name_line()?;
        line.trim().parse().map_err(|_| self.literal("something else than a memo index"))
    }

    fn memoize(&mut self, index: u64) -> Result<(), Kind> {
        let id = self.top()?;
        let len = self.memo.len();
        let limit = u64::from(self.memo_limit);
        let slot =
            usize::try_from(index).ok().filter(|i| index < limit && *i <= len.saturating_add(MEMO_GAP));
        let slot =
            slot.ok_or(Kind::Limit { what: "memo index", limit: limit.min((len + MEMO_GAP) as u64) })?;
        if let Some(missing) = slot.checked_sub(len) {
            self.arena.budget.room(&mut self.memo, missing + 1)?;
            self.memo.resize(slot + 1, UNSET);
        }
        if let Some(entry) = self.memo.get_mut(slot) {
            *entry = id;
        }
        Ok(())
    }

    fn recall(&mut self, index: u64) -> Result<(), Kind> {
        let slot = usize::try_from(index).ok().and_then(|i| self.memo.get(i)).copied();
        let id = slot.filter(|id| *id != UNSET).ok_or(Kind::Memo(index))?;
        self.push(id)
    }
}
