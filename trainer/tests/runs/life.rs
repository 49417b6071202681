//! Killed, stopped, moved.

use rustix::process::{Pid, Signal, kill_process};

use crate::place::Place;

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
}

/// The process in `… rank R (pid P) wrote its first blob …`.
fn pid(line: &str) -> u32 {
    line.split_once("(pid ").unwrap().1.split_once(')').unwrap().0.parse().unwrap()
}

#[test]
fn a_run_killed_in_mid_save_and_moved_twice_has_the_losses_of_one_that_was_left_alone() {
    let place = Place::new();
    let slow = ["debug.slow_save_step=4", "debug.slow_save=3s"];
    let on = [&["parallelism.mesh=1x2x1", "training.steps=7"], &slow[..]].concat();
    let mut launched = place.launch(&["-n", "2", "--max-restarts", "1"], "run", &on);
    let victim = pid(&launched.line("wrote its first blob"));
    assert_ne!(victim, launched.pid());
    assert_eq!(place.checkpoints("run"), [2], "the save of step 4 is not committed");
    signal(victim, Signal::KILL);
    launched
        .end()
        .is(0, &[&format!("(pid {victim}) was killed by signal 9 (SIGKILL); restarting all (1 of 1)")]);
    assert_eq!(place.checkpoints("run"), [2, 4, 6, 7]);

    let on = ["parallelism.mesh=1x1x2", "training.steps=11", "checkpoint.resume=require"];
    place.launch(&["-n", "2"], "run", &on).end().is(0, &[]);
    place.train("run", &["training.steps=12", "checkpoint.resume=require"]).is(0, &[]);
    place.is_undisturbed("run", 12);
    assert_eq!(place.samples("run", 12), 4, "begun, killed and begun again, moved, moved");
}

#[test]
fn a_run_that_is_asked_to_stop_saves_first() {
    let place = Place::new();
    let more = ["parallelism.mesh=2x1x1", "training.steps=4000", "checkpoint.interval=3000"];
    let mut launched = place.launch(&["-n", "2"], "run", &more);
    launched.line("2 workers");
    let metrics = place.path().join("run-metrics/rank_00000.jsonl");
    while !std::fs::read_to_string(&metrics).is_ok_and(|text| text.contains("\"step\":3,")) {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    signal(launched.pid(), Signal::TERM);
    launched.end().is(143, &["asked to stop by signal 15"]);
    let last = *place.curve("run").last_key_value().unwrap().0;
    assert_eq!(place.checkpoints("run"), [last]);
    assert!((3..3000).contains(&last));
    place.train("run", &[&format!("training.steps={}", last + 2), "checkpoint.resume=require"]).is(0, &[]);
    place.is_undisturbed("run", last + 2);
}

#[test]
fn threads_and_processes_have_the_same_losses() {
    let place = Place::new();
    let more = ["parallelism.mesh=2x2x2", "training.steps=3", "comm.transport=local"];
    place.train("threads", &more).is(0, &[]);
    place.launch(&["-n", "2"], "processes", &["parallelism.mesh=2x1x1", "training.steps=3"]).end().is(0, &[]);
    assert_eq!(place.curve("threads"), place.curve("processes"));
    place.is_undisturbed("threads", 3);
}
