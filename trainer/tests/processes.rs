//! Real gloo processes, started by the launcher, have the bits of as many threads and of one process: schedules in a V, in loops, from a
//! file and made for the stages, with each way to shard, weights gathered ahead, and products on bf16 operands. Each run combines several
//! of them, as a run of processes costs seconds.

#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

#[expect(dead_code, reason = "other tests use the rest")]
mod training;

use std::fs;

use training::{Answer, Place};

const STEPS: [&str; 2] = ["--training.steps=3", "--checkpoint.interval=0"];
const BF16: &str = "--training.mixed_precision_param=bfloat16";

/// `ranks` processes, cut as `cut` says: three steps. `numbers` are settings that change bits, on any mesh.
fn same_bits(ranks: &str, cut: &[&str], numbers: &[&str], csv: Option<&str>) {
    let curve = |run: &dyn Fn(&Place, &[&str]) -> Answer, settings: &[&[&str]]| {
        let place = Place::new();
        if let Some(rows) = csv {
            fs::write(place.path().join("order.csv"), rows).unwrap();
        }
        run(&place, &settings.concat()).is(0, &[]);
        place.curve()
    };
    let processes = curve(&|place, settings| place.launch(&["-n", ranks], settings), &[&STEPS, cut, numbers]);
    assert_eq!(processes.len(), 3);
    let local = ["--comm.transport=local"];
    let threads = curve(&Place::train, &[&STEPS, cut, numbers, &local]);
    assert_eq!(processes, threads, "{cut:?} as threads");
    assert_eq!(processes, curve(&Place::train, &[&STEPS, numbers]), "{cut:?} in one process");
}

#[test]
fn a_v_with_split_backwards_in_bf16() {
    same_bits("2", &["--parallelism.mesh=1x2x1", "--parallelism.schedule=ZBVZeroBubble"], &[BF16], None);
}

#[test]
fn a_v_whose_forwards_go_out_before_backwards_with_weights_gathered_ahead() {
    let shards = ["--fsdp.strategy=full_shard", "--fsdp.reshard_after_forward=true", "--fsdp.prefetch=true"];
    let cut = ["--parallelism.mesh=2x2x1", "--parallelism.schedule=DualPipeV"];
    same_bits("4", &[&cut[..], &shards].concat(), &[], None);
}

#[test]
fn loops_with_weights_that_stay_for_a_step() {
    same_bits(
        "4",
        &[
            "--parallelism.mesh=2x2x1",
            "--parallelism.schedule=InterleavedZeroBubble",
            "--fsdp.strategy=shard_grad_op",
        ],
        &[BF16],
        None,
    );
}

#[test]
fn an_order_that_is_made_for_the_stages_on_replicas_that_have_all_weights() {
    same_bits(
        "4",
        &["--parallelism.mesh=2x2x1", "--parallelism.schedule=Auto", "--fsdp.strategy=no_shard"],
        &[],
        None,
    );
}

#[test]
fn shards_within_copies_in_bf16() {
    same_bits(
        "4",
        &["--parallelism.mesh=4x1x1", "--fsdp.strategy=hybrid_shard", "--parallelism.dp_shard=2"],
        &[BF16],
        None,
    );
}

#[test]
fn an_order_from_a_file_with_stages_in_loops() {
    let rows = "0F0,0F1,2F0,2F1,2B0,2B1,0I0,0W0,0B1\n1F0,1F1,3F0,3B0,3F1,3B1,1B0,1I1,1W1\n";
    same_bits(
        "2",
        &["--parallelism.mesh=1x2x1", "--parallelism.schedule_csv=order.csv"],
        &["--training.global_batch=2"],
        Some(rows),
    );
}
