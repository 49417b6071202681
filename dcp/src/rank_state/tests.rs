//! Values of data ranks by way of their bytes: JSON, pickles, pickles within pickles.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    RankScheme, Walk,
    decode::{Budget, decode},
    encode::encode,
    respread, rewritten,
    state::{Pickled, State},
};
use crate::{
    Encoding, ErrorKind, ObjectEntry, PathPart, ReshardRule, Result,
    pickle::{Arena, Protocol, write},
};

mod bounds;

fn object(rank: usize, encoding: Encoding, bytes: Vec<u8>) -> ObjectEntry {
    let key = format!("loader.dp_rank_{rank}");
    let path = key.split('.').map(|part| PathPart::Key(part.to_owned())).collect();
    let reshard = ReshardRule::PerDataRank;
    ObjectEntry { key, path, encoding, bytes: bytes.into(), preview: None, reshard }
}

fn encoded(rank: usize, encoding: Encoding, state: &State) -> ObjectEntry {
    encode(&object(rank, encoding, Vec::new()), state).unwrap()
}

fn of_json(values: &[Value]) -> Vec<ObjectEntry> {
    let bytes = |value: &Value| serde_json::to_vec(value).unwrap();
    values.iter().enumerate().map(|(rank, value)| object(rank, Encoding::Json, bytes(value))).collect()
}

fn scheme(flags: &[&str]) -> RankScheme {
    RankScheme::from_flags(flags).unwrap()
}

fn spread(objects: &[ObjectEntry], flags: &[&str], to: u64) -> Result<Option<Vec<ObjectEntry>>> {
    let scheme = scheme(flags);
    let mut walk = Walk::new(&scheme, Some(objects.len() as u64), to);
    let made = respread(&mut walk, &["loader"], &objects.iter().collect::<Vec<_>>())?;
    assert!(walk.uncovered.is_empty(), "{:?}", walk.uncovered);
    Ok(made)
}

fn values(objects: &[ObjectEntry]) -> Vec<Value> {
    objects.iter().map(|object| serde_json::from_slice(&object.bytes).unwrap()).collect()
}

