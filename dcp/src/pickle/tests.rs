//! The machine against pickles of CPython and against hostile ones: prefixes, bombs, names that run code.

use proptest::prelude::*;

use super::*;

fn policy() -> Policy {
    Policy::new(Context::BytesEntry)
}

fn parse(bytes: &[u8]) -> Result<Tree, PickleError> {
    read(bytes, &policy(), &Limits::default())
}

fn refused(bytes: &[u8]) -> PickleError {
    parse(bytes).map(|tree| tree.root().to_string()).expect_err("it should be refused")
}

/// The (name, protocol, pickle) entries that CPython wrote; see `testdata/make_pickles.py`.
fn captured() -> Vec<(String, u8, Vec<u8>)> {
    let mut rest: &[u8] = include_bytes!("testdata/pickles.bin");
    let mut take = |len: usize| {
        let (head, tail) = rest.split_at(len);
        rest = tail;
        head.to_vec()
    };
    let mut entries = Vec::new();
    for _ in 0..60 {
        let name_len = take(1)[0];
        let name = String::from_utf8(take(usize::from(name_len))).unwrap();
        let protocol = take(1)[0];
        let len = u32::from_le_bytes(take(4).try_into().unwrap());
        entries.push((name, protocol, take(len as usize)));
    }
    assert!(rest.is_empty());
    entries
}

fn expected(name: &str, protocol: u8) -> String {
    let old = protocol < 3;
    let builtins = if old { "__builtin__" } else { "builtins" };
    match name {
        "atoms" => "[None, True, False, 0, 255, 256, 65535, 65536, -1, 2147483648, -9223372036854775808, \
                    int(010000000000000000h), int(ff00000000000000000000h), 1.5, -0.0]"
            .to_owned(),
        "text" => {
            let (empty, bytes) = if old {
                ("__builtin__.bytes()", "_codecs.encode('\\0ÿab', 'latin1')")
            } else {
                ("b''", "b'\\x00\\xffab'")
            };
            let array = match protocol {
                0..=2 => "__builtin__.bytearray(_codecs.encode('ba', 'latin1'))",
                3..=4 => "builtins.bytearray(b'ba')",
                _ => "bytearray(b'ba')",
            };
            format!("['', 'héllo\\n\\'\\\\', '{}', '\\xed\\xb3\\xbf', {empty}, {bytes}, {array}]", "x".repeat(300))
        }
        "tuples" => "[(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)]".to_owned(),
        "sets" if protocol < 4 => format!("[{builtins}.set([7]), {builtins}.frozenset([8])]"),
        "sets" => "[set(7), frozenset(8)]".to_owned(),
        "shared" => "{'a': [1, 2], 'b': [1, 2], 3: 'int key'}".to_owned(),
        "ordered" => {
            "collections.OrderedDict(){'weight': 1, 'bias': 2} with {'_metadata': {'version': 1}}".to_owned()
        }
        "namespace" if protocol < 2 => {
            "copy_reg._reconstructor(argparse.Namespace, __builtin__.object, None) with {'lr': 0.5, 'name': 'run'}"
                .to_owned()
        }
        "namespace" => "argparse.Namespace() with {'lr': 0.5, 'name': 'run'}".to_owned(),
        "default" => format!("collections.defaultdict({builtins}.list){{'k': [1]}}"),
        "long" => {
            let items: Vec<String> = (0..1200).map(|i| i.to_string()).collect();
            format!("[{}]", items.join(", "))
        }
        _ => format!("{builtins}.complex(1.0, 2.0)"),
    }
}

#[test]
fn what_cpython_writes_is_read_with_every_protocol() {
    for (name, protocol, bytes) in captured() {
        let tree = parse(&bytes).unwrap_or_else(|e| panic!("{name} {protocol}: {e}: {:?}", e.kind));
        assert_eq!(
            format!("{:.20000}", tree.root()),
            expected(&name, protocol),
            "{name}, protocol {protocol}"
        );
        assert_eq!(tree.opaque_globals().count(), 0);
    }
}

