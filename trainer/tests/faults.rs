//! Ranks that hang and die, started by our launcher and by torchrun: who is missing is named, the scene is written, and a run
//! that is started again goes on to the same bits.

#[expect(dead_code, reason = "other tests use the rest")]
mod training;

use std::{env, fs, time::Instant};

use training::{Answer, EXE, Place, undisturbed};

/// What gloo says that helps nobody.
const NOISE: &[&str] = &["GLHF", "Check the logs", ".cc:", "typically caused"];
const FOUR: &str = "--training.steps=4";

#[test]
fn a_rank_that_hangs_is_named_in_time_and_the_run_started_again_goes_on_to_the_same_bits() {
    let place = Place::new();
    let begun = Instant::now();
    let hang = ["--debug.hang_step=4", "--debug.hang_rank=1", "--comm.step_timeout=2s"];
    let answer = place.launch(
        &["-n", "2", "--max-restarts", "1", "--grace", "1s"],
        &[&["--parallelism.mesh=1x2x1", FOUR][..], &hang[..]].concat(),
    );
    answer.is(
        0,
        &[
            "missing: rank 1 (",
            "a peer did not arrive, died, or did not answer in time); restarting all (1 of 1)",
            "resume  mesh 1x2x1, from checkpoint",
        ],
    );
    answer.leaves_out(NOISE);
    assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
    let scene = fs::read_to_string(place.path().join("dumps/rank_00000.scene.txt")).unwrap();
    assert!(scene.contains("failed at") && scene.contains("rank 1"), "{scene}");
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
