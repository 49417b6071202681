//! What splitting a backward costs, on one thread. In the release profile:
//! `cargo test --release -p trainer --lib -- a_split_backward --ignored --nocapture`.

use std::time::Instant;

use super::models::Ground;
use crate::{model::Family, stage::Recompute};

const ROUNDS: usize = 21;
const SIZES: [(&str, i64, i64); 3] = [
    ("dim=128\nlayers=8\nheads=16\nkv_heads=8\nhead_dim=16\nffn=352\nvocab=256\nmax_length=256", 8, 256),
    ("dim=256\nlayers=4\nheads=8\nffn=704\nvocab=256\nmax_length=256", 4, 256),
    ("dim=512\nlayers=2\nheads=8\nffn=1408\nvocab=256\nmax_length=256", 2, 256),
];

#[test]
#[ignore = "a measurement, not a check"]
fn a_split_backward_beside_a_full_one() {
    tch::set_num_threads(1);
    let keep = Recompute::default();
    for (sizes, rows, length) in SIZES {
        let ground = Ground::new(Family::Llama, sizes, 1);
        let batch = ground.batch(rows, length);
        let once = |split: bool| {
            let mut stage = ground.stage(&keep);
            stage.forward(0, &batch, Vec::new()).unwrap();
            let began = Instant::now();
            let mut passed_on = began.elapsed();
            if split {
                stage.backward_inputs(0, &batch, Vec::new()).unwrap();
                passed_on = began.elapsed();
                stage.backward_weights(0).unwrap();
            } else {
                stage.backward(0, &batch, Vec::new()).unwrap();
            }
            let took = began.elapsed().as_secs_f64();
            ground.weights.clear_gradients();
            (took, passed_on.as_secs_f64())
        };
        let _warm = (once(true), once(false));
        let mut rounds: Vec<(f64, f64, f64)> = (0..ROUNDS)
            .map(|round| {
                // Each is first as often as the other.
                let ((split, inputs), (full, _)) = if round % 2 == 0 {
                    let split = once(true);
                    (split, once(false))
                } else {
                    let full = once(false);
                    (once(true), full)
                };
                (split / full, split, inputs)
            })
            .collect();
        rounds.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (ratio, split, inputs) = rounds[ROUNDS / 2];
        println!(
            "{}: I {:.1} ms + W {:.1} ms, {ratio:.3} of a full backward (median of {ROUNDS} pairs, from {:.3} to {:.3})",
            sizes.replace('\n', " "),
            inputs * 1e3,
            (split - inputs) * 1e3,
            rounds[0].0,
            rounds[ROUNDS - 1].0,
        );
    }
}