#[test]
fn a_shared_value_stays_shared_through_reading_and_writing() {
    for (name, protocol, bytes) in captured() {
        if name != "shared" {
            continue;
        }
        let tree = parse(&bytes).unwrap();
        for tree in [write(&tree, Protocol::V2).unwrap(), write(&tree, Protocol::V4).unwrap()] {
            let tree = parse(&tree).unwrap();
            let id = |key| tree.root().get(key).unwrap().id();
            assert_eq!(id("a"), id("b"), "protocol {protocol}");
        }
    }
}

#[test]
fn what_was_read_is_written_back_as_the_same_value() {
    for (name, protocol, bytes) in captured() {
        let tree = parse(&bytes).unwrap();
        let again = parse(&write(&tree, Protocol::V4).unwrap()).unwrap();
        // CPython has no bytearray opcode before protocol 5, and neither has our protocol 4.
        let text =
            format!("{:.20000}", tree.root()).replace(" bytearray(b'ba')", " builtins.bytearray(b'ba')");
        assert_eq!(format!("{:.20000}", again.root()), text, "{name}, protocol {protocol}");
    }
}

#[test]
fn every_prefix_of_a_pickle_is_refused() {
    for (name, protocol, bytes) in captured().into_iter().filter(|(name, ..)| name != "long") {
        for len in 0..bytes.len() {
            assert!(parse(&bytes[..len]).is_err(), "{name}, protocol {protocol}, {len} bytes");
        }
    }
}

#[test]
fn a_pickle_that_would_run_code_is_refused_and_named() {
    let error = refused(b"\x80\x02cposix\nsystem\nX\x02\x00\x00\x00id\x85R.");
    assert_eq!(error.at, Some(2));
    assert_eq!(
        error.kind.to_string(),
        "this pickle would run code: it names `posix.system`; nothing was run"
    );
    let by_stack = b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.";
    assert!(matches!(refused(by_stack).kind, PickleErrorKind::RunsCode { .. }));
    let kept = policy().unknown(Unknown::Inert);
    let error = read(by_stack, &kept, &Limits::default()).unwrap_err();
    assert_eq!(error.at, Some(18));
}

#[test]
fn an_unknown_class_is_refused_or_kept_as_data() {
    let bytes = b"\x80\x02cmy.project\nConfig\n)\x81}X\x02\x00\x00\x00lrK\x03sb.";
    let error = refused(bytes);
    assert_eq!(error.at, Some(2));
    assert!(
        error
            .kind
            .to_string()
            .contains("`my.project.Config` is not among the names expected in a bytes entry")
    );
    let tree = read(bytes, &policy().unknown(Unknown::Inert), &Limits::default()).unwrap();
    assert_eq!(tree.root().to_string(), "my.project.Config() with {'lr': 3}");
    assert_eq!(tree.root().attr("lr").and_then(Ref::as_i64), Some(3));
    let opaque: Vec<_> = tree.opaque_globals().map(|g| (&*g.name, g.at)).collect();
    assert_eq!(opaque, [("Config", 2)]);
    let written = write(&tree, Protocol::V2).unwrap();
    assert_eq!(written, bytes);
}

#[test]
fn calling_what_is_not_a_name_is_refused() {
    // The result of a call is called; a str is called; a class is given attributes.
    for bytes in [
        &b"ccollections\nOrderedDict\n)R)R."[..],
        b"X\x01\x00\x00\x00f)R.",
        b"ccollections\nOrderedDict\n}b.",
    ] {
        assert!(matches!(refused(bytes).kind, PickleErrorKind::NotCallable { .. }), "{bytes:?}");
    }
    let effect = b"Nccollections\nOrderedDict\n)R0.";
    assert_eq!(refused(effect).kind, PickleErrorKind::EffectOnly);
}

#[test]
fn billion_laughs_are_refused_without_memory() {
    let mut bytes = b"\x80\x04]\x94".to_vec();
    for i in 0..30_u8 {
        bytes.extend([b']', 0x94, b'(']);
        bytes.extend([b'h', i].repeat(10));
        bytes.push(b'e');
    }
    bytes.push(b'.');
    let error = refused(&bytes);
    assert!(
        matches!(error.kind, PickleErrorKind::Stack { .. }),
        "all but the last list are left on the stack"
    );
    let last = bytes.len() - 1;
    bytes.truncate(last);
    // Collect everything in one tuple, so that the pickle is well-formed.
    let mut whole = b"\x80\x04(".to_vec();
    whole.extend(&bytes[2..]);
    whole.extend(b"t.");
    let error = refused(&whole);
    assert_eq!(
        error.kind.to_string().split(" passes").next(),
        Some("number of values met when shared ones are followed")
    );
}

