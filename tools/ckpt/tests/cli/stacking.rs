//! `--stack` and `--unstack`: experts and layers as tensors of their own, or as one.

use std::process::{Child, Stdio};

use dcp::digest::Sha256Digest;
use serde_json::{Value, json};

use crate::place::{Answer, Place, fixture};

/// Two layers of three experts, with AdamW's state.
const EXPERTS: &str = "torch_dcp/experts";
const LLAMA: &str = "hf/llama_sharded";
const GATE: &str =
    "model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight=model.layers.{layer}.moe.experts.w1@0";

/// The fixture with fingerprints, in `sealed`.
fn sealed() -> Place {
    let place = Place::new();
    place.done(&["seal", &fixture(EXPERTS), "--into", "sealed"]);
    place
}

fn proven(outcome: &Value) -> [&Value; 2] {
    [&outcome["result"]["report"]["proven"], &outcome["result"]["fingerprints_recorded"]]
}

fn tensor(inspected: &Value, fqn: &str, role: &str) -> Value {
    let tensors = inspected["result"]["tensors"].as_array().unwrap();
    let found = tensors.iter().find(|it| it["fqn"] == fqn && it["role"] == role);
    found.unwrap_or_else(|| panic!("{fqn} {role} is not in {inspected}")).clone()
}

#[test]
fn experts_go_into_one_tensor_on_an_expert_parallel_mesh_and_come_back_with_the_fingerprints_they_had() {
    let place = sealed();
    let out =
        place.json(&["convert", "sealed", "stacked", "--stack", "experts", "--to", "dp=2,ep=3", "--verify"]);
    // 18 weights, each with two moments and a step, are now 6 with theirs; 4 others have theirs too.
    let count = &Value::from((6 + 4) * 4);
    assert_eq!(proven(&out), [count, count]);
    assert_eq!((&out["result"]["restacked"], &out["result"]["verified"]["tensors"]), (&18.into(), count));
    let note = out["result"]["notes"][0].as_str().unwrap();
    assert!(
        note.starts_with("72 tensors stacked into 24: model.layers.{layer}.mlp.experts.{expert}"),
        "{note}"
    );
    let stacked = place.json(&["inspect", "stacked", "--tensors"]);
    let name = "model.layers.1.mlp.experts.up_proj.weight";
    for role in ["param", "exp_avg", "exp_avg_sq"] {
        let one = tensor(&stacked, name, role);
        assert_eq!(
            (&one["shape"], &one["placement"]),
            (&json!([3, 4, 6]), &"ep:0,tp:1,dp:1,pp:layer".into())
        );
    }
    assert_eq!(tensor(&stacked, name, "slot:step")["shape"], json!([]));
    let back = place.json(&["reshard", "stacked", "apart", "--unstack", "experts", "--to", "ep=3,tp=2"]);
    let count = &Value::from((18 + 4) * 4);
    assert_eq!(proven(&back), [count, count]);
    assert_eq!(place.json(&["diff", "sealed", "apart", "--level", "hash"])["result"]["same"], true);
    place.done(&["verify", "apart"]);
    // And as torch reads it.
    place.done(&["convert", "stacked", "dcp", "--unstack", "experts", "--as", "torch-dcp"]);
    assert_eq!(place.json(&["diff", &fixture(EXPERTS), "dcp"])["result"]["same"], true);
}

#[test]
fn every_slice_of_a_stack_has_the_bytes_that_torch_had_in_the_expert() {
    let place = Place::new();
    let expected = fixtures::expected(EXPERTS);
    place.done(&[
        "convert",
        &fixture(EXPERTS),
        "out.safetensors",
        "--as",
        "safetensors",
        "--only",
        "model",
        "--stack",
        GATE,
    ]);
    let file = std::fs::read(place.path("out.safetensors")).unwrap();
    let (len, rest) = file.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(usize::try_from(u64::from_le_bytes(*len)).unwrap());
    let header: Value = serde_json::from_slice(header).unwrap();
    for layer in 0..2 {
        let stack = &header[format!("model.layers.{layer}.moe.experts.w1")];
        assert_eq!(stack["shape"], json!([3, 4, 6]));
        let start = usize::try_from(stack["data_offsets"][0].as_u64().unwrap()).unwrap();
        for expert in 0..3 {
            let name = format!("model.model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight");
            let slice = &data[start + expert * 96..start + (expert + 1) * 96];
            assert_eq!(Sha256Digest::of(slice).to_string(), expected.tensors[&name].sha256, "{name}");
        }
    }
    assert!(header.get("model.layers.0.mlp.experts.0.up_proj.weight").is_some(), "what was not named stays");
}

