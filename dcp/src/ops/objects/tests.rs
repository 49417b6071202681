//! What stays, what follows, what is left out and what is refused, told of objects alone.

use serde_json::{Value, json};

use super::*;
use crate::{Encoding, ErrorKind, Format, PathPart, ReshardRule};

mod agreement;

fn object(key: &str, reshard: ReshardRule, value: &Value) -> ObjectEntry {
    ObjectEntry {
        key: key.to_owned(),
        path: vec![PathPart::Key(key.to_owned())],
        encoding: Encoding::Json,
        bytes: value.to_string().into(),
        preview: Some(value.clone()),
        reshard,
    }
}

/// Two data ranks' cursors and lists, their number, a step, and a generator for each of four ranks.
fn catalog() -> Catalog {
    let mut catalog = Catalog::new(Format::Native);
    let mut add = |key: &str, reshard, value: Value| catalog.objects.push(object(key, reshard, &value));
    add("step", ReshardRule::Global, json!(7));
    add("data.dp_rank_0", ReshardRule::PerDataRank, json!({"at": 3, "buffer": [1, 2]}));
    add("data.dp_rank_1", ReshardRule::PerDataRank, json!({"at": 3, "buffer": [3]}));
    add("data.world_size", ReshardRule::Global, json!(2));
    add("rng.rank_0", ReshardRule::PerRank, json!([0]));
    add("rng.rank_1", ReshardRule::PerRank, json!([1]));
    catalog
}

const RULES: [&str; 3] = ["data.at=same", "data.buffer=concat", "data.world_size=ranks"];

struct Case<'a> {
    from: &'a str,
    to: &'a str,
    rules: &'a [&'a str],
    drop: bool,
}

fn made(catalog: &Catalog, case: &Case<'_>) -> Result<Objects> {
    let request = Request {
        from: Some(case.from.parse().unwrap()),
        to: Some(case.to.parse().unwrap()),
        drop_per_rank: case.drop,
        ..Request::new(Format::Native)
    };
    objects(catalog, &request, &RankScheme::from_flags(case.rules).unwrap(), &mut Vec::new())
}

fn refused(catalog: &Catalog, case: &Case<'_>, words: &[&str]) {
    let error = made(catalog, case).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
    let text = format!("{error} / {}", error.hint_text().unwrap_or_default());
    assert!(words.iter().all(|word| text.contains(word)), "{words:?}: {text}");
}

fn keys(objects: &Objects) -> Vec<&str> {
    objects.all.iter().map(|object| object.key.as_str()).collect()
}

#[test]
fn on_the_same_mesh_everything_stays() {
    let catalog = catalog();
    let made = made(&catalog, &Case { from: "dp=2,tp=2", to: "dp=2,tp=2", rules: &[], drop: false }).unwrap();
    assert_eq!(made.all, catalog.objects);
    assert!(made.are_as_before());
}

#[test]
fn where_only_other_axes_change_values_of_data_ranks_stay_and_opaque_ones_are_refused_or_dropped() {
    let mut catalog = catalog();
    for to in ["dp=2,tp=4", "dp_replicate=1,dp_shard=2,pp=2", "dp_replicate=2,dp_shard=1"] {
        let case = Case { from: "dp=2,tp=2", to, rules: &[], drop: false };
        refused(&catalog, &case, &["rng.rank_0", "single rank", "2 data ranks -> 2", "--drop-per-rank"]);
        let dropped = made(&catalog, &Case { drop: true, ..case }).unwrap();
        assert_eq!(keys(&dropped), ["step", "data.dp_rank_0", "data.dp_rank_1", "data.world_size"]);
        assert_eq!((dropped.counts.kept, dropped.counts.dropped), (4, 2));
    }
    catalog.objects.truncate(4);
    let case = Case { from: "dp=2,tp=2", to: "dp=2,tp=4", rules: &[], drop: false };
    assert_eq!(made(&catalog, &case).unwrap().all, catalog.objects);
}

