//! Ranks that hang and die, started by our launcher and by torchrun: who is missing is named, the scene is written, and a run
//! that is started again goes on to the same bits.

#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

#[expect(dead_code, reason = "other tests use the rest")]
mod training;

use std::{
    env, fs,
    io::{BufRead, BufReader, Lines},
    process::{ChildStderr, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use training::{Answer, EXE, Place, undisturbed};

/// What gloo says that helps nobody.
const NOISE: &[&str] = &["GLHF", "Check the logs", ".cc:", "typically caused"];
const FOUR: &str = "--training.steps=4";

#[test]
fn a_rank_that_hangs_is_named_in_time_and_the_run_started_again_goes_on_to_the_same_bits() {
    let place = Place::new();
    let begun = Instant::now();
    let hang = ["--debug.hang_step=4", "--debug.hang_rank=1", "--comm.step_timeout=5s"];
    let answer = place.launch(
        &["-n", "2", "--max-restarts", "1", "--grace", "1s"],
        &[&["--parallelism.mesh=1x2x1", FOUR][..], &hang[..]].concat(),
    );
    answer.is(
        0,
        &[
            "missing: rank 1 (",
            "a peer did not arrive, died, or did not answer in time); restarting all (1 of 1)",
            "resume  mesh 1x2x1, schedule 1F1B, from checkpoint",
        ],
    );
    answer.leaves_out(NOISE);
    assert!(begun.elapsed().as_secs() < 120, "{:?}", begun.elapsed());
    let scene =
        |rank| fs::read_to_string(place.path().join(format!("dumps/rank_0000{rank}.scene.txt"))).unwrap();
    assert!(scene(0).contains("failed at") && scene(0).contains("rank 1"), "{}", scene(0));
    assert!(
        scene(1).contains("last actions") && !scene(1).contains("failed at"),
        "the stuck one too: {}",
        scene(1)
    );
    assert_eq!(place.curve(), undisturbed(FOUR));
}

#[test]
fn torchrun_launches_and_restarts_ranks_that_meet_at_its_store() {
    let Some(python) = env::var_os("CKPT_PYTHON") else {
        println!("skipped: CKPT_PYTHON names no Python that has torch");
        return;
    };
    let place = Place::new();
    let mut command = place.command(python);
    command.args(
        "-m torch.distributed.run --nproc-per-node 2 --max-restarts 1 --monitor-interval 0.1".split(' '),
    );
    command.args(["--standalone", "--no-python", EXE, "train", "-c", "run.toml", FOUR]);
    command.args(["--parallelism.mesh=1x1x2", "--debug.die_step=3", "--debug.die_rank=1"]);
    let answer = Answer::of(command.output().unwrap());
    answer.is(0, &["start  mesh 1x1x2", "done  "]);
    assert_eq!(answer.err.matches("  mesh 1x1x2, ").count(), 2, "{}", answer.err);
    assert_eq!(place.curve(), undisturbed(FOUR));
}

#[test]
fn a_message_that_goes_wrong_is_named_among_threads_and_among_processes() {
    let place = Place::new();
    let settings = |fault| {
        [
            "--parallelism.mesh=1x2x1".to_owned(),
            FOUR.to_owned(),
            "--debug.message_step=3".to_owned(),
            format!("--debug.message_fault={fault}"),
        ]
    };
    let place_of_it = ["rank 1 expected from rank 0 activations of microbatch 0 for stage 1 in step 3"];
    for (fault, words) in [
        ("drop", ["microbatch 1 for stage 1", "one was lost, or overtaken"]),
        ("shape", ["Float [[16, 32]]", "Float [[1, 512]]"]),
        ("dtype", ["Float [[16, 32]]", "BFloat16 [[16, 32]]"]),
    ] {
        let settings = settings(fault);
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        place
            .train(&[&settings[..], &["--comm.transport=local"]].concat())
            .is(20, &[&place_of_it[..], &words].concat());
        let launched = place.launch(&["-n", "2", "--grace", "1s"], &settings);
        launched.is(20, &[&place_of_it[..], &words].concat());
        launched.leaves_out(NOISE);
    }
    for (rank, word) in [(0, "0SEND_F"), (1, "1RECV_F0")] {
        let scene =
            fs::read_to_string(place.path().join(format!("dumps/rank_0000{rank}.scene.txt"))).unwrap();
        assert!(scene.contains(word), "{scene}");
    }
}

#[test]
fn a_run_in_sync_mode_has_the_bits_of_one_in_async_mode() {
    for more in [["--comm.mode=sync", "--comm.buffers=1"], ["--comm.mode=async", "--comm.buffers=1"]] {
        for schedule in ["--parallelism.schedule=1F1B", "--parallelism.schedule=GPipe"] {
            let place = Place::new();
            let settings =
                [&["--parallelism.mesh=1x4x1", FOUR, schedule, "--comm.transport=local"][..], &more].concat();
            place.train(&settings).is(0, &[]);
            assert_eq!(place.curve(), undisturbed(FOUR), "{settings:?}");
        }
    }
}

/// What a launcher says, line by line.
struct Said {
    lines: Lines<BufReader<ChildStderr>>,
    all: String,
}

impl Said {
    /// The next line that has these words.
    #[track_caller]
    fn until(&mut self, words: &str) -> String {
        let mut lines = self.lines.by_ref().map(Result::unwrap);
        let found = lines.find(|line| {
            self.all.push_str(line);
            self.all.push('\n');
            line.contains(words)
        });
        assert!(found.is_some(), "{words:?} was not said in\n{}", self.all);
        found.unwrap()
    }
}

/// The process ids in `launch  2 workers (pids 17..18), …`.
fn pids(line: &str) -> Vec<i32> {
    let found = line.split_once("(pids ").unwrap().1.split_once(')').unwrap().0;
    found.split("..").map(|pid| pid.parse().unwrap()).collect()
}

#[test]
fn a_rank_whose_process_is_stopped_is_named_as_silent_within_the_step_limit_and_all_start_again() {
    let place = Place::new();
    let mut command = place.command(EXE);
    command.args(["launch", "-n", "2", "--max-restarts", "1", "--grace", "1s", "--", "-c", "run.toml"]);
    command.args([
        "--parallelism.mesh=1x2x1",
        "--training.steps=400",
        // Longer than a disk that others write to keeps a save waiting: it would be a rank that is late, and not silent.
        "--comm.step_timeout=8s",
        "--checkpoint.interval=1",
    ]);
    let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut said = Said { lines: BufReader::new(child.stderr.take().unwrap()).lines(), all: String::new() };
    let pids = pids(&said.until("(pids "));
    let metrics = place.path().join("metrics/rank_00000.jsonl");
    while !fs::read_to_string(&metrics).is_ok_and(|text| text.contains("\"step\":3,")) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let since = Instant::now();
    kill_process(Pid::from_raw(pids[1]).unwrap(), Signal::STOP).unwrap();
    let named = said.until("its process is silent");
    assert!(named.starts_with("[0] error") && named.contains("missing: rank 1 ("), "{named}");
    assert!((8..60).contains(&since.elapsed().as_secs()), "{:?}", since.elapsed());
    said.until("resume  mesh 1x2x1");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143));
}
