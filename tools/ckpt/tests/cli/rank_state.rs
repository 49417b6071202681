//! State that each data rank has of its own, on other meshes: a data loader's, as real torch saved it.

use serde_json::{Value, json};

use crate::place::{Place, fixture};

const LOADER: &str = "torch_dcp/dataloader";
const PLACED: [&str; 2] = ["--place", "**=dp:0"];
const RULES: [&str; 6] = [
    "--rank-state",
    "dataloader.**=same",
    "--rank-state",
    "dataloader.**.token_buffer=concat",
    "--rank-state",
    "dataloader.world_size=ranks",
];

fn args<'a>(parts: &[&[&'a str]]) -> Vec<&'a str> {
    parts.concat()
}

fn counts(result: &Value) -> Vec<u64> {
    let names = ["kept", "split", "merged", "rewritten", "dropped"];
    names.iter().map(|name| result["objects"][name].as_u64().unwrap()).collect()
}

/// What torch reads of a folder, with the loader's pickles unpickled.
fn by_torch(place: &Place, folders: &[&str]) -> Vec<Value> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/python/check_rank_state.py");
    let output = fixtures::python().arg(script).args(folders).current_dir(place.path("")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn torch_reads_a_loader_moved_from_four_to_two_to_three_data_ranks_with_every_token_once() {
    let (place, source) = (Place::new(), fixture(LOADER));
    let torch_dcp = |from, target, to| {
        place.json(&args(&[&["convert", from, target, "--as", "torch-dcp", "--to", to], &PLACED, &RULES]))
    };
    let two = torch_dcp(&source, "two", "2");
    assert_eq!(counts(&two["result"]), [1, 0, 4, 1, 0]);
    let three = torch_dcp("two", "three", "3");
    assert_eq!(counts(&three["result"]), [1, 2, 0, 1, 0]);
    // By way of a native store, which keeps the rules.
    place.done(&args(&[&["convert", &source, "store", "--to", "2"], &PLACED, &RULES]));
    place.done(&["reshard", "store", "--to", "3"]);
    place.done(&["convert", "store", "again", "--as", "torch-dcp"]);

    let read = by_torch(&place, &[&source, "two", "three", "again"]);
    let [four, two, three, again] = read.as_slice() else { panic!("{read:#?}") };
    let tokens = |state: &Value| -> Vec<Vec<u64>> {
        let each = state["ranks"].as_array().unwrap().iter();
        each.map(|rank| serde_json::from_value(rank["dataset_state"]["token_buffer"].clone()).unwrap())
            .collect()
    };
    let all = tokens(four).concat();
    assert_eq!(all.len(), 18);
    for (state, sizes) in [(two, vec![9, 9]), (three, vec![6, 6, 6])] {
        assert_eq!(tokens(state).iter().map(Vec::len).collect::<Vec<_>>(), sizes);
        assert_eq!(tokens(state).concat(), all, "tokens were lost, doubled or reordered");
        assert_eq!(state["world_size"], sizes.len());
        assert_eq!((&state["step"], &state["w"]), (&four["step"], &four["w"]));
        for rank in state["ranks"].as_array().unwrap() {
            let mut rank = rank.clone();
            rank["dataset_state"]["token_buffer"] = four["ranks"][0]["dataset_state"]["token_buffer"].clone();
            assert_eq!(rank, four["ranks"][0], "a leaf that was to stay");
        }
    }
    assert_eq!(again, three);
}

#[test]
fn a_change_without_rules_is_refused_with_every_leaf_and_its_value() {
    let (place, source) = (Place::new(), fixture(LOADER));
    let convert = args(&[&["convert", &source, "out", "--to", "2"], &PLACED]);
    let leaf = "dataloader.dataset_state.token_buffer = [0, 1, 2]";
    place.run(&convert).refused(22, &["dataloader.dp_rank_*, 4 -> 2 data ranks", leaf, "--rank-state"]);
    let some = args(&[&convert, &RULES[..4]]);
    place.run(&some).refused(22, &["dataloader.world_size = 4"]);
    let wrong = args(&[&convert, &RULES, &["--rank-state", "dataloader.**.token_buffer=interleave"]]);
    place.run(&wrong).refused(22, &["token_buffer", "3, 4, 5, 6 items", "rank 0 has 3 where 5"]);
    place.run(&args(&[&convert, &RULES, &["--from", "8"]])).refused(22, &["8 ranks", "4 saved"]);
    place
        .run(&args(&[&convert, &["--rank-state", "dataloader.x=add"]]))
        .refused(22, &["--rank-state", "same, concat"]);
    assert!(place.listed().is_empty());
    let dropped = place.json(&args(&[&convert, &["--drop-per-rank"]]));
    assert_eq!(counts(&dropped["result"]), [2, 0, 0, 0, 4]);
}

#[test]
fn where_the_number_of_data_ranks_stays_values_stay_byte_for_byte_on_other_meshes() {
    let (place, source) = (Place::new(), fixture(LOADER));
    for (to, target) in [("4", "a"), ("4x1x2", "b"), ("dp_replicate=2,dp_shard=2", "c")] {
        let made = place.json(&args(&[&["convert", &source, target, "--to", to], &PLACED]));
        assert_eq!(counts(&made["result"]), [6, 0, 0, 0, 0], "{to}");
    }
    let idle = place.json(&args(&[&["convert", &source, "d", "--to", "4"], &PLACED, &RULES]));
    let notes = idle["result"]["notes"].to_string();
    assert!(notes.contains("--rank-state had nothing to do"), "{notes}");
}

#[test]
fn rules_come_from_a_file_too_and_stay_with_a_native_store() {
    let (place, source) = (Place::new(), fixture(LOADER));
    std::fs::write(
        place.path("rules.toml"),
        "[[rank_state]]\nmatch = \"dataloader.**.token_buffer\"\nhow = \"concat\"\n\
         [[rank_state]]\nmatch = \"dataloader.world_size\"\nhow = \"ranks\"\n\
         [[rank_state]]\nmatch = \"dataloader.**\"\nhow = \"same\"\n",
    )
    .unwrap();
    let convert = args(&[&["convert", &source, "store", "--to", "2", "--rules", "rules.toml"], &PLACED]);
    let shown = place.json(&args(&[&convert, &["--dry-run"]]));
    assert_eq!(counts(&shown["result"]), [1, 0, 4, 1, 0]);
    assert!(place.path("rules.toml").exists() && !place.path("store").exists());
    assert_eq!(counts(&place.json(&convert)["result"]), [1, 0, 4, 1, 0]);
    let again = place.json(&["reshard", "store", "--to", "1"]);
    assert_eq!(counts(&again["result"]), [1, 0, 2, 1, 0]);
    let values = place.json(&["inspect", "store", "--objects"]);
    let value = |key: &str| {
        let objects = values["result"]["objects"].as_array().unwrap();
        objects.iter().find(|object| object["key"] == key).map(|object| object["value"].clone())
    };
    assert_eq!(value("dataloader.world_size"), Some(json!(1)));
    assert_eq!(value("dataloader.dp_rank_1"), None);
    std::fs::write(place.path("bad.toml"), "\n[[rank_state]]\nmatch = \"a\"\nhow = \"add\"\n").unwrap();
    let bad = args(&[&["convert", &source, "x", "--to", "2", "--rules", "bad.toml"], &PLACED]);
    place.run(&bad).refused(22, &["line 4", "\"add\" is none of same"]);
}

#[test]
fn rules_are_part_of_the_plan_and_workers_make_one_checkpoint_of_it() {
    let (place, source) = (Place::new(), fixture(LOADER));
    place.done(&args(&[&["convert", &source, "a"], &RULES]));
    let plan = |rules: &[&str]| {
        let shown = args(&[&["reshard", "a@seq:1", "b", "--to", "2", "--dry-run"], &PLACED, rules]);
        place.json(&shown)["result"]["plan"]["attempt"].as_str().unwrap().to_owned()
    };
    assert_eq!(plan(&[]), plan(&[]));
    assert_ne!(plan(&[]), plan(&["--rank-state", "dataloader.fetcher_state=drop"]));
    for worker in ["0/2", "1/2"] {
        place.done(&args(&[&["reshard", "a@seq:1", "b", "--to", "2", "--worker", worker], &PLACED]));
    }
    place.done(&args(&[&["reshard", "a@seq:1", "c", "--to", "2"], &PLACED]));
    let objects = |root: &str| place.json(&["inspect", root, "--objects"])["result"]["objects"].clone();
    assert_eq!(objects("b"), objects("c"));
    assert_eq!(objects("b").as_array().unwrap().len(), 4);
    place.done(&["verify", "b"]);
}

#[test]
fn a_store_that_is_made_without_a_mesh_records_none_and_shows_its_rules_and_values_follow_later() {
    let (place, source) = (Place::new(), fixture(LOADER));
    let made = place.json(&args(&[&["convert", &source, "store"], &RULES]));
    assert!(made["result"]["notes"].to_string().contains("no mesh is recorded"), "{made}");
    let card = place.json(&["inspect", "store"])["result"].clone();
    assert_eq!(card.get("mesh"), None);
    assert_eq!(card["rank_state"][0], json!({"match": "dataloader.world_size", "how": "ranks"}));
    assert_eq!(card["rank_state"].as_array().unwrap().len(), 3);
    let text = place.done(&["inspect", "store"]);
    assert!(text.out.contains("rank_state\tdataloader.world_size=ranks"), "{}", text.out);
    for to in ["1", "1x1x1"] {
        let merged = place.json(&args(&[&["reshard", "store@seq:1", to, "--to", to], &PLACED]));
        assert_eq!(counts(&merged["result"]), [1, 0, 4, 1, 0], "{to}");
    }
    place
        .run(&args(&[&["reshard", "store", "x", "--to", "2", "--from", "2x2x1"], &PLACED]))
        .refused(22, &["dataloader.dp_rank_* has the values of 4 data ranks, and --from says 2"]);
}

#[test]
fn the_number_of_data_ranks_is_rewritten_also_where_their_values_are_left_out_and_rules_without_use_are_told()
{
    let (place, source) = (Place::new(), fixture(LOADER));
    let rules = ["--rank-state", "dataloader.world_size=ranks", "--rank-state", "dataloder.x=drop"];
    let drop = ["convert", &source, "store", "--to", "2", "--drop-per-rank"];
    let made = place.json(&args(&[&drop, &PLACED, &rules]));
    assert_eq!(counts(&made["result"]), [1, 0, 0, 1, 4]);
    let notes = made["result"]["notes"].to_string();
    assert!(notes.contains("'dataloder.x=drop' decided on nothing"), "{notes}");
    // The store has no values of data ranks left, and its rule holds.
    place.done(&["reshard", "store", "--to", "3"]);
    let values = place.json(&["inspect", "store", "--objects"])["result"]["objects"].clone();
    let size = values.as_array().unwrap().iter().find(|it| it["key"] == "dataloader.world_size").unwrap();
    assert_eq!(size["value"], 3);
}

#[test]
fn a_worker_that_comes_late_and_goes_on_finds_it_done() {
    let (place, source) = (Place::new(), fixture(LOADER));
    let base = args(&[&["convert", &source, "store", "--to", "2"], &PLACED, &RULES]);
    let worker = |share: &'static str| args(&[&base, &["--worker", share]]);
    place.done(&worker("0/2"));
    place.done(&worker("1/2"));
    let late = place.json(&args(&[&worker("0/2"), &["--resume"]]));
    assert_eq!(late["result"]["sequence"], 1);
    place.run(&args(&[&base, &["--resume"]])).refused(11, &["this command is done"]);
}

#[test]
fn a_rules_file_says_at_once_what_is_stacked_and_what_becomes_of_rank_state() {
    let place = Place::new();
    let rules = "[[stack]]\nmembers = \"model.layers.{layer}.mlp.experts.{expert}.{part}.weight\"\n\
                 stack = \"model.layers.{layer}.moe.{part}@0\"\n\
                 [[rank_state]]\nmatch = \"loader.**\"\nhow = \"same\"\n";
    std::fs::write(place.path("rules.toml"), rules).unwrap();
    let source = fixture("torch_dcp/experts");
    let made = place.json(&["convert", &source, "a", "--rules", "rules.toml", "--stack", "experts"]);
    assert!(made["result"]["notes"].to_string().contains(".moe.{part}"), "{made}");
}