#[test]
fn pairs_of_a_rules_file_are_used_by_their_word_and_told_of_when_they_are_not() {
    let place = sealed();
    let rules = r#"
        [[stack]]
        members = "model.layers.{layer}.mlp.experts.{expert}.{part}.weight"
        stack = "model.layers.{layer}.moe.experts.{part}@1"
    "#;
    std::fs::write(place.path("rules.toml"), rules).unwrap();
    let with = ["--rules", "rules.toml", "--to", "ep=3,tp=2"];
    let out = place.json(&[&["convert", "sealed", "a", "--stack", "experts"], &with[..]].concat());
    assert_eq!(proven(&out), [&Value::from(40), &Value::from(40)]);
    let inspected = place.json(&["inspect", "a", "--tensors"]);
    let one = tensor(&inspected, "model.layers.0.moe.experts.down_proj", "exp_avg");
    assert_eq!((&one["shape"], &one["placement"]), (&json!([6, 3, 4]), &"ep:1,tp:2,dp:0,pp:layer".into()));
    place.done(&[&["reshard", "a", "b", "--unstack", "experts"], &with[..]].concat());
    assert_eq!(place.json(&["diff", "sealed", "b", "--level", "hash"])["result"]["same"], true);
    let unused = place.json(&[&["convert", "sealed", "c"], &with[..]].concat());
    assert!(unused["result"]["notes"].to_string().contains("--stack experts"), "{unused}");
    std::fs::write(place.path("wrong.toml"), "[[stack]]\nmembers = \"a.{expert}.w\"\nstack = \"b@x\"\n")
        .unwrap();
    place
        .run(&["convert", "sealed", "d", "--rules", "wrong.toml"])
        .refused(22, &["line 3", "number of the stack's dimension"]);
}

#[test]
fn layers_are_stacked_too_and_each_stage_holds_its_own() {
    let place = Place::new();
    let out = place.json(&[
        "convert",
        &fixture(LLAMA),
        "a",
        "--stack",
        "layers",
        "--to",
        "pp=2,tp=2",
        "--heads",
        "4",
    ]);
    assert!(out["result"]["notes"][0].as_str().unwrap().contains("18 tensors stacked into 9"), "{out}");
    let one =
        tensor(&place.json(&["inspect", "a", "--tensors"]), "model.layers.mlp.down_proj.weight", "param");
    assert_eq!((&one["shape"], &one["placement"]), (&json!([2, 16, 24]), &"tp:2,dp:1,pp:layers@0".into()));
    place
        .run(&["export", "a", "x", "--unstack", "layers"])
        .refused(22, &["--unstack layers", "no pair of names is known"]);
    let args =
        ["export", "a", "hf", "--unstack", "layers", "--preset", "llama-hf", "--config", &fixture(LLAMA)];
    let out = place.json(&args);
    assert_eq!(proven(&out), [&Value::from(21), &Value::from(21)]);
    assert_eq!(place.json(&["diff", &fixture(LLAMA), "hf"])["result"]["same"], true);
}

