//! `ckpt convert`, `reshard`, `export`, `diff`.

use serde_json::Value;

use crate::place::{Place, fixture};

const DCP: &str = "torch_dcp/fsdp2_tp2";
const HF: &str = "hf/llama_sharded";

fn fingerprints(outcome: &Value) -> Vec<Value> {
    let mut found = outcome["result"]["report"]["fingerprints"].as_array().unwrap().clone();
    found.sort_by_key(ToString::to_string);
    found
}

#[test]
fn from_mesh_to_mesh_and_back_every_fingerprint_stays() {
    let place = Place::new();
    let first = place.json(&["convert", &fixture(DCP), "a", "--to", "2x1x2", "--heads", "4", "--verify"]);
    assert_eq!((&first["schema"], &first["result"]["target"]), (&"ckpt.convert/1".into(), &"a@seq:1".into()));
    assert_eq!(first["result"]["meshes_read"][0], "2x1x2 read as dp=2 pp=1 tp=2");
    assert_eq!(first["result"]["verified"]["tensors"], 48);
    let second = place.json(&["reshard", "a", "b", "--from", "2x1x2", "--to", "4x1x1", "--verify"]);
    assert_eq!(
        (&second["result"]["report"]["proven"], &second["result"]["fingerprints_recorded"]),
        (&48.into(), &48.into())
    );
    let third = place.json(&["reshard", "b", "c", "--to", "1x1x1"]);
    assert_eq!(fingerprints(&first), fingerprints(&second));
    assert_eq!(fingerprints(&first), fingerprints(&third));
    for (a, b) in [("a", "c"), ("b", "c")] {
        let same = place.json(&["diff", a, b, "--level", "hash"]);
        assert_eq!((&same["result"]["same"], &same["result"]["bytes"]), (&true.into(), &0.into()));
    }
    let same = place.json(&["diff", &fixture(DCP), "c"]);
    assert_eq!(same["result"]["same"], true, "{same}");
}

#[test]
fn a_root_is_resharded_in_place_as_a_new_commit() {
    let place = Place::new();
    place.done(&["convert", &fixture(DCP), "root", "--to", "2x1x2", "--heads", "4"]);
    let outcome = place.json(&["reshard", "root", "--to", "1x1x2"]);
    assert_eq!(
        (&outcome["result"]["target"], &outcome["result"]["mesh"]),
        (&"root@seq:2".into(), &"dp=1 pp=1 tp=2".into())
    );
    assert_eq!(place.json(&["inspect", "root@latest~1"])["result"]["mesh"], "dp=2 pp=1 tp=2");
    assert_eq!(place.json(&["inspect", "root@seq:2"])["result"]["mesh"], "dp=1 pp=1 tp=2");
    place.run(&["reshard", "root", "--to", "1x1x2"]).refused(11, &["laid out for 1x1x2 already"]);
    place.run(&["reshard", &fixture(DCP), "--to", "1x1x2"]).refused(22, &["native root", "TARGET"]);
}

#[test]
fn every_format_is_written_and_read_back_equal() {
    let place = Place::new();
    place.done(&["convert", &fixture(DCP), "native"]);
    for (format, target) in [("torch-dcp", "dcp"), ("pt", "file.pt"), ("safetensors", "file.safetensors")] {
        let only: &[&str] = if format == "safetensors" { &["--only", "model"] } else { &[] };
        let args = [&["convert", "native", target, "--as", format, "--verify"], only].concat();
        let outcome = place.json(&args);
        let report = &outcome["result"]["report"];
        assert_eq!(report["proven"], outcome["result"]["fingerprints_recorded"], "{format}");
        assert_eq!(outcome["result"]["verified"]["tensors"], outcome["result"]["tensors"], "{format}");
        assert_eq!(place.json(&["inspect", target])["result"]["format"], format);
        place.done(&[&["diff", "native", target], only].concat());
    }
}

#[test]
fn a_model_goes_out_to_hugging_face_names_whatever_it_was_called_inside() {
    let place = Place::new();
    let named = place.json(&["convert", &fixture(HF), "titan", "--names", "torchtitan", "--to", "1x2x2"]);
    assert_eq!(named["result"]["notes"][0], "names translated from hf to torchtitan");
    let out = place.json(&["export", "titan", "out", "--config", &fixture(HF), "--max-shard-size", "8KiB"]);
    assert_eq!(out["schema"], "ckpt.export/1");
    assert!(
        place.path("out/config.json").is_file() && place.path("out/model.safetensors.index.json").is_file()
    );
    assert!(place.path("out/tokenizer.json").is_file());
    place.done(&["diff", &fixture(HF), "out"]);
}

#[test]
fn an_export_says_that_the_optimizer_stays_behind() {
    let place = Place::new();
    std::fs::create_dir(place.path("config")).unwrap();
    let config = serde_json::json!({
        "model_type": "llama", "num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 24, "vocab_size": 32,
    });
    std::fs::write(place.path("config/config.json"), config.to_string()).unwrap();
    let answer = place.run(&["export", &fixture(DCP), "out", "--config", "config", "--format", "human"]);
    assert_eq!(answer.code, 0, "{answer:#?}");
    assert!(answer.out.contains("36 tensors") && answer.out.contains("left out"), "{}", answer.out);
    assert_eq!(place.json(&["inspect", "out"])["result"]["optimizer"]["tensors"], 0);
}

