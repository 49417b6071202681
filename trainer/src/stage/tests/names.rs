//! Stages' parts and names.

use super::tiny::Tiny;
use crate::stage::{inventory, parts_of_stage};

#[test]
fn the_embedding_goes_with_the_first_stage_and_the_head_with_the_last() {
    let model = Tiny::new(5, false);
    let stages = model.stages("1,3,1");
    let parts: Vec<_> = (0..3).map(|stage| parts_of_stage(&model, &stages, stage).unwrap()).collect();
    assert_eq!(parts, [0..2, 2..5, 5..7]);
    let said = parts_of_stage(&model, &stages, 3).unwrap_err().to_string();
    assert_eq!(said, "stage 3 is not there: the model is split into 3 stages");
    assert_eq!(parts_of_stage(&model, &model.stages("5"), 0).unwrap(), 0..7);
}

#[test]
fn a_split_of_another_model_is_refused() {
    let stages = Tiny::new(4, false).stages("2,2");
    let said = parts_of_stage(&Tiny::new(5, false), &stages, 0).unwrap_err();
    assert_eq!(said.to_string(), "layer 4 (layers.4) is on no stage");
    assert!(said.hint_text().is_some());
}

#[test]
fn names_of_all_stages_are_those_of_the_model_each_once_but_for_ties() {
    let untied = Tiny::new(2, false);
    let listed = inventory(&untied, &untied.stages("1,1")).unwrap();
    assert!(listed.ties().is_empty());
    let names: Vec<_> = listed.names(1).iter().map(|(name, _)| name.to_string()).collect();
    assert_eq!(names, ["model.layers.1.a.weight", "model.layers.1.a.bias", "lm_head.weight"]);
    let tied = Tiny::new(2, true);
    let listed = inventory(&tied, &tied.stages("1,1")).unwrap();
    assert_eq!(listed.ties().len(), 1);
    assert_eq!(
        listed.to_string(),
        "stage 0: embedding, layers.0: 3 names, 108 elements\n  model.embed.weight (66, tied)\n  \
         model.layers.0.a.weight (36)\n  model.layers.0.a.bias (6)\nstage 1: layers.1, head: 3 names, 108 elements\n  \
         model.layers.1.a.weight (36)\n  model.layers.1.a.bias (6)\n  model.embed.weight (66, tied)\n5 names on 2 \
         stages: all of the model's, 1 on several stages"
    );
}

#[test]
fn a_parameter_that_no_part_uses_is_named() {
    let model = Tiny::with_unused("model.lost.weight");
    let said = inventory(&model, &model.stages("2")).unwrap_err().to_string();
    assert_eq!(said, "no stage has model.lost.weight: no part of the model uses them");
}