#[test]
fn a_plan_holds_for_its_own_stacking_and_several_workers_share_it() {
    let place = sealed();
    let base = ["convert", "sealed@seq:1", "out", "--to", "ep=3"];
    place.done(&[&base[..], &["--stack", GATE, "--plan", "plan.json"]].concat());
    let other = [&base[..], &["--stack", "experts", "--apply", "plan.json"]].concat();
    place.run(&other).refused(11, &["plan.json", "another stacking"]);
    place.run(&[&base[..], &["--apply", "plan.json"]].concat()).refused(11, &["another stacking"]);
    let worker = |share: &str| -> Child {
        let args =
            [&base[..], &["--stack", GATE, "--apply", "plan.json", "--worker", share, "--json"]].concat();
        place.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let workers: Vec<Child> = ["0/3", "1/3", "2/3"].map(worker).into();
    let answers = workers.into_iter().map(|it| Answer::of(&it.wait_with_output().unwrap()));
    let answers: Vec<Value> = answers.map(|it| it.json()).collect();
    let done: Vec<&Value> = answers.iter().filter(|it| it["result"].get("missing_files").is_none()).collect();
    assert!(!done.is_empty(), "{answers:#?}");
    // 6 weights and their moments and steps went into 2; whoever commits proves all, also what others copied.
    let count = &Value::from((2 + 12 + 4) * 4);
    assert!(done.iter().all(|it| proven(it) == [count, count]), "{done:#?}");
    place.done(&["reshard", "out", "back", "--to", "ep=1", "--unstack", GATE]);
    assert_eq!(place.json(&["diff", "sealed", "back", "--level", "hash"])["result"]["same"], true);
}

#[test]
fn a_glob_chooses_among_the_names_of_the_source() {
    let place = sealed();
    let out =
        place.json(&["convert", "sealed#model.layers.1.**", "a", "--stack", "experts", "--to", "1x1x1"]);
    assert_eq!(out["result"]["tensors"], (3 + 2) * 4);
    place
        .run(&["convert", "sealed#model.layers.1.mlp.experts.{0,2}.**", "b", "--stack", "experts"])
        .refused(22, &["model.layers.1.mlp.experts.", "1 is missing or comes twice"]);
}

#[test]
fn what_makes_no_stack_is_refused_and_leaves_nothing_behind() {
    let place = sealed();
    let refused = |args: &[&str], words: &[&str]| {
        place.run(&[&["convert", "sealed", "out"], args].concat()).refused(22, words);
    };
    refused(&["--stack", "a.{expert}.w=b"], &["no tensor is called a.{expert}.w"]);
    refused(&["--unstack", "experts"], &["no tensor is called", "--stack makes them one"]);
    refused(&["--stack", "everything"], &["no pair of names", "MEMBERS=STACK@AXIS"]);
    refused(&["--stack", &GATE.replace("@0", "@3")], &["has no dimension 3"]);
    refused(
        &["--stack", &GATE.replace("moe.experts.w1@0", "mlp.gate.weight")],
        &["appears twice", "--stack"],
    );
    let mixed = "model.layers.{layer}.mlp.experts.{expert}.{**part}=model.layers.{layer}.w";
    refused(&["--stack", mixed], &["exactly one capture"]);
    refused(&["--stack", "experts", "--to", "ep=2"], &["3 experts do not divide over ep=2"]);
    assert_eq!(place.listed(), ["sealed"]);
}

/// A safetensors file of these tensors, all of them empty.
fn empty(place: &Place, name: &str, tensors: &[(&str, Value)]) {
    let entry = |shape: &Value| json!({"dtype": "F32", "shape": shape, "data_offsets": [0, 0]});
    let header: serde_json::Map<String, Value> =
        tensors.iter().map(|(name, shape)| ((*name).to_owned(), entry(shape))).collect();
    let header = Value::Object(header).to_string();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    std::fs::write(place.path(name), bytes).unwrap();
}

#[test]
fn a_hostile_shape_makes_no_million_members() {
    let place = Place::new();
    empty(&place, "huge.safetensors", &[("stack", json!([1_u64 << 50, 0]))]);
    let pair = "l.{layer}.w=stack";
    place
        .run(&["convert", "huge.safetensors", "a", "--unstack", pair])
        .refused(22, &["stack", "no dimension 0 of members"]);
    let many: Vec<String> = (0..17).map(|at| format!("e.{at}.stack")).collect();
    let many: Vec<(&str, Value)> = many.iter().map(|name| (name.as_str(), json!([1 << 16, 0]))).collect();
    empty(&place, "many.safetensors", &many);
    let pair = "e.{expert}.{layer}.w=e.{expert}.stack";
    place
        .run(&["convert", "many.safetensors", "b", "--unstack", pair])
        .refused(22, &["more than 1048576 members"]);
    empty(&place, "far.safetensors", &[("l.0.w", json!([0])), ("l.4294967295.w", json!([0]))]);
    place
        .run(&["convert", "far.safetensors", "c", "--stack", "l.{layer}.w=w"])
        .refused(22, &["1 is missing"]);
}
