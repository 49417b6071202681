//! Deaths of ranks and of whole launchers, on any machine.

use rustix::process::Signal;

use crate::launchers::Meeting;

/// Rank 2, the second of node 1, is killed in the first incarnation; the others would wait for ever.
const DEADLY: &str = "echo run $TORCHELASTIC_RESTART_COUNT; \
    if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then if [ $RANK = 2 ]; then kill -9 $$; fi; sleep 600; fi";

#[test]
fn a_rank_that_is_killed_on_one_machine_makes_all_start_again_everywhere_under_the_next_number() {
    let meeting = Meeting::of(3);
    let options = ["--max-restarts", "2", "--grace", "2s"];
    let start =
        |node: usize, ranks: &str| meeting.script(node, &[&options[..], &["-n", ranks]].concat(), DEADLY);
    let all = [start(0, "1"), start(1, "2"), start(2, "1")];
    for launcher in all {
        launcher.end().is(
            0,
            &[
                "rank 2 (pid ",
                ") of node 1 was killed by signal 9 (SIGKILL); restarting all (1 of 2)",
                "restart 1",
            ],
        );
    }
    for (node, rank) in [(0, 0), (1, 1), (1, 2), (2, 3)] {
        let log = meeting.log(node, rank);
        assert!(log.contains(&format!("=== rank {rank}, restart 1 ===\nrun 1\n")), "{log}");
        assert!(!log.contains("restart 2"), "{log}");
    }
}

#[test]
fn restarts_are_used_up_for_all_machines_alike() {
    let meeting = Meeting::of(2);
    let options = ["-n", "1", "--max-restarts", "1"];
    let script = "if [ $RANK = 1 ]; then exit 3; fi; sleep 600";
    let all = [meeting.script(0, &options, script), meeting.script(1, &options, script)];
    for launcher in all {
        launcher.end().is(3, &["of node 1 exited with code 3; giving up after 1 of 1 restarts"]);
    }
}

#[test]
fn a_signal_to_one_launcher_ends_all_machines() {
    for node in [0, 1] {
        let meeting = Meeting::of(2);
        let options = ["-n", "1", "--max-restarts", "3", "--grace", "2s"];
        let mut all = [0, 1].map(|node| meeting.script(node, &options, "sleep 600"));
        all.iter_mut().for_each(|launcher| drop(launcher.line("ranks ")));
        all[node].signal(Signal::TERM);
        for launcher in all {
            launcher.end().is(143, &[&format!("node {node} was asked to stop by signal 15")]);
        }
    }
}

const WAITS_ONCE: &str =
    "echo run $TORCHELASTIC_RESTART_COUNT; if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then sleep 600; fi";

#[test]
fn a_launcher_that_is_killed_ends_the_run_where_no_restart_is_left() {
    let meeting = Meeting::of(2);
    let mut first = meeting.script(0, &["-n", "1", "--grace", "2s"], WAITS_ONCE);
    let mut other = meeting.script(1, &["-n", "1"], WAITS_ONCE);
    first.line("ranks ");
    other.line("ranks ");
    let killed = other.pid();
    other.signal(Signal::KILL);
    other.end();
    first.end().is(
        75,
        &[
            "node 1 is gone",
            &format!("pid {killed}): its connection closed"),
            "giving up after 0 of 0 restarts",
        ],
    );
}

#[test]
fn a_machine_that_is_lost_may_come_back_and_else_is_waited_for_no_longer_than_was_said() {
    let meeting = Meeting::of(2);
    let options = ["-n", "1", "--max-restarts", "2", "--grace", "2s", "--rdzv-timeout", "60s"];
    let mut first = meeting.script(0, &options, WAITS_ONCE);
    let mut other = meeting.script(1, &options, WAITS_ONCE);
    first.line("ranks ");
    other.line("ranks ");
    other.signal(Signal::KILL);
    other.end();
    first.line("restarting all (1 of 2)");
    first.line("waits at 127.0.0.1:");
    meeting.script(1, &options, WAITS_ONCE).end().is(0, &["restart 1"]);
    first.end().is(0, &["restart 1"]);
    assert!(meeting.log(0, 0).contains("=== rank 0, restart 1 ===\nrun 1\n"));

    let meeting = Meeting::of(2);
    let options = ["-n", "1", "--max-restarts", "2", "--grace", "2s", "--rdzv-timeout", "10s"];
    let mut first = meeting.script(0, &options, WAITS_ONCE);
    let mut other = meeting.script(1, &options, WAITS_ONCE);
    first.line("ranks ");
    other.line("ranks ");
    other.signal(Signal::KILL);
    other.end();
    first.end().is(75, &["node 1 did not come to 127.0.0.1:", "its connection closed"]);
}

#[test]
fn the_others_wait_for_node_0_as_often_as_the_run_may_be_started_again() {
    let meeting = Meeting::of(2);
    let options = ["-n", "1", "--max-restarts", "1", "--grace", "2s"];
    let mut first = meeting.script(0, &options, "sleep 600");
    let mut other = meeting.script(1, &options, "sleep 600");
    first.line("ranks ");
    other.line("ranks ");
    first.signal(Signal::KILL);
    first.end();
    other.line("waiting for it to come back (1 of 1)");
    let mut again = meeting.script(0, &options, "sleep 600");
    again.line("ranks ");
    other.line("ranks ");
    again.signal(Signal::KILL);
    again.end();
    other.end().is(75, &["node 0 at 127.0.0.1:", "giving up after 1 of 1 restarts"]);
}

#[test]
fn a_launcher_that_falls_silent_is_taken_for_gone() {
    let meeting = Meeting::of(2);
    let options = ["-n", "1", "--grace", "2s", "--node-timeout", "5s"];
    let mut first = meeting.script(0, &options, "sleep 600");
    let mut other = meeting.script(1, &options, "sleep 600");
    first.line("ranks ");
    other.line("ranks ");
    other.signal(Signal::STOP);
    first.end().is(75, &["node 1 is gone", "nothing was heard from it for 5.0 s"]);
    other.signal(Signal::CONT);
    // It notices that it was given up as soon as it can, and ends its ranks.
    other.end().is(75, &["node 0 at 127.0.0.1:", "is gone: ", "giving up after 0 of 0 restarts"]);
}
