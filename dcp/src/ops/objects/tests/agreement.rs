//! All that tells the number of data ranks, values of the whole run among it, and rules that say something or nothing of them.

use super::*;

fn value(objects: &Objects, key: &str) -> Value {
    let found = objects.all.iter().find(|object| object.key == key);
    serde_json::from_slice(&found.unwrap_or_else(|| panic!("{key} is gone")).bytes).unwrap()
}

/// As [`made`], with rules of the command line, without `--from`, and with what is said of it.
fn told(catalog: &Catalog, to: Option<&str>, rules: &[&str], drop: bool) -> Result<(Objects, Vec<String>)> {
    let rank_state = RankScheme::from_flags(rules).unwrap();
    let to = to.map(|to| to.parse().unwrap());
    let request = Request { to, drop_per_rank: drop, rank_state, ..Request::new(Format::Native) };
    let mut notes = Vec::new();
    let made = objects(catalog, &request, &request.rank_state, &mut notes)?;
    Ok((made, notes))
}

#[test]
fn rules_for_values_of_the_whole_run_hold_where_values_of_data_ranks_are_left_out() {
    let mut catalog = catalog();
    catalog.objects.truncate(4);
    let (made, notes) = told(&catalog, Some("4"), &["data.world_size=ranks", "step=drop"], true).unwrap();
    assert_eq!((keys(&made), value(&made, "data.world_size")), (vec!["data.world_size"], json!(4)));
    let ObjectCounts { kept, rewritten, dropped, .. } = made.counts;
    assert_eq!((kept, rewritten, dropped), (0, 1, 3));
    assert_eq!(notes, ["2 per-rank values left out", "1 non-tensor values left out by rules for rank state"]);
    let (_, notes) = told(&catalog, Some("4"), &[], true).unwrap();
    assert!(notes[1].contains("may be the old number of data ranks: data.world_size = 2"), "{notes:?}");
}

#[test]
fn rules_for_values_of_the_whole_run_hold_where_no_value_is_of_data_ranks() {
    let mut catalog = Catalog::new(Format::Native);
    catalog.objects.push(object("train", ReshardRule::Global, &json!({"dp_size": 4, "step": 9})));
    let rules = ["train.dp_size=ranks"];
    let made =
        |catalog: &Catalog, from: &str, to| made(catalog, &Case { from, to, rules: &rules, drop: false });
    assert_eq!(value(&made(&catalog, "dp=4", "dp=2").unwrap(), "train"), json!({"dp_size": 2, "step": 9}));
    assert!(made(&catalog, "dp=4", "dp=4,tp=2").unwrap().are_as_before());
    catalog.mesh = Some("dp=4".parse().unwrap());
    let (objects, notes) = told(&catalog, Some("dp=2"), &rules, false).unwrap();
    assert_eq!((value(&objects, "train")["dp_size"].clone(), notes.len()), (json!(2), 0));
    catalog.mesh = None;
    let error = told(&catalog, Some("dp=2"), &rules, false).unwrap_err().to_string();
    assert!(error.contains("train.dp_size is 4, and how many data ranks there were is not known"), "{error}");
    assert!(error.contains("--from"), "{error}");
    assert!(told(&catalog, Some("dp=2"), &["train.step=same"], false).unwrap().0.are_as_before());
}

#[test]
fn rules_that_decide_on_nothing_are_told_each() {
    let mut catalog = catalog();
    catalog.objects.truncate(4);
    let rules = ["data.**=concat", "data.bufer=sum", "data.at=same", "data.world_size=ranks"];
    let (_, notes) = told(&catalog, Some("1"), &rules, false).unwrap();
    let idle: Vec<&String> = notes.iter().filter(|note| note.contains("decided on nothing")).collect();
    assert_eq!(idle, ["--rank-state 'data.bufer=sum' decided on nothing"]);
    let (_, notes) = told(&catalog, Some("2"), &rules, false).unwrap();
    assert_eq!(notes, ["--rank-state had nothing to do: the number of data ranks stays"]);
    assert_eq!(told(&catalog, None, &rules, false).unwrap().1, notes);
}

