//! `ckpt-train check`: meshes of more ranks than there are machines.

#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

#[expect(dead_code, reason = "other tests use the rest")]
mod training;

use training::{Answer, EXE, Place};

fn check(place: &Place, settings: &[&str]) -> Answer {
    let mut command = place.command(EXE);
    Answer::of(command.args(["check", "-c", "run.toml"]).args(settings).output().unwrap())
}

#[test]
fn sixty_four_ranks_of_a_model_far_too_large_are_checked_in_one_process() {
    let place = Place::new();
    let large = [
        "--parallelism.mesh=4x2x8",
        "--training.global_batch=64",
        "--exact.virtual_tp=8",
        "--model.dim=8192",
        "--model.layers=6",
        "--model.heads=64",
        "--model.kv_heads=8",
        "--model.head_dim=128",
        "--model.ffn=28672",
        "--model.vocab=32000",
        "--training.seq_len=4096",
    ];
    let answer = check(&place, &large);
    answer.is(0, &[]);
    // 16 microbatches of each replica, on 4 x 8 pipelines of one boundary, there and back.
    for words in [
        "4x2x8: 64 ranks one after another, model shrunk to dim 8, ffn 16, vocabulary 256, 8 tokens",
        "groups    tp: 8 of 8: [0, 1, … 7] to [56, 57, … 63]",
        "groups    pp: 32 of 2: [0, 8] to [55, 63]",
        "messages  1024 sent, 1024 received",
    ] {
        assert!(answer.out.contains(words), "{words}\n{}", answer.out);
    }
    let json = check(&place, &[&large[..], &["--json"]].concat()).out;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (json["ranks"][63]["tp"].as_u64(), json["ranks"][63]["messages_sent"].as_u64()),
        (Some(7), Some(16))
    );
    // The tokens of the shrunk model divide over the ranks that they are cut over.
    let cut = check(&place, &[&large[..], &["--parallelism.sequence_parallel=true"]].concat());
    cut.is(0, &[]);
    assert!(cut.out.contains("messages  1024 sent, 1024 received"), "{}", cut.out);
    assert!(!place.path().join("checkpoints").exists() && !place.path().join("metrics").exists());
}

#[test]
fn threads_say_what_records_say() {
    let place = Place::new();
    let mesh = ["--parallelism.mesh=2x2x2", "--parallelism.schedule=ZBVZeroBubble", "--json"];
    let sent = |more: &[&str]| -> Vec<(u64, u64)> {
        let answer = check(&place, &[&mesh[..], more].concat());
        answer.is(0, &[]);
        let json: serde_json::Value = serde_json::from_str(&answer.out).unwrap();
        let ranks = json["ranks"].as_array().unwrap().iter();
        let count = |rank: &serde_json::Value, name: &str| rank[name].as_u64().unwrap();
        ranks.map(|rank| (count(rank, "messages_sent"), count(rank, "messages_received"))).collect()
    };
    let recorded = sent(&[]);
    assert!(recorded.len() == 8 && recorded.iter().all(|(sent, _)| *sent > 0), "{recorded:?}");
    assert_eq!(recorded, sent(&["--threads"]));
}

#[test]
fn one_rank_of_many_runs_alone_at_its_real_sizes_beside_the_plan() {
    let place = Place::new();
    let large = ["--parallelism.mesh=8x4x4", "--training.global_batch=64", "--exact.virtual_tp=4", "--rank"];
    let answer = check(&place, &[&large[..], &["77"]].concat());
    answer.is(0, &[]);
    for words in [
        "rank      77 of 128, alone: dp 4 of 8, pp 3 of 4, tp 1 of 4",
        "so its loss means nothing",
        "MiB of tensors at most",
        "gradients of activations (pp)       8 x",
        "(+0.0 %)",
    ] {
        assert!(answer.out.contains(words), "{words}\n{}", answer.out);
    }
    let json = check(&place, &[&large[..], &["77", "--json"]].concat()).out;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((json["rank"].as_u64(), json["sent"][5]["count"].as_u64()), (Some(77), Some(8)));
    check(&place, &[&large[..], &["128"]].concat()).is(78, &["rank 128 is not on mesh 8x4x4"]);
    assert!(!place.path().join("checkpoints").exists() && !place.path().join("metrics").exists());
}

#[test]
fn transports_that_can_not_train_here_say_why_and_what_to_do() {
    let place = Place::new();
    let train = |settings: &[&str]| place.train(settings);
    train(&["--comm.transport=fake"]).is(78, &["trains nothing", "ckpt-train check --rank 0"]);
    // Without a GPU in libtorch; where there is one, NCCL decides.
    let gpu = ["--comm.transport=nccl", "--training.device=cuda", "--training.mode=fast"];
    if !tch::Cuda::is_available() {
        train(&gpu).is(78, &["training.device=cuda: this libtorch finds no GPU", "training.device=cpu"]);
    }
}

#[test]
fn what_goes_wrong_on_one_of_many_ranks_is_named_with_both_sides() {
    let place = Place::new();
    let mesh = ["--parallelism.mesh=4x2x2", "--training.global_batch=16"];
    let fault = ["--debug.message_fault=drop", "--debug.message_step=1", "--debug.message_rank=9"];
    let answer = check(&place, &[&mesh[..], &fault].concat());
    answer.is(
        20,
        &["rank 11 expected from rank 9 activations of microbatch 0 for stage 1 in step 1", "one was lost"],
    );
    check(&place, &["--parallelism.mesh=4x2x16"]).is(78, &["tp"]);
}
