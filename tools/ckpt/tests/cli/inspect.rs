//! `ckpt inspect`.

use crate::place::{Place, fixture};

const DCP: &str = "torch_dcp/fsdp2_tp2";

#[test]
fn every_fixture_shows_the_tensors_that_its_writer_saved() {
    let place = Place::new();
    for name in fixtures::all() {
        let expected = fixtures::expected(&name);
        let card = place.json(&["inspect", &fixture(&name), "--tensors"]);
        assert_eq!(card["schema"], "ckpt.inspect/1", "{name}");
        let shown = card["result"]["tensors"].as_array().unwrap();
        assert_eq!(shown.len(), expected.tensors.len(), "{name}");
        let mut shapes: Vec<Vec<u64>> =
            shown.iter().map(|it| serde_json::from_value(it["shape"].clone()).unwrap()).collect();
        let mut wanted: Vec<Vec<u64>> = expected.tensors.values().map(|it| it.shape.clone()).collect();
        shapes.sort();
        wanted.sort();
        assert_eq!(shapes, wanted, "{name}");
    }
}

#[test]
fn the_card_fits_one_screen_and_tells_the_optimizer_in_one_line() {
    let place = Place::new();
    let answer = place.done(&["inspect", &fixture(DCP), "--format", "human"]);
    assert!(answer.out.lines().count() <= 24, "{}", answer.out);
    for part in
        ["format     torch-dcp", "model         12 tensors", "optimizer     36 tensors", "integrity  CRC-32"]
    {
        assert!(answer.out.contains(part), "{part} is not in {}", answer.out);
    }
    assert!(
        answer.out.contains("and 36 tensors of the optimizer (exp_avg, exp_avg_sq, step)"),
        "{}",
        answer.out
    );
}

#[test]
fn repeated_layers_are_one_line_unless_all_are_asked_for() {
    let (place, path) = (Place::new(), fixture("hf/llama_sharded"));
    let folded = place.done(&["inspect", &path, "--format", "human"]).out;
    assert!(folded.contains("model.layers.{0,1}.mlp.up_proj.weight"), "{folded}");
    let single = place.done(&["inspect", &path, "--tensors"]).out;
    assert!(single.contains("model.layers.1.mlp.up_proj.weight\t"), "{single}");
}

#[test]
fn a_glob_selects_and_one_that_selects_nothing_is_refused() {
    let (place, path) = (Place::new(), fixture(DCP));
    let names =
        place.done(&["inspect", &format!("{path}#model.layers.*.mlp.**"), "--tensors", "--quiet"]).out;
    assert_eq!(names.lines().filter(|name| name.contains(".mlp.")).count(), names.lines().count());
    assert_eq!(names.lines().count(), 12, "{names}");
    place.run(&["inspect", &format!("{path}#no.such.*")]).refused(10, &["no.such.*", "--tensors"]);
}

#[test]
fn a_slice_reads_just_its_elements() {
    let place = Place::new();
    let value = place.json(&["inspect", &fixture(DCP), "--value", "model.norm.weight@exp_avg[3:5]"]);
    assert_eq!(value["schema"], "ckpt.inspect.value/1");
    assert_eq!(value["result"]["values"].as_array().unwrap().len(), 2);
    let beyond = place.run(&["inspect", &fixture(DCP), "--value", "model.norm.weight[0:1000]"]);
    beyond.refused(22, &["model.norm.weight[0:1000]", "0:1000 leaves dimension 0 of 16"]);
    place.run(&["inspect", &fixture(DCP), "--value", "model.nrm.weight"]).refused(10, &["model.nrm.weight"]);
}

#[test]
fn shards_files_and_objects_are_listed_with_their_places() {
    let place = Place::new();
    let card = place.json(&["inspect", &fixture(DCP), "--shards", "--files", "--objects"])["result"].clone();
    let shards = card["shards"].as_array().unwrap();
    assert_eq!(shards.len() as u64, card["chunks_count"].as_u64().unwrap());
    assert!(shards.iter().all(|it| it["file"].as_str().unwrap().ends_with(".distcp")), "{shards:?}");
    assert_eq!(card["files"].as_array().unwrap().len(), 4);
    assert_eq!(card["objects"].as_array().unwrap().len() as u64, card["objects_count"].as_u64().unwrap());
}
