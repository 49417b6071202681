//! The launcher with workers that finish, die, hang, and must not be started again. Workers are small shell scripts.

#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::{
    fs,
    io::{BufRead, BufReader},
    net::TcpListener,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

const EXE: &str = env!("CARGO_BIN_EXE_ckpt-train");

struct Answer {
    code: Option<i32>,
    out: String,
    err: String,
    took: Duration,
}

impl Answer {
    fn says(&self, words: &[&str]) {
        for word in words {
            assert!(self.err.contains(word), "{word:?} is not in\n{}\n{}", self.err, self.out);
        }
    }
}

fn command(folder: &Path, options: &[&str], script: &str) -> Command {
    let mut command = Command::new(EXE);
    command
        .current_dir(folder)
        .env_remove("LOG_RANK")
        .env_remove("OMP_NUM_THREADS")
        .arg("launch")
        .args(options);
    command.args(["--program", "sh", "--", "-c", script]);
    command
}

fn launch(folder: &Path, options: &[&str], script: &str) -> Answer {
    let begun = Instant::now();
    let output = command(folder, options, script).output().unwrap();
    Answer {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
        took: begun.elapsed(),
    }
}

fn log(folder: &Path, rank: usize) -> String {
    fs::read_to_string(folder.join(format!("logs/rank_{rank:05}.log"))).unwrap()
}

#[test]
fn ranks_are_told_who_they_are_and_their_lines_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let script = "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR \
                  $TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_RUN_ID $OMP_NUM_THREADS $TORCHELASTIC_USE_AGENT_STORE; test $MASTER_PORT -gt 0; echo bad >&2";
    let answer = launch(folder.path(), &["--nproc", "2", "--run-id", "mine"], script);
    assert_eq!(answer.code, Some(0), "{}", answer.err);
    let mut lines: Vec<&str> = answer.out.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[0] 0/2 0/2 0 127.0.0.1 0 mine 1 True", "[1] 1/2 1/2 0 127.0.0.1 0 mine 1 True"]);
    answer.says(&["[0] bad", "[1] bad", "launch  2 workers (pids "]);
    let kept = log(folder.path(), 1);
    assert!(kept.starts_with("=== rank 1, restart 0 ===\n") && kept.contains("1/2 1/2"), "{kept}");
    let quiet = launch(folder.path(), &["-n", "2", "--show", "1"], "echo here");
    assert_eq!(quiet.out, "[1] here\n");
}

#[test]
fn a_rank_that_is_killed_makes_all_start_again_under_the_next_number() {
    let folder = tempfile::tempdir().unwrap();
    let script = "echo run $TORCHELASTIC_RESTART_COUNT; \
                  if [ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then kill -9 $$; fi; \
                  if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then sleep 60; fi";
    let answer = launch(folder.path(), &["-n", "3", "--max-restarts", "2", "--grace", "2s"], script);
    assert_eq!(answer.code, Some(0), "{}", answer.err);
    answer.says(&[
        "launch  rank 1 (pid ",
        "was killed by signal 9 (SIGKILL); restarting all (1 of 2)",
        "restart 1",
    ]);
    assert!(log(folder.path(), 2).contains("=== rank 2, restart 1 ===\nrun 1\n"));
    assert!(
        answer.took < Duration::from_secs(30),
        "the others were ended, not waited for: {:?}",
        answer.took
    );
}

#[test]
fn restarts_are_used_up_and_the_last_death_is_the_answer() {
    let folder = tempfile::tempdir().unwrap();
    let answer = launch(folder.path(), &["-n", "2", "--max-restarts", "2"], "exit 3");
    assert_eq!(answer.code, Some(3));
    answer.says(&[
        "exited with code 3; restarting all (1 of 2)",
        "(2 of 2)",
        "giving up after 2 of 2 restarts",
    ]);
    let killed = launch(folder.path(), &["-n", "1"], "kill -SEGV $$");
    assert_eq!(killed.code, Some(128 + 11));
    killed.says(&["was killed by signal 11 (SIGSEGV); giving up after 0 of 0 restarts"]);
}

#[test]
fn a_rank_that_does_not_end_when_asked_is_killed_after_the_grace_period() {
    let folder = tempfile::tempdir().unwrap();
    let script = "if [ $RANK = 0 ]; then sleep 0.5; exit 4; fi; trap '' TERM; echo stubborn; while true; do sleep 0.1; done";
    let answer = launch(folder.path(), &["-n", "2", "--grace", "1s"], script);
    assert_eq!(answer.code, Some(4));
    answer.says(&["rank 0 (pid ", "exited with code 4"]);
    assert!((1..30).contains(&answer.took.as_secs()), "{:?}", answer.took);
}

#[test]
fn what_would_fail_again_is_not_started_again() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("run.toml"),
        "data.folder = \"text\"\n[model]\ndim = 8\nlayers = 1\nheads = 2\nffn = 8\n",
    )
    .unwrap();
    // Passes the launcher's own check, which does not read the data, and is refused by the worker.
    let run = |arguments: &[&str]| {
        let output = Command::new(EXE).current_dir(folder.path()).args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, said) = run(&["launch", "-n", "1", "--max-restarts", "3", "--", "-c", "run.toml"]);
    assert_eq!(code, Some(65), "{said}");
    assert!(
        said.contains("exited with code 65 (the training data is missing")
            && said.contains("; not restarting"),
        "{said}"
    );
    let (code, said) = run(&["launch", "-n", "1", "--", "-c", "run.toml", "--training.steps=none"]);
    assert_eq!(code, Some(78));
    assert!(said.contains("`training.steps` is \"none\"") && !said.contains("workers"), "{said}");
}

#[test]
fn ports_that_are_taken_and_programs_that_do_not_exist_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let answer = launch(folder.path(), &["-n", "1", "--port", &port], "true");
    assert_eq!(answer.code, Some(11));
    answer.says(&[&format!("error  port {port} of 127.0.0.1 is taken"), "hint   choose another --port"]);
    let output = Command::new(EXE)
        .current_dir(folder.path())
        .args(["launch", "-n", "1", "--program", "no-such-program"])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(10), "{said}");
    assert!(said.contains("cannot run no-such-program"), "{said}");
}

/// A launcher whose workers say their process ids and then sleep.
fn sleeping(folder: &Path, script: &str) -> (Child, Vec<Pid>) {
    let mut child =
        command(folder, &["-n", "2", "--grace", "1s"], script).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let pid = |line: String| Pid::from_raw(line.split_whitespace().nth(1).unwrap().parse().unwrap()).unwrap();
    let pids = lines.take(2).map(|line| pid(line.unwrap())).collect();
    (child, pids)
}

fn gone(pid: Pid) -> bool {
    let until = Instant::now() + Duration::from_secs(20);
    while Instant::now() < until {
        if test_kill_process(pid).is_err() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

#[test]
fn a_signal_to_the_launcher_ends_all_workers_and_is_its_answer() {
    let folder = tempfile::tempdir().unwrap();
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let (mut launcher, pids) = sleeping(folder.path(), "echo $$; sleep 60");
        kill_process(Pid::from_child(&launcher), signal).unwrap();
        assert_eq!(launcher.wait().unwrap().code(), Some(code));
        assert!(pids.into_iter().all(gone));
    }
}

#[test]
fn no_worker_outlives_a_launcher_that_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let (mut launcher, pids) =
        sleeping(folder.path(), "trap '' TERM; echo $$; while true; do sleep 0.1; done");
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    assert!(pids.into_iter().all(gone));
}
