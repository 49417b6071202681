//! Bad input: one clear message each, the right exit code, nothing left behind.

use std::process::Command;

use crate::place::{Answer, Place, fixture};

const DCP: &str = "torch_dcp/fsdp2_tp2";
const HF: &str = "hf/llama_sharded";

#[test]
fn every_hostile_file_is_refused_with_its_code_by_every_verb_that_reads() {
    let place = Place::new();
    for bad in fixtures::hostile() {
        let code = match bad.refusal {
            fixtures::Refusal::NotACheckpoint => 10,
            fixtures::Refusal::Corrupt => 20,
            fixtures::Refusal::Unsupported => 21,
        };
        let path = fixture(&bad.name);
        let verified = place.run(&["verify", &path]);
        assert_eq!(verified.code, code, "{}: {verified:#?}", bad.name);
        let said = format!("{}{}", verified.out, verified.err);
        for word in &bad.names {
            assert!(said.contains(word), "{}: {word} is not in {said}", bad.name);
        }
        let converted = place.run(&["convert", &path, "out", "--as", "pt"]);
        assert!(!converted.err.contains("panicked"), "{}: {converted:#?}", bad.name);
        if bad.at == "open" && !bad.name.contains("index_") {
            converted.refused(code, &[]);
        }
        if converted.code != 0 {
            assert!(!place.path("out").exists(), "{}", bad.name);
        }
        let _ = std::fs::remove_file(place.path("out"));
        let text = format!("{said}{}{}", converted.out, converted.err);
        assert!(!text.contains('\u{1b}'), "{}: a control character reached the terminal", bad.name);
    }
}

#[test]
fn what_is_no_checkpoint_is_told_with_what_was_looked_for() {
    let place = Place::new();
    place.run(&["inspect", "absent"]).refused(10, &["absent", "no such file or folder", "PATH[@REVISION]"]);
    std::fs::create_dir(place.path("steps")).unwrap();
    place.copy(DCP, "steps/step-6");
    place.run(&["inspect", "steps"]).refused(10, &["steps", ".metadata", "step-6"]);
    place
        .run(&["inspect", &format!("{}@step:3", fixture(DCP))])
        .refused(10, &["step:3", "only a native root"]);
}

#[test]
fn a_mesh_that_does_not_fit_is_refused_before_anything_is_created() {
    let place = Place::new();
    let (source, config) = (fixture(HF), fixture(HF));
    let refused = |mesh: &str, words: &[&str]| {
        place.run(&["convert", &source, "out", "--to", mesh, "--config", &config]).refused(22, words);
    };
    refused("1x1x4", &["KV heads do not divide over tp=4", "meshes that fit"]);
    refused("1x3x1", &["pp=3"]);
    refused("1x1x5", &["tp=5"]);
    refused("4y2", &["mesh \"4y2\"", "ckpt help meshes"]);
    refused("dp=2,xx=2", &["xx"]);
    assert!(place.listed().is_empty(), "{:?}", place.listed());
}

#[test]
fn a_mesh_that_is_not_the_recorded_one_is_refused() {
    let place = Place::new();
    place.done(&["convert", &fixture(DCP), "a", "--to", "2x1x2", "--heads", "4"]);
    let wrong = place.run(&["reshard", "a", "b", "--from", "4x1x1", "--to", "1x1x1"]);
    wrong.refused(22, &["4x1x1", "dp=4 pp=1 tp=1", "dp=2 pp=1 tp=2"]);
    let few = place.run(&["convert", &fixture(DCP), "b", "--from", "1x1x2", "--to", "1x1x1"]);
    few.refused(22, &["2 ranks", "4 saved the checkpoint"]);
    let many = place.run(&["convert", &fixture(DCP), "b", "--from", "4x2x8", "--to", "1x1x1"]);
    many.refused(22, &["dp=4 pp=2 tp=8", "64 ranks", "4 saved the checkpoint"]);
    assert_eq!(place.listed(), ["a"]);
}

#[test]
fn a_name_that_no_rule_covers_is_named_and_a_rule_helps() {
    let (place, source) = (Place::new(), fixture("torch_dcp/uneven"));
    place.run(&["convert", &source, "out", "--to", "2"]).refused(22, &["rows5", "--place"]);
    assert!(place.listed().is_empty());
    place.done(&["convert", &source, "out", "--to", "2", "--place", "**=replicate"]);
    place.run(&["convert", &source, "x", "--to", "2", "--place", "**"]).refused(22, &["GLOB=PLACEMENT"]);
    place.run(&["convert", &source, "x", "--to", "2", "--preset", "nope"]).refused(22, &["nope", "llama-hf"]);
}