#[test]
fn a_plan_is_shown_kept_and_run_only_while_it_holds() {
    let place = Place::new();
    let source = fixture(DCP);
    let base = ["convert", &source, "out", "--to", "2x1x2", "--heads", "4"];
    let shown = place.done(&[&base[..], &["--dry-run", "--format", "human"]].concat()).out;
    for part in ["mesh       2x1x2 read as dp=2 pp=1 tp=2", "one pass", "ranks", "nothing was written"] {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
    assert!(place.listed().is_empty());
    let plan = place.json(&[&base[..], &["--plan", "plan.json"]].concat());
    assert_eq!(
        (&plan["schema"], &plan["result"]["plan"]["cost"]["passes"]),
        (&"ckpt.plan/1".into(), &1.into())
    );
    assert_eq!(place.listed(), ["plan.json"]);
    let other = ["convert", &source, "out", "--to", "1x1x2", "--heads", "4", "--apply", "plan.json"];
    place.run(&other).refused(11, &["plan.json", "dp=2 pp=1 tp=2", "dp=1 pp=1 tp=2"]);
    place.done(&[&base[..], &["--apply", "plan.json"]].concat());
    assert_eq!(place.listed(), ["out", "plan.json"]);
}

#[test]
fn a_cast_is_made_and_seen_by_diff() {
    let place = Place::new();
    place.done(&["export", &fixture(HF), "wide", "--dtype", "f32", "--verify"]);
    assert!(place.json(&["inspect", "wide"])["result"]["model"]["dtypes"]["f32"].as_u64().unwrap() > 0);
    let changed = place.run(&["diff", &fixture(HF), "wide", "--json"]);
    assert_eq!(changed.code, 1);
    let first = &changed.json()["result"]["tensors"][0];
    assert_eq!((&first["status"], &first["stats"]["differing"]), (&"changed".into(), &0.into()), "{first}");
    place.run(&["export", &fixture(HF), "odd", "--dtype", "i8"]).refused(22, &["i8", "bf16"]);
}

#[test]
fn what_differs_comes_worst_first_and_no_longer_than_asked_for() {
    let place = Place::new();
    let answer = place.run(&["diff", &fixture("hf/llama_tied"), &fixture(HF), "--top", "3", "--json"]);
    assert_eq!(answer.code, 1);
    let result = answer.json()["result"].clone();
    let shown = result["tensors"].as_array().unwrap().len() as u64;
    let all: u64 = result["counts"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
    assert_eq!(shown, 3);
    assert!(shown + result["more_tensors"].as_u64().unwrap() <= all);
    let human =
        place.run(&["diff", &fixture("hf/llama_tied"), &fixture(HF), "--top", "3", "--format", "human"]);
    assert!(
        human.out.contains("--top 0 shows all") && human.out.contains("verdict  different"),
        "{}",
        human.out
    );
}

#[test]
fn a_compressed_checkpoint_is_smaller_and_the_same_for_every_verb() {
    let place = Place::new();
    let plain = place.json(&["convert", &fixture(DCP), "plain", "--to", "2x1x2", "--heads", "4"]);
    let coded = place.json(&["reshard", "plain", "coded", "--to", "4x1x1", "--codec", "planes", "--verify"]);
    assert_eq!(fingerprints(&plain), fingerprints(&coded));
    assert_eq!(coded["result"]["verified"]["tensors"], 48);
    let card = place.json(&["inspect", "coded", "--files"])["result"].clone();
    let (stored, logical) =
        (card["files_bytes"].as_u64().unwrap(), card["files_logical_bytes"].as_u64().unwrap());
    assert!(stored < logical, "{stored} of {logical}");
    assert_eq!(card["codecs"], "planes");
    let shown = place.done(&["inspect", "coded", "--format", "human"]).out;
    assert!(
        shown.lines().any(|line| line.starts_with("compressed ") && line.ends_with(", planes")),
        "{shown}"
    );
    assert_eq!(place.json(&["verify", "coded"])["result"]["sound"], true);
    let of_moments =
        ["convert", "coded", "mixed", "--to", "1x1x2", "--codec", "exp_avg=planes,exp_avg_sq=zstd"];
    assert_eq!(fingerprints(&place.json(&of_moments)), fingerprints(&plain));
    place.done(&["convert", "mixed", "file.pt", "--as", "pt"]);
    let back = place.json(&["convert", "mixed", "back"]);
    assert_eq!(fingerprints(&back), fingerprints(&plain));
    for other in ["plain", "file.pt", "back"] {
        assert_eq!(place.json(&["diff", "coded", other])["result"]["same"], true, "{other}");
    }
    let value = "model.norm.weight@exp_avg[3:5]";
    let values = ["plain", "coded"]
        .map(|it| place.json(&["inspect", it, "--value", value])["result"]["values"].clone());
    assert_eq!(values[0], values[1]);
}

#[test]
fn a_root_is_compressed_in_place_and_other_formats_are_refused() {
    let place = Place::new();
    place.done(&["convert", &fixture(DCP), "root", "--to", "2x1x2", "--heads", "4"]);
    let outcome = place.json(&["reshard", "root", "--to", "2x1x2", "--codec", "zstd"]);
    assert_eq!(outcome["result"]["target"], "root@seq:2");
    let again = place.json(&["reshard", "root", "--to", "2x1x2"]);
    assert_eq!(again["result"]["target"], "root@seq:3", "plain again is another checkpoint");
    place
        .run(&["convert", "root", "out", "--as", "torch-dcp", "--codec", "zstd"])
        .refused(22, &["torch-dcp", "zstd"]);
    let unknown = place.run(&["convert", "root", "out", "--codec", "gzip"]);
    assert!(unknown.code == 2 && unknown.err.contains("none, zstd and planes"), "{unknown:?}");
}