#[test]
fn a_value_within_itself_is_refused() {
    assert_eq!(refused(b"]q\0h\0a.").kind, PickleErrorKind::Cycle);
    let through_state = b"cargparse\nNamespace\n)\x81q\0}X\x04\0\0\0selfh\0sb.";
    assert_eq!(refused(through_state).kind, PickleErrorKind::Cycle);
}

#[test]
fn deep_nesting_is_refused_and_shallow_is_not() {
    let nested = |depth: usize| [b"]".repeat(depth), b"a".repeat(depth - 1), b".".to_vec()].concat();
    assert!(parse(&nested(250)).is_ok());
    for depth in [251, 5000, 1_000_000] {
        assert_eq!(
            refused(&nested(depth)).kind,
            PickleErrorKind::Limit { what: "depth of nesting", limit: 250 }
        );
    }
}

#[test]
fn declared_lengths_are_compared_with_what_is_there() {
    for bytes in [
        &b"X\xff\xff\xff\x7fabc."[..],
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffabc.",
        b"\x8e\0\0\0\0\0\0\0\x80abc.",
        b"\x96\0\0\0\0\x01\0\0\0abc.",
        b"B\xff\xff\xff\xffabc.",
        b"\x8b\xff\xff\xff\x7fabc.",
        b"\x80\x04\x95\0\0\0\0\0\0\0\x01N.",
    ] {
        assert!(matches!(refused(bytes).kind, PickleErrorKind::Truncated { .. }), "{bytes:?}");
    }
    assert!(matches!(refused(b"T\xff\xff\xff\xffabc.").kind, PickleErrorKind::Literal { .. }));
    assert!(matches!(
        refused(b"Nr\xff\xff\xff\x7f.").kind,
        PickleErrorKind::Limit { what: "memo index", .. }
    ));
    assert!(matches!(refused(b"Np99999999999999999999\n.").kind, PickleErrorKind::Literal { .. }));
}

#[test]
fn malformed_programs_are_refused() {
    for bytes in [
        &b""[..],
        b".",
        b"(.",
        b"N(.",
        b"NN.",
        b"0.",
        b"1.",
        b"t.",
        b"a.",
        b"NNa.",
        b"Nu.",
        b"(NNu.",
        b"](Ne",
        b"e.",
        b"\x85.",
        b"(\x86.",
        b"h\0.",
        b"g5\n.",
        b"\x94.",
        b"\x93.",
        b"NN\x93.",
        b"R.",
        b"b.",
        b"NNb.",
        b"o.",
        b"(o.",
        b"ix\n",
        b"\xff.",
        b"\x80\x06N.",
        b"\x82\x01.",
        b"\x97.",
        b"I12x\n.",
        b"Fx\n.",
        b"Sx\n.",
        b"V\\u12\n.",
        b"(Nd.",
        b"X\x01\0\0\0\xff.",
        b"\x81.",
        b"\x92.",
        b"2.",
        b"NQ",
        b"(NQ0.",
    ] {
        assert!(parse(bytes).is_err(), "{:?}", bytes.escape_ascii().to_string());
    }
    assert_eq!(refused(b"N.N").kind, PickleErrorKind::Trailing(1));
    assert_eq!(read_prefix(b"N.N", &policy(), &Limits::default()).unwrap().1, 2);
}

#[test]
fn memory_stays_within_the_bound_or_the_pickle_is_refused() {
    let limits = Limits { memory_floor: 1 << 16, ..Limits::default() };
    let costly = [vec![b'('], b"]}".repeat(100_000), b"t.".to_vec()].concat();
    let error = read(&costly, &policy(), &limits).unwrap_err();
    assert_eq!(
        error.kind,
        PickleErrorKind::Limit { what: "memory for its values (bytes)", limit: limits.memory(200_003) }
    );
    let cheap =
        [vec![b'('], b"X\x20\0\0\0abcdefghijklmnopqrstuvwxyz012345".repeat(10_000), b"t.".to_vec()].concat();
    let tree = read(&cheap, &policy(), &limits).unwrap();
    assert!(tree.peak_memory() <= limits.memory(cheap.len() as u64));
}