fn refused(objects: &[ObjectEntry], flags: &[&str], words: &[&str]) {
    let error = spread(objects, flags, 2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
    let text = error.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{words:?}: {text}");
}

#[test]
fn each_leaf_follows_its_rule_and_the_order_of_keys_stays() {
    let rank = |rank: u64| {
        json!({
            "world_size": 4, "buffer": [rank * 10, rank * 10 + 1, rank * 10 + 2], "dealt": [rank, rank + 4],
            "seen": rank, "epoch": 7, "rng": {"state": rank}, "empty": {},
        })
    };
    let flags = [
        "loader.**=same",
        "loader.buffer=concat",
        "loader.dealt=interleave",
        "loader.seen=sum",
        "loader.world_size=ranks",
        "loader.rng=drop",
    ];
    let made = spread(&of_json(&(0..4).map(rank).collect::<Vec<_>>()), &flags, 3).unwrap().unwrap();
    assert_eq!(
        values(&made),
        [
            json!({"world_size": 3, "buffer": [0, 1, 2, 10], "dealt": [0, 3, 6], "seen": 2, "epoch": 7, "empty": {}}),
            json!({"world_size": 3, "buffer": [11, 12, 20, 21], "dealt": [1, 4, 7], "seen": 2, "epoch": 7, "empty": {}}),
            json!({"world_size": 3, "buffer": [22, 30, 31, 32], "dealt": [2, 5], "seen": 2, "epoch": 7, "empty": {}}),
        ]
    );
    let text = String::from_utf8(made[0].bytes.to_vec()).unwrap();
    assert!(text.starts_with(r#"{"world_size":3,"buffer":[0,"#), "{text}");
}

#[test]
fn parts_are_as_uneven_as_those_of_torch_chunk() {
    let made = spread(&of_json(&[json!({"b": [1, 2, 3, 4, 5]})]), &["loader.b=concat"], 4).unwrap().unwrap();
    assert_eq!(
        values(&made),
        [json!({"b": [1, 2]}), json!({"b": [3, 4]}), json!({"b": [5]}), json!({"b": []})]
    );
}

#[test]
fn a_leaf_that_no_rule_covers_is_noted_with_its_value_and_nothing_is_guessed() {
    let objects = of_json(&[json!({"a": [1], "deep": {"b": 2}}), json!({"a": [1], "deep": {"b": 2}})]);
    let scheme = scheme(&["loader.a=concat"]);
    let mut walk = Walk::new(&scheme, Some(2), 1);
    respread(&mut walk, &["loader"], &objects.iter().collect::<Vec<_>>()).unwrap();
    let [leaf] = walk.uncovered.first.as_slice() else { panic!("{:?}", walk.uncovered) };
    assert_eq!((leaf.path.as_str(), leaf.value.as_str()), ("loader.deep.b", "2"));
    assert_eq!((walk.uncovered.count, walk.decided.len()), (1, 1));
}

#[test]
fn what_does_not_fit_its_rule_is_refused_by_path_with_what_was_found() {
    let pair = |a: Value, b: Value| of_json(&[json!({ "x": a }), json!({ "x": b })]);
    refused(
        &pair(json!(1), json!(2)),
        &["loader.x=same"],
        &["loader.x", "1 on data rank 0", "2 on data rank 1"],
    );
    refused(&pair(json!(1), json!(1.0)), &["loader.x=same"], &["loader.x", "1.0"]);
    refused(&pair(json!(3), json!(3)), &["loader.x=ranks"], &["loader.x is 3", "which was 2"]);
    refused(&pair(json!([1]), json!("1")), &["loader.x=concat"], &["loader.x", "a text", "data rank 1"]);
    refused(&pair(json!([1]), json!([1, 2])), &["loader.x=interleave"], &["loader.x", "1, 2 items"]);
    refused(
        &pair(json!([1, 2, 3]), json!([4])),
        &["loader.x=interleave"],
        &["3, 1 items", "rank 0 has 3 where 2"],
    );
    refused(&pair(json!(0.5), json!(1.5)), &["loader.x=sum"], &["loader.x is the float 0.5"]);
    refused(&pair(json!(1), json!(2.0)), &["loader.x=sum"], &["a float on some"]);
    refused(&pair(json!(true), json!(false)), &["loader.x=sum"], &["a bool"]);
    let most = json!(u64::MAX);
    refused(
        &of_json(&[json!({ "x": most }), json!({ "x": most }), json!({ "x": most })]),
        &["loader.x=sum"],
        &["share of"],
    );
    refused(
        &of_json(&[json!({"x": 1}), json!({})]),
        &["loader.x=same"],
        &["loader.x", "not there on data rank 1"],
    );
}

#[test]
fn what_only_some_ranks_have_can_be_dropped_and_a_dict_goes_with_its_last_key() {
    let objects = of_json(&[json!({"x": 1, "y": {"z": [3]}}), json!({"y": {"w": 4}, "x": 1})]);
    let made = spread(&objects, &["loader.x=same", "loader.y.**=drop"], 1).unwrap().unwrap();
    assert_eq!(values(&made), [json!({"x": 1})]);
    assert_eq!(spread(&objects, &["loader=drop"], 1).unwrap(), None);
}

#[test]
fn numbers_are_shared_out_with_the_rest_on_the_first_ranks_also_below_zero() {
    let sum = |values: &[Value], to| {
        let objects: Vec<Value> = values.iter().map(|value| json!({ "n": value })).collect();
        let made = spread(&of_json(&objects), &["loader.n=sum"], to).unwrap().unwrap();
        self::values(&made).iter().map(|value| value["n"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(sum(&[json!(5), json!(6)], 3), [4, 4, 3]);
    assert_eq!(sum(&[json!(-5), json!(1)], 3), [-1, -1, -2]);
    assert_eq!(sum(&[json!(2.0), json!(3.0)], 2), [json!(3.0), json!(2.0)]);
    assert_eq!(sum(&[json!(u64::MAX), json!(0)], 1), [json!(u64::MAX)]);
}

#[test]
fn a_pickle_within_a_pickle_is_merged_inside_and_keeps_its_protocol() {
    let inner = |rank: i64| {
        let mut arena = Arena::new();
        let items: Vec<_> = (0..3).map(|at| arena.int(rank * 3 + at)).collect();
        let (list, key) = (arena.list(&items), arena.str("buffer"));
        let dict = arena.dict(&[(key, list)]);
        write(&arena.finish(dict).unwrap(), Protocol::V4).unwrap()
    };
    for encoding in [Encoding::Pickle, Encoding::TorchSave] {
        let member = |rank: usize| encoded(rank, encoding, &State::Bytes(inner(rank as i64)));
        let made = spread(&[member(0), member(1), member(2)], &["loader.buffer=concat"], 2).unwrap().unwrap();
        let buffers: Vec<State> = made.iter().map(|object| decode(object).unwrap()).collect();
        let lists = [0..5, 5..9].map(|range| State::List(range.map(State::Int).collect()));
        for (found, list) in buffers.iter().zip(lists) {
            let State::Pickled(pickled) = found else { panic!("{found}") };
            assert_eq!(pickled.value, State::Dict(vec![(State::Text("buffer".to_owned()), list)]));
            assert_eq!(pickled.raw[..2], [0x80, 4], "a pickle of the same protocol");
        }
        assert_eq!(made[0].encoding, encoding);
        assert!(made[0].preview.is_some());
    }
}

#[test]
fn what_cannot_be_written_again_is_refused_by_path_and_can_be_dropped() {
    let member = |rank: usize, class: (&str, &str)| {
        let mut arena = Arena::new();
        let (class, none) = (arena.global(class.0, class.1), arena.tuple(&[]));
        let (thing, one) = (arena.reduce(class, none), arena.int(1));
        let (a, b) = (arena.str("thing"), arena.str("n"));
        let dict = arena.dict(&[(a, thing), (b, one)]);
        object(rank, Encoding::Pickle, write(&arena.finish(dict).unwrap(), Protocol::V2).unwrap())
    };
    let own: Vec<_> = (0..2).map(|rank| member(rank, ("my.loader", "State"))).collect();
    refused(&own, &["loader.**=same"], &["loader.thing holds an object my.loader.State()", "data rank 0"]);
    let made = spread(&own, &["loader.**=same", "loader.thing=drop"], 1).unwrap().unwrap();
    assert_eq!(decode(&made[0]).unwrap(), State::Dict(vec![(State::Text("n".to_owned()), State::Int(1))]));

    let evil: Vec<_> = (0..2).map(|rank| member(rank, ("os", "system"))).collect();
    let error = spread(&evil, &["loader.**=same"], 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("os.system"), "{error}");

    let json = vec![
        object(0, Encoding::Json, b"{\"n\": 123456789012345678901234567890}".to_vec()),
        object(1, Encoding::Json, b"{\"n\": 1}".to_vec()),
    ];
    refused(&json, &["loader.n=same"], &["loader.dp_rank_0", "123456789012345678901234567890"]);
}

#[test]
fn a_value_of_the_whole_run_changes_in_its_number_of_data_ranks_alone() {
    let global = |value: &Value| ObjectEntry {
        key: "train".to_owned(),
        reshard: ReshardRule::Global,
        ..object(0, Encoding::Json, serde_json::to_vec(value).unwrap())
    };
    let scheme = scheme(&["train.dp=ranks", "train.old=drop", "train.list=concat"]);
    let changed = |object: &ObjectEntry| {
        rewritten(&mut Walk::new(&scheme, Some(4), 2), &["train"], object, Vec::new()).map(|made| made.0)
    };
    let made = changed(&global(&json!({"step": 9, "dp": 4, "old": 1}))).unwrap().unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&made.bytes).unwrap(), json!({"step": 9, "dp": 2}));
    let untouched = global(&json!({"step": 123_456_789, "x": [0.1]}));
    assert_eq!(changed(&untouched).unwrap().unwrap(), untouched);
    for (value, word) in [(json!({"dp": 8}), "train.dp is 8"), (json!({"list": [1]}), "a rule says concat")] {
        let error = changed(&global(&value)).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
}

fn state() -> impl Strategy<Value = State> {
    let leaf = prop_oneof![
        Just(State::None),
        any::<bool>().prop_map(State::Bool),
        any::<i64>().prop_map(|int| State::Int(int.into())),
        any::<u64>().prop_map(|int| State::Int(int.into())),
        any::<u64>().prop_map(State::Float),
        ".{0,8}".prop_map(State::Text),
        prop::collection::vec(any::<u8>(), 0..12).prop_map(State::Bytes),
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        let list = || prop::collection::vec(inner.clone(), 0..5);
        let key = prop_oneof![".{0,3}".prop_map(State::Text), (0..9_i128).prop_map(State::Int)];
        prop_oneof![
            list().prop_map(State::List),
            list().prop_map(State::Tuple),
            prop::collection::hash_map(key, inner.clone(), 0..5)
                .prop_map(|pairs| State::Dict(pairs.into_iter().collect())),
            (inner, any::<bool>()).prop_map(|(value, old)| {
                let protocol = if old { Protocol::V2 } else { Protocol::V4 };
                let none = Pickled { protocol, raw: Vec::new(), value: State::None };
                State::Pickled(Box::new(none.around(value).unwrap()))
            }),
        ]
    })
}

/// Bytes that a value takes, without room that lists have left.
fn memory(state: &State) -> usize {
    let below = match state {
        State::Text(text) | State::Odd(text) => text.len(),
        State::Bytes(bytes) | State::Large(bytes) => bytes.len(),
        State::List(items) | State::Tuple(items) => items.iter().map(memory).sum(),
        State::Dict(pairs) => pairs.iter().map(|(key, value)| memory(key) + memory(value)).sum(),
        State::Pickled(pickled) => pickled.raw.len() + memory(&pickled.value),
        _ => 0,
    };
    size_of::<State>() + below
}

/// Lists of data ranks as a loader that deals samples out has them.
fn dealt(total: u64, ranks: u64) -> Vec<Value> {
    (0..ranks).map(|rank| (0..total).filter(|it| it % ranks == rank).collect::<Vec<_>>().into()).collect()
}

proptest! {
    #[test]
    fn bytes_of_any_kind_make_no_more_than_their_budget(bytes in prop::collection::vec(any::<u8>(), 0..60), pickle in any::<bool>()) {
        let bytes = if pickle { [&[0x80, 2][..], &bytes, b"."].concat() } else { bytes };
        for encoding in [Encoding::Json, Encoding::Pickle, Encoding::TorchSave] {
            let object = object(0, encoding, bytes.clone());
            let mut budget = Budget::of(&[&object]);
            let most = budget.left();
            if let Ok(state) = budget.decode(&object) {
                let spent = usize::try_from(most - budget.left()).unwrap();
                prop_assert!(memory(&state) <= spent, "{} of {spent}", memory(&state));
            }
        }
    }

    #[test]
    fn a_value_comes_back_from_a_pickle_with_its_types_and_bits(state in state()) {
        for encoding in [Encoding::Pickle, Encoding::TorchSave] {
            prop_assert_eq!(&decode(&encoded(0, encoding, &state)).unwrap(), &state);
        }
    }

    #[test]
    fn what_does_not_change_is_the_same_on_every_number_of_ranks(state in state(), from in 1_usize..5, to in 1_u64..5) {
        let objects: Vec<_> = (0..from).map(|rank| encoded(rank, Encoding::Pickle, &state)).collect();
        let made = spread(&objects, &["loader.**=same"], to).unwrap().unwrap();
        prop_assert_eq!(made.len() as u64, to);
        for object in made {
            prop_assert_eq!(&decode(&object).unwrap(), &state);
        }
    }

    #[test]
    fn by_way_of_any_other_number_of_ranks_is_as_good_as_straight(
        lists in prop::collection::vec(prop::collection::vec(any::<i32>(), 0..7), 1..6),
        total in 0_u64..30, seed in any::<i64>(), by in 1_u64..8, to in 1_u64..8,
    ) {
        let from = lists.len() as u64;
        let whole = dealt(total, from);
        let ranks: Vec<Value> = lists.iter().zip(&whole).zip(0_i64..).map(|((list, dealt), rank)| {
            json!({"r": from, "list": list, "in": {"dealt": dealt}, "n": (seed >> 8) ^ (rank * 77), "same": "x"})
        }).collect();
        let flags = ["loader.**=same", "loader.list=concat", "loader.**.dealt=interleave", "loader.n=sum", "loader.r=ranks"];
        let straight = spread(&of_json(&ranks), &flags, to).unwrap().unwrap();
        let between = spread(&of_json(&ranks), &flags, by).unwrap().unwrap();
        let around = spread(&between, &flags, to).unwrap().unwrap();
        prop_assert_eq!(values(&straight), values(&around));

        // Nothing is lost, doubled or reordered.
        let joined: Vec<Value> =
            values(&straight).iter().flat_map(|it| it["list"].as_array().unwrap().clone()).collect();
        prop_assert_eq!(joined, lists.concat().iter().map(|it| json!(it)).collect::<Vec<_>>());
        let dealt_out: Vec<Value> = values(&straight).iter().map(|it| it["in"]["dealt"].clone()).collect();
        prop_assert_eq!(dealt_out, dealt(total, to));
        let sum = |values: &[Value]| values.iter().map(|it| i128::from(it["n"].as_i64().unwrap())).sum::<i128>();
        prop_assert_eq!(sum(&values(&straight)), sum(&ranks));
    }
}
