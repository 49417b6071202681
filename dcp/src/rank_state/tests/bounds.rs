//! What can't be written again, can't be read, or would be too much.

use super::*;

/// A pickle of `{"thing": my.State(), "dp": 4}`.
fn with_an_object() -> ObjectEntry {
    let mut arena = Arena::new();
    let (class, none) = (arena.global("my.loader", "State"), arena.tuple(&[]));
    let (thing, four) = (arena.reduce(class, none), arena.int(4));
    let (a, b) = (arena.str("thing"), arena.str("dp"));
    let dict = arena.dict(&[(a, thing), (b, four)]);
    let pickle = write(&arena.finish(dict).unwrap(), Protocol::V2).unwrap();
    ObjectEntry { reshard: ReshardRule::Global, ..object(0, Encoding::Pickle, pickle) }
}

#[test]
fn an_object_in_a_value_of_the_whole_run_is_in_the_way_only_where_a_rule_changes_the_value() {
    let made = |flags: &[&str], object: &ObjectEntry| {
        let scheme = scheme(flags);
        rewritten(&mut Walk::new(&scheme, Some(4), 2), &["train"], object, Vec::new()).map(|made| made.0)
    };
    let value = with_an_object();
    for flags in [&["train.**=same"][..], &["train.step=ranks"], &["other.dp=ranks"]] {
        assert_eq!(made(flags, &value).unwrap(), Some(value.clone()), "{flags:?}");
    }
    let error = made(&["train.dp=ranks"], &value).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
    assert!(error.to_string().starts_with("train.thing holds an object my.loader.State()"), "{error}");
    assert_eq!(error.hint_text().unwrap(), "'train.thing=drop' leaves it out");
    let without = made(&["train.dp=ranks", "train.thing=drop"], &value).unwrap().unwrap();
    assert_eq!(decode(&without).unwrap(), State::Dict(vec![(State::Text("dp".to_owned()), State::Int(2))]));

    // What can't be read at all is carried along, unless a rule may be about a leaf in it.
    let torn = ObjectEntry { bytes: b"\x80\x02]".to_vec().into(), ..value };
    assert_eq!(made(&["train.**=same"], &torn).unwrap(), Some(torn.clone()));
    assert_eq!(made(&["other.**=drop"], &torn).unwrap(), Some(torn.clone()));
    assert_eq!(made(&["train=drop"], &torn).unwrap(), None);
    let error = made(&["train.dp=ranks"], &torn).unwrap_err();
    assert!(error.hint_text().unwrap().contains("'train=drop' leaves the value out"), "{error:?}");
}

#[test]
fn of_many_leaves_without_a_rule_the_first_few_are_kept_as_short_texts() {
    let long = "k".repeat(10_000);
    let leaves: serde_json::Map<String, Value> =
        (0..5000).map(|at| (format!("leaf{at}"), json!(at))).collect();
    let objects = of_json(&[json!({ &long: leaves.clone() }), json!({ &long: leaves })]);
    let scheme = scheme(&["other=same"]);
    let mut walk = Walk::new(&scheme, Some(2), 1);
    respread(&mut walk, &["loader"], &objects.iter().collect::<Vec<_>>()).unwrap();
    assert_eq!((walk.uncovered.count, walk.uncovered.first.len()), (5000, 8));
    let text = walk.uncovered.to_string();
    assert!(text.len() < 4000 && text.ends_with("; and 4992 more"), "{text}");
}

#[test]
fn a_value_that_would_be_many_times_its_size_in_memory_is_refused_before_it_is() {
    // Lists of the same list, ten each: 10^5 numbers of a few dozen bytes.
    let mut arena = Arena::new();
    let one = arena.int(1);
    let bomb = (0..5).fold(one, |inner, _| arena.list(&[inner; 10]));
    let bomb = object(0, Encoding::Pickle, write(&arena.finish(bomb).unwrap(), Protocol::V2).unwrap());
    let error = decode(&bomb).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
    assert!(error.to_string().contains("many times its size"), "{error}");
    // What is as dense as can be and honest is not.
    let dense = [&b"["[..], &b"[],".repeat(50_000), b"0]"].concat();
    assert!(decode(&object(0, Encoding::Json, dense)).is_ok());
    let commas = format!("\"{}\"", ",".repeat(200_000)).into_bytes();
    assert!(decode(&object(0, Encoding::Json, commas)).is_ok());
    let nothings = [&b"\x80\x02]("[..], &b"N".repeat(200_000), b"e."].concat();
    assert!(decode(&object(0, Encoding::Pickle, nothings)).is_ok());
}