#[test]
fn another_number_of_data_ranks_needs_a_rule_for_each_leaf_and_for_their_number() {
    let mut catalog = catalog();
    catalog.objects.truncate(4);
    let case = |rules: &'static [&'static str]| Case { from: "dp=2", to: "dp=1", rules, drop: false };
    let words = [
        "data.dp_rank_*",
        "2 -> 1 data rank",
        "data.at = 3",
        "data.buffer = [1, 2]",
        "data.world_size = 2",
        "--rank-state",
    ];
    refused(&catalog, &case(&[]), &words);
    refused(
        &catalog,
        &case(&["data.**=same", "data.buffer=concat"]),
        &["data.world_size = 2", "a rule names it"],
    );
    let made = made(&catalog, &case(&RULES)).unwrap();
    assert_eq!(keys(&made), ["step", "data.dp_rank_0", "data.world_size"]);
    assert_eq!(&made.all[1].bytes[..], br#"{"at":3,"buffer":[1,2,3]}"#);
    assert_eq!((&made.all[2].bytes[..], made.all[2].preview.clone()), (&b"1"[..], Some(json!(1))));
    let ObjectCounts { kept, split, merged, rewritten, dropped } = made.counts;
    assert_eq!((kept, split, merged, rewritten, dropped), (1, 0, 2, 1, 0));
    assert_eq!(made.counts.total(), catalog.objects.len());
}

#[test]
fn what_no_rule_is_about_is_dropped_when_told_and_what_one_is_about_never_is() {
    let mut catalog = catalog();
    catalog.objects.truncate(4);
    let case = |rules: &'static [&'static str]| Case { from: "dp=2", to: "dp=4", rules, drop: true };
    let dropped = made(&catalog, &case(&[])).unwrap();
    assert_eq!(keys(&dropped), ["step", "data.world_size"]);
    refused(&catalog, &case(&["data.at=same"]), &["data.buffer = [1, 2]"]);
    refused(&catalog, &case(&["data.at=ranks", "data.buffer=concat"]), &["data.at is 3"]);
}

#[test]
fn values_split_over_more_ranks_take_keys_and_paths_of_their_own() {
    let mut catalog = catalog();
    catalog.objects.truncate(4);
    let nested = |rank: &str| vec![PathPart::Key("data".to_owned()), PathPart::Key(rank.to_owned())];
    catalog.objects[1].path = nested("dp_rank_0");
    catalog.objects[2].path = nested("dp_rank_1");
    let made = made(&catalog, &Case { from: "dp=2", to: "dp_shard=3", rules: &RULES, drop: false }).unwrap();
    assert_eq!(
        keys(&made),
        ["step", "data.dp_rank_0", "data.dp_rank_1", "data.dp_rank_2", "data.world_size"]
    );
    assert_eq!(made.all[3].path, nested("dp_rank_2"));
    assert_eq!((made.counts.split, made.counts.rewritten), (2, 1));
}

#[test]
fn flat_families_of_other_spellings_follow_where_a_store_records_what_they_are() {
    let mut catalog = Catalog::new(Format::Native);
    for rank in 0..3 {
        let at = |key: &str| format!("{key}{rank}");
        let value = json!([rank]);
        catalog.objects.push(object(&at("sampler.rank_"), ReshardRule::PerDataRank, &value));
        catalog.objects.push(object(&format!("cursor.{rank}.n"), ReshardRule::PerDataRank, &json!(rank)));
    }
    let rules = ["sampler.rank_{rank}=concat", "cursor.n=sum"];
    let made = made(&catalog, &Case { from: "dp=3", to: "dp=2", rules: &rules, drop: false }).unwrap();
    assert_eq!(keys(&made), ["sampler.rank_0", "sampler.rank_1", "cursor.0.n", "cursor.1.n"]);
    let values: Vec<&[u8]> = made.all.iter().map(|object| &object.bytes[..]).collect();
    assert_eq!(values, [&b"[0,1]"[..], b"[2]", b"2", b"1"]);
}

#[test]
fn keys_that_name_no_rank_or_ranks_that_are_missing_are_refused() {
    let mut catalog = catalog();
    catalog.objects.truncate(4);
    let case = Case { from: "dp=2", to: "dp=4", rules: &RULES, drop: false };
    catalog.objects[2].key = "data.dp_rank_2".to_owned();
    refused(&catalog, &case, &["data.dp_rank_*", "none of data rank 1"]);
    catalog.objects[2].key = "data.sampler".to_owned();
    refused(&catalog, &case, &["data.sampler", "does not name its own rank", "2 data ranks -> 4"]);
    catalog.objects.remove(2);
    refused(&catalog, &case, &["the values of 1 data rank", "--from says 2"]);
}

#[test]
fn the_digest_of_objects_tells_rules_that_give_other_values_apart() {
    let mut catalog = catalog();
    catalog.objects.truncate(4);
    let digest = |rules: &[&str]| {
        made(&catalog, &Case { from: "dp=2", to: "dp=1", rules, drop: false }).unwrap().digest()
    };
    assert_eq!(digest(&RULES), digest(&RULES));
    assert_ne!(digest(&RULES), digest(&[RULES[0], "data.buffer=drop", RULES[2]]));
}
