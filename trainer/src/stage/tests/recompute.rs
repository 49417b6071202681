//! What is computed again gives the same bits, whatever is kept and whoever computes the weight gradients.

use super::{
    single::{batches, inputs, run},
    tiny::Tiny,
    whole::{Weights, Whole},
};
use crate::{
    model::Model,
    parallel::Pass,
    stage::{Keep, Recompute, Stage, Which},
};

const ALL: [Which; 4] = [Which::Full, Which::Every(1), Which::Every(2), Which::ByOperation];

#[test]
fn layers_are_counted_over_the_model_and_ends_are_always_kept() {
    let model = Tiny::new(4, false);
    let keeps = |which| {
        let recompute = Recompute::new(&model, which, false);
        (0..model.parts().len()).map(|part| recompute.of(part)).collect::<Vec<_>>()
    };
    use Keep::{All, Inputs, Products};
    assert_eq!(keeps(Which::None), [All; 6]);
    assert_eq!(keeps(Which::Full), [All, Inputs, Inputs, Inputs, Inputs, All]);
    assert_eq!(keeps(Which::Every(2)), [All, All, Inputs, All, Inputs, All]);
    assert_eq!(keeps(Which::Every(5)), [All; 6]);
    assert_eq!(keeps(Which::ByOperation), [All, Products, Products, Products, Products, All]);
}

#[test]
fn losses_and_gradients_are_those_of_keeping_everything() {
    for tied in [false, true] {
        let model = Tiny::new(3, tied);
        let kept = run(&model, 3);
        for which in ALL {
            for (queue, split) in [(false, false), (false, true), (true, true)] {
                let (weights, recompute) = (Weights::new(&model), Recompute::new(&model, which, queue));
                let runtime = Whole::new(&weights);
                let mut stage = Stage::new(inputs(&model, &weights, &runtime, &recompute)).unwrap();
                for (microbatch, batch) in batches(3).iter().enumerate() {
                    stage.forward(microbatch, batch, Vec::new()).unwrap();
                    if split {
                        stage.backward_inputs(microbatch, batch, Vec::new()).unwrap();
                        stage.backward_weights(microbatch).unwrap();
                    } else {
                        stage.backward(microbatch, batch, Vec::new()).unwrap();
                    }
                    let bits = stage.loss(microbatch).unwrap().to_bits();
                    assert_eq!(bits, kept.losses[microbatch].bits, "{which:?}");
                }
                assert!(weights.grads.take() == kept.grads, "{which:?}, queue {queue}, split {split}");
            }
        }
    }
}

#[test]
fn an_input_gradient_of_what_is_computed_again_leaves_nothing_to_w_unless_it_may_keep_what_that_takes() {
    let model = Tiny::new(2, false);
    for (queue, queued, share) in [(false, 2, "61 %"), (true, 4, "100 %")] {
        let (weights, recompute) = (Weights::new(&model), Recompute::new(&model, Which::Full, queue));
        let runtime = Whole::new(&weights);
        let mut stage = Stage::new(inputs(&model, &weights, &runtime, &recompute)).unwrap();
        let batch = &batches(1)[0];
        stage.forward(0, batch, Vec::new()).unwrap();
        weights.passes.take();
        stage.backward_inputs(0, batch, Vec::new()).unwrap();
        assert_eq!(runtime.queued(), queued, "embedding and head, and the layers if they may");
        // Weights are gathered once for computing a layer again and for its way back.
        assert_eq!(weights.passes.take(), [3, 2, 1].map(|part| (part, Pass::Backward)));
        stage.backward_weights(0).unwrap();
        let account = stage.account();
        let elements = |layers: u64| 2 * 66 + layers * 42;
        assert_eq!(
            (account.elements, account.splittable),
            (elements(2), elements(if queue { 2 } else { 0 }))
        );
        assert_eq!(format!("{:.0} %", 100.0 * account.splittable_share()), share);
    }
}