#[test]
fn a_target_that_exists_is_never_touched() {
    let (place, source) = (Place::new(), fixture(HF));
    std::fs::create_dir(place.path("full")).unwrap();
    std::fs::write(place.path("full/notes.txt"), "mine").unwrap();
    for format in ["hf", "safetensors", "pt", "torch-dcp", "native"] {
        place.run(&["convert", &source, "full", "--as", format]).refused(11, &["full"]);
    }
    place.run(&["convert", &source, "full/notes.txt"]).refused(11, &["notes.txt"]);
    assert_eq!(crate::place::names(&place.path("full")), ["notes.txt"]);
    assert_eq!(std::fs::read_to_string(place.path("full/notes.txt")).unwrap(), "mine");
}

#[test]
fn damage_of_a_native_store_is_found_wherever_it_is() {
    let place = Place::new();
    place.done(&["convert", &fixture(DCP), "root"]);
    let step = place.path("root").join(
        crate::place::names(&place.path("root")).into_iter().find(|it| it.starts_with("step-")).unwrap(),
    );
    let manifest = crate::place::names(&step).into_iter().find(|it| it.starts_with("manifest-")).unwrap();
    let damage = |file: &std::path::Path, words: &[&str]| {
        let whole = std::fs::read(file).unwrap();
        let mut bytes = whole.clone();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(file, &bytes).unwrap();
        let answer = place.run(&["verify", "root"]);
        assert_eq!(answer.code, 20, "{}: {answer:#?}", file.display());
        let said = format!("{}{}", answer.out, answer.err);
        assert!(words.iter().all(|word| said.contains(word)), "{words:?}: {said}");
        std::fs::write(file, &whole[..whole.len() - 1]).unwrap();
        assert_eq!(place.run(&["verify", "root"]).code, 20, "cut: {}", file.display());
        std::fs::remove_file(file).unwrap();
        assert_eq!(place.run(&["verify", "root"]).code, 20, "missing: {}", file.display());
        std::fs::write(file, whole).unwrap();
        place.done(&["verify", "root"]);
    };
    damage(&step.join(&manifest), &["manifest-"]);
    for folder in ["data", "blocks"] {
        let file = crate::place::names(&step.join(folder)).remove(0);
        damage(&step.join(folder).join(&file), &[&file]);
    }
}

/// A limit on the size of files stands for a full disk: both fail a write midway.
#[test]
fn a_disk_that_is_full_midway_leaves_nothing_visible() {
    let (place, source) = (Place::new(), fixture(DCP));
    for (format, blocks) in [("native", "16"), ("pt", "16"), ("torch-dcp", "16")] {
        let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
        let output = Command::new("sh")
            .args(["-c", &script, env!("CARGO_BIN_EXE_ckpt"), "convert", &source, "out", "--as", format])
            .current_dir(place.path(""))
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .output()
            .unwrap();
        let answer = Answer::of(&output);
        answer.refused(74, &["arge"]);
        let seen = place.run(&["inspect", "out"]);
        assert_eq!(seen.code, 10, "{format}: {seen:#?}");
        place.done(&["convert", &source, "out", "--as", format]);
        place.done(&["verify", "out"]);
        let out = place.path("out");
        if out.is_dir() { std::fs::remove_dir_all(out).unwrap() } else { std::fs::remove_file(out).unwrap() }
    }
}

#[test]
fn wrong_usage_is_told_by_the_command_line_with_exit_2() {
    let place = Place::new();
    for args in [
        &["frobnicate"][..],
        &["inspect"],
        &["convert", "a"],
        &["diff", "a", "b", "--level", "odd"],
        &["inspect", "a", "--max-memory", "fast"],
    ] {
        let answer = place.run(args);
        assert_eq!(answer.code, 2, "{args:?}: {answer:#?}");
        assert!(answer.err.contains("error"), "{answer:#?}");
    }
    let little = place.run(&["convert", &fixture(DCP), "out", "--max-memory", "1MiB"]);
    little.refused(22, &["--max-memory"]);
    assert!(place.run(&["inspect", "out"]).code == 10);
}

#[test]
fn state_of_single_ranks_is_not_carried_to_another_mesh_in_silence() {
    let (place, source) = (Place::new(), fixture("torch_dcp/flat_optimizer"));
    let args = ["convert", &source, "out", "--to", "4", "--place", "**=replicate"];
    place.run(&args).refused(22, &["dataloader.dp_rank_*", "2 -> 4 data ranks", "--drop-per-rank"]);
    assert!(place.listed().is_empty());
    let outcome = place.json(&[&args[..], &["--drop-per-rank"]].concat());
    assert_eq!(outcome["result"]["notes"][0], "2 per-rank values left out");
    assert_eq!(outcome["result"]["placement"], "the rules given");
}

#[test]
fn options_that_mean_nothing_for_a_target_are_refused_and_not_ignored() {
    let (place, source) = (Place::new(), fixture(HF));
    for format in ["hf", "pt", "safetensors"] {
        let answer = place.run(&["convert", &source, "out", "--as", format, "--to", "1x1x2"]);
        answer.refused(22, &["--to 1x1x2", "whole tensors"]);
    }
    place.run(&["verify", &format!("{source}#model.**")]).refused(22, &["#GLOB"]);
    assert!(place.listed().is_empty());
}
