//! One stage that is the whole model, microbatch after microbatch: what every pipeline is compared with.

use tch::Tensor;

use super::{
    tiny::{ENTRIES, Tiny},
    whole::{Grads, Weights, Whole},
};
use crate::{
    model::{Batch, Model},
    parallel::Pass,
    stage::{LossSum, Recompute, Stage, StageInputs},
};

pub(super) const SCALE: f32 = 1.0 / 24.0;
const LENGTH: i64 = 3;

/// Microbatches of different contents; the last one has one row more.
pub(super) fn batches(count: usize) -> Vec<Batch> {
    let one = |microbatch: usize| {
        let rows = if microbatch + 1 == count { 3 } else { 2 };
        let at = i64::try_from(microbatch).unwrap();
        let ids = |salt: i64| {
            let values: Vec<i64> = (0..rows * LENGTH).map(|it| (it * 5 + at * 3 + salt) % ENTRIES).collect();
            Tensor::from_slice(&values).reshape([rows, LENGTH])
        };
        Batch { rows, length: LENGTH, tokens: Some(ids(1)), targets: Some(ids(4)) }
    };
    (0..count).map(one).collect()
}

pub(super) struct Run {
    pub(super) losses: Vec<LossSum>,
    pub(super) grads: Grads,
}

pub(super) fn run(model: &Tiny, microbatches: usize) -> Run {
    let weights = Weights::new(model);
    let runtime = Whole::new(&weights);
    let keep = Recompute::default();
    let mut stage = Stage::new(inputs(model, &weights, &runtime, &keep)).unwrap();
    for (microbatch, batch) in batches(microbatches).iter().enumerate() {
        assert!(stage.forward(microbatch, batch, Vec::new()).unwrap().is_empty());
        assert!(stage.backward(microbatch, batch, Vec::new()).unwrap().is_empty());
    }
    assert_eq!((stage.live(), runtime.queued(), stage.account().staleness), (0, 0, 0));
    let loss = |global: usize| LossSum { global, bits: stage.loss(global).unwrap().to_bits() };
    let losses = (0..microbatches).map(loss).collect();
    Run { losses, grads: weights.grads.take() }
}

pub(super) fn inputs<'a>(
    model: &'a Tiny,
    weights: &'a Weights,
    runtime: &'a Whole,
    recompute: &'a Recompute,
) -> StageInputs<'a> {
    let parts = 0..model.parts().len();
    StageInputs { index: 0, parts, model, runtime, params: weights, recompute, scale: SCALE }
}

#[test]
fn parts_begin_and_end_for_each_pass_in_order() {
    let model = Tiny::new(1, false);
    let weights = Weights::new(&model);
    let runtime = Whole::new(&weights);
    let keep = Recompute::default();
    let mut stage = Stage::new(inputs(&model, &weights, &runtime, &keep)).unwrap();
    let batch = &batches(1)[0];
    stage.forward(0, batch, Vec::new()).unwrap();
    stage.backward(0, batch, Vec::new()).unwrap();
    let forward = (0..3).map(|part| (part, Pass::Forward));
    // The embedding goes back without weights.
    let expected: Vec<_> = forward.chain((1..3).rev().map(|part| (part, Pass::Backward))).collect();
    assert_eq!(weights.passes.take(), expected);
}

#[test]
fn input_gradients_leave_weight_gradients_queued_until_they_are_asked_for() {
    let model = Tiny::new(2, false);
    let weights = Weights::new(&model);
    let runtime = Whole::new(&weights);
    let keep = Recompute::default();
    let mut stage = Stage::new(inputs(&model, &weights, &runtime, &keep)).unwrap();
    let two = batches(2);
    for (microbatch, batch) in two.iter().enumerate() {
        stage.forward(microbatch, batch, Vec::new()).unwrap();
        stage.backward_inputs(microbatch, batch, Vec::new()).unwrap();
    }
    assert!(weights.grads.borrow().is_empty());
    assert_eq!((runtime.queued(), stage.live()), (8, 2));
    weights.passes.take();
    stage.backward_weights(1).unwrap();
    assert!(weights.grads.borrow().keys().all(|(_, microbatch)| *microbatch == 1));
    stage.backward_weights(0).unwrap();
    assert_eq!((runtime.queued(), stage.live()), (0, 0));
    assert_eq!(weights.passes.take(), [], "W asks for no weights");
    let account = stage.account();
    assert!(account.splittable_share() == 1.0 && account.split_share() == 1.0);
    assert!(weights.grads.take() == run(&model, 2).grads, "I then W differs from B");
}

#[test]
fn a_microbatch_out_of_turn_is_refused() {
    let model = Tiny::new(1, false);
    let weights = Weights::new(&model);
    let runtime = Whole::new(&weights);
    let keep = Recompute::default();
    let mut stage = Stage::new(inputs(&model, &weights, &runtime, &keep)).unwrap();
    let batch = &batches(1)[0];
    let said = stage.backward(0, batch, Vec::new()).unwrap_err().to_string();
    assert_eq!(said, "stage 0: microbatch 0 is not between forward and backward");
    assert!(stage.backward_weights(0).unwrap_err().to_string().contains("no weight gradients to compute"));
    stage.forward(0, batch, Vec::new()).unwrap();
    assert!(stage.forward(0, batch, Vec::new()).unwrap_err().to_string().contains("went forward already"));
    stage.backward(0, batch, Vec::new()).unwrap();
    assert!(stage.backward(0, batch, Vec::new()).is_err());
}

#[test]
fn tensors_of_other_shapes_are_refused() {
    let model = Tiny::new(2, false);
    let weights = Weights::new(&model);
    let runtime = Whole::new(&weights);
    let keep = Recompute::default();
    let middle = StageInputs { index: 1, parts: 1..2, ..inputs(&model, &weights, &runtime, &keep) };
    let mut stage = Stage::new(middle).unwrap();
    let one = || vec![Tensor::zeros([6, 6], tch::kind::FLOAT_CPU)];
    let batch = Batch { rows: 2, length: 3, tokens: None, targets: None };
    let said = stage.forward(0, &batch, one()).unwrap_err().to_string();
    assert_eq!(
        said,
        "inputs of stage 1: tensors of shapes [[6, 6]] where the model says [[6, 6], [2, 3, 6]]"
    );
    assert!(stage.backward(0, &batch, one()).unwrap_err().to_string().starts_with("gradients for stage 1"));
    assert!(Stage::new(StageInputs { parts: 3..9, ..inputs(&model, &weights, &runtime, &keep) }).is_err());
}

#[test]
fn weights_that_were_updated_between_forward_and_backward_are_told() {
    let model = Tiny::new(1, false);
    let weights = Weights::new(&model);
    let runtime = Whole::new(&weights);
    let keep = Recompute::default();
    let mut stage = Stage::new(inputs(&model, &weights, &runtime, &keep)).unwrap();
    let batch = &batches(1)[0];
    weights.version.set(7);
    stage.forward(0, batch, Vec::new()).unwrap();
    weights.version.set(8);
    let said = stage.backward(0, batch, Vec::new()).unwrap_err().to_string();
    assert!(said.contains("with the weights of update 7 and goes back with those of 8"), "{said}");
    assert_eq!(stage.account().staleness, 1);
}