/// A value that a test makes, before it is in an arena.
#[derive(Clone, Debug)]
enum Sketch {
    None,
    Bool(bool),
    Int(i64),
    Big(Vec<u8>),
    Float(f64),
    Str(String),
    Bytes(Vec<u8>),
    Tuple(Vec<Self>),
    List(Vec<Self>),
    Dict(Vec<(Self, Self)>),
    Set(Vec<Self>),
    Frozen(Vec<Self>),
    Persistent(Box<Self>),
    Twice(Box<Self>),
    Reduce { args: Vec<Self>, items: Vec<Self>, pairs: Vec<(Self, Self)>, state: Option<Box<Self>> },
    NewEx(Vec<(Self, Self)>),
}

fn sketch() -> impl Strategy<Value = Sketch> {
    let leaf = prop_oneof![
        Just(Sketch::None),
        any::<bool>().prop_map(Sketch::Bool),
        any::<i64>().prop_map(Sketch::Int),
        (-300_i64..300).prop_map(Sketch::Int),
        prop::collection::vec(any::<u8>(), 0..300).prop_map(Sketch::Big),
        any::<f64>().prop_filter("NaN is not equal to itself", |f| !f.is_nan()).prop_map(Sketch::Float),
        ".{0,12}".prop_map(Sketch::Str),
        prop::collection::vec(any::<u8>(), 0..300).prop_map(Sketch::Bytes),
    ];
    leaf.prop_recursive(5, 60, 6, |inner| {
        let many = prop::collection::vec(inner.clone(), 0..6);
        let pairs = prop::collection::vec((inner.clone(), inner.clone()), 0..4);
        prop_oneof![
            many.clone().prop_map(Sketch::Tuple),
            many.clone().prop_map(Sketch::List),
            pairs.clone().prop_map(Sketch::Dict),
            many.clone().prop_map(Sketch::Set),
            many.clone().prop_map(Sketch::Frozen),
            inner.clone().prop_map(|s| Sketch::Persistent(Box::new(s))),
            inner.clone().prop_map(|s| Sketch::Twice(Box::new(s))),
            (many.clone(), many, pairs.clone(), prop::option::of(inner.prop_map(Box::new)))
                .prop_map(|(args, items, pairs, state)| Sketch::Reduce { args, items, pairs, state }),
            pairs.prop_map(Sketch::NewEx),
        ]
    })
}

fn draw(arena: &mut Arena, sketch: &Sketch) -> NodeId {
    let all = |arena: &mut Arena, items: &[Sketch]| items.iter().map(|s| draw(arena, s)).collect::<Vec<_>>();
    let both = |arena: &mut Arena, pairs: &[(Sketch, Sketch)]| {
        pairs.iter().map(|(k, v)| (draw(arena, k), draw(arena, v))).collect::<Vec<_>>()
    };
    match sketch {
        Sketch::None => arena.none(),
        Sketch::Bool(value) => arena.bool(*value),
        Sketch::Int(value) => arena.int(*value),
        Sketch::Big(bytes) => arena.big_int(bytes),
        Sketch::Float(value) => arena.float(*value),
        Sketch::Str(text) => arena.str(text),
        Sketch::Bytes(bytes) => arena.bytes(bytes),
        Sketch::Tuple(items) => {
            let items = all(arena, items);
            arena.tuple(&items)
        }
        Sketch::List(items) => {
            let items = all(arena, items);
            arena.list(&items)
        }
        Sketch::Set(items) => {
            let items = all(arena, items);
            arena.set(&items)
        }
        Sketch::Frozen(items) => {
            let items = all(arena, items);
            arena.frozen_set(&items)
        }
        Sketch::Dict(pairs) => {
            let pairs = both(arena, pairs);
            arena.dict(&pairs)
        }
        Sketch::Persistent(id) => {
            let id = draw(arena, id);
            arena.persistent(id)
        }
        Sketch::Twice(value) => {
            let id = draw(arena, value);
            arena.tuple(&[id, id])
        }
        Sketch::Reduce { args, items, pairs, state } => {
            let callable = arena.global("collections", "OrderedDict");
            let args = all(arena, args);
            let args = arena.tuple(&args);
            let object = arena.reduce(callable, args);
            let items = all(arena, items);
            arena.append(object, &items);
            let flat: Vec<_> = both(arena, pairs).into_iter().flat_map(|(k, v)| [k, v]).collect();
            arena.set_items(object, &flat);
            if let Some(state) = state {
                let state = draw(arena, state);
                arena.set_state(object, state);
            }
            object
        }
        Sketch::NewEx(kwargs) => {
            let class = arena.global("argparse", "Namespace");
            let args = arena.tuple(&[]);
            let kwargs = both(arena, kwargs);
            let kwargs = arena.dict(&kwargs);
            arena.new_object_ex(class, args, kwargs)
        }
    }
}

