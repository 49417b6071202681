//! Memory of a rank as the kernel counts it: with full sharding it holds its shards, the gradients that have not been reduced
//! yet, one part of the model, and one that is on its way.

#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

#[expect(dead_code, reason = "other tests use the rest")]
mod training;

use std::fs;

use training::{Answer, EXE, Place};

const LAYERS: u64 = 8;
const DIM: u64 = 512;
const FFN: u64 = 2048;

/// The most bytes that rank 0 ever held, of two replicas that train one step of a model of this width.
fn most(dim: u64, ffn: u64, layers: u64) -> u64 {
    let place = Place::new();
    let mut command = place.command(EXE);
    // Freed tensors go back to the system at once, so that what is resident is what lives.
    command.env("MALLOC_MMAP_THRESHOLD_", "65536");
    command.args("launch -n 2 -- -c run.toml --parallelism.mesh=2x1x1 --training.seq_len=8".split(' '));
    command.args(
        "--training.global_batch=2 --training.steps=1 --checkpoint.interval=0 --exact.virtual_tp=1"
            .split(' '),
    );
    command.args(
        [("dim", dim), ("head_dim", dim / 8), ("ffn", ffn), ("layers", layers)]
            .map(|(key, value)| format!("--model.{key}={value}")),
    );
    Answer::of(command.output().unwrap()).is(0, &[]);
    let records = fs::read_to_string(place.path().join("metrics/rank_00000.jsonl")).unwrap();
    let records = records.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let peaks = records.filter(|record| record["name"] == "memory/max_resident(GiB)");
    let most = peaks.filter_map(|record| record["value"].as_f64()).fold(0.0, f64::max);
    assert!(most > 0.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive number of bytes")]
    let bytes = (most * f64::from(1 << 30)) as u64;
    bytes
}

#[test]
fn a_replica_holds_its_shards_gradients_and_one_part_but_never_all_weights() {
    // Attention with half as many KV heads as heads, and three matrices of the feed-forward layer; f32.
    let part = (3 * DIM * DIM + 3 * DIM * FFN) * 4;
    let weights = LAYERS * part + 2 * 256 * DIM * 4;
    let grown = most(DIM, FFN, LAYERS) - most(32, 64, 1);
    // Half of the weights and of two moments; all gradients, which are reduced at the end of the step; a part, and what it is
    // put together from; the part that comes next.
    let accounted = 3 * weights / 2 + weights + 3 * part;
    let slack = weights / 4;
    println!("weights {weights}, grown by {grown}, accounted {accounted}");
    assert!(grown < accounted + slack, "{grown} bytes, of which {accounted} are accounted for");
    // Were all weights gathered at once, they would not fit into the slack.
    assert!(weights - part > 2 * slack);
}
