//! Training on several machines.

use std::{collections::BTreeMap, fs, path::Path};

use crate::launchers::{Launcher, Meeting};

const RUN: &str = "\
data.folder = \"text\"
[model]
dim = 32
layers = 4
heads = 8
kv_heads = 4
head_dim = 8
ffn = 64
[training]
steps = 6
global_batch = 8
seq_len = 16
[exact]
virtual_tp = 2
[checkpoint]
interval = 2
[comm]
start_timeout = \"60s\"
step_timeout = \"60s\"
";

fn place(nodes: usize) -> Meeting {
    let meeting = Meeting::of(nodes);
    fs::create_dir(meeting.path().join("text")).unwrap();
    let byte = |at: u32| b"etaoin shrdlu\n"[(at.wrapping_mul(2_654_435_761) >> 13) as usize % 14];
    fs::write(meeting.path().join("text/a.txt"), (0..20_000).map(byte).collect::<Vec<_>>()).unwrap();
    fs::write(meeting.path().join("run.toml"), RUN).unwrap();
    meeting
}

fn start(meeting: &Meeting, node: usize, options: &[&str], settings: &[&str]) -> Launcher {
    let mut command = meeting.command(node);
    command.args(options).args(["--", "-c", "run.toml"]).args(settings);
    Launcher::start(command)
}

fn curve(folder: &Path) -> BTreeMap<u64, u32> {
    trainer::metrics::curve(&folder.join("metrics/rank_00000.jsonl"), "loss_metrics/global_avg_loss").unwrap()
}

#[test]
fn a_run_on_two_machines_loses_a_rank_on_the_second_and_has_the_losses_of_one_process() {
    let meeting = place(2);
    let dies = ["--parallelism.mesh=2x1x2", "--debug.die_step=4", "--debug.die_rank=3"];
    let options = ["-n", "2", "--max-restarts", "1", "--grace", "20s"];
    let all = [0, 1].map(|node| start(&meeting, node, &options, &dies));
    for launcher in all {
        let words = ["rank 3 (pid ", ") of node 1 was killed by signal 9 (SIGKILL); restarting all (1 of 1)"];
        launcher.end().is(0, &words);
    }
    let still = place(1);
    let mut command = std::process::Command::new(crate::launchers::EXE);
    command.current_dir(still.path()).args(["train", "-c", "run.toml"]);
    for name in ["RANK", "WORLD_SIZE", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"] {
        command.env_remove(name);
    }
    Launcher::start(command).end().is(0, &[]);
    let curve = (curve(meeting.path()), curve(still.path()));
    assert_eq!(curve.0.len(), 6);
    assert_eq!(curve.0, curve.1);
}

#[test]
fn configurations_that_differ_and_meshes_that_do_not_lie_well_are_refused_before_a_rank_starts() {
    let meeting = place(2);
    let mut first = start(&meeting, 0, &["-n", "1"], &["--parallelism.mesh=1x1x2"]);
    first.line("node 0 waits at");
    let longer = ["--parallelism.mesh=1x1x2", "--training.steps=9"];
    start(&meeting, 1, &["-n", "1"], &longer)
        .end()
        .is(78, &["its configuration differs: ", "training.steps is 9 there, and 6 on node 0"]);
    let torn = start(&meeting, 1, &["-n", "1"], &["--parallelism.mesh=1x1x2"]);
    for launcher in [first, torn] {
        let answer = launcher.end();
        answer
            .is(78, &["tp group of ranks 0-1 lies on node0 (", "parallelism.tp_across_nodes=true allows it"]);
        assert!(!answer.err.contains("workers ("), "{}", answer.err);
    }
    let all = [0, 1].map(|node| start(&meeting, node, &["-n", "2"], &["--parallelism.mesh=2x1x1"]));
    for launcher in all {
        launcher.end().is(78, &["parallelism.mesh=2x1x1 has", "= 2 ranks, but there are 4 processes"]);
    }
}
