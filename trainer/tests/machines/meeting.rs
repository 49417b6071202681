//! How launchers come together, and who is not let in.

use std::{io::Write as _, net::TcpStream};

use crate::launchers::{Launcher, Meeting};

#[test]
fn ranks_are_numbered_machine_by_machine_and_meet_at_one_store() {
    let meeting = Meeting::of(2);
    let script = "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE \
                  $MASTER_ADDR:$MASTER_PORT $TORCHELASTIC_RUN_ID $TORCHELASTIC_RESTART_COUNT $CKPT_NODE";
    // The one that leads comes last, and torchrun's names are understood.
    let other = meeting.script(1, &["--nproc_per_node", "2"], script);
    let mut command = std::process::Command::new(crate::launchers::EXE);
    command.current_dir(meeting.path()).env_remove("LOG_RANK").env_remove("CKPT_NODE").args([
        "launch",
        "--nnodes=2",
        "--node_rank=0",
        "--nproc_per_node=1",
        "--rdzv_backend=c10d",
        "--rdzv_id=mine",
        "--master_addr=127.0.0.1",
        &format!("--master_port={}", meeting.port),
        "--log_dir=logs0",
        "--program=sh",
        "--",
        "-c",
        script,
    ]);
    let first = Launcher::start(command);
    let (first, other) = (first.end(), other.end());
    first.is(0, &["node 1 (", "is here, with 2 ranks", "node 0 of 2: 1 workers (pid ", "ranks 0..0 of 3"]);
    other.is(0, &["node 1 of 2: 2 workers (pids ", "ranks 1..2 of 3", "restart 0"]);
    let mut lines: Vec<String> = first.out.lines().chain(other.out.lines()).map(str::to_owned).collect();
    lines.sort_unstable();
    let store = lines[0].split_whitespace().nth(4).unwrap().to_owned();
    assert!(store.starts_with("127.0.0.1:"), "{lines:?}");
    for (rank, (line, begin)) in lines.iter().zip(["0/3 0/1 0/2", "1/3 0/2 1/2", "2/3 1/2 1/2"]).enumerate() {
        let node = usize::from(rank > 0);
        assert!(line.starts_with(&format!("[{rank}] {begin} {store} mine 0 node{node} (")), "{lines:?}");
    }
}

#[test]
fn machines_that_never_come_are_named_to_all_that_did() {
    let meeting = Meeting::of(4);
    let options = ["-n", "1", "--rdzv-timeout", "8s"];
    let others = [meeting.script(1, &["-n", "1"], "true"), meeting.script(3, &["-n", "1"], "true")];
    let mut first = meeting.script(0, &options, "true");
    // What is no launcher counts for nothing, and disturbs nobody.
    first.line("node 0 waits at 127.0.0.1:");
    TcpStream::connect(("127.0.0.1", meeting.port)).unwrap().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let silent = TcpStream::connect(("127.0.0.1", meeting.port)).unwrap();
    let answer = first.end();
    drop(silent);
    assert_eq!(answer.code, Some(75), "{}", answer.err);
    assert!(
        ["node 2 did not come to 127.0.0.1:", "nodes 2 and 3 did not", "nodes 1, 2 and 3 did not"]
            .iter()
            .any(|said| answer.err.contains(said)),
        "{}",
        answer.err
    );
    assert!(
        answer.err.contains("hint   start `ckpt-train launch` with the same arguments"),
        "{}",
        answer.err
    );
    for other in others {
        let said = other.end();
        assert_eq!(said.code, Some(75), "{}", said.err);
        assert!(said.err.contains(" did not come to 127.0.0.1:"), "{}", said.err);
    }
}

#[test]
fn a_machine_that_finds_no_node_0_says_where_it_looked() {
    let meeting = Meeting::of(2);
    let answer = meeting.script(1, &["-n", "1", "--rdzv-timeout", "1s"], "true").end();
    answer
        .is(75, &["no launcher of node 0 answers at 127.0.0.1:", "hint   start node 0 with the same --rdzv"]);
}

#[test]
fn launchers_that_do_not_fit_are_refused_and_the_right_one_is_waited_for() {
    let meeting = Meeting::of(2);
    let options = ["-n", "1", "--run-id", "mine"];
    let mut first = meeting.script(0, &options, "echo right");
    first.line("node 0 waits at 127.0.0.1:");
    let refused = |options: &[&str], script: &str, code: i32, words: &[&str]| {
        meeting.script(1, options, script).end().is(code, words);
    };
    refused(
        &["-n", "1"],
        "echo wrong",
        78,
        &["it would run `sh -c echo wrong`, and node 0 runs `sh -c echo right`"],
    );
    refused(
        &["-n", "1", "--max-restarts", "2"],
        "echo right",
        78,
        &["--max-restarts is 2 there, and 0 on node 0"],
    );
    refused(
        &["-n", "1", "--run-id", "other"],
        "echo right",
        78,
        &["--run-id is other there, and mine on node 0"],
    );
    let taken = meeting.script(0, &options, "echo right").end();
    taken.is(11, &["127.0.0.1:", "is taken (node 0 listens there)", "hint   end the launcher that has it"]);
    meeting.script(1, &["-n", "1"], "echo right").end().is(0, &[]);
    first.end().is(0, &["refused node 1 (", "node 1 (", "is here, with 1 ranks"]);
}

#[test]
fn a_number_that_is_taken_and_options_that_contradict_are_refused() {
    let meeting = Meeting::of(3);
    let mut first = meeting.script(0, &["-n", "1"], "true");
    let one = meeting.script(1, &["-n", "1"], "true");
    first.line("is here, with 1 ranks");
    let twice = meeting.script(1, &["-n", "1"], "true").end();
    twice.is(11, &[&format!("--node-rank 1 is taken by pid {} on ", one.pid()), "its own --node-rank"]);
    let last = meeting.script(2, &["-n", "1"], "true");
    for launcher in [first, one, last] {
        launcher.end().is(0, &[]);
    }
    let alone = |options: &[&str]| {
        let mut command = std::process::Command::new(crate::launchers::EXE);
        command.current_dir(meeting.path()).args(["launch", "-n", "1"]).args(options);
        Launcher::start(command).end()
    };
    alone(&["--nnodes", "2", "--program", "true"])
        .is(78, &["--nnodes 2, but no --node-rank", "$SLURM_NODEID"]);
    alone(&["--nnodes", "2", "--node-rank", "1", "--program", "true"]).is(78, &["no --rdzv was given"]);
    alone(&["--node-rank", "1", "--program", "true"]).is(78, &["--node-rank 1, but --nnodes is 1"]);
    let beyond = ["--nnodes", "2", "--node-rank", "2", "--rdzv", "h:1", "--program", "true"];
    alone(&beyond).is(78, &["--node-rank 2 is none of the 2 machines"]);
    alone(&["--nnodes", "1:4", "--program", "true"]).is(2, &["is a range"]);
    let elsewhere = ["--nnodes", "2", "--node-rank", "0", "--rdzv", "192.0.2.1:29400", "--program", "true"];
    alone(&elsewhere).is(78, &["192.0.2.1:29400 is no address of this machine"]);
}