#[test]
fn values_of_fewer_or_more_data_ranks_than_are_recorded_or_beside_them_are_refused() {
    let mut catalog = catalog();
    catalog.objects.truncate(4);
    let words = |catalog: &Catalog, to, words: &str| {
        let error = told(catalog, Some(to), &RULES, false).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    catalog.mesh = Some("4".parse().unwrap());
    for to in ["4", "2", "1"] {
        words(&catalog, to, "has the values of 2 data ranks, and the checkpoint records 4");
    }
    assert_eq!(told(&catalog, None, &[], false).unwrap().0.all, catalog.objects, "a copy asks nothing");
    catalog.mesh = None;
    let other = object("sampler.rank_0", ReshardRule::PerDataRank, &json!({}));
    catalog.objects.push(other);
    words(&catalog, "1", "sampler.rank_* has the values of 1 data rank, and data.dp_rank_* those of 2");
    let (made, _) = told(&catalog, Some("1"), &["data.world_size=drop"], true).unwrap();
    assert_eq!(keys(&made), ["step"]);
}

#[test]
fn what_a_rule_may_be_about_is_not_left_out_unseen_whatever_the_order_of_its_keys() {
    for text in [json!({"at": 1, "bad": [1]}), json!({"bad": [1], "at": 1})] {
        let mut catalog = Catalog::new(Format::Native);
        catalog.objects.push(object("data.dp_rank_0", ReshardRule::PerDataRank, &text));
        catalog.objects.push(object("data.dp_rank_1", ReshardRule::PerDataRank, &json!({"at": 1})));
        let error = told(&catalog, Some("1"), &["data.at=same"], true).unwrap_err().to_string();
        assert!(error.contains("data.bad is not there on data rank 1"), "{error}");
        assert_eq!(told(&catalog, Some("1"), &["date.at=same"], true).unwrap().0.all, []);
    }
}

#[test]
fn the_number_of_a_key_that_is_the_ranks_is_that_of_which_there_are_as_many() {
    let loaders = |count: u64| {
        let mut catalog = Catalog::new(Format::Native);
        for rank in 0..count {
            let value = json!([rank]);
            catalog.objects.push(object(&format!("loader.0.{rank}"), ReshardRule::PerDataRank, &value));
        }
        catalog
    };
    let four = loaders(4);
    let case = Case { from: "dp=4", to: "dp=2", rules: &["loader.0=concat"], drop: false };
    let made = made(&four, &case).unwrap();
    assert_eq!(keys(&made), ["loader.0.0", "loader.0.1"]);
    assert_eq!((value(&made, "loader.0.0"), value(&made, "loader.0.1")), (json!([0, 1]), json!([2, 3])));
    let unknown = told(&four, Some("2"), &["loader.0=concat"], false).unwrap_err().to_string();
    assert!(unknown.contains("which number of its key is the rank's is not known"), "{unknown}");
    // Both numbers go from 0 to 1.
    let mut both = loaders(2);
    for rank in 0..2 {
        let key = format!("loader.1.{rank}");
        both.objects.push(object(&key, ReshardRule::PerDataRank, &json!([])));
    }
    let case = Case { from: "dp=2", to: "dp=1", rules: &["loader.**=concat"], drop: false };
    refused(&both, &case, &["loader.0.0", "which number of its key", "4 such values"]);
}

#[test]
fn what_is_called_like_the_number_of_data_ranks_is_found_within_values_too() {
    let mut catalog = catalog();
    catalog.objects.truncate(3);
    let state = json!({"world_size": 2, "seed": 3});
    catalog.objects.push(object("data.state", ReshardRule::Global, &state));
    catalog.objects.push(object("model.args", ReshardRule::Global, &state));
    let case = |rules: &'static [&'static str]| Case { from: "dp=2", to: "dp=1", rules, drop: false };
    refused(
        &catalog,
        &case(&["data.**=same", "data.buffer=concat"]),
        &["data.state.world_size = 2", "a rule names it"],
    );
    let named = ["data.**=same", "data.buffer=concat", "data.state.world_size=ranks"];
    let made = made(&catalog, &Case { from: "dp=2", to: "dp=1", rules: &named, drop: false }).unwrap();
    assert_eq!(value(&made, "data.state"), json!({"world_size": 1, "seed": 3}));
    assert_eq!(value(&made, "model.args"), state);
}
