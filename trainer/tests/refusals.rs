//! Bad input to real runs: each is refused with a code of its own, and says what to do; nothing that was there is harmed.

mod training;

use std::net::TcpListener;

use training::{Answer, Place, undisturbed};

#[test]
fn meshes_and_batches_that_do_not_divide_are_refused_before_a_rank_starts() {
    let place = Place::new();
    for (ranks, settings, words) in [
        ("3", "--parallelism.mesh=2x2x1", "= 4 ranks, but there are 3 processes"),
        ("3", "--parallelism.mesh=1x1x3 --training.mode=fast", "8 query heads"),
        ("8", "--parallelism.mesh=1x1x8 --training.mode=fast", "4 KV heads"),
        ("4", "--parallelism.mesh=1x1x4 --training.mode=fast --model.ffn=62", "62 feed-forward columns"),
        ("4", "--exact.virtual_tp=8", "exact.virtual_tp=8 does not divide the model's 4 KV heads"),
        ("8", "--parallelism.mesh=1x8x1", "has only 4 layers"),
        (
            "2",
            "--parallelism.mesh=1x2x1 --parallelism.stage_split=[1,2]",
            "1 + 2 = 3 layers, but the model has 4",
        ),
        ("2", "--parallelism.mesh=2x1x1 --training.global_batch=7", "training.global_batch=7"),
        ("2", "--parallelism.mesh=2x1x1 --training.global_batch=12", "must be a power of two"),
        ("1", "--training.micro_batch=3", "training.micro_batch=3"),
        ("1", "--training.seq_len=16 --model.max_length=8", "longer than model.max_length=8"),
    ] {
        let settings: Vec<&str> = settings.split(' ').collect();
        let answer = place.launch(&["-n", ranks], &settings);
        answer.is(78, &["error  ", "hint   ", words]);
        answer.leaves_out(&["workers"]);
    }
}

#[test]
fn what_is_missing_is_named_with_an_example() {
    let place = Place::new();
    for (arguments, key, example) in [
        (&["train"][..], "`data.folder` is not set", "--data.folder=text"),
        (&["train", "--data.folder=text"][..], "`model.dim` is not set", "--model.dim=128 --model.layers=8"),
        (&["launch", "-n", "2"][..], "`data.folder` is not set", "examples/llama.toml"),
    ] {
        let output = place.command(training::EXE).args(arguments).output().unwrap();
        Answer::of(output).is(78, &[key, example]);
    }
}

#[test]
fn a_worker_that_never_arrives_is_named_by_those_who_wait() {
    let place = Place::new();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let settings = ["--parallelism.mesh=1x3x1", "--comm.start_timeout=3s"];
    let ranks: Vec<_> = (0..2).map(|rank| place.rank(rank, 3, port, &settings)).collect();
    for rank in ranks {
        Answer::of(rank.wait_with_output().unwrap())
            .is(75, &["all 3 ranks to join", "rank 2 (has not joined)"]);
    }
}

#[test]
fn a_port_that_is_taken_is_named() {
    let place = Place::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let rank = place.rank(0, 2, port, &["--parallelism.mesh=2x1x1", "--comm.start_timeout=3s"]);
    let answer = Answer::of(rank.wait_with_output().unwrap());
    answer.is(74, &[&format!("rank 0 can't serve the store at 127.0.0.1:{port}"), "the port is taken"]);
    answer.leaves_out(&[".cpp:", "["]);
}

#[test]
fn data_that_is_too_short_or_missing_is_refused() {
    let place = Place::new();
    place.text(10);
    place.train(&[]).is(65, &["error  ", "text"]);
    place.launch(&["-n", "1", "--max-restarts", "3"], &[]).is(65, &["not restarting"]);
    place.train(&["--data.folder=nowhere"]).is(65, &["nowhere"]);
}

#[test]
fn a_nan_on_one_rank_ends_the_run_and_harms_no_checkpoint() {
    let place = Place::new();
    let mesh = "--parallelism.mesh=2x1x1";
    let longer = ["--lr_scheduler.decay_steps=4", mesh];
    place.launch(&["-n", "2"], &[&["--training.steps=2"], &longer[..]].concat()).is(0, &[]);
    let before = place.files("checkpoints");
    let nan = ["--debug.nan_step=4", "--debug.nan_rank=1"];
    let answer = place.launch(&["-n", "2", "--max-restarts", "3"], &[&nan[..], &longer[..]].concat());
    answer.is(23, &["rank 1", "exited with code 23", "not restarting"]);
    let after = place.files("checkpoints");
    // The hint at the end of the log follows it.
    let mut kept = before.iter().filter(|(path, _)| !path.ends_with("commits/head"));
    assert!(kept.all(|(path, bytes)| after.get(path) == Some(bytes)));
    let steps = |files: &std::collections::BTreeMap<std::path::PathBuf, Vec<u8>>| {
        files.keys().filter(|path| path.to_string_lossy().contains("/step-")).count()
    };
    assert_eq!(steps(&after), steps(&before));
    place.launch(&["-n", "2"], &longer).is(0, &["of step 2"]);
    assert_eq!(place.curve(), undisturbed("--lr_scheduler.decay_steps=4"));
}
