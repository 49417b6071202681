//! `ckpt fqn`.

use crate::place::{Place, fixture};

const HF: &str = "hf/llama_sharded";

#[test]
fn a_checkpoint_agrees_with_the_baseline_that_it_gave() {
    let place = Place::new();
    let wrote = place.json(&["fqn", "baseline", &fixture(HF), "-o", "names.json"]);
    assert_eq!((&wrote["schema"], &wrote["result"]["tensors"]), (&"ckpt.fqn.baseline/1".into(), &21.into()));
    let checked = place.json(&["fqn", "check", &fixture(HF), "--baseline", "names.json"]);
    assert_eq!((&checked["schema"], &checked["result"]["clean"]), (&"ckpt.fqn.check/1".into(), &true.into()));
    place.run(&["fqn", "baseline", &fixture(HF), "-o", "names.json"]).refused(11, &["names.json", "exists"]);
    let printed = place.done(&["fqn", "baseline", &fixture(HF)]).out;
    assert_eq!(printed, std::fs::read_to_string(place.path("names.json")).unwrap());
}

#[test]
fn renamed_missing_and_reshaped_tensors_are_told_apart_with_exit_1() {
    let place = Place::new();
    let text = place.done(&["fqn", "baseline", &fixture(HF)]).out;
    let mut baseline: serde_json::Value = serde_json::from_str(&text).unwrap();
    let tensors = baseline["tensors"].as_array_mut().unwrap();
    let at =
        |tensors: &[serde_json::Value], name: &str| tensors.iter().position(|it| it["fqn"] == name).unwrap();
    let norm = at(tensors, "model.norm.weight");
    tensors[norm]["shape"] = serde_json::json!([99]);
    let head = at(tensors, "lm_head.weight");
    tensors[head]["fqn"] = "module.lm_head.weight".into();
    tensors.push(serde_json::json!({"fqn": "gone.weight", "role": "param", "dtype": "f32", "shape": [7]}));
    std::fs::write(place.path("b.json"), baseline.to_string()).unwrap();
    let answer = place.run(&["fqn", "check", &fixture(HF), "--baseline", "b.json"]);
    assert_eq!(answer.code, 1, "{answer:?}");
    for line in [
        "shape\tmodel.norm.weight\t",
        "missing\tgone.weight\t",
        "renamed\tmodule.lm_head.weight\tlm_head.weight\t",
    ] {
        assert!(answer.out.lines().any(|it| it.starts_with(line)), "{line:?} is not in {}", answer.out);
    }
    std::fs::write(place.path("b.json"), "{\"schema\": \"other/1\", \"tensors\": []}").unwrap();
    place.run(&["fqn", "check", &fixture(HF), "--baseline", "b.json"]).refused(22, &["b.json", "other/1"]);
}