/// The value as text, with every value that is met again told by the order of its first meeting.
fn portrait(tree: &Tree) -> String {
    fn walk(value: Ref<'_>, seen: &mut Vec<NodeId>, out: &mut String) {
        let mut many = |label: &str, items: Vec<Ref<'_>>, out: &mut String| {
            if let Some(index) = seen.iter().position(|id| *id == value.id()).filter(|_| !items.is_empty()) {
                out.push_str(&format!("<{index}>"));
                return;
            }
            seen.push(value.id());
            out.push_str(label);
            for item in items {
                walk(item, seen, out);
                out.push(' ');
            }
            out.push(')');
        };
        match value.value() {
            Value::Tuple(items) => many("t(", items.collect(), out),
            Value::List(items) => many("l(", items.collect(), out),
            Value::Set(items) => many("s(", items.collect(), out),
            Value::FrozenSet(items) => many("f(", items.collect(), out),
            Value::Dict(pairs) => many("d(", pairs.flat().collect(), out),
            Value::Persistent(id) => many("p(", vec![id], out),
            Value::Object(o) => {
                let parts = [Some(o.callable), Some(o.args), o.kwargs, o.state].into_iter().flatten();
                many(
                    &format!("o{:?}(", o.construction),
                    parts.chain(o.items).chain(o.pairs.flat()).collect(),
                    out,
                );
            }
            _ => out.push_str(&format!("{value:.60000}")),
        }
    }
    let mut out = String::new();
    walk(tree.root(), &mut Vec::new(), &mut out);
    out
}

proptest! {
    #[test]
    fn writing_and_reading_give_the_same_tree(sketch in sketch()) {
        let mut arena = Arena::new();
        let root = draw(&mut arena, &sketch);
        let tree = arena.finish(root).unwrap();
        let bytes = write(&tree, Protocol::V4).unwrap();
        let again = parse(&bytes).unwrap();
        prop_assert_eq!(portrait(&again), portrait(&tree));
        // Protocol 2 spells sets and bytes as calls, so it is what it writes of its own reading that must agree.
        let old = parse(&write(&tree, Protocol::V2).unwrap()).unwrap();
        let older = parse(&write(&old, Protocol::V2).unwrap()).unwrap();
        prop_assert_eq!(portrait(&older), portrait(&old));
    }

    #[test]
    fn any_bytes_are_read_or_refused_within_the_limits(
        bytes in prop::collection::vec(
            prop_oneof![any::<u8>(), prop::sample::select(b"(]})tue.N0RcbaQh\x94\x85\x81\x8f\x90K".to_vec())],
            0..400,
        )
    ) {
        let limits = Limits { memory_floor: 1 << 14, ..Limits::default() };
        if let Ok((tree, used)) = read_prefix(&bytes, &policy().unknown(Unknown::Inert), &limits) {
            prop_assert!(used <= bytes.len());
            prop_assert!(tree.peak_memory() <= limits.memory(bytes.len() as u64));
            prop_assert!(tree.node_count() <= bytes.len() + 4);
            let written = write(&tree, Protocol::V4).unwrap();
            prop_assert_eq!(portrait(&read(&written, &policy().unknown(Unknown::Inert), &limits).unwrap()), portrait(&tree));
        }
    }

    #[test]
    fn a_damaged_pickle_never_panics(entry in 0..60_usize, at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let (_, _, mut bytes) = captured().swap_remove(entry);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(tree) = parse(&bytes) {
            prop_assert!(tree.root().to_string().chars().count() <= 1001);
        }
    }
}
